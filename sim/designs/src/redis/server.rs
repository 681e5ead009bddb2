//! Redis server: the [keyspace](super::core) behind a port, with subscribers, replicas and the append-only
//! file.
//!
//! The server answers a write before any replica has the write, unless `WAIT` or `min-replicas-to-write` is
//! used. Code between two awaits is atomic, as on the one thread of Redis.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::sync::watch;
use rowlock_env::{task, time};

use super::core::{Answer, Command, Effect, Keyspace};
use super::log::{Log, Persistence};
use super::replication;
use super::{Ask, PORT, Push, Redis, Reply};
use crate::wire::{Meter, Peer, PeerId, Service, serve};

/// `min-replicas-max-lag`: a replica with an older report does not count (S2-8).
const MAX_LAG_MS: i64 = 10_000;
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Configuration file of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    pub persistence: Persistence,
    pub min_replicas: usize,
    pub follows: Option<String>,
}

pub struct Server {
    min_replicas: usize,
    inner: Mutex<Inner>,
    /// Primary to follow; `None` for a primary.
    pub(super) follows: watch::Sender<Option<String>>,
    /// Rises whenever a replica reports.
    reports: watch::Sender<u64>,
}

struct Replica {
    peer: Peer<Redis>,
    acked: u64,
    reported_at_ms: i64,
}

struct Inner {
    keys: Keyspace,
    offset: u64,
    log: Log,
    replicas: BTreeMap<PeerId, Replica>,
    subscribers: BTreeMap<String, BTreeMap<PeerId, Peer<Redis>>>,
    /// Offset of each connection's last write.
    written: BTreeMap<PeerId, u64>,
}

impl Server {
    /// Starts the server on this host: reads the file, listens, follows.
    ///
    /// # Errors
    /// The disk failed.
    pub fn start(settings: &Settings, meter: &Meter) -> io::Result<()> {
        let (log, keys) = Log::open(settings.persistence)?;
        let inner = Inner {
            keys,
            offset: 0,
            log,
            replicas: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            written: BTreeMap::new(),
        };
        let server = Arc::new(Server {
            min_replicas: settings.min_replicas,
            inner: Mutex::new(inner),
            follows: watch::channel(settings.follows.clone()).0,
            reports: watch::channel(0).0,
        });
        if settings.persistence == Persistence::EverySecond {
            let server = server.clone();
            drop(task::spawn("redis.flush", async move {
                loop {
                    time::sleep(FLUSH_EVERY).await;
                    if server.inner.lock().log.flush().is_err() {
                        return; // the disk's host is on its way down
                    }
                }
            }));
        }
        drop(task::spawn("redis.follow", replication::follow(server.clone(), meter.clone())));
        drop(task::spawn("redis.serve", serve(format!("0.0.0.0:{PORT}"), server, meter.clone())));
        Ok(())
    }

    fn is_primary(&self) -> bool {
        self.follows.borrow().is_none()
    }

    fn run(&self, peer: PeerId, command: Command) -> Answer {
        let now_ms = time::wall_ms();
        let mut inner = self.inner.lock();
        if !self.is_primary() {
            return Answer::Refused("READONLY".to_owned());
        }
        if self.min_replicas > 0 {
            let good = inner.replicas.values().filter(|r| now_ms - r.reported_at_ms <= MAX_LAG_MS).count();
            if good < self.min_replicas {
                return Answer::Refused("NOREPLICAS".to_owned());
            }
        }
        let done = inner.keys.run(command, now_ms);
        if !done.effects.is_empty() {
            if inner.log.append(&done.effects).is_err() {
                return Answer::Refused("MISCONF".to_owned());
            }
            inner.replicate(done.effects);
            let offset = inner.offset;
            inner.written.insert(peer, offset);
        }
        if let Some(channel) = done.publish
            && let Some(subscribers) = inner.subscribers.get(&channel)
        {
            subscribers.values().for_each(|s| s.push(Push::Message(channel.clone())));
        }
        done.answer
    }

    /// Runs `WAIT`: requests reports from the replicas, and counts the replicas with this connection's last
    /// write.
    async fn wait(&self, peer: PeerId, replicas: usize, timeout: Duration) -> Answer {
        let mut reports = self.reports.subscribe();
        let target = {
            let inner = self.inner.lock();
            inner.replicas.values().for_each(|r| r.peer.push(Push::GetAck));
            inner.written.get(&peer).copied().unwrap_or(0)
        };
        let count = || self.inner.lock().replicas.values().filter(|r| r.acked >= target).count();
        // A timeout is not an error: WAIT answers the number of replicas so far.
        let _ = time::timeout(timeout, reports.wait_for(|_| count() >= replicas)).await;
        Answer::Number(count() as i64)
    }

    /// Replaces a replica's data by a copy from its primary.
    pub(super) fn take_copy(&self, keys: Keyspace, offset: u64) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.log.restart_with(&keys)?;
        (inner.keys, inner.offset) = (keys, offset);
        Ok(())
    }

    /// Applies changes from a replica's primary.
    pub(super) fn take_changes(&self, offset: u64, effects: Vec<Effect>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.log.append(&effects)?;
        effects.into_iter().for_each(|effect| inner.keys.apply(effect));
        inner.offset = offset;
        Ok(())
    }

    /// Returns the offset in the stream of changes.
    pub(super) fn offset(&self) -> u64 {
        self.inner.lock().offset
    }

    fn report(&self, peer: PeerId, offset: u64) {
        if let Some(replica) = self.inner.lock().replicas.get_mut(&peer) {
            (replica.acked, replica.reported_at_ms) = (offset, time::wall_ms());
        }
        self.reports.modify(|n| *n += 1);
    }
}

impl Inner {
    fn replicate(&mut self, effects: Vec<Effect>) {
        self.offset += 1;
        for replica in self.replicas.values() {
            replica.peer.push(Push::Changes(self.offset, effects.clone()));
        }
    }
}

impl Service for Server {
    type Protocol = Redis;

    async fn handle(&self, peer: &Peer<Redis>, ask: Ask) -> Reply {
        match ask {
            Ask::Run(command) => Reply::Answer(self.run(peer.id, command)),
            Ask::Subscribe(channel) => {
                self.inner.lock().subscribers.entry(channel).or_default().insert(peer.id, peer.clone());
                Reply::Answer(Answer::Ok)
            }
            Ask::Wait { replicas, timeout_ms } => {
                Reply::Answer(self.wait(peer.id, replicas, Duration::from_millis(timeout_ms)).await)
            }
            Ask::Info => Reply::Info { offset: self.offset(), is_primary: self.is_primary() },
            Ask::Sync => {
                let mut inner = self.inner.lock();
                let (acked, reported_at_ms) = (inner.offset, time::wall_ms());
                inner.replicas.insert(peer.id, Replica { peer: peer.clone(), acked, reported_at_ms });
                Reply::Copy(inner.keys.clone(), inner.offset)
            }
            Ask::Acked(offset) => {
                self.report(peer.id, offset);
                Reply::Answer(Answer::Ok)
            }
            Ask::Follow(whom) => {
                self.follows.send_if_modified(|now| std::mem::replace(now, whom.clone()) != whom);
                Reply::Answer(Answer::Ok)
            }
            Ask::Primary => Reply::Answer(Answer::Refused("not a monitor".to_owned())),
        }
    }

    fn gone(&self, peer: PeerId) {
        let mut inner = self.inner.lock();
        inner.replicas.remove(&peer);
        inner.written.remove(&peer);
        inner.subscribers.values_mut().for_each(|subscribers| drop(subscribers.remove(&peer)));
    }
}
