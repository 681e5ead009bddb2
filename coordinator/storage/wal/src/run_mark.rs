//! Mark of a node's run in the data folder: whether the node may have lost acknowledged entries.
//!
//! A node that acknowledges entries before their flush loses the entries with the machine's power, and must
//! know so at its next start. The mark says `open` with the id of the kernel's run while a node runs,
//! `closed` after the last flush of a clean stop, `forgotten` after a loss, and `dropped` after the removal
//! of a state that the cluster has left behind. The states `forgotten` and `dropped` stay until a leader
//! has admitted the node.
//!
//! Invariant: the mark is on disk before the first early acknowledgement, and a flush that fails changes the
//! mark before anything else happens. A folder without a mark has lost nothing.

use std::path::PathBuf;

use parking_lot::Mutex;
use rowlock_env::disk::Dir;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::process;
use rowlock_env::rare::{self, Rare};

use super::error::StorageError;
use super::identity::{self, Claim, Identity, LogState, SNAPSHOT_DIR, WAL_DIR};
use crate::entry::{LeaderId, Vote};

const FILE: &str = "run";
const FIRST_LINE: &str = "rowlock run 1";

/// Memory of a node of its acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All acknowledged entries are there.
    Whole,
    /// Unflushed entries may be lost.
    Forgotten,
    /// The whole log was removed: also flushed entries are lost.
    Dropped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Run {
    Open {
        boot: String,
    },
    Closed,
    Forgotten,
    /// The log and the snapshots are to be removed, or have been.
    Dropped {
        vote: Option<Vote>,
        is_done: bool,
    },
}

/// The mark of an open folder.
#[derive(Debug)]
pub struct RunMark {
    dir: Dir,
    /// Id of the kernel's run, if this run acknowledges before the flush.
    boot: Option<String>,
    /// Run on the disk; `None` without a file.
    state: Mutex<Option<Run>>,
}

impl RunMark {
    /// Reads the mark of the last run. Writes nothing: [`RunMark::begin`] does, after the recovery has
    /// flushed the log. Blocks.
    ///
    /// # Errors
    /// [`StorageError::NoBootId`] for early acknowledgements on a system without such an id.
    pub(super) fn read(dir: Dir, acknowledges_early: bool) -> Result<RunMark, StorageError> {
        let boot = process::boot_id();
        if acknowledges_early && boot.is_none() {
            return Err(StorageError::NoBootId);
        }
        let found = if dir.exists(FILE) {
            let path = dir.path().join(FILE);
            let bytes = dir.read(FILE).map_err(StorageError::io("reading", &path))?;
            Some(parse(&bytes).unwrap_or_else(|| {
                tracing::error!(
                    path = %path.display(),
                    "the mark of the last run is damaged: this node counts as one that lost unflushed entries"
                );
                Run::Forgotten
            }))
        } else {
            None
        };
        let state = match found {
            Some(Run::Open { boot: before }) if !is_same_boot(boot.as_deref(), &before) => {
                Some(Run::Forgotten)
            }
            other => other,
        };
        let boot = boot.filter(|_| acknowledges_early);
        Ok(RunMark { dir, boot, state: Mutex::new(state) })
    }

    /// Begins this run: the log is flushed. A folder whose run flushes everything first needs no mark, unless
    /// the node has forgotten. Blocks.
    pub(super) fn begin(&self) -> Result<(), StorageError> {
        let before = self.memory();
        match before {
            Memory::Whole => self.open(),
            Memory::Forgotten => {
                rare::taken(Rare::NodeHasForgotten);
                if mutant::is(Mutant::MarkOverwritten) {
                    self.write(Run::Open { boot: self.boot.clone().unwrap_or_default() })?;
                    *self.state.lock() = Some(Run::Forgotten);
                    return Ok(());
                }
                self.write(Run::Forgotten)
            }
            Memory::Dropped => Ok(()),
        }?;
        assert_eq!(self.memory(), before, "the begin of a run brings no entry back");
        Ok(())
    }

    /// Returns whether this node has lost acknowledged entries and was not admitted since.
    pub fn memory(&self) -> Memory {
        match *self.state.lock() {
            None | Some(Run::Open { .. } | Run::Closed) => Memory::Whole,
            Some(Run::Forgotten) => Memory::Forgotten,
            Some(Run::Dropped { .. }) => Memory::Dropped,
        }
    }

    /// Removes log and snapshots if the mark demands the removal. Returns the vote that the new log must
    /// have. Repeatable after an interruption: the vote moves into the mark first. Blocks.
    pub(super) fn drop_state(
        &self,
        identity: &Identity,
        claim: &mut Claim,
        vote_of_log: impl FnOnce(&Claim) -> Result<Option<Vote>, StorageError>,
    ) -> Result<Option<Option<Vote>>, StorageError> {
        let Run::Dropped { mut vote, is_done: false } = self.state.lock().clone().unwrap_or(Run::Closed)
        else {
            return Ok(None);
        };
        if vote.is_none() && claim.log == LogState::Begun {
            vote = vote_of_log(claim)?;
            self.write(Run::Dropped { vote, is_done: false })?;
        }
        rare::taken(Rare::StateDropped);
        let path = self.dir.path();
        tracing::warn!(
            folder = %path.display(),
            "removing a state that the cluster has left behind after a power loss; the leader sends its own"
        );
        claim.log = LogState::New;
        identity::write(&self.dir, identity, claim)?;
        for name in [WAL_DIR, SNAPSHOT_DIR] {
            let removed = self.dir.sub(name).and_then(Dir::remove_all);
            removed.map_err(StorageError::io("removing", &path.join(name)))?;
        }
        self.dir.sync().map_err(StorageError::io("flushing", path))?;
        assert_eq!((self.memory(), claim.log), (Memory::Dropped, LogState::New), "the new log has nothing");
        Ok(Some(vote))
    }

    /// Records that log and snapshots are new, and that the log has the vote. Blocks.
    pub(super) fn dropped(&self) -> Result<(), StorageError> {
        assert_eq!(self.memory(), Memory::Dropped, "only a demanded removal happens");
        self.write(Run::Dropped { vote: None, is_done: true })
    }

    /// Demands the removal of the log and the snapshots at the next start: the cluster has restarted without
    /// entries that this node has applied. Blocks.
    pub fn demand_drop(&self) -> Result<(), StorageError> {
        self.write(Run::Dropped { vote: None, is_done: false })?;
        assert_eq!(self.memory(), Memory::Dropped, "a node that drops its state votes no more");
        Ok(())
    }

    /// Records the admission by a leader: the node has that leader's last entry. Blocks.
    pub fn admitted(&self) -> Result<(), StorageError> {
        assert_ne!(self.memory(), Memory::Whole, "only a node that has forgotten is admitted");
        rare::taken(Rare::ForgetfulAdmitted);
        self.open()?;
        assert_eq!(self.memory(), Memory::Whole, "an admitted node remembers");
        Ok(())
    }

    /// Records a loss of acknowledged entries, as after a failed flush. Does nothing in a run that flushes
    /// before each acknowledgement. Blocks.
    pub(super) fn forget(&self) -> Result<(), StorageError> {
        if self.boot.is_none() || self.memory() != Memory::Whole || mutant::is(Mutant::FailedFlushUnmarked) {
            return Ok(());
        }
        self.write(Run::Forgotten)?;
        assert_eq!(self.memory(), Memory::Forgotten, "no vote of this run counts from now on");
        Ok(())
    }

    /// Records a clean stop: everything is flushed. Blocks.
    pub(super) fn close(&self) -> Result<(), StorageError> {
        if self.boot.is_none() || self.memory() != Memory::Whole {
            return Ok(());
        }
        self.write(Run::Closed)
    }

    fn open(&self) -> Result<(), StorageError> {
        if let Some(boot) = &self.boot {
            return self.write(Run::Open { boot: boot.clone() });
        }
        if self.state.lock().is_some() {
            let removed = self.dir.remove(FILE).and_then(|()| self.dir.sync());
            removed.map_err(StorageError::io("removing", &self.path()))?;
            *self.state.lock() = None;
        }
        Ok(())
    }

    fn write(&self, run: Run) -> Result<(), StorageError> {
        let result = self.dir.write_atomic(FILE, text(&run).as_bytes());
        result.map_err(StorageError::io("writing", &self.path()))?;
        *self.state.lock() = Some(run);
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(FILE)
    }
}

/// Compares the whole ids: the ids of two boots may begin alike.
fn is_same_boot(now: Option<&str>, before: &str) -> bool {
    let prefix = |id: &str| id.chars().take(8).collect::<String>();
    if mutant::is(Mutant::BootIdByPrefix) {
        return now.is_some_and(|now| prefix(now) == prefix(before));
    }
    now == Some(before)
}

fn text(state: &Run) -> String {
    let said = match state {
        Run::Open { boot } => format!("open {boot}"),
        Run::Closed => "closed".to_owned(),
        Run::Forgotten => "forgotten".to_owned(),
        Run::Dropped { vote: None, is_done } => format!("dropped {is_done}"),
        Run::Dropped { vote: Some(vote), is_done } => {
            let LeaderId { term, node_id } = vote.leader_id;
            format!("dropped {is_done} {term} {node_id} {}", vote.committed)
        }
    };
    let content = format!("{FIRST_LINE}\n{said}\n");
    format!("{content}crc {:08x}\n", crc32fast::hash(content.as_bytes()))
}

/// Parses the file; `None` for a damaged one.
fn parse(bytes: &[u8]) -> Option<Run> {
    let (content, crc) = std::str::from_utf8(bytes).ok()?.rsplit_once("crc ")?;
    let crc = u32::from_str_radix(crc.trim_end(), 16).ok()?;
    let said = content.strip_prefix(FIRST_LINE)?.trim();
    if crc32fast::hash(content.as_bytes()) != crc {
        return None;
    }
    let words: Vec<&str> = said.split(' ').collect();
    Some(match words[..] {
        ["open", boot] => Run::Open { boot: boot.to_owned() },
        ["closed"] => Run::Closed,
        ["forgotten"] => Run::Forgotten,
        ["dropped", is_done] => Run::Dropped { vote: None, is_done: is_done.parse().ok()? },
        ["dropped", is_done, term, node_id, committed] => {
            let leader_id = LeaderId { term: term.parse().ok()?, node_id: node_id.parse().ok()? };
            let vote = Vote { leader_id, committed: committed.parse().ok()? };
            Run::Dropped { vote: Some(vote), is_done: is_done.parse().ok()? }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vote;

    fn folder() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        (temp, dir)
    }

    fn begun(dir: &Dir, early: bool) -> RunMark {
        let mark = RunMark::read(dir.clone(), early).expect("reads");
        mark.begin().expect("begins");
        mark
    }

    fn put(dir: &Dir, state: &Run) {
        dir.write_atomic(FILE, text(state).as_bytes()).expect("writes");
    }

    #[test]
    fn the_file_is_as_it_was_written() {
        let (boot, vote) = ("b0075eed-0000".to_owned(), Some(vote(7, 2)));
        for (state, golden) in [
            (Run::Open { boot }, "rowlock run 1\nopen b0075eed-0000\ncrc 2468b663\n"),
            (Run::Closed, "rowlock run 1\nclosed\ncrc 68f8121e\n"),
            (Run::Forgotten, "rowlock run 1\nforgotten\ncrc 96ccf3ec\n"),
            (Run::Dropped { vote, is_done: false }, "rowlock run 1\ndropped false 7 2 true\ncrc a05cab17\n"),
            (Run::Dropped { vote: None, is_done: true }, "rowlock run 1\ndropped true\ncrc 759ce6b2\n"),
        ] {
            assert_eq!(text(&state), golden);
            assert_eq!(parse(golden.as_bytes()), Some(state));
            assert_eq!(parse(golden.replace("rowlock", "rowlook").as_bytes()), None);
        }
    }

    #[test]
    fn a_killed_node_remembers_and_a_machine_that_was_started_again_has_forgotten() {
        let (_temp, dir) = folder();
        assert_eq!(begun(&dir, true).memory(), Memory::Whole, "a new folder");
        assert_eq!(begun(&dir, true).memory(), Memory::Whole, "killed: the kernel has all pages");
        let boot = process::boot_id().expect("Linux has one");
        // Another boot whose id begins alike.
        put(&dir, &Run::Open { boot: format!("{}x", &boot[..boot.len() - 1]) });
        assert_eq!(begun(&dir, true).memory(), Memory::Forgotten);
        assert_eq!(begun(&dir, true).memory(), Memory::Forgotten, "killed before the admission");
        let mark = begun(&dir, true);
        mark.close().expect("closes");
        assert_eq!(begun(&dir, true).memory(), Memory::Forgotten, "stopped before the admission");
        mark.admitted().expect("writes");
        assert_eq!((mark.memory(), begun(&dir, true).memory()), (Memory::Whole, Memory::Whole));
    }

    #[test]
    fn a_clean_stop_and_a_failed_flush_are_marked() {
        let (_temp, dir) = folder();
        begun(&dir, true).close().expect("closes");
        assert_eq!(parse(&dir.read(FILE).expect("reads")), Some(Run::Closed));
        let mark = begun(&dir, true);
        assert_eq!(mark.memory(), Memory::Whole);
        mark.forget().expect("writes");
        assert_eq!((mark.memory(), begun(&dir, true).memory()), (Memory::Forgotten, Memory::Forgotten));
    }

    #[test]
    fn a_run_that_flushes_first_has_no_mark_unless_an_earlier_one_has_forgotten() {
        let (_temp, dir) = folder();
        let mark = begun(&dir, false);
        mark.forget().expect("does nothing");
        mark.close().expect("does nothing");
        assert!(!dir.exists(FILE));
        drop(begun(&dir, true));
        assert_eq!((begun(&dir, false).memory(), dir.exists(FILE)), (Memory::Whole, false));
        put(&dir, &Run::Open { boot: "another".to_owned() });
        let mark = begun(&dir, false);
        assert_eq!(mark.memory(), Memory::Forgotten);
        mark.admitted().expect("removes it");
        assert_eq!((mark.memory(), dir.exists(FILE)), (Memory::Whole, false));
    }

    #[test]
    fn a_damaged_mark_counts_as_forgotten() {
        let (_temp, dir) = folder();
        dir.write_atomic(FILE, b"rowlock run 1\nclosed\ncrc 00000001\n").expect("writes");
        assert_eq!(begun(&dir, true).memory(), Memory::Forgotten);
    }
}
