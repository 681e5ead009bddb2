//! Encodes and decodes log records, snapshot headers and frames between nodes with bincode, for the crates
//! above this one.
//!
//! Varint integers, little endian, fields in order, no self-description: a change of a type changes the
//! format that carries the type, and needs a new version of that format. Bytes from outside never cause
//! unbounded allocation.

use bincode::config::standard;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{BINCODE, from_bincode};

/// Errors of decoding a value.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The input exceeds the caller's limit.
    #[error("{len} bytes exceed the limit of {max}")]
    TooLarge { len: usize, max: usize },
    /// Bytes follow a complete value.
    #[error("{extra} bytes follow the encoded value")]
    TrailingBytes { extra: usize },
    /// The bytes do not encode the expected type.
    #[error("malformed: {0}")]
    Malformed(String),
}

/// Bytes reserved for an encoded value: an append of one lock's command fits.
const USUAL_BYTES: usize = 512;

pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL_BYTES);
    encode_into(value, &mut out);
    out
}

/// Appends the encoding of a value to `out`.
pub fn encode_into<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    bincode::serde::encode_into_std_write(value, out, BINCODE)
        .expect("Invariant: our types encode, and writing to memory does not fail");
}

/// Decodes a value from all of `bytes`, which have at most `max` bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], max: usize) -> Result<T, CodecError> {
    let (value, used) = decode_front(bytes, max)?;
    if used < bytes.len() {
        return Err(CodecError::TrailingBytes { extra: bytes.len() - used });
    }
    Ok(value)
}

/// Decodes a value from the start of `bytes`, for formats that may gain fields. Returns the value and its
/// encoded length. `bytes` have at most `max` bytes.
///
/// # Errors
/// [`CodecError`]; never `TrailingBytes`.
pub fn decode_front<T: DeserializeOwned>(bytes: &[u8], max: usize) -> Result<(T, usize), CodecError> {
    if bytes.len() > max {
        return Err(CodecError::TooLarge { len: bytes.len(), max });
    }
    from_bincode(bytes).map_err(|error| CodecError::Malformed(error.to_string()))
}

/// Decodes like [`decode_front`], without a limit of `bytes`, a value that borrows text from `bytes`. The
/// parts that the value owns take at most 1 MiB.
///
/// # Errors
/// [`CodecError::Malformed`].
pub fn borrow_front<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, usize), CodecError> {
    bincode::serde::borrow_decode_from_slice(bytes, standard().with_limit::<0x10_0000>())
        .map_err(|error| CodecError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn an_encoded_value_decodes_to_itself() {
        let value = (7u64, String::from("lock"), Some(Bytes::from_static(b"data")), vec![1i32, -1]);
        let bytes = encode(&value);
        assert_eq!(decode::<(u64, String, Option<Bytes>, Vec<i32>)>(&bytes, 100).expect("decodes"), value);
    }

    #[test]
    fn a_byte_string_is_a_length_and_the_bytes() {
        let mut bytes = vec![0xee];
        encode_into(&Bytes::from_static(b"\x00\xff"), &mut bytes);
        assert_eq!(bytes, [0xee, 2, 0x00, 0xff]);
    }

    #[test]
    fn trailing_bytes_are_an_error() {
        let mut bytes = encode(&1u8);
        bytes.push(0);
        assert!(matches!(decode::<u8>(&bytes, 10), Err(CodecError::TrailingBytes { extra: 1 })));
    }

    #[test]
    fn too_many_bytes_are_refused_before_decoding() {
        assert!(matches!(decode::<u8>(&[0; 11], 10), Err(CodecError::TooLarge { len: 11, max: 10 })));
    }

    #[test]
    fn a_forged_length_does_not_allocate() {
        // A byte string that claims 2^62 bytes.
        let mut bytes = vec![253];
        bytes.extend_from_slice(&(1u64 << 62).to_le_bytes());
        assert!(matches!(decode::<Bytes>(&bytes, 100), Err(CodecError::Malformed(_))));
        assert!(matches!(decode::<Vec<u64>>(&bytes, 100), Err(CodecError::Malformed(_))));
    }

    #[test]
    fn every_truncation_is_malformed() {
        let bytes = encode(&(1u64 << 40, String::from("abc")));
        for cut in 0..bytes.len() {
            assert!(matches!(decode::<(u64, String)>(&bytes[..cut], 100), Err(CodecError::Malformed(_))));
        }
    }
}
