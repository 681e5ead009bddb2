//! Bytes of a record in a segment: a header with the chain to the preceding record, and the body. Pure.
//!
//! ```text
//!  0  crc      u32  CRC-32 of everything behind it, up to the end of the body, begun with the segment's salt
//!  4  len      u32  bytes of the body
//!  8  previous u32  `crc` of the record before (of the segment's header, for the first): the chain
//! 12  segment  u32  low half of the segment's sequence number: a recycled segment's old records never match
//! 16  flushed  u32  offset up to which this segment was known to be on disk when this record was written
//! 20  kind     u8
//! 21  zero     3 bytes
//! 24  body, then zeroes up to a multiple of 8
//! ```
//!
//! Little endian. `flushed` distinguishes a torn write from damage: a record below the `flushed` offset of
//! any later intact record had reached the disk, so an unreadable record there is a loss by the disk.

use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};

pub const FRAME_HEADER_BYTES: usize = 24;
/// Alignment of records, in bytes.
pub const FRAME_ALIGN: usize = 8;
/// Largest body. The proposer limits an entry far below this bound; recovery trusts no larger length.
pub const BODY_MAX_BYTES: usize = 256 << 20;

// Alignment of the next record, and a u32 for the length of a body.
const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN));
const _: () = assert!(BODY_MAX_BYTES <= u32::MAX as usize);

/// Link of a record: its CRC, repeated in the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentKey {
    /// Low half of the segment's sequence number.
    pub segment: u32,
    /// Random value from the segment's header: a client cannot forge a record inside a znode.
    pub salt: u32,
}

/// Position of a new record in the segment.
#[derive(Clone, Copy, Debug)]
pub struct FrameContext {
    pub key: SegmentKey,
    /// Link of the preceding record.
    pub previous: Chain,
    /// Offset up to which the segment is on disk.
    pub flushed: u32,
}

/// A record with a verified CRC; the caller checks the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub chain: Chain,
    /// Link of the preceding record, according to the header.
    pub previous: Chain,
    pub flushed: u32,
    pub kind: u8,
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Returns the record's size in the segment, in bytes.
    pub fn occupied(&self) -> usize {
        occupied(self.body.len())
    }
}

/// Returns the size in a segment of a record with a body of `len` bytes.
pub fn occupied(len: usize) -> usize {
    let room = (FRAME_HEADER_BYTES + len).next_multiple_of(FRAME_ALIGN);
    debug_assert!(room >= FRAME_HEADER_BYTES + len, "a record has room for its header and its body");
    room
}

/// Appends a record to `out` and returns its link for the next record.
pub fn write(out: &mut Vec<u8>, place: FrameContext, kind: u8, body: &[u8]) -> Chain {
    assert!(body.len() <= BODY_MAX_BYTES, "a record of {} bytes", body.len());
    let start = out.len();
    let len = u32::try_from(body.len()).expect("Invariant: BODY_MAX_BYTES fits");
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&place.previous.0.to_le_bytes());
    out.extend_from_slice(&place.key.segment.to_le_bytes());
    out.extend_from_slice(&place.flushed.to_le_bytes());
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(body);
    let crc = crc(&out[start + 4..], place.key.salt);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + occupied(body.len()), 0);
    debug_assert_eq!(
        read(&out[start..], place.key).map(|frame| (frame.chain, frame.previous, frame.flushed, frame.body)),
        Some((Chain(crc), place.previous, place.flushed, body)),
        "a record is read back as it was written"
    );
    Chain(crc)
}

fn crc(bytes: &[u8], salt: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

/// Returns the record at the start of `bytes`, if intact and written for the segment with `key`.
pub fn read(bytes: &[u8], key: SegmentKey) -> Option<Frame<'_>> {
    let header = bytes.get(..FRAME_HEADER_BYTES)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if decides!("frame-is-of-other-segment", word(12) != key.segment) {
        return None;
    }
    let len = word(4) as usize;
    if len > BODY_MAX_BYTES || header[21..24] != [0; 3] {
        return None;
    }
    let end = FRAME_HEADER_BYTES + len;
    let is_whole = |end| mutant::is(Mutant::ChecksumIgnored) || crc(&bytes[4..end], key.salt) == word(0);
    if decides!("frame-is-torn", bytes.len() < occupied(len) || !is_whole(end)) {
        return None;
    }
    Some(Frame {
        chain: Chain(word(0)),
        previous: Chain(word(8)),
        flushed: word(16),
        kind: header[20],
        body: &bytes[FRAME_HEADER_BYTES..end],
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const KEY: SegmentKey = SegmentKey { segment: 7, salt: 0x1357_9bdf };
    const PLACE: FrameContext = FrameContext { key: KEY, previous: Chain(0xaabb_ccdd), flushed: 4096 };

    #[test]
    fn a_written_record_is_read_back() {
        for len in [0, 1, 7, 8, 9, 1000] {
            let body = vec![0x5a; len];
            let mut out = vec![1, 2, 3];
            let chain = write(&mut out, PLACE, 3, &body);
            let frame = read(&out[3..], KEY).expect("is intact");
            assert_eq!(frame, Frame { chain, previous: PLACE.previous, flushed: 4096, kind: 3, body: &body });
            assert_eq!(out.len() - 3, frame.occupied());
            assert_eq!(frame.occupied() % FRAME_ALIGN, 0);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_before_the_padding_makes_it_invalid() {
        let mut out = Vec::new();
        write(&mut out, PLACE, 3, b"some body");
        for bit in 0..(FRAME_HEADER_BYTES + 9) * 8 {
            let mut damaged = out.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&damaged, KEY), None, "bit {bit}");
        }
    }

    #[test]
    fn a_record_of_another_segment_is_not_one_of_this() {
        let mut out = Vec::new();
        write(&mut out, PLACE, 3, b"");
        assert_eq!(read(&out, SegmentKey { segment: 8, ..KEY }), None);
        assert_eq!(read(&out, SegmentKey { salt: 8, ..KEY }), None);
    }

    pub(crate) const GOLDEN: &str = "da3118e805000000ddccbbaa07000000001000000300000068656c6c6f000000";

    #[test]
    fn the_bytes_on_disk_are_these() {
        let mut out = Vec::new();
        write(&mut out, PLACE, 3, b"hello");
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
    }
}
