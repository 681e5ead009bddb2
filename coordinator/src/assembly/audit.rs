//! The audit log of a node: opened at its start, and ended when no part of the node has anything to record
//! any more.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::RefusalListener;
use rowlock_env::task::{Shutdown, Task, spawn};
use rowlock_env::{time, worker};
use rowlock_types::metrics::Metrics;

use super::StartError;
use crate::audit::{Audit, AuditRecord, AuditWriter, Client, Event, OK, text};
use crate::config::NodeConfig;

/// How long the end of a node waits for the last records.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Where records go, and who writes them until it is told to end.
#[derive(Default)]
pub(super) struct AuditLog {
    pub(super) door: Audit,
    writer: Option<AuditWriter>,
}

pub(super) async fn open(config: &NodeConfig, metrics: Arc<Metrics>) -> Result<AuditLog, StartError> {
    let Some(settings) = config.audit.settings(config.id, &config.data_dir) else {
        return Ok(AuditLog::default());
    };
    let (events, id) = (config.audit.events.clone(), config.id);
    let opened = worker::run_blocking("audit", move || Audit::open(settings, events, id, metrics)).await;
    let (door, writer) = opened.map_err(StartError::Audit)?;
    Ok(AuditLog { door, writer: Some(writer) })
}

/// Records what the node itself does.
pub(super) fn record(door: &Audit, op: &str) {
    let client = Client::default();
    door.record(&AuditRecord {
        event: Event::Admin,
        op,
        paths: &[],
        detail: "",
        result: OK,
        missing: None,
        client,
    });
}

/// Records the connections that the nodes' port refuses.
pub(super) fn of_nodes_port(door: Audit) -> RefusalListener {
    Arc::new(move |address, reason| {
        let client = Client { address: Some(address), ..Client::default() };
        let detail = text(reason);
        let (op, result) = ("nodePort", "refused");
        door.record(&AuditRecord {
            event: Event::Denied,
            op,
            paths: &[],
            detail: &detail,
            result,
            missing: None,
            client,
        });
    })
}

pub(super) struct Writing {
    door: Audit,
    end: Shutdown,
    task: Option<Task<()>>,
}

impl AuditLog {
    pub(super) fn start(self) -> Writing {
        let end = Shutdown::new();
        let task = self.writer.map(|writer| spawn("audit", writer.run(end.clone())));
        record(&self.door, "start");
        Writing { door: self.door, end, task }
    }
}

impl Writing {
    /// Writes what is left, and ends. A disk that does not answer is not waited for.
    pub(super) async fn finish(self) {
        record(&self.door, "stop");
        self.end.trigger();
        let Some(task) = self.task else { return };
        match time::timeout(END_DEADLINE, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the audit log did not end in order"),
            Err(_) => tracing::error!("the audit log did not end in time: its last records are lost"),
        }
    }
}
