//! The production storage on a simulated disk, with a loss of power or a kill at any operation, repeatedly.
//! Every acknowledged write survives; the recovered log is a prefix of the submitted writes.

mod bench;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::live;
use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_wal::{
    Acknowledge, DiskFailure, Done, Entry, Identity, LeaderId, LogId, Opened, Payload, SnapshotMeta, Storage,
    StorageError, Vote,
};
use rowlock_world::disk::HostDisk;
use rowlock_world::rng::Rng;

const SEGMENT_BYTES: u64 = 16 << 10;
const SEEDS: u64 = 1_500;

fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Held {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: Vec<Entry>,
}

impl Held {
    fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.log_id).or(self.purged)
    }
}

/// History of the submitted writes, with the acknowledged prefix.
struct Asked {
    steps: Vec<Held>,
    acknowledged: usize,
    term: u64,
    /// Number of entries covered by a snapshot: committed, so no leader cuts them off.
    committed: u64,
}

impl Asked {
    fn new() -> Asked {
        Asked { steps: vec![Held::default()], acknowledged: 0, term: 1, committed: 0 }
    }

    fn now(&self) -> &Held {
        self.steps.last().expect("never empty")
    }

    fn step(&mut self, f: impl FnOnce(&mut Held)) {
        let mut next = self.now().clone();
        f(&mut next);
        self.steps.push(next);
    }

    fn acknowledge(&mut self) {
        self.acknowledged = self.steps.len() - 1;
    }

    /// Asserts that the opened storage equals a step of the history, at or behind the acknowledged step.
    fn found(&mut self, held: &Held, place: &str) {
        let at = (self.acknowledged..self.steps.len()).find(|step| self.steps[*step] == *held);
        let Some(at) = at else {
            let (acknowledged, asked) = (&self.steps[self.acknowledged], self.now());
            panic!("{place}: found {held:?}\nacknowledged {acknowledged:?}\nasked for {asked:?}");
        };
        self.steps = vec![self.steps[at].clone()];
        self.acknowledged = 0;
    }
}

fn entry(term: u64, index: u64, rng: &mut Rng) -> Entry {
    let len = if rng.chance(10) { rng.below(20_000) } else { rng.below(900) };
    let payload = Payload::Normal(Bytes::from(vec![rng.u64() as u8; len]));
    Entry { log_id: log_id(term, index), payload }
}

async fn open() -> Result<Opened, StorageError> {
    let identity = Identity { cluster: "test".to_owned(), node: NodeId(1) };
    let on_fatal = Arc::new(|_: &DiskFailure| {}); // the waiters receive the failure
    Storage::open_with(
        Path::new("/data/node"),
        identity,
        on_fatal,
        Arc::default(),
        (SEGMENT_BYTES, Acknowledge::Flushed),
    )
    .await
}

fn held(opened: &Opened) -> Held {
    let log = opened.log.read();
    let (vote, purged) = (log.checkpoint().vote, log.checkpoint().purged);
    Held { vote, purged, entries: log.entries().cloned().collect() }
}

/// Runs a random operation on the storage.
async fn act(opened: &Opened, asked: &mut Asked, rng: &mut Rng) -> io::Result<()> {
    let Opened { log, snapshots, .. } = opened;
    match rng.weighted(&[50, 20, 10, 10, 10]) {
        kind @ (0 | 1) => {
            let first = asked.now().last().map_or(0, |last| last.index + 1);
            let (term, count) = (asked.term, rng.below(6) as u64 + 1);
            let entries: Vec<Entry> = (first..first + count).map(|index| entry(term, index, rng)).collect();
            for entry in &entries {
                asked.step(|held| held.entries.push(entry.clone()));
            }
            if kind == 0 {
                log.append_durably(entries).await?;
                asked.acknowledge();
            } else {
                log.append(entries, Done::Unawaited).await?;
            }
        }
        2 => {
            asked.term += 1;
            let leader_id = LeaderId { term: asked.term, node_id: 1 };
            let vote = Vote { leader_id, committed: rng.chance(50) };
            asked.step(|held| held.vote = Some(vote));
            log.save_vote(vote).await?;
            asked.acknowledge();
        }
        3 if !asked.now().entries.is_empty() => {
            let is_committed = |entry: &&Entry| entry.log_id.index < asked.committed;
            let committed = asked.now().entries.iter().take_while(is_committed).count();
            let kept = rng.below(asked.now().entries.len()).max(committed);
            let last =
                if kept == 0 { asked.now().purged } else { Some(asked.now().entries[kept - 1].log_id) };
            asked.step(|held| held.entries.truncate(kept));
            asked.term += 1;
            log.truncate_after(last).await?;
        }
        4 if !asked.now().entries.is_empty() => {
            let count = rng.below(asked.now().entries.len()) + 1;
            let upto = asked.now().entries[count - 1].log_id;
            let meta = SnapshotMeta { last_log_id: Some(upto), ..SnapshotMeta::default() };
            // A snapshot covers committed entries only, and commits are durable.
            log.append_durably(Vec::new()).await?;
            asked.acknowledge();
            asked.committed = asked.committed.max(upto.index + 1);
            snapshots.write(meta, |out| out.write_all(&[7; 5_000]), |_| Ok(()))?;
            asked.step(|held| {
                held.entries.drain(..count);
                held.purged = Some(upto);
            });
            log.purge(upto).await?;
        }
        _ => {}
    }
    Ok(())
}

async fn life(asked: &mut Asked, rng: &mut Rng, place: &str) -> Result<(), String> {
    let opened = open().await.map_err(|error| error.to_string())?;
    let held = held(&opened);
    asked.found(&held, place);
    for _ in 0..rng.below(25) {
        act(&opened, asked, rng).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn acknowledged_writes_survive_any_crash_and_no_others_appear() {
    let (mut cuts, mut ends) = (0, 0);
    for seed in 0..SEEDS {
        let disk = HostDisk::new(Rng::new(seed));
        let mut rng = Rng::new(seed ^ 0xd15c);
        let mut asked = Asked::new();
        for number in 0..6 {
            let gone = Arc::new(AtomicBool::new(false));
            let tell = gone.clone();
            let (at, power) = (rng.below(80) as u64 + 1, rng.chance(70));
            disk.cut_power_at_op(at, Box::new(move || tell.store(true, Ordering::Relaxed)));
            let place = format!("seed {seed}, life {number}");
            let end = || {
                if power {
                    disk.power_loss();
                } else {
                    disk.process_died();
                }
            };
            let result = live(&disk, seed * 100 + number, &gone, life(&mut asked, &mut rng, &place), end);
            let cut = gone.load(Ordering::Relaxed);
            if let Some(Err(error)) = result {
                assert!(cut, "{place}: {error}");
            }
            if cut {
                cuts += 1
            } else {
                ends += 1
            }
            disk.boot();
        }
    }
    assert!(cuts > 1_000 && ends > 300, "{cuts} {ends}");
}

#[test]
fn recovered_writes_after_a_failed_flush_survive_a_power_loss() {
    let mut failures = 0;
    for seed in 0..SEEDS {
        let disk = HostDisk::new(Rng::new(seed));
        let mut rng = Rng::new(seed ^ 0xe10);
        let mut asked = Asked::new();
        let never = AtomicBool::new(false);
        for number in 0..6 {
            let place = format!("seed {seed}, life {number}");
            let fails = number % 2 == 0;
            let main = async {
                let opened = open().await.map_err(|error| format!("{place}: {error}"))?;
                let held = held(&opened);
                asked.found(&held, &place);
                for step in 0..rng.below(12) + 3 {
                    if fails && step == 2 {
                        disk.fail_syncs(1);
                    }
                    if act(&opened, &mut asked, &mut rng).await.is_err() {
                        failures += 1;
                        break;
                    }
                }
                Ok::<(), String>(())
            };
            let end = || {
                if fails {
                    disk.process_died();
                } else {
                    disk.power_loss();
                }
            };
            let result = live(&disk, seed * 100 + number, &never, main, end).expect("the power stays on");
            result.expect("it starts");
            disk.heal();
            disk.boot();
        }
    }
    assert!(failures > 1_000, "{failures}");
}

/// Fills the disk and frees space in turns, while polled.
async fn fill_and_free(disk: &HostDisk, mut rng: Rng) {
    loop {
        time::sleep(Duration::from_millis(rng.below(60) as u64)).await;
        disk.fill_up(rng.pick(&[0, 0, 5_000, SEGMENT_BYTES, 2 * SEGMENT_BYTES]));
        time::sleep(Duration::from_millis(rng.below(300) as u64)).await;
        disk.set_capacity(1 << 40);
    }
}

#[test]
fn a_full_disk_loses_no_acknowledged_write_and_the_log_resumes() {
    let (mut full, mut cuts, mut ends) = (0, 0, 0);
    for seed in 0..SEEDS / 5 {
        let disk = HostDisk::new(Rng::new(seed));
        let mut rng = Rng::new(seed ^ 0xf11);
        let mut asked = Asked::new();
        for number in 0..6 {
            let gone = Arc::new(AtomicBool::new(false));
            let tell = gone.clone();
            disk.cut_power_at_op(
                rng.below(300) as u64 + 1,
                Box::new(move || tell.store(true, Ordering::Relaxed)),
            );
            let place = format!("seed {seed}, life {number}");
            let power = rng.chance(70);
            let changing = fill_and_free(&disk, Rng::new(rng.u64()));
            let main = async {
                let opened = open().await.map_err(|error| error.to_string())?;
                asked.found(&held(&opened), &place);
                opened.reserve.keep(SEGMENT_BYTES, 0).map_err(|error| error.to_string())?;
                let acting = async {
                    for _ in 0..rng.below(40) {
                        match act(&opened, &mut asked, &mut rng).await {
                            // Without disk space the next snapshot comes later.
                            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                            done => done.map_err(|error| error.to_string())?,
                        }
                    }
                    Ok::<(), String>(())
                };
                tokio::select! {
                    biased;
                    done = acting => done,
                    () = changing => unreachable!("it goes on for ever"),
                }
            };
            let end = || {
                if power {
                    disk.power_loss();
                } else {
                    disk.process_died();
                }
            };
            let result = live(&disk, seed * 100 + number, &gone, main, end);
            let cut = gone.load(Ordering::Relaxed);
            if let Some(Err(error)) = result {
                assert!(cut, "{place}: {error}");
            }
            if cut {
                cuts += 1;
            } else {
                ends += 1;
            }
            // A start needs disk space.
            disk.set_capacity(1 << 40);
            disk.boot();
        }
        full += disk.stats().out_of_space;
    }
    assert!(full > 300 && cuts > 200 && ends > 200, "{full} {cuts} {ends}");
}
