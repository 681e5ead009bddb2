//! Random histories of writes, stops and kills against a naive model: every acknowledged write survives.

use proptest::prelude::*;

use super::*;
use crate::log::record::Record;
use crate::memlog::MemLog;
use crate::testing::{log_id, vote};

#[derive(Clone, Debug)]
enum Step {
    /// Appends entries of the current term, each with a payload of `bytes`.
    Append {
        count: u64,
        bytes: usize,
    },
    /// A new leader replaces the last uncommitted entries.
    Replace {
        count: u64,
    },
    Commit,
    /// Takes a snapshot of the committed entries but the last `keep`, and purges the log up to the snapshot.
    Purge {
        keep: u64,
    },
    /// Installs another node's snapshot beyond the log's end.
    Install {
        beyond: u64,
    },
    Stop,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..8u64, prop_oneof![0..200usize, 1_000..6_000usize])
            .prop_map(|(count, bytes)| Step::Append { count, bytes }),
        2 => (1..10u64).prop_map(|count| Step::Replace { count }),
        2 => Just(Step::Commit),
        2 => (0..10u64).prop_map(|keep| Step::Purge { keep }),
        1 => (1..10u64).prop_map(|beyond| Step::Install { beyond }),
        1 => Just(Step::Stop),
        3 => Just(Step::Kill),
    ]
}

struct Run {
    dir: TempDir,
    opened: Opened,
    model: MemLog,
    term: u64,
}

impl Run {
    fn next(&self) -> u64 {
        self.model.checkpoint().last.map_or(0, |last| last.index + 1)
    }

    fn record(&mut self, record: Record) {
        self.model.replay(record).expect("the model's records follow each other");
    }

    async fn append(&mut self, count: u64, bytes: usize) {
        let entries = entries(self.term, self.next()..self.next() + count, bytes);
        append(&mut self.opened.log, entries.clone()).await;
        for entry in entries {
            self.record(Record::Entry(entry));
        }
    }

    async fn replace(&mut self, count: u64) {
        let checkpoint = *self.model.checkpoint();
        let kept = checkpoint.committed.max(checkpoint.purged).map_or(0, |log_id| log_id.index + 1);
        let Some(after) = self.next().saturating_sub(count).max(kept).checked_sub(1) else { return };
        let after = self.model.entries().map(|entry| entry.log_id).find(|id| id.index == after);
        let Some(after) = after else { return };
        self.term += 1;
        let vote = vote(self.term, 2);
        self.opened.log.save_vote(vote).await.expect("saves");
        self.record(Record::Vote(vote));
        self.opened.log.truncate_after(Some(after)).await.expect("truncates");
        self.record(Record::Truncate(Some(after)));
        self.append(1, 10).await;
    }

    async fn commit(&mut self) {
        if let Some(last) = self.model.checkpoint().last {
            self.opened.log.set_committed(Some(last));
            self.record(Record::Committed(last));
            self.append(1, 0).await; // carries it
        }
    }

    async fn purge(&mut self, keep: u64) {
        let Some(committed) = self.model.checkpoint().committed else { return };
        let upto = committed.index.saturating_sub(keep);
        let entry = self.model.entries().map(|entry| entry.log_id).find(|id| id.index == upto);
        if let Some(upto) = entry {
            self.purge_upto(upto).await;
        }
    }

    async fn purge_upto(&mut self, upto: crate::entry::LogId) {
        super::snapshots::write_small(&self.opened.snapshots, upto);
        self.opened.log.purge(upto).await.expect("purges");
        self.record(Record::Purge(upto));
        flush_all(&mut self.opened.log).await;
    }

    async fn reopen(&mut self, kill: bool) {
        if kill {
            self.dir = killed(self.dir.path());
        } else {
            self.opened.log.close().await;
        }
        self.opened = open(self.dir.path()).await;
        let expected: Vec<Entry> = self.model.entries().cloned().collect();
        assert_eq!(stored(&mut self.opened.log).await, expected);
        let report = &self.opened.report;
        let checkpoint = self.model.checkpoint();
        assert_eq!(
            (report.vote, report.committed, report.purged, report.last),
            (checkpoint.vote, checkpoint.committed, checkpoint.purged, checkpoint.last)
        );
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Append { count, bytes } => self.append(count, bytes).await,
            Step::Replace { count } => self.replace(count).await,
            Step::Commit => self.commit().await,
            Step::Purge { keep } => self.purge(keep).await,
            Step::Install { beyond } => {
                self.term += 1;
                self.purge_upto(log_id(self.term, self.next() + beyond)).await;
            }
            Step::Stop => self.reopen(false).await,
            Step::Kill => self.reopen(true).await,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_acknowledged_write_is_recovered(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let dir = temp();
            let opened = open(dir.path()).await;
            let mut run = Run { dir, opened, model: MemLog::default(), term: 1 };
            for step in steps {
                run.step(step).await;
            }
            run.reopen(true).await;
        });
    }
}
