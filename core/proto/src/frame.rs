//! Cuts a stream of bytes into frames: `int32 length`, then that many bytes.
//!
//! The first step after the socket, in servers and clients. Must never reserve memory for an announced
//! length: the buffer grows with the received bytes.
//!
//! Operators send a four-letter word instead of a handshake on a fresh connection. The listener compares the
//! first four bytes with these words before reading them as a length (as a length, every word is far above
//! any limit). Must never be matched after the handshake.

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

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A four-letter word known to the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FourLetterWord { $($(#[$doc])* $name,)* }
        impl FourLetterWord {
            /// Every word, in the order of declaration.
            pub const ALL: &'static [FourLetterWord] = &[$(Self::$name,)*];
            /// Returns the four bytes on the wire.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text,)* } }
            /// Returns the word that a connection begins with, if known.
            pub fn from_prefix(prefix: [u8; 4]) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.as_str().as_bytes() == prefix)
            }
        }
    };
}

words! {
    /// Replies `imok` if the server runs.
    Ruok = "ruok";
    /// Summary of the server, without its connections.
    Srvr = "srvr";
    /// Server summary and its connections.
    Stat = "stat";
    /// Key and value lines for monitoring.
    Mntr = "mntr";
    /// Version and environment of the server.
    Envi = "envi";
    /// Shows whether the server is read-only (`ro`) or read-write (`rw`).
    Isro = "isro";
    /// The server's configuration values.
    Conf = "conf";
    /// Connections with their counters.
    Cons = "cons";
    /// Resets the figures of connections.
    Crst = "crst";
    /// Sessions and their ephemerals.
    Dump = "dump";
    /// Resets the figures of the server.
    Srst = "srst";
    /// Number of watches, paths and connections.
    Wchs = "wchs";
    /// Watches, grouped by session.
    Wchc = "wchc";
    /// Watches, grouped by path.
    Wchp = "wchp";
    /// Bytes of log and snapshots on disk.
    Dirs = "dirs";
    /// Shows the mask of enabled traces.
    Gtmk = "gtmk";
    /// Sets the mask of enabled traces.
    Stmk = "stmk";
}

impl std::fmt::Display for FourLetterWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
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

    #[test]
    fn every_word_is_found_and_exceeds_any_frame_length() {
        for word in FourLetterWord::ALL {
            let prefix: [u8; 4] = word.as_str().as_bytes().try_into().unwrap();
            assert_eq!(FourLetterWord::from_prefix(prefix), Some(*word));
            assert!(i32::from_be_bytes(prefix) > 0x0fff_ffff);
        }
        assert_eq!(FourLetterWord::from_prefix([0, 0, 0, 45]), None);
        assert_eq!(FourLetterWord::from_prefix(*b"RUOK"), None);
    }
}
