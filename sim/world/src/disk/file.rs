//! File: the content visible to processes, the content on the medium, and the operations between the two.

use super::image::{Image, Span};
use super::stats::Losses;
use crate::rng::Rng;

/// Unit that a disk writes completely or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Unit in which space is allocated.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// File with a name, without its former name, or open.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    /// Content visible to every process: the page cache.
    cached: Image,
    durable: Image,
    /// Changes since the last flush of the file, oldest first.
    pending: Vec<Change>,
    /// Cache and medium differ by more than `pending`, after a failed flush.
    diverged: bool,
    /// Allocated bytes. Simplified: a hole takes as much space as written data, but an extension by `set_len`
    /// takes none.
    reserved: u64,
    pub named: bool,
    /// Number of open handles.
    pub handles: u32,
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, data: Vec<u8>, len: u64 },
    SetLen(u64),
}

/// Fate of one file's unflushed changes in a power loss.
#[derive(Clone, Copy)]
enum Luck {
    /// Each change has its own fate.
    Each,
    /// All changes had reached the medium.
    All,
    None,
    /// Changes reached the medium in order, and the last one may be torn.
    Prefix(usize),
}

impl FileNode {
    /// Creates an empty file that is about to get its name.
    pub fn new() -> Self {
        FileNode { named: true, ..FileNode::default() }
    }

    /// Returns the length in bytes, unflushed writes included.
    pub fn size(&self) -> u64 {
        self.cached.len()
    }

    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the bytes of additional space needed to reach up to `end`.
    pub fn missing_for(&self, end: u64) -> u64 {
        end.next_multiple_of(BLOCK_BYTES).saturating_sub(self.reserved)
    }

    /// Reads the content visible to processes.
    pub fn read(&self, buf: &mut [u8], at: u64) -> usize {
        self.cached.read(buf, at)
    }

    pub fn write(&mut self, bytes: &[u8], at: u64) {
        if bytes.is_empty() {
            return;
        }
        let span = Span::new(at, bytes);
        self.cached.write(span);
        self.pending.push(Change::Write { at, data: span.data.to_vec(), len: span.len });
        self.reserve(span.end());
    }

    /// Truncates the file, or extends it with zeroes.
    pub fn set_len(&mut self, len: u64) {
        if len == self.cached.len() {
            return;
        }
        self.cached.set_len(len);
        self.pending.push(Change::SetLen(len));
        self.reserved = self.reserved.min(len.next_multiple_of(BLOCK_BYTES));
    }

    /// Allocates space up to `len` and extends the file to there.
    pub fn allocate(&mut self, len: u64) {
        self.set_len(self.cached.len().max(len));
        self.reserve(len);
    }

    fn reserve(&mut self, end: u64) {
        self.reserved = self.reserved.max(end.next_multiple_of(BLOCK_BYTES));
    }

    pub fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Fails a flush: some changes reach the medium, and all count as flushed from now on. Processes still
    /// see all changes, as on ext4 and XFS (Rebello et al., "Can Applications Recover from fsync Failures?",
    /// 2020).
    pub fn fail_sync(&mut self, rng: &mut Rng) {
        self.resolve_pending(rng, &mut Losses::default());
        self.diverged = self.cached != self.durable;
    }

    /// Closes all handles after the process died. The cache may lose the changes of a failed flush.
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

    /// Drops the cache. Each unflushed change has reached the medium completely, partly, or not at all.
    pub fn power_loss(&mut self, rng: &mut Rng, losses: &mut Losses) {
        self.handles = 0;
        let stale = self.diverged || !self.pending.is_empty();
        self.resolve_pending(rng, losses);
        if stale {
            self.cached = self.durable.clone();
            self.diverged = false;
        }
        self.reserved = self.reserved.min(self.cached.len().next_multiple_of(BLOCK_BYTES));
    }

    fn resolve_pending(&mut self, rng: &mut Rng, losses: &mut Losses) {
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

    /// Returns the content on the medium.
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Inverts a bit on the medium. Processes see the change unless they have written there since.
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
            // A length is one number and cannot be torn.
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
        // The length of a file is stored apart from its bytes: it may be present without the bytes.
        if span.end() > image.len() && rng.chance(25) {
            image.set_len(span.end());
        }
    }
}

/// Writes some sectors of a span: a prefix, or any subset.
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
