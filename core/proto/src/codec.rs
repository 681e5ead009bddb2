//! Jute primitives: the few shapes that every record consists of.
//!
//! Used by `wire`, `decode` and `encode`; depends on none of them. Must never trust a received length or
//! count: the code compares every announced size with the bytes present before it allocates, and no input
//! causes a panic.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use smallvec::{Array, SmallVec};

use crate::frame::LENGTH_BYTES;

/// Errors of decoding a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame ends inside a field.
    #[error("frame ends early: {needed} bytes needed, {left} left")]
    Truncated {
        /// Minimum size of the field, in bytes.
        needed: usize,
        /// Bytes left in the frame.
        left: usize,
    },
    /// A length or count below -1 (-1 is null).
    #[error("negative length {length}")]
    NegativeLength {
        /// The announced length, in bytes.
        length: i32,
    },
    /// A count of elements that the rest of the frame cannot hold.
    #[error("{count} elements announced, {left} bytes left")]
    CountBeyondFrame {
        /// Number of announced elements.
        count: usize,
        /// Bytes left in the frame.
        left: usize,
    },
    /// A null string in a field that must not be null.
    #[error("null string")]
    NullString,
    /// A string that is not UTF-8. Includes Java's form of characters above U+FFFF: its jute writer encodes
    /// the two surrogates as three bytes each (CESU-8). Paths may not contain such characters anyway.
    #[error("string is not UTF-8")]
    NotUtf8,
    /// An unknown operation, or one that this kind of multi does not allow.
    #[error("operation {op_type} cannot be part of this multi")]
    BadMultiOp {
        /// The operation's number as received.
        op_type: i32,
    },
    /// An event type that servers do not send.
    #[error("unknown event type {event_type}")]
    UnknownEvent {
        /// The event type's number as received.
        event_type: i32,
    },
    /// A number that no variant of the field has.
    #[error("no variant has the number {number}")]
    UnknownVariant {
        /// The number as received.
        number: i32,
    },
    /// The record ends before its frame.
    #[error("{left} bytes behind the record")]
    TrailingBytes {
        /// Bytes left after the record.
        left: usize,
    },
}

pub(crate) type Decoded<T> = Result<T, DecodeError>;

/// Reads primitives off the front of a frame. Buffers and some strings are slices of the frame; the other
/// strings are copies.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    frame: &'a Bytes,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(frame: &'a Bytes) -> Self {
        Reader { rest: frame, frame }
    }

    /// Reads a value from the start of a frame, and leaves the following bytes in the frame.
    #[inline]
    pub(crate) fn front<T>(
        frame: &mut Bytes,
        read: impl FnOnce(&mut Reader<'_>) -> Decoded<T>,
    ) -> Decoded<T> {
        let mut reader = Reader::new(frame);
        let value = read(&mut reader);
        let left = reader.left();
        frame.advance(frame.len() - left);
        value
    }

    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Checks that the record has filled its frame.
    pub(crate) fn finish(self) -> Decoded<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::TrailingBytes { left }),
        }
    }

    /// Skips `bytes` if they come next. Returns true if they did.
    pub(crate) fn skip(&mut self, bytes: &[u8]) -> bool {
        debug_assert!(!bytes.is_empty(), "an empty prefix always matches");
        match self.rest.strip_prefix(bytes) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    #[inline]
    fn take(&mut self, needed: usize) -> Decoded<&'a [u8]> {
        let left = self.rest.len();
        let (taken, rest) =
            self.rest.split_at_checked(needed).ok_or(DecodeError::Truncated { needed, left })?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes a slice of the frame. Invariant: `rest` is the end of the frame.
    fn take_slice(&mut self, needed: usize) -> Decoded<Bytes> {
        let at = self.frame.len() - self.rest.len();
        let taken = self.take(needed)?;
        let slice = self.frame.slice(at..at + needed);
        debug_assert_eq!(slice, taken, "the unread bytes are not the end of the frame");
        Ok(slice)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let left = self.rest.len();
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(DecodeError::Truncated { needed: N, left })?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(crate) fn int(&mut self) -> Decoded<i32> {
        self.array().map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn long(&mut self) -> Decoded<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a boolean as Java does: every byte but 0 is true.
    #[inline]
    pub(crate) fn boolean(&mut self) -> Decoded<bool> {
        self.array().map(|[byte]| byte != 0)
    }

    /// Reads a length or count; `None` is null (-1).
    fn length(&mut self) -> Decoded<Option<usize>> {
        match self.int()? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| DecodeError::NegativeLength { length }),
        }
    }

    pub(crate) fn buffer(&mut self) -> Decoded<Option<Bytes>> {
        let Some(length) = self.length()? else { return Ok(None) };
        self.take_slice(length).map(Some)
    }

    pub(crate) fn nullable_text(&mut self) -> Decoded<Option<&'a str>> {
        let Some(length) = self.length()? else { return Ok(None) };
        std::str::from_utf8(self.take(length)?).map(Some).map_err(|_| DecodeError::NotUtf8)
    }

    /// Reads a string as a slice of the frame.
    pub(crate) fn slice(&mut self) -> Decoded<ByteString> {
        let Some(length) = self.length()? else { return Err(DecodeError::NullString) };
        ByteString::try_from(self.take_slice(length)?).map_err(|_| DecodeError::NotUtf8)
    }

    pub(crate) fn text(&mut self) -> Decoded<&'a str> {
        self.nullable_text()?.ok_or(DecodeError::NullString)
    }

    /// Reads a vector whose elements take at least `element_bytes` each.
    ///
    /// Invariant: reserves room only for as many elements as the rest of the frame can hold.
    pub(crate) fn nullable_vector<T>(
        &mut self,
        element_bytes: usize,
        element: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Option<Vec<T>>> {
        let Some(count) = self.count(element_bytes)? else { return Ok(None) };
        let mut elements = Vec::with_capacity(count);
        self.each((count, element_bytes), element, |element| elements.push(element))?;
        Ok(Some(elements))
    }

    /// Reads the count of a vector whose elements take at least `element_bytes` each.
    fn count(&mut self, element_bytes: usize) -> Decoded<Option<usize>> {
        assert!(element_bytes > 0, "elements without bytes would leave the count unbounded");
        let Some(count) = self.length()? else { return Ok(None) };
        let left = self.left();
        if count > left / element_bytes {
            return Err(DecodeError::CountBeyondFrame { count, left });
        }
        Ok(Some(count))
    }

    fn each<T>(
        &mut self,
        (count, element_bytes): (usize, usize),
        mut element: impl FnMut(&mut Self) -> Decoded<T>,
        mut push: impl FnMut(T),
    ) -> Decoded<()> {
        let left = self.left();
        for _ in 0..count {
            push(element(self)?);
        }
        debug_assert!(
            left - self.left() >= count * element_bytes,
            "an element is shorter than `element_bytes`"
        );
        Ok(())
    }

    /// Reads a vector that mostly has few elements. Null is empty.
    pub(crate) fn few<A: Array>(
        &mut self,
        element_bytes: usize,
        element: impl FnMut(&mut Self) -> Decoded<A::Item>,
    ) -> Decoded<SmallVec<A>> {
        let count = self.count(element_bytes)?.unwrap_or_default();
        let mut few = SmallVec::with_capacity(count);
        self.each((count, element_bytes), element, |element| few.push(element))?;
        Ok(few)
    }
}

pub(crate) trait Writer {
    /// Appends the length of a buffer, string or vector.
    fn count(&mut self, count: usize);
    fn buffer(&mut self, bytes: Option<&[u8]>);
    fn string(&mut self, text: &str);
}

impl Writer for BytesMut {
    fn count(&mut self, count: usize) {
        self.put_i32(i32::try_from(count).expect("senders bound their frames far below 2 GiB"));
    }

    fn buffer(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.put_i32(-1),
            Some(bytes) => {
                self.count(bytes.len());
                self.put_slice(bytes);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.buffer(Some(text.as_bytes()));
    }
}

/// Appends one whole frame: reserves the length field, appends the record, then fills in the length.
pub(crate) fn write_frame(out: &mut BytesMut, record: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    record(out);
    assert!(out.len() >= start + LENGTH_BYTES, "a record was appended by removing bytes");
    let length = i32::try_from(out.len() - start - 4).expect("senders bound their frames far below 2 GiB");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn config() -> ProptestConfig {
        ProptestConfig {
            cases: 500,
            rng_seed: RngSeed::Fixed(1),
            failure_persistence: None,
            ..Default::default()
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn a_vector_reserves_no_more_than_its_frame_can_hold(
            count in prop_oneof![any::<i32>(), 0..20_i32],
            element_bytes in 1..20_usize,
            rest in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut frame = BytesMut::new();
            frame.put_i32(count);
            frame.extend_from_slice(&rest);
            let frame = frame.freeze();
            let mut elements_read = 0;
            let vector = Reader::new(&frame).nullable_vector(element_bytes, |r| {
                elements_read += 1;
                r.take(element_bytes).map(<[u8]>::to_owned)
            });
            match vector {
                Ok(Some(vector)) => prop_assert!(vector.capacity() * element_bytes <= rest.len()),
                Ok(None) => prop_assert_eq!(count, -1),
                Err(_) => prop_assert_eq!(elements_read, 0, "refused before anything was read or reserved"),
            }
        }
    }

    #[test]
    fn a_buffer_is_a_slice_of_its_frame() {
        let frame = Bytes::from_static(&[0, 0, 0, 2, 7, 8, 9]);
        let mut reader = Reader::new(&frame);
        let buffer = reader.buffer().unwrap().unwrap();
        assert_eq!(buffer.as_ptr(), frame[4..].as_ptr());
        assert_eq!((&buffer[..], reader.rest), ([7, 8].as_slice(), [9].as_slice()));
    }

    #[test]
    fn frames_are_appended_to_existing_bytes() {
        let mut out = BytesMut::from([9].as_slice());
        write_frame(&mut out, |_| {});
        write_frame(&mut out, |out| out.string("ab"));
        assert_eq!(out[..], [9, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 2, b'a', b'b']);
    }
}
