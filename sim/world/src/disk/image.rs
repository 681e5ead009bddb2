//! Content of a file. Bytes behind the stored ones are zero, so that a preallocated file costs no memory.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    /// Invariant: not longer than `len`. All bytes behind these are zero.
    bytes: Vec<u8>,
    len: u64,
}

/// Range of bytes with implicit zeroes at the end.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    /// Start offset in the file.
    pub at: u64,
    /// First bytes of the span, without trailing zeroes.
    pub data: &'a [u8],
    /// Length of the span; the bytes behind `data` are zero.
    pub len: u64,
}

impl<'a> Span<'a> {
    /// Creates the span of `bytes` at `at`. Strips trailing zeroes where the saving exceeds the cost.
    pub fn new(at: u64, bytes: &'a [u8]) -> Self {
        const WORTH_IT: usize = 1024;
        let data = if bytes.len() < WORTH_IT { bytes } else { without_zeroes(bytes) };
        Span { at, data, len: bytes.len() as u64 }
    }

    /// Returns the offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.at + self.len
    }

    /// Returns the part between two offsets of the file, both within the span.
    pub fn cut(&self, from: u64, to: u64) -> Span<'a> {
        assert!(self.at <= from && from <= to && to <= self.end(), "within the span");
        let stored = self.data.len();
        let (begin, end) = (to_index(from - self.at).min(stored), to_index(to - self.at).min(stored));
        Span { at: from, data: &self.data[begin..end], len: to - from }
    }
}

impl Image {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the bytes without the trailing unwritten zeroes.
    pub fn stored(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies the content at `at` into `buf` and returns the number of copied bytes.
    pub fn read(&self, buf: &mut [u8], at: u64) -> usize {
        let count = to_index(self.len.saturating_sub(at)).min(buf.len());
        let stored = self.bytes.get(to_index(at)..).unwrap_or(&[]);
        let copied = stored.len().min(count);
        buf[..copied].copy_from_slice(&stored[..copied]);
        buf[copied..count].fill(0);
        count
    }

    /// Writes a span, extending the file if the span ends behind its end.
    pub fn write(&mut self, span: Span<'_>) {
        if span.len == 0 {
            return;
        }
        self.len = self.len.max(span.end());
        let data_end = to_index(span.at) + span.data.len();
        if !span.data.is_empty() {
            if self.bytes.len() < data_end {
                self.bytes.resize(data_end, 0);
            }
            self.bytes[data_end - span.data.len()..data_end].copy_from_slice(span.data);
        }
        let zeroes_end = to_index(span.end()).min(self.bytes.len());
        if data_end < zeroes_end {
            self.bytes[data_end..zeroes_end].fill(0);
        }
    }

    /// Truncates the file, or extends it with zeroes.
    pub fn set_len(&mut self, len: u64) {
        self.len = len;
        self.bytes.truncate(to_index(len));
    }

    pub fn flip(&mut self, offset: usize, bit: u8) {
        self.bytes[offset] ^= 1 << bit;
    }

    /// Adds length and content to a hash. Equal files have equal hashes, however they were written.
    pub fn hash(&self, mut hash: u64) -> u64 {
        let (words, rest) = without_zeroes(&self.bytes).as_chunks::<8>();
        for word in words {
            hash = mix(hash, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        mix(mix(hash, u64::from_le_bytes(last)), self.len)
    }
}

/// Computes one step of a non-cryptographic hash.
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

fn without_zeroes(bytes: &[u8]) -> &[u8] {
    let (_, words) = bytes.as_rchunks::<16>();
    let zeroes = words.iter().rev().take_while(|word| **word == [0; 16]).count();
    let mut end = bytes.len() - zeroes * 16;
    while end > 0 && bytes[end - 1] == 0 {
        end -= 1;
    }
    &bytes[..end]
}

/// Converts an offset: a simulated disk has no files beyond the memory.
fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("a 64-bit system")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(image: &Image) -> Vec<u8> {
        let mut bytes = vec![0xee; image.len() as usize];
        assert_eq!(image.read(&mut bytes, 0), bytes.len());
        bytes
    }

    #[test]
    fn an_image_reads_like_the_plain_bytes_that_were_written() {
        let mut rng = crate::rng::Rng::new(1);
        for _ in 0..300 {
            let (mut image, mut plain) = (Image::default(), Vec::<u8>::new());
            for _ in 0..12 {
                if rng.chance(20) {
                    let len = rng.below(5_000);
                    image.set_len(len as u64);
                    plain.resize(len, 0);
                } else {
                    let (at, len, zeroes) = (rng.below(4_000), rng.below(3_000), rng.below(3_000));
                    let mut bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                    bytes.resize(len + zeroes, 0);
                    image.write(Span::new(at as u64, &bytes));
                    plain.resize(plain.len().max(at + bytes.len()), 0);
                    plain[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                if plain.is_empty() {
                    continue;
                }
                assert_eq!(content(&image), plain);
                let at = rng.below(plain.len());
                let mut some = vec![0; rng.below(plain.len() + 50)];
                let count = image.read(&mut some, at as u64);
                assert_eq!(some[..count], plain[at..at + count]);
                assert!(count == some.len() || at + count == plain.len());
            }
        }
    }

    #[test]
    fn zeroes_at_the_end_are_not_stored() {
        let mut image = Image::default();
        image.write(Span::new(100, &[0; 1 << 20]));
        assert_eq!((image.len(), image.stored().len()), (100 + (1 << 20), 0));
        image.write(Span::new(50, b"abc"));
        assert_eq!(image.stored().len(), 53);
    }

    #[test]
    fn equal_files_have_equal_hashes() {
        let (mut one, mut other) = (Image::default(), Image::default());
        one.write(Span::new(0, b"abc\0\0\0"));
        other.write(Span::new(0, b"xyz"));
        other.set_len(6);
        other.write(Span::new(0, b"abc"));
        assert_eq!(one.hash(7), other.hash(7));
        other.set_len(7);
        assert_ne!(one.hash(7), other.hash(7));
    }

    #[test]
    fn a_cut_returns_a_part_of_the_span() {
        let bytes = [b"ab".to_vec(), vec![0; 2_000]].concat();
        let span = Span::new(10, &bytes);
        assert_eq!((span.cut(11, 20).data, span.cut(11, 20).len), (&b"b"[..], 9));
        assert_eq!((span.cut(15, 20).data, span.cut(15, 20).len), (&b""[..], 5));
    }
}
