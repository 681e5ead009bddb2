//! reconfig: clients of ZooKeeper's change the membership.
//!
//! In the flow: a superuser's request ([`Ask`]) comes from its connection to the one task of this node that
//! asks the leader, waits until `/zookeeper/config` shows the change here, and tells the
//! connection, which then answers with what is written there. The leader's part is `raft::reconfigure`.
//!
//! Must never do: let a client that is no superuser change anything.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::{Lane, PeerPool, Refusal, Request, Response};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::reconfigure::Reconfigurer;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_types::reconfiguration::Wanted;
use tokio::sync::mpsc;

use crate::admin::Ask;
use crate::delivery::outbox::Message;
use crate::replica::Replica;
use crate::zk::reconfig::config_version;

/// A reconfiguration that takes longer has failed, as far as its client is concerned.
const DEADLINE: Duration = Duration::from_secs(40);
/// How often it is looked for a change that its leader did not live to end.
const FINISH_EVERY: Duration = Duration::from_secs(1);
/// Pause before a leader is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// How often it is looked whether the change shows here.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The task of this node that carries questions to the leader, one after the other.
pub struct Reconfig {
    pub me: NodeId,
    pub queue: mpsc::Receiver<Ask<Wanted>>,
    pub leadership: watch::Receiver<Leadership>,
    pub here: Arc<Reconfigurer>,
    /// The way to another leader.
    pub peers: PeerPool,
    /// Where the change shows.
    pub replica: Arc<Replica>,
}

impl Reconfig {
    /// Runs until the queue closes.
    pub async fn run(mut self) {
        let mut look_at = Instant::now() + FINISH_EVERY;
        loop {
            // Before the queue: a client that asks again and again must not keep a change from its end.
            if Instant::now() >= look_at {
                self.here.finish_interrupted().await;
                look_at = Instant::now() + FINISH_EVERY;
            }
            let ask = match time::timeout_at(look_at, self.queue.recv()).await {
                Ok(Some(ask)) => ask,
                Ok(None) => return,
                Err(_) => continue,
            };
            if ask.reply_to.is_closed() {
                continue;
            }
            let message = match time::timeout(DEADLINE, self.carry_out(&ask.wanted)).await {
                Ok(Some(result)) => Message::Reconfigured { tag: ask.tag, result },
                Ok(None) | Err(_) => Message::Lost,
            };
            ask.reply_to.push(message);
        }
    }

    /// `None`: the outcome cannot be known.
    async fn carry_out(&self, wanted: &Wanted) -> Option<Result<(), ErrorCode>> {
        let index = loop {
            match self.ask_leader(wanted).await {
                Asked::Done(Ok(index)) => break index,
                Asked::Done(Err(code)) => return Some(Err(code)),
                Asked::Again => time::sleep(AGAIN).await,
                Asked::Unknown => return None,
            }
        };
        while config_version(&self.replica.state.read()).is_none_or(|version| version < index) {
            time::sleep(LOOK_EVERY).await;
        }
        Some(Ok(()))
    }

    async fn ask_leader(&self, wanted: &Wanted) -> Asked {
        let Some(leader) = self.leadership.borrow().leader else { return Asked::Again };
        let answer = if leader == self.me {
            self.here.reconfigure(wanted).await
        } else {
            let request = Request::Reconfigure(wanted.clone());
            match self.peers.call(leader, Lane::Control, &request, Instant::now() + DEADLINE).await {
                Ok(Response::Reconfigured(result)) => Ok(result),
                Ok(Response::Refused(refusal)) => Err(refusal),
                Err(error) if !error.may_have_happened() => return Asked::Again,
                Ok(_) | Err(_) => return Asked::Unknown,
            }
        };
        match answer {
            Ok(result) => Asked::Done(result),
            Err(Refusal::NotLeader { .. } | Refusal::Overloaded | Refusal::NotServing) => Asked::Again,
            Err(Refusal::NoQuorum | Refusal::Invalid(_)) => Asked::Unknown,
        }
    }
}

enum Asked {
    Done(Result<u64, ErrorCode>),
    Again,
    Unknown,
}
