//! Interface of a lock design: servers, which faults can hit, and a client library, which the workload uses.
//!
//! To add a design, implement [`Design`]: [`Design::build`] creates hosts in the world, and returns the
//! targets of faults ([`Servers`]) and the maker of client libraries ([`Locker`]). The workload reports to
//! the outside view. A design itself counts only facts that the outside view cannot see
//! ([`Remark`]), and reports when a client is between two commands.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use crate::outside_view::{ClientId, OutsideView, Released, Remark};
use crate::scenario::Scenario;
use crate::wire::Trouble;

/// Future of a trait's method.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Description of a design for the table and the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Name on the command line.
    pub id: &'static str,
    pub name: &'static str,
    pub source: &'static str,
    /// Ids in [`crate::claims`] of the claims about the design.
    pub claims: Vec<&'static str>,
    /// Grants have rising tokens.
    pub has_tokens: bool,
    /// The protected store checks the tokens: only losses on this store count.
    pub is_fenced: bool,
    /// A lock lasts as long as its holder lives, however long the job.
    pub keeps_alive: bool,
    /// The wall clocks of the clients expire locks: the clock jump moves them, not the servers'.
    pub clocks_of_clients: bool,
    /// Scenarios that do not apply to the design, with the reasons.
    pub not_applicable: Vec<(Scenario, &'static str)>,
}

impl About {
    /// Describes a lock of sessions: with tokens, and for as long as the holder lives.
    pub fn of_sessions() -> About {
        About { has_tokens: true, keeps_alive: true, ..About::default() }
    }

    /// Parses a block of `recipes/designs.txt`, whose head explains the lines.
    pub(crate) fn parse(block: &'static str) -> About {
        let mut lines = block.trim_end().lines();
        let first = lines.next().and_then(|line| line.split_once(": "));
        let (id, name) = first.unwrap_or_else(|| panic!("designs.txt: no id and name in {block:?}"));
        let mut about = About { id, name, ..About::default() };
        for line in lines {
            let (keyword, rest) = line.trim().split_once(' ').unwrap_or_default();
            match keyword {
                "source" => about.source = rest,
                "claims" => about.claims = rest.split(' ').collect(),
                "is" => {
                    about.keeps_alive = rest.contains("kept-alive");
                    about.has_tokens = rest.contains("with-tokens");
                    about.is_fenced = rest.contains("fenced");
                    about.clocks_of_clients = rest.contains("clocks-of-clients");
                }
                "not" => {
                    let (scenarios, why) = rest.split_once(": ").unwrap_or_default();
                    for id in scenarios.split(' ') {
                        let scenario = Scenario::from_id(id);
                        let scenario = scenario.unwrap_or_else(|| panic!("designs.txt: no scenario {id:?}"));
                        about.not_applicable.push((scenario, why));
                    }
                }
                _ => panic!("designs.txt: {line:?} is not a line of a design"),
            }
        }
        about
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
    /// Returns the reason why a scenario does not apply to the design, if so.
    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        self.about().not_applicable.iter().find(|(excluded, _)| *excluded == scenario).map(|(_, why)| *why)
    }
    /// Sets up the servers, running.
    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment;
}

/// Sets up the servers of a design, running.
pub type Build = fn(&Simulation, &OutsideView) -> Deployment;

/// Design of this crate.
pub struct Model {
    pub about: About,
    pub build: Build,
}

impl Design for Model {
    fn about(&self) -> About {
        self.about.clone()
    }
    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        (self.build)(world, view)
    }
}

/// Maker of client libraries.
pub type LockerMaker = Box<dyn Fn(&Contender) -> Box<dyn Locker>>;

pub struct Deployment {
    /// Servers, the targets of faults.
    pub servers: Box<dyn Servers>,
    /// Called on the client's host.
    pub locker: LockerMaker,
}

/// Servers as targets of faults.
pub trait Servers {
    /// Returns all servers with data.
    fn all(&self) -> Vec<HostId>;
    /// Returns all hosts that neither store nor contend: monitors, on the larger side of a partition.
    fn bystanders(&self) -> Vec<HostId> {
        Vec::new()
    }
    /// Returns the server that decides at the moment.
    fn primary(&self) -> HostId;
    /// Returns the duration of the primary's outage.
    fn outage(&self) -> Duration {
        Duration::from_secs(30)
    }
    /// Returns a minority of the servers, with the deciding server: the holder's side of a partition.
    fn minority(&self) -> Vec<HostId>;
    /// Starts a server's process on a host that has booted.
    fn start(&self, host: HostId);
    /// Returns the number of messages so far, if the outside view's meter does not count them.
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

/// Right to the lock, as the design grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Number that rises from grant to grant, if the design has such numbers.
    pub token: Option<u64>,
    /// Argument of the release: a random value, a path.
    pub value: String,
}

/// Client library of a design, for one client's process.
pub trait Locker: Send + Sync {
    /// Waits for the lock. The caller retries after an error.
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>>;
    /// Resolves when the design notifies the holder of the loss of the lock; most designs never do.
    fn lost<'a>(&'a self, grant: &'a Grant) -> Doing<'a, ()> {
        let _ = grant;
        Box::pin(std::future::pending())
    }
    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released>;
}

impl Contender {
    /// Returns a random value that no other grant has.
    pub fn unique(&self) -> String {
        format!("{}-{:016x}", self.id.0, rowlock_env::rng::u64())
    }

    /// Marks a moment between two commands, in which the process can die.
    pub async fn between(&self, kind: crate::outside_view::Between) {
        self.view.between(self.id, Some(kind));
        rowlock_env::time::sleep(Duration::from_millis(1)).await;
        self.view.between(self.id, None);
    }
}

/// Returns the fate of a release from its answer: true if the lock was held.
pub fn fate(answer: Result<bool, Trouble>) -> Released {
    match answer {
        Ok(true) => Released::Freed,
        Ok(false) => Released::WasNotHeld,
        Err(_) => Released::Unknown,
    }
}

/// Client library that tries again and again.
pub trait Polling: Send + Sync {
    fn contender(&self) -> &Contender;
    /// Tries once. `None`: the lock is not free.
    fn attempt(&mut self) -> Doing<'_, Result<Option<Grant>, Trouble>>;
    /// Releases the lock. `false`: the client did not hold the lock.
    fn release(&mut self, grant: Grant) -> Doing<'_, Result<bool, Trouble>>;
}

impl<T: Polling> Locker for T {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                if let Some(grant) = self.attempt().await? {
                    return Ok(grant);
                }
                self.contender().view.remark(Remark::Denied);
                let jitter = rowlock_env::rng::below(40);
                rowlock_env::time::sleep(Duration::from_millis(80 + jitter)).await;
            }
        })
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async { fate(self.release(grant).await) })
    }
}
