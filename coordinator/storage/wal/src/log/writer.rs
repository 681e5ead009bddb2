//! Writes records: encodes, writes once, flushes once; begins a new segment when one is full, and uses old
//! ones again.
//!
//! Runs on the log's thread only. After [`Unwritten::Failed`] it must not be used any more: what is on the
//! disk is then unknown. After [`Unwritten::NoRoom`] it goes on behind the last record that it has staged.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rowlock_env::choice::{self, Choice};
use rowlock_env::disk::{Dir, File};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::{rng, time};
use rowlock_types::metrics::Metrics;

use super::frame::{self, Chain, FrameContext, SegmentKey};
use super::record::{Checkpoint, Record};
use super::recover::{Recovered, SegmentInfo};
use super::segment::{FIRST_RECORD_AT, SegmentHeader, SegmentSeq};
use crate::error::{DiskFailure, StorageError, Unwritten, is_for_lack_of_room};
use crate::identity::Identity;

/// Segments that are kept for later use; more are removed. What was written before is cheaper to write: its
/// blocks are reserved and its pages are in memory.
const SPARES_MAX: usize = 2;
/// Staged bytes beyond this are handed to the system before the batch is complete.
const STAGED_MAX_BYTES: usize = 4 << 20;
/// Name of a segment that is being made.
const UNFINISHED: &str = "new-segment.tmp";
/// A flush of reserved blocks that were never written waits for the file system's journal as well (6 KB on
/// ext4: 183 us, 98 in blocks that had been written). So a small write that reaches such blocks also fills
/// those behind it with zeroes, once for many.
const FILL_AHEAD_BYTES: usize = 256 << 10;
/// A larger write is not small.
const FILL_AHEAD_BELOW_BYTES: u64 = 32 << 10;
/// Room for the checkpoint at the beginning of a segment.
const CHECKPOINT_ROOM: u64 = 512;

// A small write is filled ahead at once: the zeroes are more than it is.
const _: () = assert!(FILL_AHEAD_BELOW_BYTES < FILL_AHEAD_BYTES as u64);
// `flushed` of a record is a u32 (see `frame`): the longest segment holds one record of the greatest size.
const _: () = assert!(frame::BODY_MAX_BYTES as u64 + FIRST_RECORD_AT + CHECKPOINT_ROOM < u32::MAX as u64);

/// The end of the log.
pub struct Writer {
    dir: Dir,
    identity: Identity,
    segment_bytes: u64,
    metrics: Arc<Metrics>,
    active: Active,
    /// Segments before the active one, oldest first.
    older: VecDeque<Older>,
    spares: Vec<String>,
    /// State of the log up to the last staged record.
    checkpoint: Checkpoint,
    /// Encoded records, not yet written.
    staged: Vec<u8>,
    /// One record's body, kept for its allocation.
    body: Vec<u8>,
    /// [`FILL_AHEAD_BYTES`] of them; in the program's file they would only make it larger.
    zeroes: Box<[u8]>,
    /// A record says that the last flush is done, see [`Writer::mark_flushed`].
    is_marked: bool,
    /// Records of the last write that were staged.
    taken: usize,
}

/// The segment that records go into.
struct Active {
    seq: SegmentSeq,
    file: File,
    len: u64,
    key: SegmentKey,
    /// Link of the last staged record.
    chain: Chain,
    /// Behind what is on disk.
    flushed: u64,
    /// Behind what was handed to the system.
    written: u64,
    /// Behind what is staged.
    end: u64,
    /// Behind the blocks that have been written before, now or in a former life.
    filled: u64,
    max_index: Option<u64>,
}

struct Older {
    seq: SegmentSeq,
    len: u64,
    max_index: Option<u64>,
}

impl Active {
    /// Invariant: what is flushed was written, what is written was staged, and all of it is in the segment.
    fn check(&self) {
        assert!(FIRST_RECORD_AT <= self.flushed, "the header is on disk before any record");
        assert!(self.flushed <= self.written, "what is flushed was written");
        assert!(self.written <= self.end, "what is written was staged");
        assert!(self.end <= self.len, "records end in their segment");
        assert!(self.filled <= self.len, "zeroes are written beyond the end of a segment");
    }
}

impl Writer {
    /// Continues the log that was found in `dir`, or begins a new one. What was read, and a mark behind it,
    /// is on disk when this returns.
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
        // A killed process leaves records that are readable and not flushed. They must be on disk before
        // anything is written behind them that says so.
        writer.active.file.sync_data().map_err(StorageError::io("flushing", &writer.active_path()))?;
        // The checkpoint, because a segment may have been begun and nothing of it have been finished: see
        // `wal`.
        let begin = [Record::Checkpoint(checkpoint), Record::Mark(rng::u64())];
        writer.write(&begin).map_err(into_storage_error)?;
        assert_eq!(writer.checkpoint, checkpoint, "opening changes nothing of what the log amounts to");
        Ok(writer)
    }

    /// Returns the state of the log.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Writes records behind the others. On disk when this returns.
    ///
    /// # Errors
    /// After [`Unwritten::NoRoom`], [`Writer::staged`] tells how many of them must not be given again.
    pub fn write<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) -> Result<(), Unwritten> {
        self.taken = 0;
        for record in records {
            self.stage(record)?;
            self.taken += 1;
        }
        self.flush()?;
        let count = self.taken;
        assert!(self.staged.is_empty() && self.staged() == count, "all that was given is on disk");
        assert!(self.staged.is_empty(), "who is told that it is on disk has nothing waiting");
        self.active.check();
        self.is_marked = false;
        self.metrics.wal_flush_records.record(count);
        self.recycle()
    }

    /// How many records of the last write were staged: they come with the next one.
    pub fn staged(&self) -> usize {
        self.taken
    }

    /// Writes a record behind the last flush, which says that all before it had been flushed, and flushes it:
    /// from then on a record before it that cannot be read is damage, and is not taken for a write that power
    /// loss has torn. Does nothing if nothing was written since the last time.
    pub fn mark_flushed(&mut self) -> Result<(), Unwritten> {
        if self.is_marked || mutant::is(Mutant::NoFlushMark) {
            return Ok(());
        }
        self.write(&[Record::Mark(0)])?;
        self.is_marked = true;
        Ok(())
    }

    /// Invariant: an error comes before the record is staged.
    fn stage(&mut self, record: &Record) -> Result<(), Unwritten> {
        if self.staged.len() > STAGED_MAX_BYTES {
            self.hand_over()?;
        }
        self.body.clear();
        let kind = record.encode_into(&mut self.body);
        let room = frame::occupied(self.body.len()) as u64;
        // Only for entries: a node that starts would need more room than it has.
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
        active.chain = frame::write(&mut self.staged, place, kind, &self.body);
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
        self.checkpoint.note(record);
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

    /// Writes zeroes behind a small write that reaches blocks never written before. Where they find no room,
    /// they are not written: they only save time.
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

    fn flush(&mut self) -> Result<(), Unwritten> {
        if mutant::is(Mutant::AckBeforeFlush) {
            self.sync()?;
            return self.hand_over();
        }
        if !self.staged.is_empty() {
            self.hand_over()?;
            self.fill_ahead()?;
        }
        self.sync()
    }

    fn sync(&mut self) -> Result<(), Unwritten> {
        if self.active.flushed == self.active.written || mutant::is(Mutant::NeverFlush) {
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

    /// Begins a segment with room for a record that takes `room`.
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

    /// Takes the oldest segments out of the log when nothing in them is needed. The purge that allows it is
    /// on disk.
    fn recycle(&mut self) -> Result<(), Unwritten> {
        while let Some(oldest) = self.older.front() {
            let purged = self.checkpoint.purged.map(|log_id| log_id.index);
            if oldest.max_index > purged {
                return Ok(());
            }
            assert!(oldest.seq < self.active.seq, "the segment that is written into is never recycled");
            let name = oldest.seq.file_name();
            let keep = oldest.len == self.segment_bytes && self.spares.len() < SPARES_MAX;
            let spare = oldest.seq.spare_name();
            let done = match keep.then(|| self.dir.rename(&name, &spare)) {
                // The directory has no room for another name.
                Some(Err(error)) if is_for_lack_of_room(error.kind()) => self.dir.remove(&name),
                Some(renamed) => {
                    rare::taken(Rare::SegmentRecycled);
                    self.spares.push(spare);
                    renamed
                }
                None => self.dir.remove(&name),
            };
            // One at a time, oldest first, so that no crash leaves a hole.
            let path = self.dir.path().join(&name);
            let skips = mutant::is(Mutant::RecycleWithoutDirSync);
            done.and_then(|()| if skips { Ok(()) } else { self.dir.sync() })
                .map_err(|error| Unwritten::of_flush("recycling", &path, &error))?;
            let removed = self.older.pop_front().expect("Invariant: it was looked at above");
            let next = self.older.front().map_or(self.active.seq, |older| older.seq);
            assert_eq!(next, removed.seq.next(), "segments leave the log in their order");
        }
        Ok(())
    }

    fn active_path(&self) -> PathBuf {
        self.dir.path().join(self.active.seq.file_name())
    }

    /// Puts another file under the active segment, to see it fail.
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
    /// Last link and end of the segment before.
    previous: (Chain, u64),
    len: u64,
}

/// Makes a segment out of a spare or of nothing. It has its name, its header and its space when this returns.
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
            // What it has got is needed for the next attempt. A file that stays is found then.
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

/// Opens the last segment to continue it. Its records are handed to the system again if nothing says that
/// they are on disk: after a flush that failed, Linux takes what it could not write for written, and flushing
/// alone would write nothing (Rebello et al., "Can Applications Recover from fsync Failures?", 2020).
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

/// For who opens a folder.
pub fn into_storage_error(unwritten: Unwritten) -> StorageError {
    let DiskFailure { action, path, kind, text } = unwritten.failure();
    StorageError::Io { action, path, source: io::Error::new(kind, text) }
}
