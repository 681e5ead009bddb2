//! The files of the history: closed segments, oldest first, and the one that is being written.
//!
//! ```text
//! data/node-N/history/
//!   COVERED              up to which zxid everything is in the segments
//!   segment-0000000004/    closed: sled's files and FOOTER_FILE, their checksums
//!   segment-0000000007/
//!   open/                being written; thrown away at the next start
//!   view-4/              a copy of segment 4 that is being read; likewise
//! ```
//!
//! Owned by the history's worker thread. Bounded by removing whole segments, oldest first: sled gives space
//! back late if single records are deleted.
//!
//! Invariant: what lies behind the last footer is still in the log, or is declared missing.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;

use super::chunk::Chunk;
use super::error::HistoryError;
use super::footer::{Content, Footer};
use super::query::{Filter, Page, Reading, Then};
use super::record::{Gap, Key};
use super::segment::{OpenSegment, View, folder_name, number_of, take_opening};
use super::table::Range;

const FOLDER: &str = "history";
const OPEN: &str = "open";
const VIEW: &str = "view-";
const COVERED: &str = "COVERED";
/// Where a damaged segment is kept for an investigation; only the last one.
const DAMAGED: &str = "history.damaged-";
/// Number of parts that share the bound in bytes: closed segments, and three for the open one and the copies.
const PARTS: u64 = 10;
const PARTS_NOT_SEALED: u64 = 3;
/// Entries of a segment, however much is allowed in all: one is copied to be read, and its blocks have
/// heads in memory.
const PAYLOAD_MAX_BYTES: u64 = 32 << 20;
/// Copies of closed segments that are open to be read.
const VIEWS_MAX: usize = 2;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// What is older is neither shown nor kept for long.
    pub max_age_ms: i64,
    /// Of the whole folder.
    pub max_bytes: u64,
    /// With less left on the disk nothing is recorded.
    pub free_min_bytes: u64,
}

impl Bounds {
    /// What one segment may take.
    fn part_bytes(&self) -> u64 {
        self.max_bytes / PARTS
    }

    /// Entries of a segment, after which it is complete: sled needs up to twice as much for them.
    fn payload_bytes(&self) -> u64 {
        (self.part_bytes() / 2).min(PAYLOAD_MAX_BYTES)
    }

    /// A segment that begins so long ago is complete, so that age can be trimmed by whole segments.
    fn slice_age_ms(&self) -> i64 {
        self.max_age_ms / 8
    }
}

/// What a start finds.
pub(super) struct Found {
    node: PathBuf,
    footers: Vec<Footer>,
    damaged: Vec<u64>,
    /// Up to here everything is in the segments.
    pub covered: Zxid,
}

impl Found {
    /// Looks into the folder of a node, which need not exist. Reads the footers only, which is quick, and
    /// changes nothing.
    pub fn look(node: &Path) -> Result<Found, HistoryError> {
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
                _ => damaged.push(number),
            }
        }
        footers.sort_by_key(|footer| footer.number);
        let noted = dir.read(COVERED).ok().and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
        let covered =
            footers.iter().map(|footer| footer.covered).chain(noted.map(Zxid)).max().unwrap_or_default();
        Ok(Found { node, footers, damaged, covered })
    }
}

pub(super) struct Store {
    data: Dir,
    dir: Dir,
    bounds: Bounds,
    closed: VecDeque<Footer>,
    open: Option<OpenSegment>,
    /// The most recently used one last.
    views: Vec<View>,
    /// Number of the next segment to be closed.
    next: u64,
    covered: Zxid,
    /// Key of the newest entry.
    newest: Key,
    /// Key of the newest record that was put here.
    newest_record: Key,
}

impl Store {
    /// Puts the folder in order and goes on with what was found.
    pub fn open(found: Found, bounds: Bounds) -> Result<Store, HistoryError> {
        let Found { node, footers, damaged, covered } = found;
        let data = Dir::open(&node)?;
        let dir = data.sub(FOLDER)?;
        for leftover in dir.list()?.iter().filter(|name| *name == OPEN || name.starts_with(VIEW)) {
            dir.sub(leftover)?.remove_all()?;
        }
        let highest = footers.iter().map(|footer| footer.number).chain(damaged.iter().copied()).max();
        let newest = footers.iter().map(|footer| footer.last).max().unwrap_or(Key::MIN);
        let mut store = Store {
            data,
            dir,
            bounds,
            closed: footers.into(),
            open: None,
            views: Vec::new(),
            next: highest.map_or(1, |number| number + 1),
            covered,
            newest,
            newest_record: Key::MIN,
        };
        for number in damaged {
            store.set_aside(number, &HistoryError::Damaged("it has no footer that fits".to_owned()));
        }
        if let Some(number) = take_opening(&store.dir) {
            let why = HistoryError::Damaged("the node went down while it was opened".to_owned());
            store.set_aside(number, &why);
        }
        let replaced: Vec<u64> = store.closed.iter().filter_map(|footer| footer.replaces).collect();
        for number in replaced {
            store.remove(number)?;
        }
        if store.closed.back().is_some_and(|footer| footer.content == Content::Unfinished) {
            store.resume();
        }
        Ok(store)
    }

    /// Up to here everything was stored, or declared missing.
    pub fn covered(&self) -> Zxid {
        self.covered
    }

    /// Key of the newest entry.
    pub fn newest(&self) -> Key {
        self.newest
    }

    /// There is so little left on the disk that it is the log's.
    pub fn is_cramped(&self) -> bool {
        self.dir.free_bytes().is_ok_and(|free| free < self.bounds.free_min_bytes)
    }

    /// Stores a chunk, which is behind all others.
    pub fn put(&mut self, chunk: &Chunk<'_>) -> Result<(), HistoryError> {
        // A segment ends between two commands: what it covers, it has all of.
        let open = match chunk.span.first.zxid > self.newest_record.zxid {
            true => self.writable()?,
            false => self.begun()?,
        };
        open.put(chunk)?;
        self.newest_record = chunk.span.last;
        self.reached(chunk.span.last);
        Ok(())
    }

    /// Stores a gap up to the moment of `key`, or a little more: segments follow each other, and the last one
    /// may have been closed since.
    pub fn put_gap(&mut self, key: Key, gap: Gap) -> Result<(), HistoryError> {
        let closed = self.closed.back().map_or(Key::MIN, |footer| footer.last);
        let key = Key { ordinal: u32::MAX, ..key.max(closed) };
        self.writable()?.put_gap(key, gap)?;
        self.reached(key);
        Ok(())
    }

    fn reached(&mut self, key: Key) {
        self.covered = self.covered.max(key.zxid);
        self.newest = self.newest.max(key);
    }

    fn writable(&mut self) -> Result<&mut OpenSegment, HistoryError> {
        if self.open.as_ref().is_some_and(|open| open.payload_bytes() >= self.bounds.payload_bytes()) {
            self.footer(Content::Complete)?;
            self.trim_bytes()?;
        }
        self.begun()
    }

    fn begun(&mut self) -> Result<&mut OpenSegment, HistoryError> {
        if self.open.is_none() {
            self.open = Some(OpenSegment::new(self.empty_folder(OPEN)?)?);
        }
        Ok(self.open.as_mut().expect("it was opened just now"))
    }

    fn empty_folder(&self, name: &str) -> Result<Dir, HistoryError> {
        self.dir.sub(name)?.remove_all()?;
        Ok(self.dir.sub(name)?)
    }

    /// Everything up to `covered` was given to the store: from now on the log before it is not needed any
    /// more.
    pub fn checkpoint(&mut self, covered: Zxid) -> Result<(), HistoryError> {
        self.covered = self.covered.max(covered);
        let Some(open) = self.open.as_ref().filter(|open| open.is_changed) else {
            return self.note_covered();
        };
        // A segment of some size is not gone on with: copying it would be more work than another segment.
        if open.payload_bytes() >= self.bounds.payload_bytes() / 4 {
            self.footer(Content::Complete)?;
            return self.trim_bytes();
        }
        self.footer(Content::Unfinished)?;
        self.resume();
        Ok(())
    }

    /// As [`Store::checkpoint`], for the end.
    pub fn close(&mut self) -> Result<(), HistoryError> {
        for view in self.views.drain(..) {
            view.close()?;
        }
        match &self.open {
            Some(open) if open.is_changed => self.footer(Content::Unfinished),
            _ => self.note_covered(),
        }
    }

    fn note_covered(&self) -> Result<(), HistoryError> {
        Ok(self.dir.write_atomic(COVERED, self.covered.0.to_string().as_bytes())?)
    }

    fn footer(&mut self, content: Content) -> Result<(), HistoryError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let origin = open.origin.clone();
        let closed = open.footer(self.next, content, self.covered);
        let footer = match closed {
            Ok(closed) => closed,
            Err(error) => {
                // Its beginning is still there as it was closed before.
                self.closed.extend(origin);
                return Err(error);
            }
        };
        self.dir.rename(OPEN, &folder_name(footer.number))?;
        self.dir.sync()?;
        self.next += 1;
        self.closed.push_back(footer);
        if let Some(origin) = origin {
            self.remove(origin.number)?;
        }
        Ok(())
    }

    /// Goes on with the newest segment. If the disk does not allow it, that one stays unchanged.
    fn resume(&mut self) {
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

    /// Something went wrong with the open segment: what was in it and is in no closed one is lost. Gives
    /// up to where the closed ones go.
    pub fn abandon(&mut self, error: &HistoryError) -> Zxid {
        tracing::warn!(%error, "the lock history could not be written: some of it is lost, and it begins anew");
        let Some(open) = self.open.take() else { return self.covered };
        self.closed.extend(open.origin);
        match open.is_changed {
            true => self.closed.iter().map(|footer| footer.covered).max().unwrap_or_default(),
            false => self.covered,
        }
    }

    /// Removes what is too old. `now_ms`: the wall clock.
    pub fn trim(&mut self, now_ms: i64) -> Result<(), HistoryError> {
        let began_before = |limit_ms: i64| move |key: &Key| key.time_ms < now_ms.saturating_sub(limit_ms);
        let too_long = began_before(self.bounds.slice_age_ms());
        if self.open.as_ref().and_then(OpenSegment::first).is_some_and(|first| too_long(&first)) {
            self.footer(Content::Complete)?;
        }
        let too_old = began_before(self.bounds.max_age_ms);
        while let Some(oldest) = self.closed.front().filter(|footer| too_old(&footer.last)) {
            self.remove(oldest.number)?;
        }
        self.trim_bytes()
    }

    fn trim_bytes(&mut self) -> Result<(), HistoryError> {
        let allowed = self.bounds.max_bytes - PARTS_NOT_SEALED * self.bounds.part_bytes();
        while self.closed.iter().map(Footer::bytes).sum::<u64>() > allowed {
            let Some(oldest) = self.closed.front() else { break };
            self.remove(oldest.number)?;
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Result<(), HistoryError> {
        self.close_view(number)?;
        self.closed.retain(|footer| footer.number != number);
        let path = self.dir.path().join(folder_name(number));
        if path.is_dir() {
            Dir::open(&path)?.remove_all()?;
        }
        Ok(())
    }

    fn close_view(&mut self, number: u64) -> Result<(), HistoryError> {
        match self.views.iter().position(|view| view.number == number) {
            Some(at) => self.views.remove(at).close(),
            None => Ok(()),
        }
    }

    /// Moves a segment out of the way, and leaves a footer that says what was in it.
    fn set_aside(&mut self, number: u64, error: &HistoryError) {
        let kept = format!("{DAMAGED}{number}");
        tracing::warn!(segment = number, %error, kept, "a part of the lock history cannot be used and was set aside");
        let moved = self.move_away(number, &kept);
        if let Err(error) = moved {
            tracing::warn!(segment = number, %error, "a part of the lock history could not be moved");
        }
    }

    fn move_away(&mut self, number: u64, kept: &str) -> Result<(), HistoryError> {
        for earlier in self.data.list()?.iter().filter(|name| name.starts_with(DAMAGED)) {
            Dir::open(&self.data.path().join(earlier))?.remove_all()?;
        }
        let folder = folder_name(number);
        self.data.rename(&format!("{FOLDER}/{folder}"), kept)?;
        if let Some(footer) = self.closed.iter_mut().find(|footer| footer.number == number) {
            let empty = self.dir.sub(&folder)?;
            footer.content = Content::Lost;
            footer.write(&empty)?;
        }
        self.dir.sync()?;
        Ok(self.data.sync()?)
    }

    /// Reads a part of the history. `is_over`: the caller has gone.
    pub fn page(
        &mut self,
        filter: &Filter,
        now_ms: i64,
        is_over: impl Fn() -> bool,
    ) -> Result<Page, HistoryError> {
        let oldest_ms = filter.since_ms.max(now_ms.saturating_sub(self.bounds.max_age_ms));
        let range = Range { from: Key::at(oldest_ms), before: filter.before };
        let mut reading = Reading::new(filter, &is_over);
        reading.page.kept_from = self.kept_from(oldest_ms);
        if range.from >= range.before {
            return Ok(reading.page);
        }
        if let Some(open) = &self.open
            && reading.read(&open.reader(), range)? == Then::Stop
        {
            return Ok(reading.page);
        }
        let numbers: Vec<u64> = self.closed.iter().rev().map(|footer| footer.number).collect();
        for number in numbers {
            let Some(footer) = self.closed.iter().find(|footer| footer.number == number).cloned() else {
                continue;
            };
            let is_near = footer.entries > 0 && footer.last >= range.from && footer.first < range.before;
            if !is_near || !footer.may_hold(&reading.wanted) {
                continue;
            }
            let read = match footer.content {
                Content::Lost => None,
                _ => self.read_sealed(&footer, &mut reading, range),
            };
            if read.unwrap_or_else(|| reading.lost(&footer, range)) == Then::Stop {
                break;
            }
        }
        Ok(reading.page)
    }

    /// Where the first part begins of which nothing is too old to be shown.
    fn kept_from(&self, oldest_ms: i64) -> Option<Key> {
        let closed = self.closed.iter().filter(|footer| footer.entries > 0).map(|footer| footer.first);
        let all = closed.chain(self.open.as_ref().and_then(OpenSegment::first));
        all.filter(|first| first.time_ms >= oldest_ms).min()
    }

    /// `None`: it cannot be read, and was set aside.
    fn read_sealed(&mut self, footer: &Footer, reading: &mut Reading<'_>, range: Range) -> Option<Then> {
        let before = reading.page.entries.len();
        let read = self.view(footer).and_then(|view| reading.read(&view.reader(), range));
        let error = match read {
            Ok(then) => return Some(then),
            Err(error) => error,
        };
        reading.page.entries.truncate(before);
        if let Err(error) = self.close_view(footer.number) {
            tracing::warn!(%error, "a copy of a part of the lock history could not be removed");
        }
        self.unreadable(footer.number, &error);
        None
    }

    fn unreadable(&mut self, number: u64, error: &HistoryError) {
        // A disk that is full or refuses does not make the segment a damaged one.
        if matches!(error, HistoryError::Damaged(_)) {
            self.set_aside(number, error);
        } else {
            tracing::warn!(segment = number, %error, "a part of the lock history could not be read");
        }
    }

    fn view(&mut self, footer: &Footer) -> Result<&View, HistoryError> {
        match self.views.iter().position(|view| view.number == footer.number) {
            Some(at) => {
                let view = self.views.remove(at);
                self.views.push(view);
            }
            None => {
                if self.views.len() >= VIEWS_MAX {
                    self.views.remove(0).close()?;
                }
                let folder = self.empty_folder(&format!("{VIEW}{}", footer.number))?;
                self.views.push(View::open(&self.dir, footer, folder)?);
            }
        }
        Ok(self.views.last().expect("it was put there just now"))
    }
}
