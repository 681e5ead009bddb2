//! One design in one scenario with one seed: hosts, clients, the script of faults, and the result.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_world::executor::{Halt, Simulation};
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use crate::design::{About, Contender, Deployment, Design};
use crate::outside_view::{Between, ClientId, Deed, FactRecorder, Measured, OutsideView, Phase};
use crate::scenario::{FITTING_JOB, LONG_JOB, Scenario};
use crate::store::{Losses, Stores};
use crate::{LOCK, TTL};
use crate::{wire, workload};

/// Start of the clients, after the servers' start.
const CLIENTS_START: Nanos = Nanos::from_millis(3_000);
const FAULT_FROM: Nanos = Nanos::from_millis(8_000);
/// Time after which a fault without an occasion no longer happens.
const FAULT_UNTIL: Nanos = Nanos::from_millis(30_000);
/// Time from the start of the victim's job to the fault.
const INTO_THE_JOB: Duration = Duration::from_secs(1);
const PARTITION: Duration = Duration::from_secs(25);
/// The lock is stuck if no client was granted the lock in a last part of the run this long.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Figures of the outside view.
    pub measured: Measured,
    pub losses: Losses,
    /// The fault of the scenario has happened.
    pub had_fault: bool,
    pub fingerprint: u64,
    pub record: Vec<Happening>,
}

/// Runs the design. `record`: keeps the world's events for people.
///
/// # Errors
/// A model has a bug: the world came to a halt.
pub fn run(design: &dyn Design, scenario: Scenario, seed: u64, record: bool) -> Result<Outcome, Halt> {
    let world = Simulation::new(seed, record);
    world.network().set_labeler(wire::label);
    let clock = world.clone();
    let hosts: Arc<Mutex<Vec<HostId>>> = Arc::default();
    let view = OutsideView::new(Arc::new(move || clock.now()))
        .with_fact_recorder(fact_recorder(&world, hosts.clone()));
    let deployment = design.build(&world, &view);
    let mut stage = Stage {
        about: design.about(),
        hosts,
        stores: Stores::default(),
        world,
        view,
        deployment,
        scenario,
        had_fault: false,
    };
    let played = stage.play();
    let mut measured = stage.view.finish(STUCK_AFTER);
    if let Some(messages) = stage.deployment.servers.messages() {
        measured.messages = messages;
    }
    let outcome = Outcome {
        measured,
        losses: stage.stores.losses(),
        had_fault: stage.had_fault,
        fingerprint: stage.world.trace().fingerprint(),
        record: stage.world.trace().take().0,
    };
    stage.world.end_of_world()?;
    played.map(|()| outcome)
}

/// Writes the clients' deeds into the world's record.
fn fact_recorder(world: &Simulation, hosts: Arc<Mutex<Vec<HostId>>>) -> FactRecorder {
    let world = world.clone();
    Arc::new(move |client: ClientId, deed| {
        let note = || {
            let (host, lock) = (hosts.lock()[client.0], LOCK.to_owned());
            let number = |token: Option<u64>| token.and_then(|t| i64::try_from(t).ok()).unwrap_or(-1);
            match deed {
                Deed::Waits => What::Waits { host, lock },
                Deed::Holds(token) => What::Holds { host, lock, token: number(token) },
                Deed::LetsGo(token) => What::LetGo { host, lock, token: number(token) },
            }
        };
        world.trace().record(world.now(), note);
    })
}

struct Stage {
    world: Simulation,
    view: OutsideView,
    deployment: Deployment,
    stores: Stores,
    scenario: Scenario,
    hosts: Arc<Mutex<Vec<HostId>>>,
    about: About,
    had_fault: bool,
}

impl Stage {
    fn play(&mut self) -> Result<(), Halt> {
        self.world.run_until(CLIENTS_START)?;
        for index in 0..self.scenario.clients() {
            let last = u8::try_from(index + 1).expect("there are few clients");
            let name = format!("client{}", index + 1);
            let host = self.world.add_host(&name, "client", Ipv4Addr::new(10, 0, 1, last));
            self.hosts.lock().push(host);
            self.start_client(ClientId(index));
        }
        self.world.run_until(FAULT_FROM)?;
        self.faults()?;
        self.world.run_until(Nanos::default() + self.scenario.duration())
    }

    fn host_of(&self, client: ClientId) -> HostId {
        self.hosts.lock()[client.0]
    }

    fn start_client(&self, id: ClientId) {
        let host = self.host_of(id);
        self.world.boot(host);
        self.view.starts(id);
        let me = Contender { id, host, view: self.view.clone() };
        let locker = self.world.on(host, || (self.deployment.locker)(&me));
        let job = workload::contend(me, locker, self.stores.clone(), self.scenario);
        self.world.spawn(host, "workload", job);
    }

    fn faults(&mut self) -> Result<(), Halt> {
        match self.scenario {
            Scenario::Calm | Scenario::TwoClients | Scenario::HundredWaiters => Ok(()),
            Scenario::HolderCrash => self.holder_crash(),
            Scenario::HolderPause => self.holder_pause(),
            Scenario::LongJob => self.long_job(),
            Scenario::CrashBetween => self.crash_between(),
            Scenario::CutBetween => self.cut_between(),
            Scenario::PauseBetween => self.pause_between(),
            Scenario::PrimaryLost => self.primary_lost(),
            Scenario::Partition => self.partition(),
            Scenario::HolderCutOff => self.holder_cut_off(),
            Scenario::ClockJump => self.clock_jump(),
            Scenario::PowerLoss => self.power_loss(),
            Scenario::WaiterDies => self.waiter_dies(),
        }
    }

    /// Waits for the next holder, gives that holder a job of this duration, and lets the job run for `into`.
    fn holder_with_job(&self, job: Duration, into: Duration) -> Result<Option<ClientId>, Halt> {
        self.view.set_next_job(job);
        self.world.run_until_or(FAULT_UNTIL, || self.view.victim().is_some())?;
        self.pass(into)?;
        Ok(self.view.victim())
    }

    fn pass(&self, time: Duration) -> Result<(), Halt> {
        self.world.run_until(self.world.now() + time)
    }

    fn fault(&mut self, text: &str, hosts: &[HostId]) {
        self.had_fault = true;
        self.view.fault_begins();
        let hosts = hosts.to_vec();
        self.world.trace().record(self.world.now(), || What::Fault { text: text.to_owned(), hosts });
    }

    fn kill_client(&self, client: ClientId) -> Result<(), Halt> {
        self.view.dies(client);
        self.world.kill(self.host_of(client))
    }

    fn pause_client(&self, client: ClientId, time: Duration) -> Result<(), Halt> {
        self.view.pauses(client, true);
        self.world.pause(self.host_of(client));
        self.pass(time)?;
        self.view.pauses(client, false);
        self.world.resume(self.host_of(client));
        Ok(())
    }

    fn holder_crash(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.holder_with_job(FITTING_JOB, INTO_THE_JOB)? else { return Ok(()) };
        self.fault("the holder dies", &[self.host_of(victim)]);
        self.kill_client(victim)
    }

    fn holder_pause(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.holder_with_job(INTO_THE_JOB, Duration::ZERO)? else { return Ok(()) };
        self.world.run_until_or(FAULT_UNTIL, || self.view.phase(victim) == Phase::Writing)?;
        self.fault("the holder stands still before its write", &[self.host_of(victim)]);
        self.pause_client(victim, TTL * 2)
    }

    fn long_job(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.holder_with_job(LONG_JOB, TTL)? else { return Ok(()) };
        self.fault("the time to live is over, the job is not", &[self.host_of(victim)]);
        Ok(())
    }

    fn find_between(&self, between: Between) -> Result<Option<ClientId>, Halt> {
        let find = || self.view.find_between(between);
        self.world.run_until_or(FAULT_UNTIL, || find().is_some())?;
        Ok(find())
    }

    fn crash_between(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.find_between(Between::Acquire)? else { return Ok(()) };
        self.fault("a client dies between two commands", &[self.host_of(victim)]);
        self.kill_client(victim)
    }

    fn cut_between(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.find_between(Between::Acquire)? else { return Ok(()) };
        self.cut_off(victim, "a client is cut off between two commands", TTL / 2)
    }

    /// Cuts a client off from all servers for a while.
    fn cut_off(&mut self, client: ClientId, text: &str, time: Duration) -> Result<(), Halt> {
        let mut servers = self.deployment.servers.all();
        servers.extend(self.deployment.servers.bystanders());
        let host = [self.host_of(client)];
        self.fault(text, &host);
        self.set_cut(&host, &servers, true);
        self.view.cuts_off(client, true);
        self.pass(time)?;
        self.set_cut(&host, &servers, false);
        self.view.cuts_off(client, false);
        Ok(())
    }

    fn pause_between(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.find_between(Between::Release)? else { return Ok(()) };
        self.fault("a client stands still between two commands", &[self.host_of(victim)]);
        self.pause_client(victim, TTL * 2)
    }

    fn set_cut(&self, one: &[HostId], other: &[HostId], is_cut: bool) {
        for a in one {
            for b in other.iter().filter(|b| *b != a) {
                for (from, to) in [(*a, *b), (*b, *a)] {
                    if is_cut {
                        self.world.network().cut(from, to);
                    } else {
                        self.world.network().join(from, to);
                    }
                }
            }
        }
    }

    fn primary_lost(&mut self) -> Result<(), Halt> {
        let servers = &self.deployment.servers;
        let (primary, all, outage) = (servers.primary(), servers.all(), servers.outage());
        self.set_cut(&[primary], &all, true);
        // A design that waits for replicas grants nothing now: then the server dies anyway.
        self.view.set_next_job(FITTING_JOB);
        let until = self.world.now() + Duration::from_secs(3);
        self.world.run_until_or(until, || self.view.victim().is_some())?;
        self.pass(Duration::from_millis(5))?;
        self.fault("the primary dies", &[primary]);
        self.world.kill(primary)?;
        self.set_cut(&[primary], &all, false);
        self.pass(outage)?;
        self.start_server(primary);
        Ok(())
    }

    fn start_server(&self, host: HostId) {
        self.world.boot(host);
        self.deployment.servers.start(host);
    }

    fn partition(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.holder_with_job(FITTING_JOB, INTO_THE_JOB)? else { return Ok(()) };
        let servers = &self.deployment.servers;
        let another = ClientId(if victim == ClientId(0) { 1 } else { 0 });
        let mut near = servers.minority();
        near.extend([self.host_of(victim), self.host_of(another)]);
        let mut far = servers.all();
        far.extend(servers.bystanders());
        far.extend(self.hosts.lock().iter());
        far.retain(|host| !near.contains(host));
        self.fault("a partition", &near);
        self.set_cut(&near, &far, true);
        [victim, another].iter().for_each(|client| self.view.cuts_off(*client, true));
        self.pass(PARTITION)?;
        self.set_cut(&near, &far, false);
        [victim, another].iter().for_each(|client| self.view.cuts_off(*client, false));
        Ok(())
    }

    fn holder_cut_off(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.holder_with_job(LONG_JOB, INTO_THE_JOB)? else { return Ok(()) };
        self.cut_off(victim, "the holder is cut off", TTL * 3)
    }

    /// Returns the longest job that the design allows.
    fn longest_job(&self) -> Duration {
        if self.about.keeps_alive { LONG_JOB } else { FITTING_JOB }
    }

    fn clock_jump(&mut self) -> Result<(), Halt> {
        let Some(victim) = self.holder_with_job(self.longest_job(), INTO_THE_JOB)? else { return Ok(()) };
        let mut hosts = match self.about.clocks_of_clients {
            true => self.hosts.lock().clone(),
            false => self.deployment.servers.all(),
        };
        hosts.retain(|host| *host != self.host_of(victim));
        self.fault("wall clocks jump ahead by a minute", &hosts);
        hosts.iter().for_each(|host| self.world.jump_wall_clock(*host, 60_000));
        Ok(())
    }

    fn power_loss(&mut self) -> Result<(), Halt> {
        let soon = Duration::from_millis(5);
        if self.holder_with_job(FITTING_JOB, soon)?.is_none() {
            return Ok(());
        }
        let servers = self.deployment.servers.all();
        self.fault("all servers lose power", &servers);
        servers.iter().try_for_each(|host| self.world.power_off(*host))?;
        self.pass(Duration::from_secs(1))?;
        servers.iter().for_each(|host| self.start_server(*host));
        Ok(())
    }

    fn waiter_dies(&mut self) -> Result<(), Halt> {
        if self.holder_with_job(self.longest_job(), INTO_THE_JOB)?.is_none() {
            return Ok(());
        }
        let Some(victim) = self.view.waiters().get(1).copied() else { return Ok(()) };
        self.fault("a client in the middle of the queue dies", &[self.host_of(victim)]);
        self.kill_client(victim)
    }
}
