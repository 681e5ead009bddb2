//! Writes false logs and histories in place of true ones, with right checksums.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rowlock_env::disk::Dir;
use rowlock_history::{History as Store, Retention, offline};
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use rowlock_proto::lock_event::HistoryEvent;
use rowlock_proto::report::HistoryEntry;
use rowlock_state::command::Batch;
use rowlock_state::outcome::EventContext;
use rowlock_wal::{Entry, Identity, LogId, Payload, Storage, Vote, verify};

/// Log of a stopped node.
#[derive(Default)]
pub struct Log {
    owner: Option<Identity>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    entries: Vec<Entry>,
}

impl Log {
    pub fn read(folder: &Path) -> Log {
        let stopped = verify(folder).unwrap();
        let checkpoint = *stopped.log.checkpoint();
        assert_eq!(checkpoint.purged, None, "the log has its beginning");
        let entries = stopped.log.entries().cloned().collect();
        let (vote, committed) = (checkpoint.vote, checkpoint.committed);
        Log { owner: Some(stopped.identity.clone()), vote, committed, entries }
    }

    /// Returns the batches with their places in the log.
    pub fn batches(&self) -> impl Iterator<Item = (usize, Batch)> {
        self.entries.iter().enumerate().filter_map(|(at, entry)| match &entry.payload {
            Payload::Normal(bytes) => Some((at, Batch::decode(bytes).unwrap())),
            _ => None,
        })
    }

    pub fn replace(&mut self, at: usize, batch: &Batch) {
        self.entries[at].payload = Payload::Normal(batch.encode());
    }

    /// Appends a copy of the last batch in the name of a later leader, which the node does not know as
    /// committed.
    pub fn append_uncommitted(&mut self, terms_later: u64) {
        let batches = self.batches().map(|(at, _)| at);
        let payload = self.entries[batches.last().unwrap()].payload.clone();
        let mut log_id = self.entries.last().unwrap().log_id;
        (log_id.index, log_id.leader_id.term) = (log_id.index + 1, log_id.leader_id.term + terms_later);
        self.entries.push(Entry { log_id, payload });
    }

    /// Writes the log in place of the folder's.
    pub async fn write(self, folder: &Path) {
        for name in ["wal", "snapshots"] {
            let _ = fs::remove_dir_all(folder.join(name));
        }
        let _ = fs::remove_file(folder.join("identity"));
        let owner = self.owner.unwrap_or(Identity { cluster: "test".to_owned(), node: NodeId(1) });
        let opened = Storage::open(folder, owner, Arc::new(|_| ()), Arc::default()).await.unwrap();
        opened.log.append_durably(self.entries).await.unwrap();
        opened.log.set_committed(self.committed);
        if let Some(vote) = self.vote {
            opened.log.save_vote(vote).await.unwrap();
        }
        opened.log.close().await;
    }
}

/// Lock history of a stopped node.
pub struct History(pub Vec<HistoryEntry>);

impl History {
    pub fn read(folder: &Path) -> History {
        let scratch = tempfile::tempdir().unwrap();
        let scratch = Dir::open(scratch.path()).unwrap();
        let mut entries = Vec::new();
        let read = offline::read(folder, &scratch, |key, entry| {
            entries.push(HistoryEntry { time_ms: key.time_ms, zxid: key.zxid, event: entry.event });
        });
        read.unwrap();
        History(entries)
    }

    /// Writes the history in place of the folder's.
    pub async fn write(self, folder: &Path) {
        fs::remove_dir_all(folder.join("history")).unwrap();
        let retention = Retention { max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 };
        let (history, sink) = Store::start(folder, retention, Arc::new(Metrics::default()));
        for HistoryEntry { time_ms, zxid, event } in &self.0 {
            let HistoryEvent::Lock(event) = event else { panic!("{event:?}") };
            let context = EventContext { zxid: *zxid, time_ms: *time_ms, acl: &[], lock_acl: &[] };
            sink.lock(&event.map(|text| text.as_str()), &context);
        }
        sink.applied();
        history.close().await;
    }
}
