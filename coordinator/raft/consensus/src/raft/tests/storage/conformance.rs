//! openraft's own suite for log stores and state machines, on real files.

use std::sync::Arc;

use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use rowlock_state::Machine;
use rowlock_state::command::Batch;

use super::{open, temp};
use crate::entry_times::EntryStages;
use crate::node_hook::Hook;
use crate::raft::log_store::LogStore;
use crate::raft::state_machine::{Apply, StateMachine};
use crate::raft_types::EntryOutcome;
use crate::raft_types::TypeConfig;

struct Nothing;

impl Apply for Nothing {
    fn apply(&self, _machine: &mut Machine, _entry: EntryStages, _batch: Batch) -> EntryOutcome {
        EntryOutcome::Applied
    }
    fn installed(&self, _machine: &Machine) {}
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), openraft::StorageError<TypeConfig>> {
        let dir = temp();
        let opened = open(dir.path()).await;
        let state_machine = StateMachine::open(
            Arc::default(),
            opened.snapshots,
            Arc::new(Nothing),
            Arc::default(),
            Hook::default(),
        )
        .await;
        Ok((dir, LogStore::new(opened.log), state_machine.expect("opens")))
    }
}

#[tokio::test]
async fn it_passes_openrafts_storage_suite() {
    Suite::test_all(Builder).await.expect("conforms");
}
