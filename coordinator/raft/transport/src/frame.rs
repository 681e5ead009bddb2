//! Frames: the envelope of all traffic between nodes.
//!
//! ```text
//! length: u32   of all bytes behind the checksum
//! crc32:  u32   of all bytes behind itself
//! id:     u64   the request's number; 0 for the handshake and for pings
//! body          bincode
//! ```
//! Big endian. Part of the versioned protocol (`rowlock_state::version`); golden file `testdata/`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rowlock_env::decides;

/// Length of the header in front of a frame's body.
pub const HEADER_BYTES: usize = 16;
/// Header bytes included in the frame's length: the id.
const COUNTED_HEADER_BYTES: usize = 8;
/// Least room of a read buffer.
const READ_STEP_BYTES: usize = 64 << 10;
/// Greatest room of a read buffer, however long the announced frame is.
const READ_STEP_MAX_BYTES: usize = 1 << 20;

/// Number that ties an answer to its request on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Id of handshakes, pings and their answers.
    pub const NONE: RequestId = RequestId(0);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub id: RequestId,
    pub body: Bytes,
}

/// Error in the framing. The connection must close: the start of the next frame is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {len} bytes; at most {max} are accepted")]
    TooLarge { len: usize, max: usize },
    #[error("a frame of {len} bytes cannot be")]
    TooSmall { len: usize },
    #[error("a frame's checksum does not match")]
    Corrupt,
}

/// Appends a frame to the bytes that are queued for writing.
///
/// The body must not be longer than `limits::PEER_FRAME_MAX_BYTES`; the encoder checks the length.
pub fn push(out: &mut BytesMut, id: RequestId, body: &[u8]) {
    let len = body.len() + COUNTED_HEADER_BYTES;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&id.0.to_be_bytes());
    crc.update(body);
    out.reserve(HEADER_BYTES + body.len());
    out.put_u32(
        u32::try_from(len).expect("Invariant: encoded bodies are checked against PEER_FRAME_MAX_BYTES"),
    );
    out.put_u32(crc.finalize());
    out.put_u64(id.0);
    out.put_slice(body);
}

/// Cuts received bytes into frames.
#[derive(Debug)]
pub struct FrameReader {
    buf: BytesMut,
    body_max_bytes: usize,
}

impl FrameReader {
    /// Creates a reader that accepts bodies of at most `body_max_bytes`.
    pub fn new(body_max_bytes: usize) -> Self {
        FrameReader { buf: BytesMut::new(), body_max_bytes }
    }

    /// Changes the limit from the next frame on.
    pub fn set_body_max_bytes(&mut self, body_max_bytes: usize) {
        self.body_max_bytes = body_max_bytes;
    }

    /// Returns the buffer to read into, with spare room. Memory grows with the received bytes, not with the
    /// announced length.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing =
            self.announced().map_or(0, |len| (len + COUNTED_HEADER_BYTES).saturating_sub(self.buf.len()));
        self.buf.reserve(missing.clamp(READ_STEP_BYTES, READ_STEP_MAX_BYTES));
        &mut self.buf
    }

    pub fn held_bytes(&self) -> usize {
        self.buf.capacity()
    }

    /// Removes and returns the next complete frame, or `None` while bytes are missing.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(len) = self.announced() else { return Ok(None) };
        let max = self.body_max_bytes + COUNTED_HEADER_BYTES;
        if decides!("peer-frame-is-too-long", len > max) {
            return Err(FrameError::TooLarge { len, max });
        }
        if len < COUNTED_HEADER_BYTES {
            return Err(FrameError::TooSmall { len });
        }
        if self.buf.len() < len + 8 {
            return Ok(None);
        }
        let mut frame = self.buf.split_to(len + 8);
        frame.advance(4);
        let crc = frame.get_u32();
        if decides!("peer-frame-is-damaged", crc32fast::hash(&frame) != crc) {
            return Err(FrameError::Corrupt);
        }
        let id = RequestId(frame.get_u64());
        Ok(Some(Frame { id, body: frame.freeze() }))
    }

    fn announced(&self) -> Option<usize> {
        let len = self.buf.first_chunk::<4>()?;
        usize::try_from(u32::from_be_bytes(*len)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reader(bytes: &[u8], max: usize) -> FrameReader {
        let mut reader = FrameReader::new(max);
        reader.room().extend_from_slice(bytes);
        reader
    }

    #[test]
    fn frames_are_decoded_from_single_bytes() {
        let mut out = BytesMut::new();
        push(&mut out, RequestId(7), b"seven");
        push(&mut out, RequestId(8), b"");
        let mut reader = FrameReader::new(100);
        let mut found = Vec::new();
        for byte in out {
            reader.room().put_u8(byte);
            found.extend(reader.next_frame().expect("valid"));
        }
        let want = [(7, &b"seven"[..]), (8, &b""[..])];
        assert_eq!(
            found,
            want.map(|(id, body)| Frame { id: RequestId(id), body: Bytes::copy_from_slice(body) })
        );
    }

    #[test]
    fn an_oversized_frame_is_rejected_by_its_length_alone() {
        let mut reader = reader(&[0xff, 0xff, 0xff, 0xff], 100);
        assert!(matches!(reader.next_frame(), Err(FrameError::TooLarge { max: 108, .. })));
        assert!(reader.room().capacity() < 4 << 20, "an announcement reserves little");
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut out = BytesMut::new();
        push(&mut out, RequestId(1), b"holder");
        for bit in 32..out.len() * 8 {
            let mut bytes = out.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(reader(&bytes, 100).next_frame(), Err(FrameError::Corrupt), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = reader(&bytes, 64);
            while let Ok(Some(_)) = reader.next_frame() {}
        }
    }
}
