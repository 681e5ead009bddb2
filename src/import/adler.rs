//! The checksum of ZooKeeper's snapshots.

/// Adler-32 (RFC 1950).
#[derive(Clone, Copy, Debug)]
pub struct Adler {
    a: u32,
    b: u32,
}

impl Adler {
    const MODULUS: u32 = 65_521;
    /// This many bytes cannot overflow the sums before they are reduced.
    const RUN: usize = 5_552;

    /// Of nothing.
    pub fn new() -> Self {
        Adler { a: 1, b: 0 }
    }

    /// Goes on with these bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for run in bytes.chunks(Self::RUN) {
            for byte in run {
                self.a += u32::from(*byte);
                self.b += self.a;
            }
            self.a %= Self::MODULUS;
            self.b %= Self::MODULUS;
        }
    }

    /// Of all bytes so far.
    pub fn value(self) -> u32 {
        self.b << 16 | self.a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_the_one_of_the_rfc() {
        let mut adler = Adler::new();
        for part in b"Wikipedia".chunks(4) {
            adler.add(part);
        }
        assert_eq!(adler.value(), 0x11e6_0398);
    }
}
