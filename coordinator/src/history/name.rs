//! Names of queue znodes, as sheets hold them. They are most of what is new with each acquire, and most of a name is a
//! random id in hexadecimal and a number of ten digits.
//!
//! ```text
//! form: which id, whether there is a number, whether the text is that of the party's place before
//! number             if there is one
//! id                 16 bytes, if there is one
//! length of the text unless it is the same; the text
//! ```
//!
//! A name is the id, the text and the number, one behind the other. Whatever is not one of the ids that clients make is
//! text, so every name comes back as it was.

use std::ops::Range;

use super::varint::{Numbers, Reader};

/// Which id.
const ID: u8 = 0b11;
const HAS_NUMBER: u8 = 1 << 2;
const SAME_TEXT: u8 = 1 << 3;

const CURATOR_PREFIX: &[u8] = b"_c_";
/// Where an id has its digits, and so its dashes: between them.
const CURATOR_PARTS: [(usize, usize); 5] = [(3, 11), (12, 16), (17, 21), (22, 26), (27, 39)];
const KAZOO_PARTS: [(usize, usize); 2] = [(0, 16), (16, 32)];
const NUMBER_DIGITS: usize = 10;
const HEX: &[u8; 16] = b"0123456789abcdef";
/// The value of each digit; of what is none, more than any.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut at = 0;
    while at < HEX.len() {
        values[HEX[at] as usize] = at as u8;
        at += 1;
    }
    values
};
const NO_DIGIT: u8 = 0xf0;

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
        if name.starts_with(CURATOR_PREFIX) {
            let has_dashes = CURATOR_PARTS[..4].iter().all(|(_, end)| name.get(*end) == Some(&b'-'));
            return match value(name, &CURATOR_PARTS) {
                Some((id, len)) if has_dashes => (Id::Curator(id), len),
                _ => (Id::None, 0),
            };
        }
        match value(name, &KAZOO_PARTS) {
            Some((id, len)) => (Id::Kazoo(id), len),
            None => (Id::None, 0),
        }
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

/// The value of the lower-case hexadecimal digits in these parts of a name, and where they end.
fn value(name: &[u8], parts: &[(usize, usize)]) -> Option<([u8; 16], usize)> {
    let (mut id, mut all, mut end) = (0_u128, 0, 0);
    for (from, to) in parts {
        let mut part = 0_u64;
        for byte in name.get(*from..*to)? {
            let digit = VALUES[usize::from(*byte)];
            all |= digit;
            part = part << 4 | u64::from(digit);
        }
        (id, end) = (id << (4 * (to - from)) | u128::from(part), *to);
    }
    (all < NO_DIGIT).then_some((id.to_be_bytes(), end))
}

/// A name in its parts.
pub(super) struct Cut {
    id: Id,
    text: Range<usize>,
    number: Option<u64>,
}

impl Cut {
    /// Of this name.
    pub fn of(name: &[u8]) -> Cut {
        let (id, begin) = Id::of(name);
        let (text, digits) = name.split_at(name.len().saturating_sub(NUMBER_DIGITS).max(begin));
        let mut number = (digits.len() == NUMBER_DIGITS).then_some(0);
        for byte in digits {
            let next = |number| u64::from(byte - b'0') + 10 * number;
            number = number.filter(|_| byte.is_ascii_digit()).map(next);
        }
        let end = if number.is_some() { text.len() } else { name.len() };
        Cut { id, text: begin..end, number }
    }

    /// Where the text is in the name.
    pub fn text(&self) -> Range<usize> {
        self.text.clone()
    }

    /// Writes what comes in front of the text: that comes then, unless it is the same as the party's place had before.
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
        for byte in id.into_iter().flatten() {
            out.byte(byte);
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

    /// All of it.
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
