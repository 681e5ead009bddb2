//! The files of the history: sealed slices, oldest first, and the one that is being written.
//!
//! ```text
//! data/node-N/history/
//!   COVERED              up to which zxid everything is in the slices
//!   slice-0000000004/    sealed: sled's files and SEAL, their checksums
//!   slice-0000000007/
//!   open/                being written; thrown away at the next start
//!   view-4/              a copy of slice 4 that is being read; likewise
//! ```
//!
//! Owned by the history's worker thread. Bounded by removing whole slices, oldest first: sled gives space
//! back late if single records are deleted.
//!
//! Invariant: what lies behind the last seal is still in the log, or is declared missing.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;

use super::error::HistoryError;
use super::page::{Filter, Page, Reading, Then};
use super::record::{Gap, Key};
use super::seal::{self, Content, Seal};
use super::sheet::Sheet;
use super::slice::{OpenSlice, View, folder_name, number_of, take_opening};
use super::table::Range;

const FOLDER: &str = "history";
const OPEN: &str = "open";
const VIEW: &str = "view-";
const COVERED: &str = "COVERED";
/// Where a damaged slice is kept for whoever wants to know what happened; only the last one.
const DAMAGED: &str = "history.damaged-";
/// The bound in bytes is shared by so many parts: sealed slices, and three for the open one and the copies.
const PARTS: u64 = 10;
const PARTS_NOT_SEALED: u64 = 3;
/// Entries of a slice, however much is allowed in all: one is copied to be read, and its blocks have heads in
/// memory.
const PAYLOAD_MAX_BYTES: u64 = 32 << 20;
/// Copies of sealed slices that are open to be read.
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
    /// What one slice may take.
    fn part_bytes(&self) -> u64 {
        self.max_bytes / PARTS
    }

    /// Entries of a slice, after which it is complete: sled needs up to twice as much for them.
    fn payload_bytes(&self) -> u64 {
        (self.part_bytes() / 2).min(PAYLOAD_MAX_BYTES)
    }

    /// A slice that begins so long ago is complete, so that age can be trimmed by whole slices.
    fn slice_age_ms(&self) -> i64 {
        self.max_age_ms / 8
    }
}

/// What a start finds.
pub(super) struct Found {
    node: PathBuf,
    seals: Vec<Seal>,
    damaged: Vec<u64>,
    /// Of those in `seals`, the ones in a form that is not read any more.
    outdated: Vec<u64>,
    /// Up to here everything is in the slices.
    pub covered: Zxid,
}

impl Found {
    /// Looks into the folder of a node, which need not exist. Reads the seals only, which is quick, and
    /// changes nothing.
    pub fn look(node: &Path) -> Result<Found, HistoryError> {
        let node = node.to_owned();
        let (mut seals, mut damaged, mut outdated) = (Vec::new(), Vec::new(), Vec::new());
        let dir = match Dir::open(&node.join(FOLDER)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Found { node, seals, damaged, outdated, covered: Zxid::default() });
            }
            dir => dir?,
        };
        for number in dir.list()?.iter().filter_map(|name| number_of(name)) {
            let folder = Dir::open(&dir.path().join(folder_name(number)))?;
            match Seal::read(&folder) {
                Ok(seal::Found::Seal(seal)) if seal.number == number => seals.push(seal),
                Ok(seal::Found::Outdated(seal)) if seal.number == number => {
                    outdated.push(number);
                    seals.push(seal);
                }
                _ => damaged.push(number),
            }
        }
        seals.sort_by_key(|seal| seal.number);
        let noted = dir.read(COVERED).ok().and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
        let covered = seals.iter().map(|seal| seal.covered).chain(noted.map(Zxid)).max().unwrap_or_default();
        Ok(Found { node, seals, damaged, outdated, covered })
    }
}

/// See the module.
pub(super) struct Store {
    data: Dir,
    dir: Dir,
    bounds: Bounds,
    sealed: VecDeque<Seal>,
    open: Option<OpenSlice>,
    /// The most recently used one last.
    views: Vec<View>,
    /// Number of the next slice to be sealed.
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
        let Found { node, seals, damaged, outdated, covered } = found;
        let data = Dir::open(&node)?;
        let dir = data.sub(FOLDER)?;
        for leftover in dir.list()?.iter().filter(|name| *name == OPEN || name.starts_with(VIEW)) {
            dir.sub(leftover)?.remove_all()?;
        }
        let highest = seals.iter().map(|seal| seal.number).chain(damaged.iter().copied()).max();
        let newest = seals.iter().map(|seal| seal.last).max().unwrap_or(Key::MIN);
        let mut store = Store {
            data,
            dir,
            bounds,
            sealed: seals.into(),
            open: None,
            views: Vec::new(),
            next: highest.map_or(1, |number| number + 1),
            covered,
            newest,
            newest_record: Key::MIN,
        };
        for number in damaged {
            store.set_aside(number, &HistoryError::Damaged("it has no seal that fits".to_owned()));
        }
        for number in outdated {
            let why = "it was written by an earlier version, in a form that is not read any more".to_owned();
            store.set_aside(number, &HistoryError::Damaged(why));
        }
        if let Some(number) = take_opening(&store.dir) {
            let why = HistoryError::Damaged("the node went down while it was opened".to_owned());
            store.set_aside(number, &why);
        }
        let replaced: Vec<u64> = store.sealed.iter().filter_map(|seal| seal.replaces).collect();
        for number in replaced {
            store.remove(number)?;
        }
        if store.sealed.back().is_some_and(|seal| seal.content == Content::Unfinished) {
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

    /// Stores a sheet, which is behind all others.
    pub fn put(&mut self, sheet: &Sheet<'_>) -> Result<(), HistoryError> {
        // A slice ends between two commands: what it covers, it has all of.
        let open = match sheet.span.first.zxid > self.newest_record.zxid {
            true => self.writable()?,
            false => self.begun()?,
        };
        open.put(sheet)?;
        self.newest_record = sheet.span.last;
        self.reached(sheet.span.last);
        Ok(())
    }

    /// Stores a gap up to the moment of `key`, or a little more: slices follow each other, and the last one
    /// may have been sealed since.
    pub fn put_gap(&mut self, key: Key, gap: Gap) -> Result<(), HistoryError> {
        let sealed = self.sealed.back().map_or(Key::MIN, |seal| seal.last);
        let key = Key { ordinal: u32::MAX, ..key.max(sealed) };
        self.writable()?.put_gap(key, gap)?;
        self.reached(key);
        Ok(())
    }

    fn reached(&mut self, key: Key) {
        self.covered = self.covered.max(key.zxid);
        self.newest = self.newest.max(key);
    }

    fn writable(&mut self) -> Result<&mut OpenSlice, HistoryError> {
        if self.open.as_ref().is_some_and(|open| open.payload_bytes() >= self.bounds.payload_bytes()) {
            self.seal(Content::Complete)?;
            self.trim_bytes()?;
        }
        self.begun()
    }

    fn begun(&mut self) -> Result<&mut OpenSlice, HistoryError> {
        if self.open.is_none() {
            self.open = Some(OpenSlice::new(self.empty_folder(OPEN)?)?);
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
        // A slice of some size is not gone on with: copying it would be more work than another slice.
        if open.payload_bytes() >= self.bounds.payload_bytes() / 4 {
            self.seal(Content::Complete)?;
            return self.trim_bytes();
        }
        self.seal(Content::Unfinished)?;
        self.resume();
        Ok(())
    }

    /// As [`Store::checkpoint`], for the end.
    pub fn close(&mut self) -> Result<(), HistoryError> {
        for view in self.views.drain(..) {
            view.close()?;
        }
        match &self.open {
            Some(open) if open.is_changed => self.seal(Content::Unfinished),
            _ => self.note_covered(),
        }
    }

    fn note_covered(&self) -> Result<(), HistoryError> {
        Ok(self.dir.write_atomic(COVERED, self.covered.0.to_string().as_bytes())?)
    }

    fn seal(&mut self, content: Content) -> Result<(), HistoryError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let origin = open.origin.clone();
        let sealed = open.seal(self.next, content, self.covered);
        let seal = match sealed {
            Ok(sealed) => sealed,
            Err(error) => {
                // Its beginning is still there as it was sealed before.
                self.sealed.extend(origin);
                return Err(error);
            }
        };
        self.dir.rename(OPEN, &folder_name(seal.number))?;
        self.dir.sync()?;
        self.next += 1;
        self.sealed.push_back(seal);
        if let Some(origin) = origin {
            self.remove(origin.number)?;
        }
        Ok(())
    }

    /// Goes on with the newest slice. If the disk does not allow it, that one stays as it is.
    fn resume(&mut self) {
        let Some(seal) = self.sealed.pop_back() else { return };
        let opened =
            self.empty_folder(OPEN).and_then(|folder| OpenSlice::resume(&self.dir, seal.clone(), folder));
        match opened {
            Ok(open) => self.open = Some(open),
            Err(error) => {
                let number = seal.number;
                self.sealed.push_back(seal);
                self.unreadable(number, &error);
            }
        }
    }

    /// Something went wrong with the open slice: what was in it and is in no sealed one is lost. Gives up to
    /// where the sealed ones go.
    pub fn abandon(&mut self, error: &HistoryError) -> Zxid {
        tracing::warn!(%error, "the lock history could not be written: some of it is lost, and it begins anew");
        let Some(open) = self.open.take() else { return self.covered };
        self.sealed.extend(open.origin);
        match open.is_changed {
            true => self.sealed.iter().map(|seal| seal.covered).max().unwrap_or_default(),
            false => self.covered,
        }
    }

    /// Removes what is too old. `now_ms`: the wall clock.
    pub fn trim(&mut self, now_ms: i64) -> Result<(), HistoryError> {
        let began_before = |limit_ms: i64| move |key: &Key| key.time_ms < now_ms.saturating_sub(limit_ms);
        let too_long = began_before(self.bounds.slice_age_ms());
        if self.open.as_ref().and_then(OpenSlice::first).is_some_and(|first| too_long(&first)) {
            self.seal(Content::Complete)?;
        }
        let too_old = began_before(self.bounds.max_age_ms);
        while let Some(oldest) = self.sealed.front().filter(|seal| too_old(&seal.last)) {
            self.remove(oldest.number)?;
        }
        self.trim_bytes()
    }

    fn trim_bytes(&mut self) -> Result<(), HistoryError> {
        let allowed = self.bounds.max_bytes - PARTS_NOT_SEALED * self.bounds.part_bytes();
        while self.sealed.iter().map(Seal::bytes).sum::<u64>() > allowed {
            let Some(oldest) = self.sealed.front() else { break };
            self.remove(oldest.number)?;
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Result<(), HistoryError> {
        self.close_view(number)?;
        self.sealed.retain(|seal| seal.number != number);
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

    /// Moves a slice out of the way, and leaves a seal that says what was in it.
    fn set_aside(&mut self, number: u64, error: &HistoryError) {
        let kept = format!("{DAMAGED}{number}");
        tracing::warn!(slice = number, %error, kept, "a part of the lock history cannot be used and was set aside");
        let moved = self.move_away(number, &kept);
        if let Err(error) = moved {
            tracing::warn!(slice = number, %error, "a part of the lock history could not be moved");
        }
    }

    fn move_away(&mut self, number: u64, kept: &str) -> Result<(), HistoryError> {
        for earlier in self.data.list()?.iter().filter(|name| name.starts_with(DAMAGED)) {
            Dir::open(&self.data.path().join(earlier))?.remove_all()?;
        }
        let folder = folder_name(number);
        self.data.rename(&format!("{FOLDER}/{folder}"), kept)?;
        if let Some(seal) = self.sealed.iter_mut().find(|seal| seal.number == number) {
            let empty = self.dir.sub(&folder)?;
            seal.content = Content::Lost;
            seal.write(&empty)?;
        }
        self.dir.sync()?;
        Ok(self.data.sync()?)
    }

    /// Reads a part of the history. `is_over`: nobody waits for it any more.
    pub fn page(
        &mut self,
        filter: &Filter,
        now_ms: i64,
        is_over: impl Fn() -> bool,
    ) -> Result<Page, HistoryError> {
        let oldest_ms = filter.since_ms.max(now_ms.saturating_sub(self.bounds.max_age_ms));
        let range = Range { from: Key::at(oldest_ms), before: filter.before };
        let mut reading = Reading::new(filter, &is_over);
        if range.from >= range.before {
            return Ok(reading.page);
        }
        if let Some(open) = &self.open
            && reading.read(&open.reader(), range)? == Then::Stop
        {
            return Ok(reading.page);
        }
        let numbers: Vec<u64> = self.sealed.iter().rev().map(|seal| seal.number).collect();
        for number in numbers {
            let Some(seal) = self.sealed.iter().find(|seal| seal.number == number).cloned() else { continue };
            let is_near = seal.entries > 0 && seal.last >= range.from && seal.first < range.before;
            if !is_near || !seal.may_hold(&reading.wanted) {
                continue;
            }
            let read = match seal.content {
                Content::Lost => None,
                _ => self.read_sealed(&seal, &mut reading, range),
            };
            if read.unwrap_or_else(|| reading.lost(&seal, range)) == Then::Stop {
                break;
            }
        }
        Ok(reading.page)
    }

    /// `None`: it cannot be read, and was set aside.
    fn read_sealed(&mut self, seal: &Seal, reading: &mut Reading<'_>, range: Range) -> Option<Then> {
        let before = reading.page.entries.len();
        let read = self.view(seal).and_then(|view| reading.read(&view.reader(), range));
        let error = match read {
            Ok(then) => return Some(then),
            Err(error) => error,
        };
        reading.page.entries.truncate(before);
        if let Err(error) = self.close_view(seal.number) {
            tracing::warn!(%error, "a copy of a part of the lock history could not be removed");
        }
        self.unreadable(seal.number, &error);
        None
    }

    fn unreadable(&mut self, number: u64, error: &HistoryError) {
        // A disk that is full or refuses does not make the slice a damaged one.
        if matches!(error, HistoryError::Damaged(_)) {
            self.set_aside(number, error);
        } else {
            tracing::warn!(slice = number, %error, "a part of the lock history could not be read");
        }
    }

    fn view(&mut self, seal: &Seal) -> Result<&View, HistoryError> {
        match self.views.iter().position(|view| view.number == seal.number) {
            Some(at) => {
                let view = self.views.remove(at);
                self.views.push(view);
            }
            None => {
                if self.views.len() >= VIEWS_MAX {
                    self.views.remove(0).close()?;
                }
                let folder = self.empty_folder(&format!("{VIEW}{}", seal.number))?;
                self.views.push(View::open(&self.dir, seal, folder)?);
            }
        }
        Ok(self.views.last().expect("it was put there just now"))
    }
}
