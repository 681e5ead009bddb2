//! The audit log of a node: opened at the start, closed when no part of the node records anything any more.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::RefusalListener;
use rowlock_env::task::{Shutdown, Task, spawn};
use rowlock_env::{time, worker};
use rowlock_metrics::Metrics;

use super::errors::StartError;
use crate::config::NodeConfig;
use crate::node::audit::{Audit, AuditRecord, AuditWriter, Client, Event, text};

/// Maximum wait for the last records at the end of a node.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Handle for records, and the writer that runs until its shutdown.
#[derive(Default)]
pub(super) struct AuditLog {
    pub(super) handle: Audit,
    writer: Option<AuditWriter>,
}

pub(super) async fn open(config: &NodeConfig, metrics: Arc<Metrics>) -> Result<AuditLog, StartError> {
    let Some(settings) = config.audit.settings(config.id, &config.data_dir) else {
        return Ok(AuditLog::default());
    };
    let (events, id) = (config.audit.events.clone(), config.id);
    let opened = worker::run_blocking("audit", move || Audit::open(settings, events, id, metrics)).await;
    let (handle, writer) = opened.map_err(StartError::Audit)?;
    Ok(AuditLog { handle, writer: Some(writer) })
}

/// Records an act of the node itself.
pub(super) fn record(audit: &Audit, op: &str) {
    audit.record(&AuditRecord::new(Event::Admin, op, Client::default()));
}

/// Records the connections that the nodes' port refuses.
pub(super) fn of_nodes_port(audit: Audit) -> RefusalListener {
    Arc::new(move |address, reason| {
        let client = Client { address: Some(address), ..Client::default() };
        let detail = text(reason);
        let record = AuditRecord::new(Event::Denied, "nodePort", client);
        audit.record(&AuditRecord { detail: &detail, result: "refused", ..record });
    })
}

pub(super) struct AuditTask {
    audit: Audit,
    end: Shutdown,
    task: Option<Task<()>>,
}

impl AuditLog {
    pub(super) fn start(self) -> AuditTask {
        let end = Shutdown::new();
        let task = self.writer.map(|writer| spawn("audit", writer.run(end.clone())));
        record(&self.handle, "start");
        AuditTask { audit: self.handle, end, task }
    }
}

impl AuditTask {
    /// Writes the remaining records and ends. Does not wait for a disk that hangs.
    pub(super) async fn finish(self) {
        record(&self.audit, "stop");
        self.end.trigger();
        let Some(task) = self.task else { return };
        match time::timeout(END_DEADLINE, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the audit log did not end in order"),
            Err(_) => tracing::error!("the audit log did not end in time: its last records are lost"),
        }
    }
}
