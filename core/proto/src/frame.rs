//! Cuts a stream of bytes into frames: `int32 length`, then that many bytes.
//!
//! The first step after the socket, in servers and clients. Must never reserve memory for an announced
//! length: the buffer grows with the received bytes.

use bytes::{Buf, Bytes, BytesMut};

/// Default of `jute.maxbuffer` everywhere: the largest frame without its length.
pub const DEFAULT_MAX_BYTES: usize = 0xf_ffff;

/// Bytes of the length in front of a frame.
pub const LENGTH_BYTES: usize = 4;

/// Room reserved at once for an incomplete frame. Overflow: the next call reserves the next step.
const RESERVE_STEP_BYTES: usize = 64 * 1024;

/// An invalid length. The rest of the stream is unusable: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length is negative.
    #[error("frame of negative length {length}")]
    NegativeLength {
        /// The announced length, in bytes.
        length: i32,
    },
    /// The announced length exceeds the limit.
    #[error("frame of {length} bytes, {max} allowed")]
    TooLong {
        /// The announced length, in bytes.
        length: usize,
        /// The largest length allowed, in bytes.
        max: usize,
    },
}

/// Takes one whole frame, without its length, off the front of `buf`.
///
/// Returns `None` if bytes are missing, and reserves some room for them. `max` bounds the announced length;
/// the check needs only the first four bytes. The frame shares the memory of `buf`.
pub fn split(buf: &mut BytesMut, max: usize) -> Result<Option<Bytes>, FrameError> {
    let Some(prefix) = buf.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let announced = i32::from_be_bytes(*prefix);
    let length = usize::try_from(announced).map_err(|_| FrameError::NegativeLength { length: announced })?;
    if length > max {
        return Err(FrameError::TooLong { length, max });
    }
    let whole = LENGTH_BYTES + length;
    if buf.len() < whole {
        buf.reserve((whole - buf.len()).min(RESERVE_STEP_BYTES));
        debug_assert!(buf.capacity() > buf.len(), "a read into a full buffer would look like the end");
        return Ok(None);
    }
    buf.advance(LENGTH_BYTES);
    let behind = buf.len() - length;
    let frame = buf.split_to(length).freeze();
    debug_assert!(frame.len() == length && buf.len() == behind, "the cut is not at the next frame");
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_frame_is_returned() {
        let wire = [0, 0, 0, 3, 7, 8, 9, 0, 0, 0, 0, 1];
        let mut buf = BytesMut::new();
        for (at, byte) in wire.into_iter().enumerate() {
            buf.extend_from_slice(&[byte]);
            let frame = split(&mut buf, 3).unwrap();
            match at {
                6 => assert_eq!(frame.unwrap(), [7, 8, 9].as_slice()),
                10 => assert!(frame.unwrap().is_empty()),
                _ => assert_eq!(frame, None),
            }
        }
        assert_eq!(&buf[..], [1]);
    }

    #[test]
    fn a_bad_length_is_refused_before_the_body_arrives() {
        let refused = |prefix: [u8; 4]| split(&mut BytesMut::from(prefix.as_slice()), 10).unwrap_err();
        assert_eq!(refused([0, 0, 0, 11]), FrameError::TooLong { length: 11, max: 10 });
        assert_eq!(refused([0xff; 4]), FrameError::NegativeLength { length: -1 });
        assert_eq!(refused([0x80, 0, 0, 0]).to_string(), "frame of negative length -2147483648");
    }

    #[test]
    fn a_large_announced_length_reserves_little() {
        let mut buf = BytesMut::from([0x00, 0xff, 0xff, 0xff].as_slice());
        assert_eq!(split(&mut buf, 0x00ff_ffff), Ok(None));
        assert!(buf.capacity() <= 2 * RESERVE_STEP_BYTES, "{}", buf.capacity());
    }
}
