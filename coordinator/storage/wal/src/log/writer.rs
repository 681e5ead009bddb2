//! Writer of the log's end: encodes records, writes and flushes once per batch, begins a new segment in place
//! of a full one, and recycles old segments.
//!
//! Runs on the log's thread only. After [`Unwritten::Failed`] the writer must not be used any more: the
//! content of the disk is then unknown. After [`Unwritten::NoRoom`] the writer continues behind the last
//! staged record.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::disk::{Dir, File};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::{rng, time};
use rowlock_metrics::Metrics;

use super::record::{self, Chain, Checkpoint, FrameContext, Record, SegmentKey};
use super::recover::{Recovered, SegmentInfo};
use super::segment::{FIRST_RECORD_AT, SegmentHeader, SegmentSeq};
use crate::error::{DiskFailure, StorageError, Unwritten, is_for_lack_of_room};
use crate::identity::Identity;

/// Bound of the spare segments; further segments are removed. A spare is cheaper to write than a new file:
/// its blocks are reserved and its pages are cached.
const SPARES_MAX: usize = 2;
/// Bound of the staged bytes: above this bound the writer hands bytes to the system before the batch is
/// complete.
const STAGED_MAX_BYTES: usize = 4 << 20;
const UNFINISHED: &str = "new-segment.tmp";
/// Zeroes behind a small write into fresh blocks. A flush of reserved but never written blocks also waits for
/// the file system's journal (6 KB on ext4: 183 us, against 98 us in written blocks), so a small write zeroes
/// the following blocks in advance, once for many writes.
const FILL_AHEAD_BYTES: usize = 256 << 10;
/// Bound of a small write, in bytes.
const FILL_AHEAD_BELOW_BYTES: u64 = 32 << 10;
/// Space for the checkpoint at the beginning of a segment.
const CHECKPOINT_ROOM: u64 = 512;

// A small write is shorter than its zeroes.
const _: () = assert!(FILL_AHEAD_BELOW_BYTES < FILL_AHEAD_BYTES as u64);
// `flushed` of a record is a u32 (see `record`): the longest segment holds a single record of the greatest
// size.
const _: () = assert!(record::BODY_MAX_BYTES as u64 + FIRST_RECORD_AT + CHECKPOINT_ROOM < u32::MAX as u64);

pub struct Writer {
    dir: Dir,
    identity: Identity,
    segment_bytes: u64,
    metrics: Arc<Metrics>,
    active: Active,
    /// Segments before the active segment, oldest first.
    older: VecDeque<Older>,
    spares: Vec<String>,
    /// State of the log after the last staged record.
    checkpoint: Checkpoint,
    /// Encoded records, not yet written.
    staged: Vec<u8>,
    /// Buffer for the body of a record.
    body: Vec<u8>,
    /// [`FILL_AHEAD_BYTES`] zeroes, on the heap: a constant would enlarge the program's file.
    zeroes: Box<[u8]>,
    /// True if a mark follows the last flush, see [`Writer::mark_flushed`].
    is_marked: bool,
    /// Staged records of the last write.
    taken: usize,
}

struct Active {
    seq: SegmentSeq,
    file: File,
    len: u64,
    key: SegmentKey,
    /// Link of the last staged record.
    chain: Chain,
    /// End of the bytes on disk.
    flushed: u64,
    /// End of the bytes handed to the system.
    written: u64,
    /// End of the staged bytes.
    end: u64,
    /// End of the blocks written before, in this segment's life or a former life.
    filled: u64,
    max_index: Option<u64>,
}

struct Older {
    seq: SegmentSeq,
    len: u64,
    max_index: Option<u64>,
}

impl Active {
    /// Asserts the order of the offsets: header, flushed, written, staged, end of the file.
    fn check(&self) {
        assert!(FIRST_RECORD_AT <= self.flushed, "the header is on disk before any record");
        assert!(self.flushed <= self.written, "what is flushed was written");
        assert!(self.written <= self.end, "what is written was staged");
        assert!(self.end <= self.len, "records end in their segment");
        assert!(self.filled <= self.len, "zeroes are written beyond the end of a segment");
    }
}

impl Writer {
    /// Continues the log in `dir`, or begins a new log. On return the recovered records, and a mark behind
    /// the records, are on disk.
    pub fn open(
        dir: Dir,
        identity: Identity,
        segment_bytes: u64,
        metrics: Arc<Metrics>,
        found: &Recovered,
    ) -> Result<Writer, StorageError> {
        for name in &found.leftovers {
            rare::taken(Rare::LeftoverRemoved);
            dir.remove(name).map_err(StorageError::io("removing", &dir.path().join(name)))?;
        }
        let checkpoint = *found.log.checkpoint();
        let (active, older) = match found.segments.split_last() {
            Some((last, older)) => (reopen(&dir, last)?, older.iter().map(Older::from).collect()),
            None => {
                let first =
                    NewSegment { seq: SegmentSeq::FIRST, previous: (Chain(0), 0), len: segment_bytes };
                let active = create(&dir, &identity, &first, None).map_err(into_storage_error)?;
                (active, VecDeque::new())
            }
        };
        let newest = older.iter().map(|older: &Older| older.seq).chain([active.seq]);
        debug_assert!(newest.is_sorted(), "the segments of a log are in their order");
        let spares = found.spares.clone();
        let mut writer = Writer {
            dir,
            identity,
            segment_bytes,
            metrics,
            active,
            older,
            spares,
            checkpoint,
            staged: Vec::new(),
            body: Vec::new(),
            zeroes: vec![0; FILL_AHEAD_BYTES].into(),
            is_marked: false,
            taken: 0,
        };
        // A killed process leaves readable, unflushed records. The flush must precede any record with a
        // higher `flushed` offset.
        writer.active.file.sync_data().map_err(StorageError::io("flushing", &writer.active_path()))?;
        // Repeats the checkpoint, because a crash may have left the last segment without records: see `wal`.
        let begin = [Record::Checkpoint(checkpoint), Record::Mark(rng::u64())];
        writer.write(&begin).map_err(into_storage_error)?;
        assert_eq!(writer.checkpoint, checkpoint, "opening does not change the state of the log");
        Ok(writer)
    }

    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Writes records at the end of the log, durably on return.
    ///
    /// # Errors
    /// After [`Unwritten::NoRoom`] the caller must not pass the first [`Writer::staged`] records again.
    pub fn write<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) -> Result<(), Unwritten> {
        self.stage_all(records)?;
        self.flush()?;
        let count = self.taken;
        assert!(self.staged.is_empty() && self.staged() == count, "all records of the write are on disk");
        assert!(self.staged.is_empty(), "an acknowledged write has no staged bytes");
        self.active.check();
        self.is_marked = false;
        self.recycle()
    }

    /// Writes records at the end of the log, not durably on return. The caller must call [`Writer::flush`]
    /// later.
    ///
    /// # Errors
    /// The same as [`Writer::write`].
    pub fn write_unflushed<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Result<(), Unwritten> {
        self.stage_all(records)?;
        self.is_marked = false;
        if !self.staged.is_empty() {
            self.hand_over()?;
        }
        self.active.check();
        Ok(())
    }

    /// Returns the number of staged records of the last write: the next write includes these records.
    pub fn staged(&self) -> usize {
        self.taken
    }

    /// Writes and flushes a mark behind the last flush. The mark proves all earlier records flushed: from
    /// then on recovery treats an unreadable earlier record as damage instead of a torn write. Does nothing
    /// without a write since the last mark.
    pub fn mark_flushed(&mut self) -> Result<(), Unwritten> {
        if decides!("flush-is-marked", self.is_marked) {
            return Ok(());
        }
        self.write(&[Record::Mark(0)])?;
        self.is_marked = true;
        Ok(())
    }

    fn stage_all<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) -> Result<(), Unwritten> {
        self.taken = 0;
        for record in records {
            self.stage(record)?;
            self.taken += 1;
        }
        Ok(())
    }

    /// Encodes a record behind the staged records.
    ///
    /// Invariant: an error leaves the record unstaged.
    fn stage(&mut self, record: &Record) -> Result<(), Unwritten> {
        if self.staged.len() > STAGED_MAX_BYTES {
            self.hand_over()?;
        }
        self.body.clear();
        let kind = record.encode_into(&mut self.body);
        let room = record::occupied(self.body.len()) as u64;
        // Only for entries, because a start may lack the disk space for another segment.
        let is_early = matches!(record, Record::Entry(_))
            && self.active.end > FIRST_RECORD_AT + CHECKPOINT_ROOM
            && choice::taken(Choice::SegmentEarly, 30);
        if is_early || self.active.end + room > self.active.len {
            // The record's bytes are staged again behind the new segment's checkpoint.
            let body = std::mem::take(&mut self.body);
            self.rotate(room)?;
            self.body = body;
        }
        let staged = self.staged.len();
        let active = &mut self.active;
        let flushed = u32::try_from(active.flushed).expect("Invariant: a segment is smaller than 4 GiB");
        let place = FrameContext { key: active.key, previous: active.chain, flushed };
        active.chain = record::write(&mut self.staged, place, kind, &self.body);
        active.end += room;
        assert_eq!(
            self.staged.len() as u64,
            staged as u64 + room,
            "a record takes the room that it was given"
        );
        assert!(active.end <= active.len, "a record fits into the segment that was made for it");
        if let Record::Entry(entry) = record {
            active.max_index = active.max_index.max(Some(entry.log_id.index));
        }
        self.checkpoint.update(record);
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Unwritten> {
        let active = &mut self.active;
        assert!(active.flushed <= active.written, "what is flushed was written");
        let result = active.file.write_all_at(&self.staged, active.written);
        result.map_err(|error| Unwritten::before_flush("writing", &self.active_path(), &error))?;
        self.metrics.wal_bytes_total.add(self.staged.len() as u64);
        self.active.written += self.staged.len() as u64;
        assert_eq!(
            self.active.written, self.active.end,
            "staged bytes are all there is behind the written ones"
        );
        self.staged.clear();
        Ok(())
    }

    /// Writes zeroes behind a small write into fresh blocks. Ignores a full disk: the zeroes only save time.
    fn fill_ahead(&mut self) -> Result<(), Unwritten> {
        let active = &mut self.active;
        assert!(active.written <= active.len, "records end in their segment");
        let small = active.written - active.flushed < FILL_AHEAD_BELOW_BYTES;
        if active.written <= active.filled || !small {
            active.filled = active.filled.max(active.written);
            return Ok(());
        }
        let room = usize::try_from(active.len - active.written).unwrap_or(usize::MAX);
        let zeroes = &self.zeroes[..room.min(FILL_AHEAD_BYTES)];
        let result = active.file.write_all_at(zeroes, active.written);
        active.filled = active.written + zeroes.len() as u64;
        assert!(active.filled <= active.len, "zeroes are written beyond the end of a segment");
        match result {
            Err(error) if !is_for_lack_of_room(error.kind()) => {
                Err(Unwritten::of_flush("writing", &self.active_path(), &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub fn flush(&mut self) -> Result<(), Unwritten> {
        if mutant::is(Mutant::AckBeforeFlush) {
            self.sync()?;
            return self.hand_over();
        }
        if decides!("records-are-staged", !self.staged.is_empty()) {
            self.hand_over()?;
            self.fill_ahead()?;
        }
        self.sync()
    }

    fn sync(&mut self) -> Result<(), Unwritten> {
        if decides!("nothing-is-unflushed", self.active.flushed == self.active.written) {
            return Ok(());
        }
        let begun = time::now();
        if let Err(error) = self.active.file.sync_data() {
            self.metrics.fsync_errors_total.inc();
            if !mutant::is(Mutant::IgnoreFailedFlush) {
                return Err(Unwritten::of_flush("flushing", &self.active_path(), &error));
            }
        }
        self.metrics.wal_fsync_seconds.record(begun.elapsed());
        self.active.flushed = self.active.written;
        Ok(())
    }

    /// Begins a segment with space for a record of `room` bytes.
    fn rotate(&mut self, room: u64) -> Result<(), Unwritten> {
        self.flush()?;
        assert!(self.staged.is_empty(), "a segment is left with all its records");
        let wanted = (FIRST_RECORD_AT + CHECKPOINT_ROOM + room).next_multiple_of(4096);
        let len = self.segment_bytes.max(wanted);
        let spare = self.spares.last().filter(|_| len == self.segment_bytes).cloned();
        let previous = (self.active.chain, self.active.end);
        let next = NewSegment { seq: self.active.seq.next(), previous, len };
        let active = create(&self.dir, &self.identity, &next, spare.as_deref())?;
        if spare.is_some() {
            self.spares.pop();
        }
        let full = std::mem::replace(&mut self.active, active);
        assert_eq!(self.active.seq, full.seq.next(), "no segment is left out");
        self.older.push_back(Older { seq: full.seq, len: full.len, max_index: full.max_index });
        self.stage(&Record::Checkpoint(self.checkpoint))?;
        assert!(self.active.end <= FIRST_RECORD_AT + CHECKPOINT_ROOM, "a checkpoint fits into its room");
        assert!(self.active.end + room <= self.active.len, "a new segment has room for the record");
        Ok(())
    }

    /// Removes the oldest segments from the log while the purge covers all their entries. The purge is
    /// already on disk.
    fn recycle(&mut self) -> Result<(), Unwritten> {
        while let Some(oldest) = self.older.front() {
            let purged = self.checkpoint.purged.map(|log_id| log_id.index);
            if decides!("segment-is-needed", oldest.max_index > purged) {
                return Ok(());
            }
            assert!(oldest.seq < self.active.seq, "the segment that is written into is never recycled");
            let name = oldest.seq.file_name();
            let keep = decides!(
                "segment-is-reusable",
                oldest.len == self.segment_bytes && self.spares.len() < SPARES_MAX
            );
            let spare = oldest.seq.spare_name();
            let done = match keep.then(|| self.dir.rename(&name, &spare)) {
                // The directory has no space for another name.
                Some(Err(error)) if is_for_lack_of_room(error.kind()) => self.dir.remove(&name),
                Some(renamed) => {
                    rare::taken(Rare::SegmentRecycled);
                    self.spares.push(spare);
                    renamed
                }
                None => self.dir.remove(&name),
            };
            // Removes the segments singly, oldest first, so that no crash leaves a hole.
            let path = self.dir.path().join(&name);
            let skips = mutant::is(Mutant::RecycleWithoutDirSync);
            done.and_then(|()| if skips { Ok(()) } else { self.dir.sync() })
                .map_err(|error| Unwritten::of_flush("recycling", &path, &error))?;
            let removed = self.older.pop_front().expect("Invariant: the loop has found the front");
            let next = self.older.front().map_or(self.active.seq, |older| older.seq);
            assert_eq!(next, removed.seq.next(), "segments leave the log in their order");
        }
        Ok(())
    }

    fn active_path(&self) -> PathBuf {
        self.dir.path().join(self.active.seq.file_name())
    }

    /// Replaces the active segment's file by a failing file.
    #[cfg(test)]
    pub fn replace_file(&mut self, file: File) {
        self.active.file = file;
    }
}

impl From<&SegmentInfo> for Older {
    fn from(info: &SegmentInfo) -> Self {
        Older { seq: info.seq, len: info.len, max_index: info.max_index }
    }
}

struct NewSegment {
    seq: SegmentSeq,
    /// Last link and end of the preceding segment.
    previous: (Chain, u64),
    len: u64,
}

/// Makes a segment from a spare or from nothing. On return the file has its name, header and space.
fn create(
    dir: &Dir,
    identity: &Identity,
    new: &NewSegment,
    spare: Option<&str>,
) -> Result<Active, Unwritten> {
    let header = SegmentHeader {
        seq: new.seq,
        node: identity.node.0,
        cluster_hash: identity.cluster_hash(),
        nonce: rng::u64(),
        previous_chain: new.previous.0,
        previous_end: new.previous.1,
    };
    assert!(new.len > FIRST_RECORD_AT + CHECKPOINT_ROOM, "a segment has room for a record");
    let (bytes, chain) = header.encode();
    let name = new.seq.file_name();
    let path = dir.path().join(&name);
    let unflushed = |error: io::Error| {
        if spare.is_none() {
            // Frees the space for the next attempt. The next start removes a remaining file.
            let _ = dir.remove(UNFINISHED);
        }
        Unwritten::before_flush("creating", &path, &error)
    };
    let write = || {
        let file = match spare {
            Some(spare) => {
                rare::taken(Rare::SegmentReused);
                dir.open_file(spare)?
            }
            None => dir.create_new(UNFINISHED)?,
        };
        let is_used = file.len()? == new.len;
        if !is_used {
            file.set_len(0)?;
            file.allocate(new.len)?;
        }
        file.write_all_at(&bytes, 0)?;
        Ok((file, if is_used { new.len } else { FIRST_RECORD_AT }))
    };
    let (file, filled) = write().map_err(unflushed)?;
    let flushed = |error: io::Error| Unwritten::of_flush("creating", &path, &error);
    file.sync_all().map_err(flushed)?;
    dir.rename(spare.unwrap_or(UNFINISHED), &name).map_err(unflushed)?;
    if !mutant::is(Mutant::RenameWithoutDirSync) {
        dir.sync().map_err(flushed)?;
    }
    let at = FIRST_RECORD_AT;
    let key = header.key();
    let (flushed, written, end) = (at, at, at);
    Ok(Active {
        seq: new.seq,
        file,
        len: new.len,
        key,
        chain,
        flushed,
        written,
        end,
        filled,
        max_index: None,
    })
}

/// Opens the last segment for writing. Writes the records above the proven `flushed` offset again: after a
/// failed flush Linux marks the unwritten pages clean, and a mere flush would write nothing (Rebello et al.,
/// "Can Applications Recover from fsync Failures?", 2020).
fn reopen(dir: &Dir, last: &SegmentInfo) -> Result<Active, StorageError> {
    let name = last.seq.file_name();
    let path = dir.path().join(&name);
    let file = dir.open_file(&name).map_err(StorageError::io("opening", &path))?;
    let SegmentInfo { seq, len, max_index, key, end, flushed, chain } = *last;
    let mut unsure = vec![0; usize::try_from(end.saturating_sub(flushed)).expect("a 64-bit system")];
    if !unsure.is_empty() {
        rare::taken(Rare::TailWrittenAgain);
    }
    let again = file.read_exact_at(&mut unsure, flushed).and_then(|()| file.write_all_at(&unsure, flushed));
    again.map_err(StorageError::io("writing again", &path))?;
    let (flushed, written, filled) = (end, end, end);
    Ok(Active { seq, file, len, key, chain, flushed, written, end, filled, max_index })
}

/// Converts a failed write into the error of an opener.
pub fn into_storage_error(unwritten: Unwritten) -> StorageError {
    let DiskFailure { action, path, kind, text } = unwritten.failure();
    StorageError::Io { action, path, source: io::Error::new(kind, text) }
}
