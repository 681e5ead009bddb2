//! Numbers in as few bytes as they need, as chunks hold them: seven bits each, the lowest first, and a bit
//! that says that another follows. Signed ones with the sign in the lowest bit, so that small ones are short
//! on both sides of nought.

pub(super) const MAX_BYTES: usize = 10;
const MORE: u8 = 0x80;

/// A few numbers in a row, on their way into a buffer.
pub(super) struct Numbers {
    bytes: [u8; Numbers::ROOM],
    len: usize,
}

impl Numbers {
    /// Bytes of them at most.
    pub const ROOM: usize = 64;

    pub fn new() -> Numbers {
        Numbers { bytes: [0; Numbers::ROOM], len: 0 }
    }

    /// Appends a byte unchanged.
    pub fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Bytes as they are.
    pub fn bytes_of<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
    }

    pub fn unsigned(&mut self, mut number: u64) {
        while number >= u64::from(MORE) {
            self.byte(number.to_le_bytes()[0] | MORE);
            number >>= 7;
        }
        self.byte(number.to_le_bytes()[0]);
    }

    /// A number that may be negative.
    pub fn signed(&mut self, number: i64) {
        self.unsigned((number << 1 ^ number >> 63).cast_unsigned());
    }

    pub fn length(&mut self, length: usize) {
        self.unsigned(u64::try_from(length).expect("Invariant: lengths have 64 bits"));
    }

    /// Appends all of them to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        // A copy of a length that the compiler knows is no call: so more is copied than is kept.
        out.extend_from_slice(&self.bytes);
        out.truncate(out.len() - (Numbers::ROOM - self.len));
    }

    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads what [`Numbers`] has written. `None`: that is not there.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes a byte unchanged.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Takes `len` bytes unchanged.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0;
        for at in 0..MAX_BYTES {
            let byte = self.byte()?;
            // Bits beyond the 64th are not there, whatever a damaged last byte says.
            number |= u64::from(byte & !MORE) << (7 * at);
            if byte & MORE == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A number that may be negative.
    pub fn signed(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// A length, or another number of this size.
    pub fn length(&mut self) -> Option<usize> {
        usize::try_from(self.unsigned()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_small_ones_are_short() {
        for (number, len) in
            [(0, 1), (-1, 1), (63, 1), (-64, 1), (64, 2), (8_191, 2), (i64::MAX, 10), (i64::MIN, 10)]
        {
            let mut numbers = Numbers::new();
            numbers.signed(number);
            assert_eq!(numbers.bytes().len(), len, "{number}");
            assert_eq!(Reader(numbers.bytes()).signed(), Some(number));
            assert_eq!(Reader(&numbers.bytes()[..len - 1]).signed(), None);
        }
        let mut numbers = Numbers::new();
        numbers.unsigned(u64::MAX);
        numbers.length(300);
        let mut reader = Reader(numbers.bytes());
        assert_eq!((reader.unsigned(), reader.length(), reader.byte()), (Some(u64::MAX), Some(300), None));
        assert_eq!(Reader(&[MORE; 11]).unsigned(), None);
    }
}
