//! Service behind a port: connections of sessions, their events, expiry by a monotonic clock.
//!
//! One host stands for the ensemble. The state lives outside of the host, like a quorum's log, so the state
//! is durable. While the host is down, as during an election, no client gets an answer, and no session
//! expires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::{task, time};

use super::core::{Core, Reply, Request, SessionId};
use super::{PORT, Zk};
use crate::TTL;
use crate::wire::{Meter, Peer, PeerId, Service, serve};

/// Interval of the expiry check, as ZooKeeper's tick.
const TICK: Duration = Duration::from_millis(500);

/// Log of the ensemble.
pub type Storage = Arc<Mutex<Core>>;

#[derive(Default)]
struct Connections {
    of_session: BTreeMap<SessionId, Peer<Zk>>,
    session_of: BTreeMap<PeerId, SessionId>,
}

struct Server {
    core: Storage,
    began: time::Instant,
    connections: Mutex<Connections>,
}

/// Starts the service on this host. All sessions get their full timeout, as from a new leader.
pub fn start(core: Storage, meter: &Meter) {
    core.lock().forgive(0);
    let server = Arc::new(Server { core, began: time::now(), connections: Mutex::default() });
    let ticking = server.clone();
    drop(task::spawn("zk.tick", async move {
        loop {
            time::sleep(TICK).await;
            let timeout_ms = u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX);
            let over = ticking.core.lock().expire(ticking.now_ms(), timeout_ms);
            over.iter().for_each(|session| drop(ticking.connections.lock().of_session.remove(session)));
            ticking.send_events();
        }
    }));
    drop(task::spawn("zk.serve", serve(format!("0.0.0.0:{PORT}"), server, meter.clone())));
}

impl Server {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn attach(&self, session: SessionId, peer: &Peer<Zk>) {
        let mut connections = self.connections.lock();
        connections.of_session.insert(session, peer.clone());
        connections.session_of.insert(peer.id, session);
    }

    /// Sends fired events to connected sessions.
    fn send_events(&self) {
        let connections = self.connections.lock();
        let mut core = self.core.lock();
        for session in core.sessions_with_events() {
            if let Some(peer) = connections.of_session.get(&session) {
                core.take_events(session).into_iter().for_each(|event| peer.push(event));
            }
        }
    }
}

impl Service for Server {
    type Protocol = Zk;

    async fn handle(&self, peer: &Peer<Zk>, request: Request) -> Reply {
        let now_ms = self.now_ms();
        let reply = match request {
            Request::Open => {
                let session = self.core.lock().open(now_ms);
                self.attach(session, peer);
                Reply::Session(session)
            }
            Request::Attach(session) => {
                if !self.core.lock().touch(session, now_ms) {
                    return Reply::Expired;
                }
                self.attach(session, peer);
                Reply::Session(session)
            }
            request => {
                let Some(session) = self.connections.lock().session_of.get(&peer.id).copied() else {
                    return Reply::Expired;
                };
                let mut core = self.core.lock();
                if core.touch(session, now_ms) { core.run(session, request) } else { Reply::Expired }
            }
        };
        self.send_events();
        reply
    }

    fn gone(&self, peer: PeerId) {
        let mut connections = self.connections.lock();
        if let Some(session) = connections.session_of.remove(&peer)
            && connections.of_session.get(&session).is_some_and(|current| current.id == peer)
        {
            connections.of_session.remove(&session);
        }
    }
}
