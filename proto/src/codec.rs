//! Jute primitives: the few shapes that every record is made of.
//!
//! Under `decode` and `encode`, over nothing. Must never trust a length or a count that came from outside:
//! what is announced is compared with what is there before anything is allocated, and no input makes it
//! panic.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::frame::LENGTH_BYTES;

/// Why bytes are not the record they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame ends inside a field.
    #[error("frame ends early: {needed} bytes needed, {left} left")]
    Truncated {
        /// What the field takes at least.
        needed: usize,
        /// What the frame still has.
        left: usize,
    },
    /// A length or count below -1 (which is null).
    #[error("negative length {length}")]
    NegativeLength {
        /// As it came.
        length: i32,
    },
    /// A count of elements that the rest of the frame cannot hold.
    #[error("{count} elements announced, {left} bytes left")]
    CountBeyondFrame {
        /// Announced elements.
        count: usize,
        /// What the frame still has.
        left: usize,
    },
    /// Null where the protocol needs a string.
    #[error("null string")]
    NullString,
    /// A string that is not UTF-8. Also what Java writes for characters above U+FFFF: its jute writer encodes
    /// the two halves of the pair as three bytes each (CESU-8). Such characters are not allowed in paths at
    /// all.
    #[error("string is not UTF-8")]
    NotUtf8,
    /// An operation that may not stand in this kind of multi, or is unknown.
    #[error("operation {op_type} cannot be part of this multi")]
    BadMultiOp {
        /// Its number.
        op_type: i32,
    },
    /// An event type that servers do not send.
    #[error("unknown event type {event_type}")]
    UnknownEvent {
        /// Its number.
        event_type: i32,
    },
    /// A number that stands for none of a field's meanings.
    #[error("no meaning has the number {number}")]
    UnknownVariant {
        /// As it came.
        number: i32,
    },
    /// The record ends before its frame.
    #[error("{left} bytes behind the record")]
    TrailingBytes {
        /// How many.
        left: usize,
    },
}

/// Result of decoding.
pub(crate) type Decoded<T> = Result<T, DecodeError>;

/// Reads primitives off the front of a frame. Buffers are slices of the frame, strings are copied.
pub(crate) struct Reader<'a> {
    frame: &'a mut Bytes,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(frame: &'a mut Bytes) -> Self {
        Reader { frame }
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> usize {
        self.frame.len()
    }

    /// Ends a record that must fill its frame.
    pub(crate) fn finish(self) -> Decoded<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::TrailingBytes { left }),
        }
    }

    /// Passes these bytes if they come next, and says so.
    pub(crate) fn skip(&mut self, bytes: &[u8]) -> bool {
        debug_assert!(!bytes.is_empty(), "nothing comes next always");
        let is_next = self.frame.starts_with(bytes);
        if is_next {
            self.frame.advance(bytes.len());
        }
        is_next
    }

    fn need(&self, needed: usize) -> Decoded<()> {
        let left = self.left();
        if left < needed { Err(DecodeError::Truncated { needed, left }) } else { Ok(()) }
    }

    pub(crate) fn int(&mut self) -> Decoded<i32> {
        self.need(4)?;
        Ok(self.frame.get_i32())
    }

    pub(crate) fn long(&mut self) -> Decoded<i64> {
        self.need(8)?;
        Ok(self.frame.get_i64())
    }

    /// As Java reads it: everything but 0 is true.
    pub(crate) fn boolean(&mut self) -> Decoded<bool> {
        self.need(1)?;
        Ok(self.frame.get_u8() != 0)
    }

    /// A length or count; `None` is null (-1).
    fn length(&mut self) -> Decoded<Option<usize>> {
        match self.int()? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| DecodeError::NegativeLength { length }),
        }
    }

    pub(crate) fn buffer(&mut self) -> Decoded<Option<Bytes>> {
        let Some(length) = self.length()? else { return Ok(None) };
        self.need(length)?;
        Ok(Some(self.frame.split_to(length)))
    }

    pub(crate) fn nullable_string(&mut self) -> Decoded<Option<String>> {
        let Some(length) = self.length()? else { return Ok(None) };
        self.need(length)?;
        let text = std::str::from_utf8(&self.frame[..length]).map_err(|_| DecodeError::NotUtf8)?.to_owned();
        self.frame.advance(length);
        Ok(Some(text))
    }

    pub(crate) fn string(&mut self) -> Decoded<String> {
        self.nullable_string()?.ok_or(DecodeError::NullString)
    }

    /// A vector whose elements take `element_bytes` or more each.
    ///
    /// Invariant: room is reserved only for as many elements as the rest of the frame can hold.
    pub(crate) fn nullable_vector<T>(
        &mut self,
        element_bytes: usize,
        mut element: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Option<Vec<T>>> {
        assert!(element_bytes > 0, "an element takes a byte at least, or a count could ask for any room");
        let Some(count) = self.length()? else { return Ok(None) };
        let left = self.left();
        if count > left / element_bytes {
            return Err(DecodeError::CountBeyondFrame { count, left });
        }
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(element(self)?);
        }
        debug_assert!(left - self.left() >= count * element_bytes, "an element takes less than was said");
        Ok(Some(elements))
    }

    /// A vector where null means the same as empty.
    pub(crate) fn vector<T>(
        &mut self,
        element_bytes: usize,
        element: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        Ok(self.nullable_vector(element_bytes, element)?.unwrap_or_default())
    }

    pub(crate) fn strings(&mut self) -> Decoded<Vec<String>> {
        self.vector(4, Self::string)
    }
}

/// Appends primitives to a frame.
pub(crate) trait Writer {
    fn int(&mut self, value: i32);
    fn long(&mut self, value: i64);
    fn boolean(&mut self, value: bool);
    fn count(&mut self, count: usize);
    fn buffer(&mut self, bytes: Option<&[u8]>);
    fn string(&mut self, text: &str);

    fn nullable_string(&mut self, text: Option<&str>) {
        self.buffer(text.map(str::as_bytes));
    }

    fn strings(&mut self, texts: &[String]) {
        self.count(texts.len());
        for text in texts {
            self.string(text);
        }
    }
}

impl Writer for BytesMut {
    fn int(&mut self, value: i32) {
        self.put_i32(value);
    }

    fn long(&mut self, value: i64) {
        self.put_i64(value);
    }

    fn boolean(&mut self, value: bool) {
        self.put_u8(u8::from(value));
    }

    /// The length of a buffer, string or vector.
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

/// Appends one whole frame: room for the length, the record, then the length patched in.
pub(crate) fn put_frame(out: &mut BytesMut, record: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    record(out);
    assert!(out.len() >= start + LENGTH_BYTES, "a record is appended and takes nothing away");
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
        fn a_vector_never_has_room_for_more_than_its_frame_can_hold(
            count in prop_oneof![any::<i32>(), 0..20_i32],
            element_bytes in 1..20_usize,
            rest in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut frame = BytesMut::new();
            frame.int(count);
            frame.extend_from_slice(&rest);
            let mut frame = frame.freeze();
            let mut elements_read = 0;
            let vector = Reader::new(&mut frame).nullable_vector(element_bytes, |r| {
                elements_read += 1;
                r.need(element_bytes)?;
                Ok(r.frame.split_to(element_bytes))
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
        let mut rest = frame.clone();
        let buffer = Reader::new(&mut rest).buffer().unwrap().unwrap();
        assert_eq!(buffer.as_ptr(), frame[4..].as_ptr());
        assert_eq!((&buffer[..], &rest[..]), ([7, 8].as_slice(), [9].as_slice()));
    }

    #[test]
    fn frames_are_appended_behind_what_is_there() {
        let mut out = BytesMut::from([9].as_slice());
        put_frame(&mut out, |_| {});
        put_frame(&mut out, |out| out.string("ab"));
        assert_eq!(out[..], [9, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 2, b'a', b'b']);
    }
}
