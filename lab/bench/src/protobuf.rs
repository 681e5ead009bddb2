//! The parts of protobuf that etcd's messages use: numbers, strings and nested messages.

use anyhow::{Context, Result, bail};
use bytes::{BufMut, Bytes, BytesMut};

/// A message that is being written.
#[derive(Default)]
pub struct Writer(BytesMut);

impl Writer {
    /// A field of type int64, uint64, bool or enum; negative ones take ten bytes.
    #[must_use]
    pub fn number(mut self, field: u32, value: i64) -> Self {
        write_varint(&mut self.0, u64::from(field) << 3);
        write_varint(&mut self.0, value as u64);
        self
    }

    /// A field of type bytes, string or message.
    #[must_use]
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        write_varint(&mut self.0, u64::from(field) << 3 | 2);
        write_varint(&mut self.0, value.len() as u64);
        self.0.put_slice(value);
        self
    }

    pub fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

fn write_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Bytes(Bytes),
    /// Wire types 1 and 5: nothing that is read here.
    Fixed,
}

/// The fields of a message, in their order.
///
/// # Errors
/// It ends inside a field.
pub fn fields(mut message: Bytes) -> Result<Vec<(u32, Value)>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?)?;
                Value::Bytes(split(&mut message, length)?)
            }
            1 => split(&mut message, 8).map(|_| Value::Fixed)?,
            5 => split(&mut message, 4).map(|_| Value::Fixed)?,
            other => bail!("wire type {other}"),
        };
        fields.push((u32::try_from(key >> 3)?, value));
    }
    Ok(fields)
}

/// The number in a field; 0 if it is left out, as protobuf does.
///
/// # Errors
/// The message is broken.
pub fn number(message: &Bytes, field: u32) -> Result<u64> {
    let found = fields(message.clone())?.into_iter().rev().find(|(number, _)| *number == field);
    match found {
        None => Ok(0),
        Some((_, Value::Number(value))) => Ok(value),
        Some((_, other)) => bail!("field {field} is {other:?}"),
    }
}

/// The bytes in a field; empty if it is left out.
///
/// # Errors
/// The message is broken.
pub fn bytes(message: &Bytes, field: u32) -> Result<Bytes> {
    let found = fields(message.clone())?.into_iter().rev().find(|(number, _)| *number == field);
    match found {
        None => Ok(Bytes::new()),
        Some((_, Value::Bytes(value))) => Ok(value),
        Some((_, other)) => bail!("field {field} is {other:?}"),
    }
}

fn varint(message: &mut Bytes) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *split(message, 1)?.first().context("an empty slice of length 1")?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    bail!("a number of more than ten bytes")
}

fn split(message: &mut Bytes, length: usize) -> Result<Bytes> {
    if message.len() < length {
        bail!("the message ends early: {length} bytes needed, {} left", message.len());
    }
    Ok(message.split_to(length))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Value, Writer, bytes, fields, number};

    #[test]
    fn fields_are_a_key_and_a_value() {
        let message = Writer::default().bytes(1, b"ab").number(2, 300).number(7, 1).number(3, -1).finish();
        let expected = [
            0x0a, 2, b'a', b'b', 0x10, 0xac, 0x02, 0x38, 1, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 1,
        ];
        assert_eq!(&message[..], expected);
        assert_eq!(bytes(&message, 1).unwrap(), Bytes::from_static(b"ab"));
        assert_eq!(number(&message, 2).unwrap(), 300);
        assert_eq!(number(&message, 3).unwrap(), u64::MAX);
        assert_eq!((number(&message, 9).unwrap(), bytes(&message, 9).unwrap()), (0, Bytes::new()));
    }

    #[test]
    fn fields_of_other_types_are_stepped_over() {
        let message = Bytes::from_static(&[0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x15, 1, 2, 3, 4, 0x18, 5]);
        let found = fields(message).unwrap();
        assert_eq!(found, [(1, Value::Fixed), (2, Value::Fixed), (3, Value::Number(5))]);
    }

    #[test]
    fn a_message_that_ends_inside_a_field_is_refused() {
        for bad in
            [[0x0a, 3, b'a'].as_slice(), &[0x10], &[0x10, 0xff], &[0x0b], &[0x10; 1], &[0x10, 0xff, 0xff]]
        {
            assert!(fields(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
        assert!(fields(Bytes::from_static(&[0xff; 12])).is_err());
    }
}
