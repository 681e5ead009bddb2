//! Names of queue znodes, as chunks hold them. They are most of what is new with each acquire, and most of a
//! name is a random id in hexadecimal and a number of ten digits.
//!
//! ```text
//! form: which id, whether there is a number, whether the text is that of the party's place before
//! number             if there is one
//! id                 16 bytes, if there is one
//! length of the text unless it is the same; the text
//! ```
//!
//! A name is the id, the text and the number, one behind the other. Whatever is not one of the ids that
//! clients make is text, so every name comes back as it was.

use std::ops::Range;

use super::varint::{Numbers, Reader};

const ID: u8 = 0b11;
const HAS_NUMBER: u8 = 1 << 2;
const SAME_TEXT: u8 = 1 << 3;

const CURATOR_PREFIX: &[u8] = b"_c_";
const CURATOR_BYTES: usize = 39;
const KAZOO_BYTES: usize = DIGITS;
/// Digits of an id.
const DIGITS: usize = 32;
const NUMBER_DIGITS: usize = 10;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// What a name begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    None,
    /// As Curator makes it: `_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60`.
    Curator([u8; 16]),
    /// As kazoo makes it: the same digits without anything else.
    Kazoo([u8; 16]),
}

impl Id {
    /// The id, and how long it is in the name.
    fn of(name: &[u8]) -> (Id, usize) {
        let found = if name.starts_with(CURATOR_PREFIX) {
            let id = name.first_chunk().and_then(curator_digits).and_then(|digits| value(&digits));
            id.map(|id| (Id::Curator(id), CURATOR_BYTES))
        } else {
            name.first_chunk().and_then(value).map(|id| (Id::Kazoo(id), KAZOO_BYTES))
        };
        found.unwrap_or((Id::None, 0))
    }

    fn write(self, out: &mut Vec<u8>) {
        let id = match self {
            Id::None => return,
            Id::Curator(id) => {
                out.extend_from_slice(CURATOR_PREFIX);
                id
            }
            Id::Kazoo(id) => id,
        };
        for (at, byte) in id.into_iter().enumerate() {
            if matches!(self, Id::Curator(_)) && matches!(at, 4 | 6 | 8 | 10) {
                out.push(b'-');
            }
            out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]]);
        }
    }
}

/// The digits, between which there are dashes.
fn curator_digits(name: &[u8; CURATOR_BYTES]) -> Option<[u8; DIGITS]> {
    let mut digits = [0; DIGITS];
    digits[..8].copy_from_slice(&name[3..11]);
    digits[8..12].copy_from_slice(&name[12..16]);
    digits[12..16].copy_from_slice(&name[17..21]);
    digits[16..20].copy_from_slice(&name[22..26]);
    digits[20..].copy_from_slice(&name[27..]);
    let has_dashes = [11, 16, 21, 26].iter().all(|at| name[*at] == b'-');
    has_dashes.then_some(digits)
}

/// The value of lower-case hexadecimal digits, of which eight at once are looked at as one number: a node's
/// program is compiled for size, and its compiler makes no loops of vectors then.
fn value(digits: &[u8; DIGITS]) -> Option<[u8; DIGITS / 2]> {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let (mut id, mut differs) = ([0; DIGITS / 2], 0);
    for (four, eight) in id.as_chunks_mut::<4>().0.iter_mut().zip(digits.as_chunks::<8>().0) {
        let digits = u64::from_le_bytes(*eight);
        let values = (digits & (0xf * EACH)).wrapping_add(((digits >> 6) & EACH) * 9);
        // Whatever is no digit is not what is written for the value that was taken for it.
        let values = values & (0xf * EACH);
        let are_letters = ((values + 6 * EACH) >> 4) & EACH;
        differs |= digits ^ (values + u64::from(b'0') * EACH + are_letters * u64::from(b'a' - b'9' - 1));
        let pairs = (values << 4 | values >> 8) & 0x00ff_00ff_00ff_00ff;
        let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
        let [a, b, _, _, c, d, _, _] = quads.to_le_bytes();
        *four = [a, b, c, d];
    }
    (differs == 0).then_some(id)
}

/// The value of decimal digits.
fn decimal(digits: &[u8; NUMBER_DIGITS]) -> Option<u64> {
    let (mut number, mut bad) = (0, false);
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        bad |= digit >= 10;
        number = 10 * number + u64::from(digit);
    }
    (!bad).then_some(number)
}

/// A name in its parts.
pub(super) struct Cut {
    id: Id,
    text: Range<usize>,
    number: Option<u64>,
}

impl Cut {
    pub fn of(name: &[u8]) -> Cut {
        let (id, begin) = Id::of(name);
        let number = name[begin..].last_chunk().and_then(decimal);
        let end = if number.is_some() { name.len() - NUMBER_DIGITS } else { name.len() };
        Cut { id, text: begin..end, number }
    }

    /// Where the text is in the name.
    pub fn text(&self) -> Range<usize> {
        self.text.clone()
    }

    /// Writes what comes in front of the text: that comes then, unless it is the same as the party's place
    /// had before.
    pub fn write(&self, out: &mut Numbers, is_same_text: bool) {
        let (kind, id) = match self.id {
            Id::None => (0, None),
            Id::Curator(id) => (1, Some(id)),
            Id::Kazoo(id) => (2, Some(id)),
        };
        let number = if self.number.is_some() { HAS_NUMBER } else { 0 };
        let same = if is_same_text { SAME_TEXT } else { 0 };
        out.byte(kind | number | same);
        if let Some(number) = self.number {
            out.unsigned(number);
        }
        if let Some(id) = id {
            out.bytes_of(id);
        }
        if !is_same_text {
            out.length(self.text.len());
        }
    }
}

/// A name that was read.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    id: Id,
    /// Between id and number.
    pub text: &'a [u8],
    number: Option<u64>,
}

impl<'a> Name<'a> {
    /// Reads one. `before`: the text that the party's place had before.
    pub fn read(reader: &mut Reader<'a>, before: &'a [u8]) -> Option<Name<'a>> {
        let form = reader.byte()?;
        let number = if form & HAS_NUMBER == 0 { None } else { Some(reader.unsigned()?) };
        let mut id = || reader.bytes(16)?.try_into().ok();
        let id = match form & ID {
            0 => Id::None,
            1 => Id::Curator(id()?),
            2 => Id::Kazoo(id()?),
            _ => return None,
        };
        if form & SAME_TEXT != 0 {
            return Some(Name { id, text: before, number });
        }
        let len = reader.length()?;
        Some(Name { id, text: reader.bytes(len)?, number })
    }

    pub fn whole(&self) -> Vec<u8> {
        let mut name = Vec::new();
        self.id.write(&mut name);
        name.extend_from_slice(self.text);
        if let Some(number) = self.number {
            name.extend_from_slice(format!("{number:0width$}", width = NUMBER_DIGITS).as_bytes());
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(name: &[u8], before: &[u8]) -> Vec<u8> {
        let (cut, mut numbers) = (Cut::of(name), Numbers::new());
        let is_same = name[cut.text()] == *before;
        cut.write(&mut numbers, is_same);
        let mut bytes = numbers.bytes().to_vec();
        if !is_same {
            bytes.extend_from_slice(&name[cut.text()]);
        }
        bytes
    }

    fn read(bytes: &[u8], before: &[u8]) -> Option<Vec<u8>> {
        let mut reader = Reader(bytes);
        let name = Name::read(&mut reader, before)?.whole();
        reader.0.is_empty().then_some(name)
    }

    #[test]
    fn names_that_clients_make_are_short_and_come_back_as_they_were() {
        for (name, text, len) in [
            ("_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60-lock-0000000007", "-lock-", 18),
            ("_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60-lock-9999999999", "-lock-", 22),
            ("9f0e6d523a554d4c9d2e1b2c3d4e5f60__lock__0000000300", "__lock__", 19),
            ("_l-0000000000", "_l-", 2),
            ("0000000001", "", 2),
            ("000000001", "000000001", 1),
            ("lock--000000001", "lock--000000001", 1),
            ("", "", 1),
        ] {
            let bytes = written(name.as_bytes(), text.as_bytes());
            assert_eq!(bytes.len(), len, "{name}");
            assert_eq!(read(&bytes, text.as_bytes()).as_deref(), Some(name.as_bytes()));
            for cut in 0..len {
                assert_eq!(read(&bytes[..cut], text.as_bytes()), None);
            }
            let bytes = written(name.as_bytes(), b"another");
            assert_eq!(read(&bytes, b"another").as_deref(), Some(name.as_bytes()));
        }
    }

    #[test]
    fn what_only_looks_like_an_id_is_text() {
        for name in [
            "_c_9F0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60-lock-",
            "_c_9f0e6d52+3a55-4d4c-9d2e-1b2c3d4e5f60-lock-",
            "_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f6",
            "9f0e6d523a554d4c9d2e1b2c3d4e5f6g__lock__",
        ] {
            assert_eq!(Cut::of(name.as_bytes()).text(), 0..name.len());
            assert_eq!(read(&written(name.as_bytes(), b""), b"").as_deref(), Some(name.as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(
            name in "(_c_)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}.{0,12}|[0-9a-fA-F]{28,36}[^/]{0,12}[0-9]{0,12}|[^/]{0,60}",
        ) {
            prop_assert_eq!(read(&written(name.as_bytes(), b"x"), b"x"), Some(name.into_bytes()));
        }
    }
}
