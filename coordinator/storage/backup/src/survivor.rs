//! State of a stopped node's folder: the snapshot, and every later entry of the log.
//!
//! The log's last entries may be uncommitted. A lost leader may have acknowledged these entries, and no other
//! node can tell: all entries count.

use std::path::Path;

use rowlock_env::decides;
use rowlock_state::Machine;
use rowlock_state::command::Batch;
use rowlock_wal::{LogId, Payload, Stopped, StorageError};

pub struct Survivor {
    pub machine: Machine,
    pub last: Option<LogId>,
    pub stopped: Stopped,
}

#[derive(Debug, thiserror::Error)]
pub enum SurvivorError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An entry of the log is undecodable.
    #[error(
        "entry {at} of the log cannot be read: {why}. A later release, or another build, may have written it"
    )]
    Entry { at: LogId, why: String },
}

/// Reads the folder of a stopped node. Changes nothing; blocks on the disk.
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

/// Applies a batch by the rules of a running node.
fn apply(machine: &mut Machine, batch: &Batch) {
    if decides!("survivor-takes-entry", machine.takes(batch.ordinal)) {
        for proposal in &batch.proposals {
            machine.apply_stamped(batch.stamp(), proposal, &mut ());
        }
    }
}
