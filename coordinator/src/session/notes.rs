//! The leader's note of signs of life, which is worth something only if it still was the leader.
//!
//! Invariant: a touch is confirmed only after a quorum has acknowledged a request which this leader sent, in
//! the same term, after the timer was restarted. A later leader was therefore elected after the restart and
//! gives the full timeout from then on: whoever computes a deadline from the send time of a confirmed
//! heartbeat gives up before any leader, old or new, expires the session. Nobody's lease and no clock but the
//! rate of the expiring leader's takes part (docs/decisions/heartbeats.md).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::raft::{QuorumContact, Raft, facts};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_types::departure::Departure;
use rowlock_types::observer::Observed;

use super::charge::Charge;
use super::contact::Contact;

/// So long a heartbeat to the quorum is not sent early: under load the answers to the next log entry have
/// come by then.
const ASK_AFTER: Duration = Duration::from_millis(5);
/// At most so often one is sent early for those who wait.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// So old may be the contact to a quorum that a report of nobody is answered with.
const CONTACT_FRESH: Duration = Duration::from_millis(100);

/// Why there is no note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unnoted {
    /// This node does not look after the sessions in that term (any more).
    NotInCharge,
    /// No quorum has acknowledged this leader in time.
    NoQuorum,
}

/// Takes note for this node's connections and for the other nodes.
pub struct Notes {
    raft: Raft,
    quorum: QuorumContact,
    charge: Arc<Charge>,
    contact: Arc<Contact>,
    observed: Observed,
    asked: Mutex<Option<Instant>>,
}

impl Notes {
    /// `contact` is the leader's own.
    pub fn new(
        raft: Raft,
        quorum: QuorumContact,
        charge: Arc<Charge>,
        contact: Arc<Contact>,
        observed: Observed,
    ) -> Self {
        Notes { raft, quorum, charge, contact, observed, asked: Mutex::new(None) }
    }

    /// Restarts the timers of `sessions`, at the first poll, and waits for at most `patience` until a quorum
    /// has acknowledged this leader after that. Gives the sessions whose timers do not run, neither then nor
    /// now.
    ///
    /// # Errors
    /// [`Unnoted`]: nobody may be told that the session lives; timers may have been restarted.
    /// # Cancel safety
    /// Timers may have been restarted, which does no harm.
    pub async fn touch(
        &self,
        term: u64,
        sessions: Vec<SessionId>,
        patience: Duration,
    ) -> Result<Vec<SessionId>, Unnoted> {
        let touched = time::now();
        // A report of nobody only asks for contact, and need not wait for the next heartbeat.
        let age = if sessions.is_empty() { CONTACT_FRESH } else { Duration::ZERO };
        if !self.charge.touch(term, &sessions) {
            return Err(Unnoted::NotInCharge);
        }
        let mut heard = self.quorum.heard();
        while !self.acknowledged_since(touched, age, term) {
            let waited = touched.elapsed();
            if waited >= patience {
                return Err(Unnoted::NoQuorum);
            }
            if !sessions.is_empty() && waited >= ASK_AFTER {
                self.ask_quorum().await;
            }
            let wake_at =
                touched + if waited < ASK_AFTER { ASK_AFTER } else { waited + ASK_EVERY }.min(patience);
            // No answer by then: look again, since the node may lead no more.
            let _ = time::timeout_at(wake_at, heard.changed()).await;
            if self.charge.term() != Some(term) {
                return Err(Unnoted::NotInCharge);
            }
        }
        self.charge.stopped(term, sessions).ok_or(Unnoted::NotInCharge)
    }

    /// Notes, at once, that these clients hung up. False if this node does not look after the sessions in
    /// `term`.
    pub fn departed(&self, term: u64, departures: &[Departure]) -> bool {
        self.charge.departed(term, departures)
    }

    fn acknowledged_since(&self, moment: Instant, age: Duration, term: u64) -> bool {
        let acknowledged = self.quorum.last();
        if let Some((_, at)) = acknowledged {
            self.contact.mark(at);
        }
        if let Some((_, at)) = acknowledged.filter(|(leads, at)| *leads == term && *at + age >= moment) {
            self.observed.tell(|observer| observer.confirms(term, at.elapsed()));
            return true;
        }
        mutant::is(Mutant::ServeWithoutQuorum)
    }

    async fn ask_quorum(&self) {
        let is_time = {
            let mut asked = self.asked.lock();
            let is_time = asked.is_none_or(|at| at.elapsed() >= ASK_EVERY);
            if is_time {
                *asked = Some(time::now());
            }
            is_time
        };
        if is_time {
            facts::ask_quorum(&self.raft).await;
        }
    }
}
