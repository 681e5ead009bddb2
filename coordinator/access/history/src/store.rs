//! Files of the history: closed segments, oldest first, and the open segment under writing.
//!
//! ```text
//! data/node-N/history/
//!   COVERED              up to which zxid everything is in the segments
//!   TRIMMED              up to which zxid segments were removed; absent: nothing was removed
//!   segment-0000000004/    closed: sled's files and FOOTER_FILE, their checksums
//!   segment-0000000007/
//!   open/                being written; thrown away at the next start
//!   view/                a copy of a segment that is being read; likewise
//! ```
//!
//! The history's worker thread owns the store. The store removes whole segments, oldest first, because sled
//! frees the space of deleted records late.
//!
//! Invariant: events behind the last footer are still in the log, or declared missing.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;
use rowlock_proto::lock_event::Gap;

use super::block::{Encoded, encode, entries};
use super::footer::Footer;
use super::query::{Filter, Page, PageStep, Range, Reading};
use super::record::{HistoryError, Key, Missing};
use super::segment::{OpenSegment, View, folder_name, number_of, take_opening};

pub(super) const FOLDER: &str = "history";
const OPEN: &str = "open";
const VIEW: &str = "view";
const COVERED: &str = "COVERED";
const TRIMMED: &str = "TRIMMED";
/// Prefix of a damaged segment's folder, kept for an investigation; only the last segment is kept.
const DAMAGED: &str = "history.damaged-";
/// Prefix of a segment's folder from another build or release.
const OTHER_BUILD: &str = "history.other-build-";
/// Number of equal shares of the byte bound: closed segments, and two shares for the open segment and the
/// copy for reading.
const PARTS: u64 = 10;
const PARTS_NOT_CLOSED: u64 = 2;
/// Bound of a segment's blocks under any byte bound: reading copies a whole segment, and the heads of the
/// blocks stay in memory.
const PAYLOAD_MAX_BYTES: u64 = 32 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Age after which entries are hidden, and soon removed.
    pub max_age_ms: i64,
    pub max_bytes: u64,
    /// Free disk space below which recording pauses.
    pub free_min_bytes: u64,
}

impl Bounds {
    fn part_bytes(&self) -> u64 {
        self.max_bytes / PARTS
    }

    /// Returns the bytes of a full segment's blocks: sled needs up to twice as many bytes on the disk.
    fn payload_bytes(&self) -> u64 {
        (self.part_bytes() / 2).min(PAYLOAD_MAX_BYTES)
    }

    /// Returns the age at which the open segment is closed, so that whole segments can be trimmed by age.
    fn slice_age_ms(&self) -> i64 {
        self.max_age_ms / 8
    }
}

pub(super) struct Found {
    node: PathBuf,
    pub footers: Vec<Footer>,
    /// Segments without a readable footer, and the errors.
    pub damaged: Vec<(u64, HistoryError)>,
    /// Zxid up to which all events are in the segments.
    pub covered: Zxid,
}

impl Found {
    /// Scans the folder of a node; the folder may be missing. Reads only the footers, quickly, and changes
    /// nothing.
    pub fn scan(node: &Path) -> Result<Found, HistoryError> {
        let node = node.to_owned();
        let (mut footers, mut damaged) = (Vec::new(), Vec::new());
        let dir = match Dir::open(&node.join(FOLDER)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Found { node, footers, damaged, covered: Zxid::default() });
            }
            dir => dir?,
        };
        for number in dir.list()?.iter().filter_map(|name| number_of(name)) {
            let folder = Dir::open(&dir.path().join(folder_name(number)))?;
            match Footer::read(&folder) {
                Ok(footer) if footer.number == number => footers.push(footer),
                Err(error @ HistoryError::OtherBuild) => damaged.push((number, error)),
                _ => damaged.push((number, HistoryError::Damaged("it has no valid footer".to_owned()))),
            }
        }
        footers.sort_by_key(|footer| footer.number);
        let newest = footers.last().map_or(0, |footer| footer.number);
        // The file also covers a damaged newest segment, whose entries return from the log or are declared
        // missing.
        let recorded = match damaged.iter().any(|(number, _)| *number > newest) {
            true => None,
            false => dir.read(COVERED).ok().and_then(|text| zxid_in(&text)),
        };
        let covered = footers.iter().map(|footer| footer.covered).chain(recorded).max().unwrap_or_default();
        let lost: Vec<Footer> =
            damaged.iter().filter_map(|(number, _)| Footer::lost(*number, &footers)).collect();
        footers.extend(lost);
        footers.sort_by_key(|footer| footer.number);
        Ok(Found { node, footers, damaged, covered })
    }
}

fn zxid_in(text: &[u8]) -> Option<Zxid> {
    std::str::from_utf8(text).ok()?.parse().ok().map(Zxid)
}

pub(super) struct Store {
    data: Dir,
    dir: Dir,
    bounds: Bounds,
    closed: VecDeque<Footer>,
    open: Option<OpenSegment>,
    view: Option<View>,
    /// Number for the next closed segment.
    next: u64,
    covered: Zxid,
    /// Zxid up to which all events are durable.
    kept: Zxid,
    /// Zxid up to which events were removed as too old, or for lack of room.
    trimmed: Zxid,
    /// True after storing an event behind `kept`.
    is_changed: bool,
    newest: Key,
}

impl Store {
    /// Cleans the folder up and continues the found segments.
    pub fn open(found: Found, bounds: Bounds) -> Result<Store, HistoryError> {
        let Found { node, footers, damaged, covered } = found;
        let data = Dir::open(&node)?;
        let dir = data.sub(FOLDER)?;
        // Removes the former open segment, and segments of unreleased formats.
        for leftover in dir.list()?.iter().filter(|name| number_of(name).is_none()) {
            if let Ok(folder) = Dir::open(&dir.path().join(leftover)) {
                folder.remove_all()?;
            }
        }
        let highest =
            footers.iter().map(|footer| footer.number).chain(damaged.iter().map(|(number, _)| *number)).max();
        let newest = footers.iter().map(Footer::last).max().unwrap_or(Key::MIN);
        let trimmed = match dir.read(TRIMMED) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Zxid::default(),
            // An unreadable file may stand for any removal so far.
            text => text.ok().and_then(|text| zxid_in(&text)).unwrap_or(covered),
        };
        let mut store = Store {
            data,
            dir,
            bounds,
            closed: footers.into(),
            open: None,
            view: None,
            next: highest.map_or(1, |number| number + 1),
            covered,
            kept: covered,
            trimmed,
            is_changed: false,
            newest,
        };
        for (number, error) in damaged {
            store.set_aside(number, &error);
        }
        if let Some(number) = take_opening(&store.dir) {
            let why = HistoryError::Damaged("the node went down while opening it".to_owned());
            store.set_aside(number, &why);
        }
        let replaced: Vec<u64> = store.closed.iter().filter_map(|footer| footer.replaces).collect();
        for number in replaced {
            store.remove(number)?;
        }
        store.resume();
        Ok(store)
    }

    /// Returns the zxid up to which all events are stored or declared missing.
    pub fn covered(&self) -> Zxid {
        self.covered
    }

    pub fn newest(&self) -> Key {
        self.newest
    }

    /// Returns true if the remaining disk space is reserved for the log.
    pub fn is_cramped(&self) -> bool {
        self.dir.free_bytes().is_ok_and(|free| free < self.bounds.free_min_bytes)
    }

    /// Appends an entry with a key above all earlier keys.
    pub fn append(&mut self, item: &Encoded<'_>) -> Result<(), HistoryError> {
        // A segment ends between two commands, and so has all events of its commands.
        let is_full = |open: &OpenSegment| open.is_full(self.bounds.payload_bytes());
        if item.key.zxid > self.newest.zxid && self.open.as_ref().is_some_and(is_full) {
            self.close_open()?;
            self.trim_bytes()?;
        }
        self.is_changed = true;
        self.begun()?.append(item)?;
        self.covered = self.covered.max(item.key.zxid);
        self.newest = self.newest.max(item.key);
        Ok(())
    }

    /// Stores a gap up to `key`, or to the newest entry if later.
    pub fn append_gap(&mut self, key: Key, gap: Gap) -> Result<(), HistoryError> {
        let mut bytes = Vec::new();
        encode(self.behind_all(key), &gap.into(), &mut bytes);
        entries(&bytes).try_for_each(|item| self.append(&item?))
    }

    fn behind_all(&self, key: Key) -> Key {
        if key > self.newest { key } else { Key { ordinal: u32::MAX, ..self.newest } }
    }

    fn begun(&mut self) -> Result<&mut OpenSegment, HistoryError> {
        if self.open.is_none() {
            self.open = Some(OpenSegment::new(self.empty_folder(OPEN)?)?);
        }
        Ok(self.open.as_mut().expect("Invariant: opened above"))
    }

    fn empty_folder(&self, name: &str) -> Result<Dir, HistoryError> {
        self.dir.sub(name)?.remove_all()?;
        Ok(self.dir.sub(name)?)
    }

    /// Makes all events up to `covered` durable: afterwards the log before `covered` may be purged.
    pub fn checkpoint(&mut self, covered: Zxid) -> Result<(), HistoryError> {
        self.covered = self.covered.max(covered);
        if !self.is_changed {
            return self.write_covered();
        }
        self.close_open()?;
        self.resume();
        self.trim_bytes()
    }

    /// Makes all events durable, like [`Store::checkpoint`], at the node's end.
    pub fn close(&mut self) -> Result<(), HistoryError> {
        self.close_view()?;
        match self.is_changed {
            true => self.close_open(),
            false => self.write_covered(),
        }
    }

    fn write_covered(&mut self) -> Result<(), HistoryError> {
        self.dir.write_atomic(COVERED, self.covered.0.to_string().as_bytes())?;
        self.kept = self.covered;
        Ok(())
    }

    fn close_open(&mut self) -> Result<(), HistoryError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let footer = open.close(self.next, self.covered)?;
        self.dir.rename(OPEN, &folder_name(footer.number))?;
        self.dir.sync()?;
        self.next += 1;
        let replaced = footer.replaces;
        self.closed.push_back(footer);
        (self.kept, self.is_changed) = (self.covered, false);
        if let Some(number) = replaced {
            self.remove(number)?;
        }
        Ok(())
    }

    /// Continues the newest segment if small: for a larger segment the copy would cost more than a new
    /// segment. On a disk failure the newest segment stays unchanged.
    fn resume(&mut self) {
        let small = self.bounds.payload_bytes() / 4;
        let is_small = |footer: &Footer| !footer.is_lost && footer.payload_bytes < small;
        if !self.closed.back().is_some_and(is_small) {
            return;
        }
        let Some(footer) = self.closed.pop_back() else { return };
        let opened =
            self.empty_folder(OPEN).and_then(|folder| OpenSegment::resume(&self.dir, footer.clone(), folder));
        match opened {
            Ok(open) => self.open = Some(open),
            Err(error) => {
                let number = footer.number;
                self.closed.push_back(footer);
                self.unreadable(number, &error);
            }
        }
    }

    /// Logs the error; the caller then drops the store. Returns the zxid up to which the history survives: a
    /// changed store has lost all events after the last checkpoint.
    pub fn abandon(&self, error: &HistoryError) -> Zxid {
        tracing::warn!(%error, "cannot write the lock history: its last part is lost, and recording restarts");
        if self.is_changed { self.kept } else { self.covered }
    }

    /// Removes old entries. `now_ms` is the wall clock.
    pub fn trim(&mut self, now_ms: i64) -> Result<(), HistoryError> {
        let began_before = |limit_ms: i64| move |key: &Key| key.time_ms < now_ms.saturating_sub(limit_ms);
        let too_long = began_before(self.bounds.slice_age_ms());
        if self.open.as_ref().and_then(OpenSegment::first).is_some_and(|first| too_long(&first)) {
            self.close_open()?;
        }
        let too_old = began_before(self.bounds.max_age_ms);
        while self.closed.front().is_some_and(|footer| too_old(&footer.last())) {
            self.remove_oldest()?;
        }
        self.trim_bytes()
    }

    fn trim_bytes(&mut self) -> Result<(), HistoryError> {
        let allowed = self.bounds.max_bytes - PARTS_NOT_CLOSED * self.bounds.part_bytes();
        while self.closed.iter().map(Footer::bytes).sum::<u64>() > allowed {
            self.remove_oldest()?;
        }
        Ok(())
    }

    fn remove_oldest(&mut self) -> Result<(), HistoryError> {
        let Some(oldest) = self.closed.front() else { return Ok(()) };
        let (number, last) = (oldest.number, oldest.last().zxid);
        self.trimmed = self.trimmed.max(last);
        self.dir.write_atomic(TRIMMED, self.trimmed.0.to_string().as_bytes())?;
        self.remove(number)
    }

    fn remove(&mut self, number: u64) -> Result<(), HistoryError> {
        self.closed.retain(|footer| footer.number != number);
        match Dir::open(&self.dir.path().join(folder_name(number))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => Ok(folder?.remove_all()?),
        }
    }

    fn close_view(&mut self) -> Result<(), HistoryError> {
        self.view.take().map_or(Ok(()), View::close)
    }

    /// Renames an unusable segment, and leaves a footer with its range.
    fn set_aside(&mut self, number: u64, error: &HistoryError) {
        let is_others = matches!(error, HistoryError::OtherBuild);
        let kept = format!("{}{number}", if is_others { OTHER_BUILD } else { DAMAGED });
        tracing::warn!(segment = number, %error, kept, "an unusable segment of the lock history was renamed");
        let moved = self.move_away(number, &kept);
        if let Err(error) = moved {
            tracing::warn!(segment = number, %error, "cannot move a segment of the lock history");
        }
    }

    fn move_away(&mut self, number: u64, kept: &str) -> Result<(), HistoryError> {
        let is_earlier = |name: &&String| name.starts_with(DAMAGED) || name.starts_with(OTHER_BUILD);
        for earlier in self.data.list()?.iter().filter(is_earlier) {
            Dir::open(&self.data.path().join(earlier))?.remove_all()?;
        }
        let folder = folder_name(number);
        self.data.rename(&format!("{FOLDER}/{folder}"), kept)?;
        if let Some(footer) = self.closed.iter_mut().find(|footer| footer.number == number) {
            let empty = self.dir.sub(&folder)?;
            footer.is_lost = true;
            footer.write(&empty)?;
        }
        self.dir.sync()?;
        Ok(self.data.sync()?)
    }

    /// Reads a part of the history. `missed` is an unwritten gap, or a gap around the end of the part.
    /// `is_over` returns true after the caller is gone.
    pub fn page(
        &mut self,
        filter: &Filter,
        missed: Option<Missing>,
        now_ms: i64,
        is_over: impl Fn() -> bool,
    ) -> Result<Page, HistoryError> {
        let oldest_ms = filter.since_ms.max(now_ms.saturating_sub(self.bounds.max_age_ms));
        let range = Range { from: Key::at(oldest_ms), before: filter.before };
        let mut reading = Reading::new(filter, &is_over);
        reading.page.complete_after = self.complete_after(oldest_ms);
        reading.page.complete_from_ms = self.complete_from_ms(now_ms);
        if range.from >= range.before {
            return Ok(reading.page);
        }
        if let Some((key, gap)) = missed
            && let key = self.behind_all(key).min(range.before.predecessor())
            && key.zxid > gap.from_zxid
            && range.holds(&key)
            && reading.add(key, gap.into()) == PageStep::Stop
        {
            return Ok(reading.page);
        }
        if let Some(open) = &self.open
            && open.names().may_hold(filter)
            && reading.read(&open.reader(), range)? == PageStep::Stop
        {
            return Ok(reading.page);
        }
        let numbers: Vec<u64> = self.closed.iter().rev().map(|footer| footer.number).collect();
        for number in numbers {
            let Some(at) = self.closed.iter().position(|footer| footer.number == number) else { continue };
            let footer = self.closed[at].clone();
            if !range.meets(footer.first(), footer.last()) || !footer.may_hold(filter) {
                continue;
            }
            let read = match footer.is_lost {
                true => None,
                false => self.read_closed(&footer, &mut reading, range),
            };
            // The first entry may be a gap.
            let from =
                at.checked_sub(1).map_or(Zxid(footer.first().zxid.0 - 1), |at| self.closed[at].covered);
            if read.unwrap_or_else(|| reading.lost(&footer, from, range)) == PageStep::Stop {
                break;
            }
        }
        Ok(reading.page)
    }

    /// Returns the end of the segments that were removed, or have hidden entries.
    fn complete_after(&self, oldest_ms: i64) -> Zxid {
        let is_hidden = |first: Key| first.time_ms < oldest_ms;
        let closed = self.closed.iter().filter(|footer| is_hidden(footer.first()));
        let open = self.open.as_ref().and_then(OpenSegment::first).filter(|first| is_hidden(*first));
        let hidden = closed.map(Footer::last).chain(open.map(|_| self.newest));
        hidden.map(|last| last.zxid).max().unwrap_or_default().max(self.trimmed)
    }

    /// Returns the time from which on no record was removed or is hidden as too old.
    fn complete_from_ms(&self, now_ms: i64) -> i64 {
        let first = self.closed.front().map(Footer::first);
        let first = first.or_else(|| self.open.as_ref().and_then(OpenSegment::first));
        let oldest_ms = now_ms.saturating_sub(self.bounds.max_age_ms);
        let is_hidden = first.is_some_and(|first| first.time_ms < oldest_ms);
        match first {
            _ if self.trimmed == Zxid::default() && !is_hidden => i64::MIN,
            Some(first) => first.time_ms.max(oldest_ms),
            None => oldest_ms,
        }
    }

    /// Reads a closed segment. Returns `None` for an unreadable segment.
    fn read_closed(&mut self, footer: &Footer, reading: &mut Reading<'_>, range: Range) -> Option<PageStep> {
        let before = reading.page.entries.len();
        let read = self.view(footer).and_then(|view| reading.read(&view.reader(), range));
        let error = match read {
            Ok(then) => return Some(then),
            Err(error) => error,
        };
        reading.page.entries.truncate(before);
        if let Err(error) = self.close_view() {
            tracing::warn!(%error, "cannot remove the copy of a lock history segment");
        }
        self.unreadable(footer.number, &error);
        None
    }

    fn unreadable(&mut self, number: u64, error: &HistoryError) {
        // A full or failing disk does not make the segment a damaged segment.
        if matches!(error, HistoryError::Damaged(_)) {
            self.set_aside(number, error);
        } else {
            tracing::warn!(segment = number, %error, "cannot read a segment of the lock history");
        }
    }

    fn view(&mut self, footer: &Footer) -> Result<&View, HistoryError> {
        if self.view.as_ref().is_none_or(|view| view.number != footer.number) {
            self.close_view()?;
            let folder = self.empty_folder(VIEW)?;
            self.view = Some(View::open(&self.dir, footer, folder)?);
        }
        Ok(self.view.as_ref().expect("Invariant: opened above"))
    }
}
