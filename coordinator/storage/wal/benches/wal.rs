//! Speed of the log alone, without Raft and network: `cargo bench -p rowlock-wal --bench wal [-- <folder>]`.
//!
//! The folder chooses the disk; the default is a temporary folder. Prints a line per figure.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use rowlock_wal::{Done, Entry, Identity, LeaderId, LogId, Opened, Payload, SnapshotMeta, Storage};
use tokio::sync::oneshot;

const COMMAND_BYTES: usize = 100;
const FOLDED: usize = 512;

fn log_id(index: u64) -> LogId {
    LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index }
}

async fn open(dir: &Path, metrics: Arc<Metrics>) -> Opened {
    let identity = Identity { cluster: "bench".to_owned(), node: NodeId(1) };
    Storage::open(dir, identity, Arc::new(|failure| panic!("{failure}")), metrics).await.expect("opens")
}

/// Appends `count` entries of `bytes` with at most `in_flight` unflushed entries.
async fn append(opened: &mut Opened, first: u64, count: u64, bytes: usize, in_flight: usize) -> Duration {
    let payload = Bytes::from(vec![0x5a; bytes]);
    let begun = time::now();
    let mut waiting = VecDeque::new();
    for index in first..first + count {
        let entry = Entry { log_id: log_id(index), payload: Payload::Normal(payload.clone()) };
        let (done, result) = oneshot::channel();
        opened.log.append(vec![entry], Done::Waiter(done)).await.expect("is queued");
        waiting.push_back(result);
        if waiting.len() >= in_flight {
            waiting.pop_front().expect("is not empty").await.expect("is notified").expect("is on disk");
        }
    }
    for result in waiting {
        result.await.expect("is notified").expect("is on disk");
    }
    begun.elapsed()
}

async fn measure(dir: &Path, what: &str, opened: &mut Opened, shape: (u64, u64, usize, usize)) -> u64 {
    let (first, count, bytes, in_flight) = shape;
    let metrics = Arc::new(Metrics::default());
    opened.log.close().await;
    *opened = open(dir, metrics.clone()).await;
    let took = append(opened, first, count, bytes, in_flight).await;
    let per_second = count as f64 / took.as_secs_f64();
    println!(
        "{what}: {per_second:.0} entries/s, {:.0} MB/s, {:.1} us per entry, {} flushes, flush p50 {:?} p99 {:?}",
        per_second * bytes as f64 / 1e6,
        took.as_secs_f64() * 1e6 / count as f64,
        metrics.wal_fsync_seconds.view().count,
        metrics.wal_fsync_seconds.quantile(0.5).unwrap_or_default(),
        metrics.wal_fsync_seconds.quantile(0.99).unwrap_or_default(),
    );
    first + count
}

async fn run(dir: &Path) {
    let mut opened = open(dir, Arc::default()).await;
    let folded = FOLDED * COMMAND_BYTES;
    let mut next = 0;
    next = measure(dir, "one at a time, 100 B", &mut opened, (next, 3_000, COMMAND_BYTES, 1)).await;
    next = measure(dir, "512 in flight, 100 B", &mut opened, (next, 200_000, COMMAND_BYTES, 512)).await;
    opened.log.close().await;
    opened = open(dir, Arc::default()).await;
    println!("recovery of {} records: {:?}", opened.report.records, opened.report.took);

    next = measure(dir, "folded, 4 in flight, 51 KB", &mut opened, (next, 5_000, folded, 4)).await;
    // Repeats the measurement in recycled segments: a snapshot covers all earlier entries.
    let meta = SnapshotMeta { last_log_id: Some(log_id(next - 1)), ..SnapshotMeta::default() };
    opened.snapshots.write(meta, |_| Ok(()), |_| Ok(())).expect("writes");
    opened.log.purge(log_id(next - 1)).await.expect("purges");
    next = measure(dir, "folded, 4 in flight, 51 KB, recycled", &mut opened, (next, 2_500, folded, 4)).await;
    measure(dir, "one at a time, 100 B, after recycling", &mut opened, (next, 3_000, COMMAND_BYTES, 1)).await;
    opened.log.close().await;
}

fn main() {
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.map_or_else(|| temporary.path().to_owned(), Into::into);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(&dir));
}
