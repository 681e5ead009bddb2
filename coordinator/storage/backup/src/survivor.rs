//! The state that the folder of a stopped node leads to: its snapshot, and every entry of its log after it.
//!
//! Entries at the end of the log may not be committed. A leader that is lost may have acknowledged them, and
//! no node is left to ask: all of them count.

use std::path::Path;

use rowlock_state::Machine;
use rowlock_state::command::Batch;
use rowlock_wal::{LogId, Payload, Stopped, StorageError};

/// The data of a surviving node.
pub struct Survivor {
    /// The state behind the last entry of its log.
    pub machine: Machine,
    pub last: Option<LogId>,
    pub stopped: Stopped,
}

/// Why a folder leads to no state.
#[derive(Debug, thiserror::Error)]
pub enum SurvivorError {
    /// The folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An entry of its log cannot be read.
    #[error(
        "entry {at} of the log cannot be read: {why}. A later release, or another build, may have written it"
    )]
    Entry { at: LogId, why: String },
}

/// Reads the folder of a node that does not run. Changes nothing; blocks on the disk.
///
/// # Errors
/// [`SurvivorError`].
pub fn read(folder: &Path) -> Result<Survivor, SurvivorError> {
    let stopped = rowlock_wal::verify(folder)?;
    let (mut machine, covered) = match &stopped.snapshot {
        Some(snapshot) => (snapshot.state()?, snapshot.meta().last_log_id),
        None => (Machine::new(), None),
    };
    let behind = covered.map_or(0, |covered| covered.index + 1);
    let mut last = covered;
    for entry in stopped.log.range(&(behind..)) {
        if let Payload::Normal(bytes) = &entry.payload {
            let at = entry.log_id;
            let batch =
                Batch::decode(bytes).map_err(|error| SurvivorError::Entry { at, why: error.to_string() })?;
            apply(&mut machine, &batch);
        }
        last = Some(entry.log_id);
    }
    Ok(Survivor { machine, last, stopped })
}

/// As every node does it.
fn apply(machine: &mut Machine, batch: &Batch) {
    if machine.takes(batch.ordinal) {
        for proposal in &batch.proposals {
            machine.apply_stamped(batch.stamp(), proposal, &mut ());
        }
    }
}
