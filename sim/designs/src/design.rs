//! What a lock design is here: servers that faults can hit, and a client library that a workload uses.
//!
//! To add one: implement [`Design`]; [`Design::build`] sets up hosts in the world, and returns what faults
//! aim at ([`Servers`]) and what a client's process holds ([`Locker`]). The workload reports to the outside
//! view. A design itself only counts what is visible to it alone ([`Remark`](crate::outside_view::Remark)),
//! and says when it is between two commands.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use crate::outside_view::{ClientId, OutsideView, Released};
use crate::scenario::Scenario;
use crate::wire::Trouble;

/// A future of a trait's method.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whose wall clocks decide when a lock expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhoseClock {
    #[default]
    Servers,
    Clients,
}

/// What the table and the workload must know of a design.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Its name on the command line.
    pub id: &'static str,
    /// Its name for people.
    pub name: &'static str,
    pub source: &'static str,
    /// The claims about it, by their ids in [`crate::claims`].
    pub claims: &'static [&'static str],
    /// Its grants have tokens that rise.
    pub has_tokens: bool,
    /// It is used with a store that looks at its tokens: only what is lost there counts as lost.
    pub is_fenced: bool,
    /// A lock is kept as long as its holder lives, however long the job.
    pub keeps_alive: bool,
    /// Whose clock to move.
    pub clock: WhoseClock,
}

impl About {
    /// Locks of sessions: with tokens, and for as long as the holder lives.
    pub fn of_sessions() -> About {
        About { has_tokens: true, keeps_alive: true, ..About::default() }
    }
}

pub trait Design {
    fn about(&self) -> About;
    fn id(&self) -> &'static str {
        self.about().id
    }
    fn name(&self) -> &'static str {
        self.about().name
    }
    /// Why a scenario means nothing here, if it does not.
    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str>;
    /// Sets up the servers, running.
    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment;
}

/// Makes what a client's process holds.
pub type LockerMaker = Box<dyn Fn(&Contender) -> Box<dyn Locker>>;

pub struct Deployment {
    /// Servers, the targets of faults.
    pub servers: Box<dyn Servers>,
    /// Called on the client's host.
    pub locker: LockerMaker,
}

/// Servers, as faults see them.
pub trait Servers {
    /// All that store something.
    fn all(&self) -> Vec<HostId>;
    /// All that neither store nor contend: monitors. They are on the larger side of a partition.
    fn bystanders(&self) -> Vec<HostId> {
        Vec::new()
    }
    /// The one that decides at the moment.
    fn primary(&self) -> HostId;
    /// How long it is gone when it is lost.
    fn outage(&self) -> Duration {
        Duration::from_secs(30)
    }
    /// A minority of the servers, with the one that decides: the holder's side of a partition.
    fn minority(&self) -> Vec<HostId>;
    /// Starts a server's process on a host that has booted.
    fn start(&self, host: HostId);
    /// Messages so far, if they are not counted by the outside view's meter.
    fn messages(&self) -> Option<u64> {
        None
    }
}

#[derive(Clone)]
pub struct Contender {
    pub id: ClientId,
    pub host: HostId,
    pub view: OutsideView,
}

/// The right to the lock, as the design gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// A number that rises from grant to grant, if the design has one.
    pub token: Option<u64>,
    /// What the release needs: a random value, a path.
    pub value: String,
}

/// What a client's process holds.
pub trait Locker: Send + Sync {
    /// Waits for the lock. An error: try again.
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>>;
    /// Resolves when the design tells the holder that it has lost the lock; most never do.
    fn lost<'a>(&'a self, grant: &'a Grant) -> Doing<'a, ()> {
        let _ = grant;
        Box::pin(std::future::pending())
    }
    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released>;
}

impl Contender {
    /// A random value that no other grant has.
    pub fn unique(&self) -> String {
        format!("{}-{:016x}", self.id.0, rowlock_env::rng::u64())
    }

    /// The process is between two commands for a moment, in which it can die.
    pub async fn between(&self, kind: crate::outside_view::Between) {
        self.view.between(self.id, Some(kind));
        rowlock_env::time::sleep(Duration::from_millis(1)).await;
        self.view.between(self.id, None);
    }
}

/// Before a client asks again: 100 ms, more or less, as polling clients do.
pub async fn poll_interval() {
    let jitter = rowlock_env::rng::below(40);
    rowlock_env::time::sleep(Duration::from_millis(80 + jitter)).await;
}
