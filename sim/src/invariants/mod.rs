//! The promises of docs/guarantees.md as checkers, one file each, under the same names. Each checker has
//! histories that keep and break the promise, in `sim/testdata/checkers`: a checker that cannot fail proves
//! nothing.

mod cluster;
mod ephemeral_lifetime;
mod fencing_monotonic;
mod lives;
mod of_the_state;
mod replica_equality;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use rowlock_model::rules::Event;

pub use self::cluster::disturbances::Disturbances;
pub use self::cluster::in_time::{Debt, Histogram, Lateness};
use self::lives::Lives;
use crate::history::{Book, Fact};

/// Checker of one promise, fed with facts in the order of their occurrence.
pub trait Invariant: Send {
    fn name(&self) -> &'static str;
    /// Consumes a fact. `book`: queues of locks and logs of nodes before the fact. An error describes how the
    /// promise was broken.
    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String>;

    /// Returns the number of events of each kind that a model's checker has compared with the model's rules.
    fn model_events(&self) -> ModelEvents {
        ModelEvents::default()
    }

    /// Returns how late came what the world owed.
    fn lateness(&self) -> Lateness {
        Lateness::default()
    }

    /// Returns the name of the checker's type, which names the file of the checker's cases.
    #[cfg(test)]
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>().rsplit("::").next().expect("Invariant: a type has a name")
    }
}

/// Counts of a model's events by the index of their kind in [`Event::KINDS`].
pub type ModelEvents = [u64; Event::KINDS.len()];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

pub struct Invariants {
    /// Checkers that continue from one life of a cluster to the next.
    lifelong: Vec<Box<dyn Invariant>>,
    /// Checkers of each single life.
    lives: Lives,
}

/// Demands on time in a cluster's run.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Rates of all clocks stay within the documented bound of each other. Beyond the bound clients may
    /// believe in locks that the log has given to another session.
    pub has_bounded_clocks: bool,
    /// No clock runs faster or slower than true time at all.
    pub has_true_clocks: bool,
    /// No node starts after a jump of a wall clock: a starting node adopts the wall clock's time.
    pub starts_with_right_clocks: bool,
    /// The run has faults.
    pub has_faults: bool,
    /// Nodes keep a history of locks.
    pub has_history: bool,
    /// No disk is ever full: nodes refuse no write for lack of room.
    pub has_room: bool,
    /// No proxy stands between clients and nodes: a node notices at once when a client hangs up.
    pub hears_of_hang_ups: bool,
    /// A majority stays: what the cluster owes is due in time.
    pub owes_service: bool,
    /// Time after its end, by the log's clock, within which a TTL znode is removed, if a majority stays.
    pub swept_within: Option<Duration>,
    /// Minimum of voters after the leader's own removals. The operator makes no removals then.
    pub removes_down_to: Option<usize>,
    /// Times with faults other than load.
    pub disturbances: Disturbances,
    /// Nodes acknowledge entries about locks before the flush: a log may end before what its node has
    /// acknowledged.
    pub forgets: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            has_bounded_clocks: true,
            has_true_clocks: false,
            starts_with_right_clocks: true,
            has_faults: true,
            has_history: true,
            has_room: true,
            hears_of_hang_ups: false,
            owes_service: true,
            swept_within: None,
            removes_down_to: None,
            disturbances: Disturbances::default(),
            forgets: false,
        }
    }
}

impl Invariants {
    pub fn of_a_cluster() -> Self {
        Self::of_a_cluster_on(Terms::default())
    }

    pub fn of_a_cluster_on(terms: Terms) -> Self {
        let mut lifelong: Vec<Box<dyn Invariant>> = vec![
            Box::new(fencing_monotonic::FencingMonotonic::default()),
            Box::new(cluster::restored_cluster::RestoredCluster::new(terms.has_bounded_clocks)),
            Box::new(cluster::fenced_store::FencedStore::default()),
            Box::new(cluster::releases::Releases::default()),
            Box::new(cluster::reports::Reports::default()),
            Box::new(cluster::verify::LinearizableVerify::default()),
            Box::new(cluster::in_time::InTime::new(&terms)),
            Box::new(cluster::steady::Steady::new(terms.has_faults, terms.has_room)),
            Box::new(cluster::may_do::MayDo::default()),
            Box::new(cluster::may_see::MaySee::default()),
        ];
        lifelong.extend(of_the_state());
        if !terms.forgets {
            // A node's history keeps the events of forgotten entries.
            lifelong.push(Box::new(cluster::lock_events::LockEvents::new(terms.clone())));
        }
        if terms.has_bounded_clocks {
            let beliefs = cluster::beliefs::Beliefs::with_clocks(terms.starts_with_right_clocks);
            lifelong.push(Box::new(beliefs));
        }
        if terms.has_bounded_clocks && terms.starts_with_right_clocks {
            lifelong.push(Box::new(cluster::log_time::LogTime::default()));
        }
        Invariants { lifelong, lives: Lives::of(move || Self::of_a_life(&terms)) }
    }

    fn of_a_life(terms: &Terms) -> Vec<Box<dyn Invariant>> {
        let mut checkers: Vec<Box<dyn Invariant>> = vec![
            Box::new(ephemeral_lifetime::EphemeralLifetime::default()),
            Box::new(replica_equality::ReplicaEquality::default()),
            Box::new(cluster::log_matching::LogMatching::default()),
            Box::new(cluster::leader_completeness::LeaderCompleteness::of(terms.forgets)),
            Box::new(cluster::committed_never_changes::CommittedNeverChanges::of(terms.forgets)),
            Box::new(cluster::deposed_leader_admits_none::DeposedLeaderAdmitsNone::default()),
            Box::new(cluster::one_leader_per_term::OneLeaderPerTerm::default()),
            Box::new(cluster::votes_never_go_back::VotesNeverGoBack::default()),
            Box::new(cluster::effects::Effects::default()),
            Box::new(cluster::session_order::SentOrder::default()),
            Box::new(cluster::linearizable_writes::LinearizableWrites::default()),
            Box::new(cluster::linearizability::Linearizability::default()),
            Box::new(cluster::synced_reads::SyncedReads::default()),
            Box::new(cluster::monotonic_reads::MonotonicReads::default()),
            Box::new(cluster::read_your_writes::ReadYourWrites::default()),
            Box::new(cluster::watches::Watches::default()),
            Box::new(cluster::session_moves::SessionMoves::new(terms.hears_of_hang_ups)),
            Box::new(cluster::fifo_in_real_time::FifoInRealTime::default()),
            Box::new(cluster::voters_have_the_log::VotersHaveTheLog::default()),
            Box::new(cluster::logs_never_go_back::LogsNeverGoBack::default()),
            Box::new(cluster::durable::Durable::default()),
            Box::new(cluster::session_expiry::SessionExpiry::new(
                terms.has_bounded_clocks,
                terms.has_true_clocks,
            )),
        ];
        if !terms.forgets {
            // Clients hear of the deletions by a restart.
            checkers.push(Box::new(cluster::persistent_watches::PersistentWatches::default()));
        }
        checkers
    }

    /// Returns the names of the checked promises, each once.
    pub fn names(&self) -> Vec<&'static str> {
        let lifelong = self.lifelong.iter().map(|checker| checker.name());
        let mut names: Vec<_> = lifelong.chain(self.lives.names()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the sums over all checkers.
    pub fn model_events(&self) -> ModelEvents {
        let mut sums = ModelEvents::default();
        for checker in self.lifelong.iter().chain(self.lives.checkers()) {
            sums.iter_mut().zip(checker.model_events()).for_each(|(sum, count)| *sum += count);
        }
        sums
    }

    /// Returns the samples of all checkers.
    pub fn lateness(&self) -> Lateness {
        let mut sum = Lateness::default();
        self.lifelong.iter().for_each(|checker| sum += &checker.lateness());
        sum
    }

    /// Returns the book of the present life.
    pub fn book(&self) -> &Book {
        self.lives.book()
    }

    /// Passes a fact to all checkers and returns the first violation.
    pub fn observe(&mut self, fact: &Fact) -> Result<(), Violation> {
        observe_all(&mut self.lifelong, fact, self.lives.book())?;
        self.lives.observe(fact)
    }
}

/// Returns the checkers of promises about the state alone.
fn of_the_state() -> impl Iterator<Item = Box<dyn Invariant>> {
    rowlock_oracle::PROMISES
        .into_iter()
        .map(|name| Box::new(of_the_state::OfTheState(name)) as Box<dyn Invariant>)
}

/// Returns the checkers that need only committed entries and the logs of nodes, for the judgment of a real
/// cluster.
pub(crate) fn of_a_log() -> Vec<Box<dyn Invariant>> {
    let mut checkers: Vec<Box<dyn Invariant>> = of_the_state().collect();
    checkers.extend([
        Box::new(fencing_monotonic::FencingMonotonic::default()) as Box<dyn Invariant>,
        Box::new(cluster::log_matching::LogMatching::default()),
        Box::new(cluster::committed_never_changes::CommittedNeverChanges::default()),
        Box::new(cluster::votes_never_go_back::VotesNeverGoBack::default()),
        Box::new(replica_equality::ReplicaEquality::default()),
    ]);
    checkers
}

fn observe_all(checkers: &mut [Box<dyn Invariant>], fact: &Fact, book: &Book) -> Result<(), Violation> {
    checkers.iter_mut().try_for_each(|checker| {
        checker.observe(fact, book).map_err(|what| Violation { invariant: checker.name(), what })
    })
}
