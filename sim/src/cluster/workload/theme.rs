//! Workload of a run, drawn from its seed. Swarm testing (Groce and others, ISSTA 2012): each run omits many
//! operations, so that the remaining operations meet more often.

use std::time::Duration;

use rowlock_client::PreferLeader;
use rowlock_world::rng::Rng;
use rowlock_world::time::HostId;

use super::super::membership::Membership;
use super::plain::guarded::Guarded;
use super::store::Stores;
use crate::history::{Lock, Locks};

/// Kind of a client's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Mutex,
    TryLock,
    Patient,
    Repeated,
    Dropped,
    Options,
    Read,
    Write,
    Convert,
    Permits,
    Many,
    Nested,
    Reentrant,
    Change,
    Look,
    Pipeline,
    Sequential,
    Ephemeral,
    Multi,
    Watch,
    Campaign,
    Observe,
    Count,
    Latch,
    Force,
    Ask,
    Hold,
    Upgrade,
    End,
}

const LOCKING: [Operation; 13] = [
    Operation::Mutex,
    Operation::TryLock,
    Operation::Patient,
    Operation::Repeated,
    Operation::Dropped,
    Operation::Options,
    Operation::Read,
    Operation::Write,
    Operation::Convert,
    Operation::Permits,
    Operation::Many,
    Operation::Nested,
    Operation::Reentrant,
];

const PLAIN: [Operation; 7] = [
    Operation::Change,
    Operation::Look,
    Operation::Pipeline,
    Operation::Sequential,
    Operation::Ephemeral,
    Operation::Multi,
    Operation::Watch,
];

const RECIPES: [Operation; 4] = [Operation::Campaign, Operation::Observe, Operation::Count, Operation::Latch];

/// Mean pause between two operations in runs with locks only.
const ONLY_LOCKS_PAUSE: Duration = Duration::from_millis(60);

/// Percentages of clients that move to the leader at once, and by load. The remaining clients stay, so that
/// writes pass every node.
const ALWAYS_PERCENT: usize = 25;
const BY_LOAD_PERCENT: usize = 40;
/// XORed into the seed of this decision.
const LEADER_STREAM: u64 = 0x6c65_6164_6572;

/// Percentage of quiet clients.
const QUIET_PERCENT: usize = 20;
/// XORed into the seed of this decision.
const QUIET_STREAM: u64 = 0x7175_6965_7400;
/// Mean pause between two operations of a quiet client.
const QUIET_PAUSE: Duration = Duration::from_secs(4);

/// Percentages of runs in which some clients have a second session with ZooKeeper's requests only: to work on
/// the locks' own znodes, to keep persistent watches, and to send the largest allowed frames.
const QUEUES_PERCENT: usize = 35;
const FOLLOWS_PERCENT: usize = 35;
const FRAMES_PERCENT: usize = 3;
/// Percentage of runs in which some clients send as many writes at once as a connection may have pending.
const FLOODS_PERCENT: usize = 4;
/// XORed into the seed of this decision.
const FLOODS_STREAM: u64 = 0x666c_6f6f_6473;
/// Percentage of runs in which some clients also have leases by HTTP.
const REST_PERCENT: usize = 40;
/// XORed into the seed of this decision.
const REST_STREAM: u64 = 0x7265_7374;
/// Percentage of runs in which some clients follow the events of locks by HTTP.
const EVENTS_PERCENT: usize = 40;
/// XORed into the seed of this decision.
const EVENTS_STREAM: u64 = 0x6576_656e_7473;
/// Percentage of runs in which some clients lock a state by HTTP, as Terraform does.
const STATES_PERCENT: usize = 30;
/// XORed into the seed of this decision.
const STATES_STREAM: u64 = 0x0073_7461_7465;
/// Percentage of runs in which some clients work under changing rules of locks.
const ACCESS_PERCENT: usize = 30;
/// XORed into the seed of this decision.
const ACCESS_STREAM: u64 = 0x6163_6365_7373;
/// Percentage of runs in which an operator ends sessions.
const ENDS_PERCENT: usize = 25;
/// XORed into the seed of this decision.
const ENDS_STREAM: u64 = 0x0065_6e64_7321;
/// Percentage of runs in which readers become writers during others' lock-delays.
const UPGRADES_PERCENT: usize = 30;
/// Percentage of runs with questions to the holders of locks.
const ASKS_PERCENT: usize = 30;
/// XORed into the seed of this decision.
const ASKS_STREAM: u64 = 0x6173_6b73;
/// Percentage of clients that take part in such a run.
const BESIDE_PERCENT: usize = 60;
/// XORed into the seed of this decision.
const SIDES_STREAM: u64 = 0x0073_6964_6573;

/// Additional work of a client, on separate sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) queues: bool,
    pub(super) follows: bool,
    pub(super) frames: bool,
    /// Floods of as many writes as a connection may have pending.
    pub(super) floods: bool,
    pub(super) rest: bool,
    pub(super) events: bool,
    pub(super) states: bool,
    /// Some clients work under changing rules of locks.
    pub(super) access: bool,
}

/// Work of a run's clients: an operation, or additional work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Operation(Operation),
    Queues,
    Follows,
    Rest,
    Events,
    States,
    Access,
    Grace,
    Sessions,
}

/// Settings common to the clients of a run.
#[derive(Clone, Debug)]
pub struct Theme {
    membership: Membership,
    locks: Locks,
    /// Locks used as mutexes and read-write locks.
    plain: Vec<Lock>,
    /// Semaphore and number of its permits.
    permits: (Lock, u32),
    lead: Lock,
    /// Election of HTTP clients.
    election: Lock,
    /// Lock of a Terraform state.
    state: Lock,
    /// Number of plain znodes.
    znodes: u64,
    stores: Stores,
    guarded: Guarded,
    operations: Vec<(Operation, u64)>,
    pause: Duration,
    work: Duration,
    has_grace: bool,
    changes_sessions: bool,
    sides: Sides,
    asks_tokens: bool,
}

/// Settings of one client of a run, the same for all its lives.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Members at any time; a new session uses the current members.
    pub membership: Membership,
    pub host: HostId,
    pub session_timeout: Duration,
    /// Requested disconnect grace, if any.
    pub grace: Option<Duration>,
    pub locks: Locks,
    pub stores: Stores,
    /// Places in the queues of locks under rules.
    pub guarded: Guarded,
    pub(super) plain: Vec<Lock>,
    pub(super) permits: (Lock, u32),
    pub(super) lead: Lock,
    pub(super) election: Lock,
    pub(super) state: Lock,
    pub(super) znodes: u64,
    pub(super) operations: Vec<(Operation, u64)>,
    /// Number of concurrent operations.
    pub(super) lanes: usize,
    /// Mean pause between two operations of a lane.
    pub(super) pause: Duration,
    /// Mean duration of a critical section.
    pub(super) work: Duration,
    /// Mean life of a session; `None`: until its loss.
    pub(super) session_life: Option<Duration>,
    pub(super) sides: Sides,
    /// Whether nodes demand tokens of HTTP clients.
    pub(super) asks_tokens: bool,
    /// Condition for a move to the leader after another node has opened the session.
    pub(super) prefers_leader: PreferLeader,
}

fn prefer_leader(rng: &mut Rng) -> PreferLeader {
    match rng.below(100) {
        0..ALWAYS_PERCENT => PreferLeader::Always,
        n if n < ALWAYS_PERCENT + BY_LOAD_PERCENT => PreferLeader::ByLoad,
        _ => PreferLeader::Never,
    }
}

impl Operation {
    /// Returns whether the operation may wait in the queue of a lock.
    pub(super) fn waits(self) -> bool {
        LOCKING.contains(&self) || matches!(self, Operation::Campaign | Operation::Hold | Operation::Upgrade)
    }
}

impl Theme {
    /// Draws the workload of a run on these nodes.
    pub fn of(rng: &mut Rng, membership: Membership) -> Self {
        let mut operations = Vec::new();
        for (kinds, likely) in [(&LOCKING[..], 50), (&PLAIN[..], 50), (&RECIPES[..], 30)] {
            let weight = |kind: Operation, rng: &mut Rng| (kind, 1 + rng.below(9) as u64);
            let chosen: Vec<Operation> = kinds.iter().copied().filter(|_| rng.chance(likely)).collect();
            operations.extend(chosen.into_iter().map(|kind| weight(kind, rng)));
        }
        // Drawn from a separate stream, so that runs without these operations keep their choices.
        let mut beside = rng.clone();
        if beside.chance(30) {
            operations.push((Operation::Force, 1 + beside.below(3) as u64));
            operations.push((Operation::Hold, 1 + beside.below(2) as u64));
        }
        let mut asks = Rng::new(rng.clone().u64() ^ ASKS_STREAM);
        if asks.chance(ASKS_PERCENT) {
            operations.push((Operation::Ask, 1 + asks.below(3) as u64));
            operations.push((Operation::Hold, 1 + asks.below(3) as u64));
        }
        let mut ends = Rng::new(rng.clone().u64() ^ ENDS_STREAM);
        if ends.chance(ENDS_PERCENT) {
            operations.push((Operation::End, 1 + ends.below(2) as u64));
            operations.push((Operation::Hold, 1 + ends.below(3) as u64));
        }
        if operations.is_empty() {
            operations.push((Operation::Mutex, 1));
        }
        let mut beside = Rng::new(rng.clone().u64() ^ SIDES_STREAM);
        let sides = Sides {
            queues: beside.chance(QUEUES_PERCENT),
            follows: beside.chance(FOLLOWS_PERCENT),
            frames: beside.chance(FRAMES_PERCENT),
            floods: Rng::new(rng.clone().u64() ^ FLOODS_STREAM).chance(FLOODS_PERCENT),
            rest: Rng::new(rng.clone().u64() ^ REST_STREAM).chance(REST_PERCENT),
            events: Rng::new(rng.clone().u64() ^ EVENTS_STREAM).chance(EVENTS_PERCENT),
            states: Rng::new(rng.clone().u64() ^ STATES_STREAM).chance(STATES_PERCENT),
            access: Rng::new(rng.clone().u64() ^ ACCESS_STREAM).chance(ACCESS_PERCENT),
        };
        if beside.chance(UPGRADES_PERCENT) {
            operations.push((Operation::Upgrade, 1 + beside.below(5) as u64));
        }
        let plain: Vec<Lock> = (0..1 + rng.below(3)).map(Lock).collect();
        let [permits, lead, election, state] = [0, 1, 2, 3].map(|number| Lock(plain.len() + number));
        let paths = plain.iter().map(|lock| format!("/locks/lock{}", lock.0));
        let others =
            ["/locks/permits", "/elections/lead", "/locks/@elections/lead", "/locks/@terraform/prod"];
        Theme {
            membership,
            locks: Locks::at(paths.chain(others.map(str::to_owned))),
            plain,
            permits: (permits, 1 + rng.below(4) as u32),
            lead,
            election,
            state,
            znodes: 1 + rng.below(6) as u64,
            stores: Stores::new(rng.chance(80)),
            guarded: Guarded::default(),
            operations,
            pause: Duration::from_millis(rng.pick(&[100, 200, 400, 800])),
            work: Duration::from_millis(rng.pick(&[20, 60, 150, 400])),
            has_grace: rng.chance(25),
            changes_sessions: rng.chance(30),
            sides,
            asks_tokens: false,
        }
    }

    /// Leaves only operations on locks if `is_so`. A node acknowledges most of them before the flush, and any
    /// other write flushes them.
    #[must_use]
    pub fn with_only_locks(mut self, is_so: bool) -> Self {
        if !is_so {
            return self;
        }
        let is_early = |operation: &Operation| {
            LOCKING.contains(operation) && !matches!(operation, Operation::Options | Operation::Convert)
        };
        self.operations.retain(|(operation, _)| is_early(operation));
        self.operations.push((Operation::Mutex, 5));
        Theme { sides: Sides::default(), changes_sessions: false, pause: ONLY_LOCKS_PAUSE, ..self }
    }

    /// Tells all clients whether nodes demand tokens.
    #[must_use]
    pub fn with_tokens(self, asks_tokens: bool) -> Self {
        Theme { asks_tokens, ..self }
    }

    /// Returns the locks of the run.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Returns the clients' work, except floods and large frames, which make a run several times as long.
    pub fn works(&self) -> Vec<Work> {
        let Sides { queues, follows, rest, events, states, access, frames: _, floods: _ } = self.sides;
        let sides = [
            (queues, Work::Queues),
            (follows, Work::Follows),
            (rest, Work::Rest),
            (events, Work::Events),
            (states, Work::States),
            (access, Work::Access),
            (self.has_grace, Work::Grace),
            (self.changes_sessions, Work::Sessions),
        ];
        let operations = self.operations.iter().map(|(operation, _)| Work::Operation(*operation));
        operations.chain(sides.into_iter().filter_map(|(is, work)| is.then_some(work))).collect()
    }

    #[cfg(test)]
    pub(super) fn has(&self, wanted: Operation) -> bool {
        self.operations.iter().any(|(operation, _)| *operation == wanted)
    }
}

impl Profile {
    /// Draws the settings of the client on this host.
    pub fn of(rng: &mut Rng, theme: &Theme, host: HostId) -> Self {
        let Theme { membership, locks, stores, guarded, operations, .. } = theme.clone();
        let session_timeout = Duration::from_millis(1_500 + rng.below(6_501) as u64);
        let grace = Duration::from_millis(700 + rng.below(3_000) as u64);
        let life = Duration::from_secs(3 + rng.below(20) as u64);
        let profile = Profile {
            membership,
            host,
            session_timeout,
            grace: (theme.has_grace && rng.chance(60)).then_some(grace.min(session_timeout)),
            locks,
            stores,
            guarded,
            plain: theme.plain.clone(),
            permits: theme.permits,
            lead: theme.lead,
            election: theme.election,
            state: theme.state,
            znodes: theme.znodes,
            operations,
            lanes: 2 + rng.below(5),
            pause: theme.pause,
            work: theme.work,
            session_life: (theme.changes_sessions && rng.chance(60)).then_some(life),
            sides: Sides::default(),
            asks_tokens: theme.asks_tokens,
            prefers_leader: prefer_leader(&mut Rng::new(rng.clone().u64() ^ LEADER_STREAM)),
        };
        let mut beside = Rng::new(rng.clone().u64() ^ SIDES_STREAM);
        let mut takes_part = |is_in_run: bool| is_in_run && beside.chance(BESIDE_PERCENT);
        let Sides { queues, follows, frames, rest, floods, events, states, access } = theme.sides;
        let (queues, follows, frames) = (takes_part(queues), takes_part(follows), takes_part(frames));
        let (rest, floods, events) = (takes_part(rest), takes_part(floods), takes_part(events));
        let (states, access) = (takes_part(states), takes_part(access));
        let sides = Sides { queues, follows, frames, rest, floods, events, states, access };
        let profile = Profile { sides, ..profile };
        // Drawn from a separate stream, so that busy clients keep their choices.
        let mut beside = Rng::new(rng.clone().u64() ^ QUIET_STREAM);
        if beside.chance(QUIET_PERCENT) { profile.quiet(&mut beside) } else { profile }
    }

    /// Removes the programs that lock states, for runs that make a new cluster of the old one: operators stop
    /// such programs before.
    pub fn without_states(self) -> Self {
        Profile { sides: Sides { states: false, ..self.sides }, ..self }
    }

    /// Makes the client quiet: mostly keepalives, so that the client learns about its session from keepalives
    /// only. A busy client also learns from unanswered writes.
    fn quiet(self, rng: &mut Rng) -> Self {
        let session_timeout = Duration::from_millis(1_500 + rng.below(2_501) as u64);
        let grace = self.grace.map(|grace| grace.min(session_timeout));
        Profile { lanes: 1, pause: QUIET_PAUSE, session_timeout, grace, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::super::shape::Shape;
    use super::*;

    fn themes() -> impl Iterator<Item = Theme> {
        let membership = Membership::new(&Shape::of(&mut Rng::new(1)), 0);
        (0..300).map(move |seed| Theme::of(&mut Rng::new(seed), membership.clone()))
    }

    #[test]
    fn every_operation_is_in_some_runs_and_left_out_of_others() {
        let all: BTreeSet<Operation> =
            [&LOCKING[..], &PLAIN[..], &RECIPES[..]].concat().into_iter().collect();
        let runs: Vec<BTreeSet<Operation>> = themes()
            .map(|theme| theme.operations.iter().map(|(operation, _)| *operation).collect())
            .collect();
        for operation in all {
            let with = runs.iter().filter(|run| run.contains(&operation)).count();
            assert!((30..270).contains(&with), "{operation:?} in {with} of 300");
        }
        assert!(runs.iter().all(|run| !run.is_empty()));
    }

    #[test]
    fn runs_have_plain_clients_and_upgrades_beside_and_most_have_no_large_frames() {
        let runs: Vec<Theme> = themes().collect();
        let with = |is: &dyn Fn(&Theme) -> bool| runs.iter().filter(|theme| is(theme)).count();
        assert!((60..150).contains(&with(&|theme| theme.sides.queues)));
        assert!((60..150).contains(&with(&|theme| theme.sides.follows)));
        assert!((2..25).contains(&with(&|theme| theme.sides.frames)));
        assert!((4..30).contains(&with(&|theme| theme.sides.floods)));
        assert!((60..130).contains(&with(&|theme| theme.has(Operation::Upgrade))));
        assert!((80..160).contains(&with(&|theme| theme.sides.rest)));
        let mut rng = Rng::new(1);
        let own: Vec<Sides> =
            runs.iter().map(|theme| Profile::of(&mut rng, theme, HostId(0)).sides).collect();
        let queues = own.iter().filter(|sides| sides.queues).count();
        assert!((30..100).contains(&queues), "{queues} of 300");
        assert!(own.iter().zip(&runs).all(|(own, run)| run.sides.queues || !own.queues));
        assert!(own.iter().any(|sides| sides.follows) && own.iter().any(|sides| sides.frames));
        assert!(own.iter().any(|sides| sides.rest) && own.iter().any(|sides| sides.events));
        let (ends, states) = (with(&|theme| theme.has(Operation::End)), with(&|theme| theme.sides.states));
        assert!((45..110).contains(&ends) && (60..120).contains(&states), "{ends} and {states} of 300");
        assert!(own.iter().any(|sides| sides.states));
        let access = with(&|theme| theme.sides.access);
        assert!((60..120).contains(&access) && own.iter().any(|sides| sides.access), "{access} of 300");
    }

    #[test]
    fn locks_of_different_kinds_are_at_different_paths() {
        for theme in themes() {
            let numbers = theme.plain.iter().copied().chain([theme.permits.0, theme.lead]);
            let paths: BTreeSet<&str> = numbers.map(|lock| theme.locks.path(lock)).collect();
            assert_eq!(paths.len(), theme.plain.len() + 2);
        }
    }

    #[test]
    fn some_clients_are_quiet_and_most_are_busy() {
        let profile = |theme: Theme| Profile::of(&mut Rng::new(theme.znodes), &theme, HostId(0));
        let mut rng = Rng::new(1);
        let quiet = themes().filter(|theme| Profile::of(&mut rng, theme, HostId(0)).lanes == 1).count();
        assert!((30..90).contains(&quiet), "{quiet} of 300");
        assert!(themes().map(profile).all(|profile| profile.lanes > 1 || profile.pause == QUIET_PAUSE));
    }

    #[test]
    fn a_grace_is_no_longer_than_the_session() {
        for theme in themes() {
            let profile = Profile::of(&mut Rng::new(1), &theme, HostId(0));
            assert!(profile.grace.is_none_or(|grace| grace <= profile.session_timeout));
            assert!((1_500..=8_000).contains(&profile.session_timeout.as_millis()));
        }
    }
}
