//! A file: what a process sees of it, what is on the medium, and the operations between the two.

use super::image::{Image, Span};
use super::stats::Losses;
use crate::rng::Rng;

/// Unit that a disk writes as a whole or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Unit in which space is allocated.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// A file that has a name, had one, or is open.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    /// Contents that every process sees: the page cache.
    cached: Image,
    /// Contents on the medium.
    durable: Image,
    /// Changes of the file since it was flushed, oldest first.
    pending: Vec<Change>,
    /// Cache and medium differ by more than `pending`: a flush has failed.
    diverged: bool,
    /// Bytes of space that it takes up. Simplified: a hole takes up as much as what is around it, but what
    /// `set_len` adds at the end takes up nothing.
    reserved: u64,
    pub named: bool,
    /// How often it is open.
    pub handles: u32,
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, data: Vec<u8>, len: u64 },
    SetLen(u64),
}

/// How the unflushed changes of one file fare when the power goes.
#[derive(Clone, Copy)]
enum Luck {
    /// Each has its own.
    Each,
    /// All were on the medium already.
    All,
    None,
    /// They went there in order, and the last of them may be torn.
    Prefix(usize),
}

impl FileNode {
    /// An empty one that is about to get its name.
    pub fn new() -> Self {
        FileNode { named: true, ..FileNode::default() }
    }

    /// Returns the length in bytes, unflushed writes included.
    pub fn size(&self) -> u64 {
        self.cached.len()
    }

    /// Bytes of space that it takes up.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of space that it would need besides to reach up to `end`.
    pub fn missing_for(&self, end: u64) -> u64 {
        end.next_multiple_of(BLOCK_BYTES).saturating_sub(self.reserved)
    }

    /// Reads what a process sees.
    pub fn read(&self, buf: &mut [u8], at: u64) -> usize {
        self.cached.read(buf, at)
    }

    /// Writes into the cache.
    pub fn write(&mut self, bytes: &[u8], at: u64) {
        if bytes.is_empty() {
            return;
        }
        let span = Span::new(at, bytes);
        self.cached.write(span);
        self.pending.push(Change::Write { at, data: span.data.to_vec(), len: span.len });
        self.reserve(span.end());
    }

    /// Cuts it or extends it with zeroes.
    pub fn set_len(&mut self, len: u64) {
        if len == self.cached.len() {
            return;
        }
        self.cached.set_len(len);
        self.pending.push(Change::SetLen(len));
        self.reserved = self.reserved.min(len.next_multiple_of(BLOCK_BYTES));
    }

    /// Takes up space up to `len` and extends it to there.
    pub fn allocate(&mut self, len: u64) {
        self.set_len(self.cached.len().max(len));
        self.reserve(len);
    }

    fn reserve(&mut self, end: u64) {
        self.reserved = self.reserved.max(end.next_multiple_of(BLOCK_BYTES));
    }

    /// Brings all changes to the medium.
    pub fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// A flush that fails: some of the changes get to the medium, and all count as flushed from now on. The
    /// process still sees them, as on ext4 and XFS (Rebello et al., "Can Applications Recover from fsync
    /// Failures?", 2020).
    pub fn fail_sync(&mut self, rng: &mut Rng) {
        self.settle(rng, &mut Losses::default());
        self.diverged = self.cached != self.durable;
    }

    /// The process is gone, and with it, perhaps, what a failed flush had left in the cache.
    pub fn process_died(&mut self, rng: &mut Rng) {
        self.handles = 0;
        if self.diverged && rng.chance(50) {
            self.diverged = false;
            self.cached = self.durable.clone();
            for change in &self.pending {
                change.apply(&mut self.cached);
            }
        }
    }

    /// The cache is gone. Every unflushed change is on the medium, or is not, or a part of it is.
    pub fn power_loss(&mut self, rng: &mut Rng, losses: &mut Losses) {
        self.handles = 0;
        let stale = self.diverged || !self.pending.is_empty();
        self.settle(rng, losses);
        if stale {
            self.cached = self.durable.clone();
            self.diverged = false;
        }
        self.reserved = self.reserved.min(self.cached.len().next_multiple_of(BLOCK_BYTES));
    }

    fn settle(&mut self, rng: &mut Rng, losses: &mut Losses) {
        if self.pending.is_empty() {
            return;
        }
        let luck = match rng.weighted(&[50, 10, 20, 20]) {
            0 => Luck::Each,
            1 => Luck::All,
            2 => Luck::None,
            _ => Luck::Prefix(rng.below(self.pending.len() + 1)),
        };
        for (index, change) in self.pending.drain(..).enumerate() {
            let fate = match luck {
                Luck::Each => rng.pick(&[Fate::Kept, Fate::Dropped, Fate::Torn]),
                Luck::All => Fate::Kept,
                Luck::None => Fate::Dropped,
                Luck::Prefix(kept) if index < kept => Fate::Kept,
                Luck::Prefix(kept) if index == kept => Fate::Torn,
                Luck::Prefix(_) => Fate::Dropped,
            };
            change.meet(fate, &mut self.durable, rng, losses);
        }
    }

    /// Where stored bytes are on the medium.
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Inverts a bit on the medium. A process sees it unless it has written there since.
    pub fn rot(&mut self, offset: usize, bit: u8) {
        self.durable.flip(offset, bit);
        let covered = self.pending.iter().any(|change| change.touches(offset as u64));
        if !covered && !self.diverged && offset < self.cached.stored().len() {
            self.cached.flip(offset, bit);
        }
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Dropped,
    Torn,
}

impl Change {
    fn apply(&self, image: &mut Image) {
        match self {
            Change::Write { at, data, len } => image.write(Span { at: *at, data, len: *len }),
            Change::SetLen(len) => image.set_len(*len),
        }
    }

    fn touches(&self, offset: u64) -> bool {
        match self {
            Change::Write { at, len, .. } => (*at..at + len).contains(&offset),
            Change::SetLen(len) => *len <= offset,
        }
    }

    fn meet(&self, fate: Fate, image: &mut Image, rng: &mut Rng, losses: &mut Losses) {
        let Change::Write { at, data, len } = self else {
            // A length is one number: it cannot be torn.
            let keep = match fate {
                Fate::Kept => true,
                Fate::Dropped => false,
                Fate::Torn => rng.chance(50),
            };
            if keep {
                self.apply(image);
            }
            losses.count_length(keep);
            return;
        };
        let span = Span { at: *at, data, len: *len };
        match fate {
            Fate::Kept => {
                losses.kept += 1;
                image.write(span);
                return;
            }
            Fate::Dropped => losses.dropped += 1,
            Fate::Torn => tear(span, image, rng, losses),
        }
        // The length of a file travels apart from its bytes: it may be there without them.
        if span.end() > image.len() && rng.chance(25) {
            image.set_len(span.end());
        }
    }
}

/// Writes some sectors of a span: the first ones, or any.
fn tear(span: Span<'_>, image: &mut Image, rng: &mut Rng, losses: &mut Losses) {
    let first = span.at / SECTOR_BYTES;
    let sectors = span.end().div_ceil(SECTOR_BYTES) - first;
    let count = usize::try_from(sectors).expect("a 64-bit system");
    let prefix = if rng.chance(50) { Some(rng.below(count + 1)) } else { None };
    let mut kept = 0;
    for sector in 0..count {
        let keep = match prefix {
            Some(prefix) => sector < prefix,
            None => rng.chance(50),
        };
        if keep {
            kept += 1;
            let begin = (first + sector as u64) * SECTOR_BYTES;
            image.write(span.cut(begin.max(span.at), (begin + SECTOR_BYTES).min(span.end())));
        }
    }
    match kept {
        0 => losses.dropped += 1,
        all if all == count => losses.kept += 1,
        _ => losses.torn += 1,
    }
}
