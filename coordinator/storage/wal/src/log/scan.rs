//! Scan of a segment's records in order, with a verdict on the end: clean, torn or damaged. Pure.
//!
//! A power loss may leave any part of an unflushed write on disk; recovery cuts the unreadable part, because
//! the log never acknowledged the write. Recovery never cuts a flushed record: see `frame`.

use super::frame::{self, Chain, FRAME_ALIGN, Frame, SegmentKey};
use super::segment::FIRST_RECORD_AT;
use rowlock_env::decides;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No bytes of this segment follow the last record.
    Clean,
    /// Leftovers of an unfinished write follow the last record.
    Torn,
    /// A flushed record is unreadable, according to the intact record at `intact_at`.
    Damaged {
        /// Offset of a record written after the flush of the unreadable record.
        intact_at: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Offset behind the last readable record.
    pub end: u64,
    /// Link for the next record.
    pub chain: Chain,
    pub ending: Ending,
}

/// Walks the chain in `bytes` (a whole segment) from the link `first`, and passes each record with its offset
/// to `visit`.
pub fn scan<E>(
    bytes: &[u8],
    key: SegmentKey,
    first: Chain,
    mut visit: impl FnMut(u64, Frame<'_>) -> Result<(), E>,
) -> Result<Scan, E> {
    let mut at = FIRST_RECORD_AT as usize;
    let mut chain = first;
    while let Some(frame) = bytes.get(at..).and_then(|rest| frame::read(rest, key)) {
        if decides!("frame-chain-breaks", frame.previous != chain) {
            break;
        }
        visit(at as u64, frame)?;
        at += frame.occupied();
        assert!(at <= bytes.len() && at.is_multiple_of(FRAME_ALIGN), "a record ends in its segment, aligned");
        chain = frame.chain;
    }
    Ok(Scan { end: at as u64, chain, ending: ending(bytes, key, at) })
}

fn ending(bytes: &[u8], key: SegmentKey, end: usize) -> Ending {
    let mut remains = false;
    let mut at = end;
    while at + frame::FRAME_HEADER_BYTES <= bytes.len() {
        if let Some(frame) = frame::read(&bytes[at..], key) {
            if decides!("damage-was-flushed", frame.flushed as usize > end) {
                return Ending::Damaged { intact_at: at as u64 };
            }
            remains = true;
        }
        at += FRAME_ALIGN;
    }
    // A half-written record has no valid CRC: the segment's number at a header's position suffices for the
    // report.
    let header = bytes.get(end..end + frame::FRAME_HEADER_BYTES);
    let begun = header.is_some_and(|h| h[12..16] == key.segment.to_le_bytes());
    if decides!("remains-are-torn", remains || begun) { Ending::Torn } else { Ending::Clean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frame::FrameContext;
    use rowlock_world::spoilt::Spoiler;
    use std::convert::Infallible;

    const KEY: SegmentKey = SegmentKey { segment: 5, salt: 21 };
    const FIRST: Chain = Chain(77);
    const SIZE: usize = 16 << 10;

    /// Makes a segment of batches, each flushed before the next batch; returns the bytes and the records'
    /// offsets.
    fn segment(batches: &[&[&[u8]]]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = vec![0; FIRST_RECORD_AT as usize];
        let (mut chain, mut offsets) = (FIRST, Vec::new());
        for batch in batches {
            let flushed = bytes.len() as u32;
            for body in *batch {
                offsets.push(bytes.len());
                chain =
                    frame::write(&mut bytes, FrameContext { key: KEY, previous: chain, flushed }, 1, body);
            }
        }
        bytes.resize(SIZE, 0);
        (bytes, offsets)
    }

    fn bodies(bytes: &[u8]) -> (Vec<Vec<u8>>, Scan) {
        let mut found = Vec::new();
        let scan = scan::<Infallible>(bytes, KEY, FIRST, |_, frame| {
            found.push(frame.body.to_vec());
            Ok(())
        });
        (found, scan.expect("infallible"))
    }

    #[test]
    fn an_intact_segment_ends_cleanly() {
        let (bytes, _) = segment(&[&[b"a", b"bb"], &[b"ccc"]]);
        let (found, scan) = bodies(&bytes);
        assert_eq!(found, [b"a".to_vec(), b"bb".to_vec(), b"ccc".to_vec()]);
        assert_eq!(scan.ending, Ending::Clean);
    }

    #[test]
    fn a_torn_tail_is_cut_at_every_byte_of_the_last_record() {
        let (bytes, offsets) = segment(&[&[b"a"], &[b"a longer last record"]]);
        let last = offsets[1];
        for cut in last..last + frame::FRAME_HEADER_BYTES + 20 {
            let mut torn = bytes.clone();
            torn[cut..].fill(0);
            let (found, scan) = bodies(&torn);
            assert_eq!(found, [b"a".to_vec()], "cut at {cut}");
            assert_eq!(scan.end as usize, last);
            assert!(matches!(scan.ending, Ending::Clean | Ending::Torn));
        }
    }

    #[test]
    fn a_hole_in_the_unflushed_batch_before_intact_records_is_torn() {
        let (mut bytes, offsets) = segment(&[&[b"a"], &[b"b", b"c", b"d"]]);
        bytes[offsets[2]..offsets[3]].fill(0);
        let (found, scan) = bodies(&bytes);
        assert_eq!(found, [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(scan.ending, Ending::Torn);
    }

    #[test]
    fn a_flipped_bit_in_a_flushed_record_is_damage() {
        let (bytes, offsets) = segment(&[&[b"a", b"b"], &[b"c"], &[b"d"]]);
        for at in offsets[0]..offsets[2] + frame::FRAME_HEADER_BYTES + 1 {
            let mut damaged = bytes.clone();
            if (at - FIRST_RECORD_AT as usize) % 32 > frame::FRAME_HEADER_BYTES {
                continue; // padding
            }
            damaged[at] ^= 0x10;
            let intact_at = if at < offsets[2] { offsets[2] } else { offsets[3] };
            let (_, scan) = bodies(&damaged);
            assert_eq!(scan.ending, Ending::Damaged { intact_at: intact_at as u64 }, "byte {at}");
        }
    }

    #[test]
    fn a_zeroed_block_in_the_middle_is_damage() {
        let (mut bytes, offsets) = segment(&[&[b"a"], &[b"b"], &[b"c"]]);
        bytes[offsets[1]..offsets[2]].fill(0);
        assert_eq!(bodies(&bytes).1.ending, Ending::Damaged { intact_at: offsets[2] as u64 });
    }

    #[test]
    fn records_of_a_recycled_segments_former_life_are_ignored() {
        let (old, _) = segment(&[&[b"old 1"], &[b"old 2"], &[b"old 3"]]);
        // Recycles the file under another number: a new record first, then old records at aligned offsets.
        let (key, first) = (SegmentKey { segment: 6, salt: 22 }, Chain(99));
        let mut new = Vec::new();
        let place = FrameContext { key, previous: first, flushed: FIRST_RECORD_AT as u32 };
        frame::write(&mut new, place, 1, b"new 1");
        let mut bytes = old;
        bytes[FIRST_RECORD_AT as usize..][..new.len()].copy_from_slice(&new);
        let mut found = Vec::new();
        let scan = scan::<Infallible>(&bytes, key, first, |_, frame| {
            found.push(frame.body.to_vec());
            Ok(())
        });
        assert_eq!(found, [b"new 1".to_vec()]);
        assert_eq!(scan.expect("infallible").ending, Ending::Clean);
    }

    #[test]
    fn a_cut_record_behind_the_new_end_is_not_read_again() {
        // First life: a batch of b and c, with b torn and c intact. Second life: another record over b.
        let (bytes, offsets) = segment(&[&[b"a"], &[b"b", b"c"]]);
        let cut = offsets[1];
        let chain = frame::read(&bytes[offsets[0]..], KEY).expect("intact").chain;
        let mut new = Vec::new();
        let place = FrameContext { key: KEY, previous: chain, flushed: cut as u32 };
        frame::write(&mut new, place, 1, b"x");
        let mut again = bytes;
        again[cut..cut + new.len()].copy_from_slice(&new);
        let (found, scan) = bodies(&again);
        assert_eq!(found, [b"a".to_vec(), b"x".to_vec()]);
        assert_eq!(scan.ending, Ending::Torn);
    }

    #[test]
    fn a_spoilt_segment_yields_a_prefix_of_the_written_records() {
        let (good, _) = segment(&[&[b"a", b"bb"], &[b"ccc", b"dddd"], &[b"eeeee"]]);
        let (written, _) = bodies(&good);
        let used = good.iter().rposition(|byte| *byte != 0).unwrap();
        let (mut spoiler, mut less) = (Spoiler::new(1), 0);
        for _ in 0..2_000 {
            let mut bytes = spoiler.spoil(&good[FIRST_RECORD_AT as usize..=used]);
            bytes.splice(0..0, good[..FIRST_RECORD_AT as usize].iter().copied());
            let (found, scan) = bodies(&bytes);
            assert!(written.starts_with(&found), "{found:?}");
            assert!(scan.end <= bytes.len() as u64 + frame::FRAME_HEADER_BYTES as u64);
            less += usize::from(found.len() < written.len());
        }
        assert!(less > 1_000, "{less}");
    }
}
