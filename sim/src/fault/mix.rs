//! Mix of faults for generated scripts: kinds, pace and odds.

use super::kind::Kind;

/// Choices of the generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    pub(super) kinds: Vec<Kind>,
    pub(super) pace: Pace,
    pub(super) subset: bool,
    pub(super) over_budget: bool,
    pub(super) odds: Odds,
}

/// Probabilities of the generator's choices, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Odds {
    /// A crash hits all nodes at once.
    pub(super) all_nodes: usize,
    /// A killed process is a client.
    pub(super) killed_client: usize,
    /// A paused process is a client.
    pub(super) paused_client: usize,
    /// A crashed node is back before the other nodes have elected another leader.
    pub(super) back_at_once: usize,
    /// Messages to a process are late at the start of its pause.
    pub(super) late_before_pause: usize,
    /// A client without connections reaches no node for a while.
    pub(super) away: usize,
    /// A cut, or a node's pause, is longer than most sessions.
    pub(super) long_stops: usize,
    /// All clients are on the smaller side of a partition.
    pub(super) clients_with_few: usize,
    /// After the loss of a leader another node loses power during its vote.
    pub(super) in_election: usize,
    /// A leader is lost on slow disks or stops on request, or all connections break again and again, and
    /// mostly nothing else happens.
    pub(super) alone: usize,
    /// A cut link was slow before, and its connections break with the cut.
    pub(super) breaks: usize,
    /// A node whose disk rots is started again soon.
    pub(super) rot_found: usize,
    /// Before a node is wiped, a second node was isolated, and the third node goes down with the wipe.
    pub(super) wiped_alone: usize,
    /// A slow link leads from a follower to the leader.
    pub(super) slow_to_leader: usize,
    /// A lagging node is back before its clients have noticed.
    pub(super) short_falls: usize,
    /// The cluster forms on a slow network, or while one of its nodes dies.
    pub(super) founding: usize,
    /// The script also has one lasting shape of cuts.
    pub(super) lasting: usize,
    /// An operator changes the members, with a learner that lags and a leader that is lost in the middle,
    /// unless the script has load or restored disks.
    pub(super) changes: usize,
    /// A drawn flood takes place. A flood costs much time.
    pub(super) flood: usize,
    /// Processors are slow during a flood.
    pub(super) slow_in_flood: usize,
    /// A node forgets entries and dies again before a leader admits the node, and its leader is cut off.
    pub(super) forgets: usize,
    /// All nodes lose power, and the leader changes in the grace.
    pub(super) in_grace: usize,
}

impl Odds {
    const USUAL: Odds = Odds {
        all_nodes: 8,
        killed_client: 30,
        paused_client: 50,
        back_at_once: 0,
        late_before_pause: 0,
        away: 0,
        long_stops: 0,
        clients_with_few: 0,
        in_election: 15,
        alone: 0,
        breaks: 15,
        rot_found: 60,
        wiped_alone: 50,
        slow_to_leader: 0,
        short_falls: 30,
        founding: 25,
        lasting: 0,
        changes: 25,
        flood: 25,
        slow_in_flood: 40,
        forgets: 0,
        in_grace: 0,
    };
}

/// Number of faults that begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Pace drawn from the seed: few faults, many, or very many.
    BySeed,
    PerMinute(usize),
}

/// Choices of [`Pace::BySeed`], in faults per minute.
pub(super) const PACES: [usize; 4] = [6, 15, 30, 60];

/// Name of a mix, and the function that returns the mix.
type NamedMix = (&'static str, fn() -> Mix);

/// Mixes that put weight on some kinds, by name.
pub const WEIGHTED: [NamedMix; 10] = [
    ("network", Mix::network),
    ("isolation", Mix::isolation),
    ("machines", Mix::machines),
    ("power", Mix::power),
    ("clients", Mix::clients),
    ("pauses", Mix::pauses),
    ("stalls", Mix::stalls),
    ("restored", Mix::restored),
    ("members", Mix::members),
    ("leaders", Mix::leaders),
];

/// Returns the index in [`WEIGHTED`] of the mix that this seed draws; `None`: the mix of all kinds, for half
/// of the seeds.
pub fn weighted_by(seed: u64) -> Option<usize> {
    seed.is_multiple_of(2).then_some((seed / 2) as usize % WEIGHTED.len())
}

/// Returns the `nth` seed that draws the mix with this index, counted from the first one that is `from` or
/// above.
pub fn seed_of_weighted(index: usize, from: u64, nth: u64) -> u64 {
    let every = 2 * WEIGHTED.len() as u64;
    from + (every + 2 * index as u64 - from % every) % every + nth * every
}

impl Mix {
    /// Returns the mix that this seed draws.
    pub fn drawn(seed: u64) -> Self {
        weighted_by(seed).map_or_else(Mix::all, |index| (WEIGHTED[index].1)())
    }

    /// Returns the mix of everything that the promises cover. Each seed enables a subset of the kinds: a run
    /// with all kinds at once hides failures that a run with two kinds shows (Groce et al., *Swarm testing*,
    /// 2012).
    pub fn all() -> Self {
        // A restored disk is detectable only while nothing else goes wrong, and a new cluster serves no
        // client for so long that a run would show little else.
        let is_apart = |kind: &Kind| {
            matches!(
                kind,
                Kind::Restore | Kind::RestoreBackup | Kind::Recover | Kind::NewChoices | Kind::Depose
            )
        };
        let kinds = Kind::ALL.into_iter().filter(|kind| !is_apart(kind)).collect();
        let odds = Odds { lasting: 10, alone: 20, ..Odds::USUAL };
        Mix { kinds, odds, subset: true, ..Mix::only(&[]) }
    }

    fn network() -> Self {
        Mix::only(&[
            Kind::Partition,
            Kind::OneWay,
            Kind::Bridge,
            Kind::Isolate,
            Kind::Clog,
            Kind::Lose,
            Kind::Distrust,
            Kind::Reset,
            Kind::Disconnect,
        ])
    }

    /// Returns the mix of faults of processes, machines and clocks.
    fn machines() -> Self {
        Mix::only(&[
            Kind::Kill,
            Kind::PowerLoss,
            Kind::Pause,
            Kind::ClockRate,
            Kind::ClockJump,
            Kind::SlowDisk,
            Kind::SyncFailure,
            Kind::DiskFull,
            Kind::BitRot,
            Kind::LoseDisk,
        ])
    }

    /// Returns the mix of operators' actions, lost leaders, and nodes that are isolated or have slow disks:
    /// the leader sends snapshots to new, returning and lagging nodes, and to lagging nodes under their
    /// clients' connections.
    fn members() -> Self {
        let mix = Mix::only(&[
            Kind::SlowDisk,
            Kind::SlowDisk,
            Kind::AddLearner,
            Kind::AddVoter,
            Kind::Remove,
            Kind::Transfer,
            Kind::FallBehind,
            Kind::FallBehind,
            Kind::Kill,
            Kind::Isolate,
            Kind::Readdress,
            Kind::LoseDisk,
            Kind::Wipe,
        ]);
        Mix { odds: Odds { short_falls: 70, changes: 70, alone: 30, ..Odds::USUAL }, ..mix }
    }

    /// Returns a mix in which leaders lose and regain their leadership or hand over, and slow links to
    /// leaders delay forwarded requests. Links of clients stay fast.
    fn leaders() -> Self {
        let odds = Odds { slow_to_leader: 100, alone: 60, ..Odds::USUAL };
        let mix = Mix::only(&[Kind::Regain, Kind::Regain, Kind::Transfer, Kind::Clog]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(25))
    }

    /// Returns a mix in which nodes are cut off from the other nodes for long, with clients on their side,
    /// and nothing else happens except jumps of a wall clock.
    fn isolation() -> Self {
        let odds = Odds { long_stops: 80, clients_with_few: 60, breaks: 80, ..Odds::USUAL };
        let mix = Mix::only(&[Kind::Isolate, Kind::Partition, Kind::Partition, Kind::ClockJump]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(12))
    }

    /// Returns a mix in which nodes lose power, often all at once and in the middle of a write, and flushes
    /// fail: unflushed data is gone.
    fn power() -> Self {
        let odds =
            Odds { all_nodes: 40, killed_client: 0, paused_client: 0, back_at_once: 30, ..Odds::USUAL };
        let odds = Odds { in_election: 50, ..odds };
        let mix =
            Mix::only(&[Kind::PowerLoss, Kind::PowerLoss, Kind::SyncFailure, Kind::Isolate, Kind::SlowDisk]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(25))
    }

    /// Returns a mix of the hazards of unflushed entries: power losses of one node, of a majority or of all,
    /// with cuts and kills in between.
    pub fn blackouts() -> Self {
        let odds =
            Odds { all_nodes: 15, killed_client: 0, paused_client: 0, back_at_once: 30, ..Odds::USUAL };
        let odds = Odds { in_election: 50, long_stops: 30, forgets: 60, in_grace: 40, ..odds };
        let mix = Mix::only(&[
            Kind::PowerLoss,
            Kind::PowerLoss,
            Kind::PowerLoss,
            Kind::Kill,
            Kind::Isolate,
            Kind::Partition,
            Kind::SyncFailure,
            Kind::Transfer,
        ]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(14))
    }

    /// Returns a mix in which clients lose their connections, pause, and die, again and again; nodes only
    /// lag.
    fn clients() -> Self {
        let odds =
            Odds { all_nodes: 0, killed_client: 100, paused_client: 100, away: 70, alone: 30, ..Odds::USUAL };
        let mix = Mix::only(&[
            Kind::Disconnect,
            Kind::Disconnect,
            Kind::Reset,
            Kind::Pause,
            Kind::OneWay,
            Kind::Clog,
            Kind::SlowDisk,
            Kind::ClockRate,
            Kind::EndRuntime,
            Kind::ReturnFromMain,
        ]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(50))
    }

    /// Returns a mix in which clients pause, often for longer than their sessions last, and nothing else goes
    /// wrong.
    fn pauses() -> Self {
        let odds = Odds { paused_client: 100, late_before_pause: 60, ..Odds::USUAL };
        Mix { odds, ..Mix::only(&[Kind::Pause]) }.at_pace(Pace::PerMinute(15))
    }

    /// Returns a mix in which nodes stall, often until another node leads, and nothing else goes wrong.
    fn stalls() -> Self {
        let odds = Odds { paused_client: 0, long_stops: 80, late_before_pause: 60, ..Odds::USUAL };
        Mix { odds, ..Mix::only(&[Kind::Pause]) }.at_pace(Pace::PerMinute(15))
    }

    /// Returns a mix in which nodes lose their disks, or the end of their logs, and come back under their old
    /// numbers, while the other nodes die and are cut off now and then.
    pub fn wiped() -> Self {
        let odds = Odds { all_nodes: 20, killed_client: 0, paused_client: 0, ..Odds::USUAL };
        let mix =
            Mix::only(&[Kind::Wipe, Kind::RotTail, Kind::Kill, Kind::Kill, Kind::Isolate, Kind::Transfer]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(30))
    }

    /// Returns a mix in which an operator restores older copies of nodes' disks, and nothing else goes wrong.
    fn restored() -> Self {
        Mix::only(&[Kind::Restore]).at_pace(Pace::PerMinute(30))
    }

    /// Returns a mix in which an operator restores a backup, recovers the last node as a cluster of one, or
    /// replaces lost nodes, while nodes and clients die, pause and are cut off.
    pub fn life() -> Self {
        let mix = Mix::only(&[
            Kind::RestoreBackup,
            Kind::Recover,
            Kind::Replace,
            Kind::Readdress,
            Kind::Wipe,
            Kind::Kill,
            Kind::PowerLoss,
            Kind::Isolate,
            Kind::OneWay,
            Kind::Pause,
            Kind::Disconnect,
            Kind::Clog,
        ]);
        let odds = Odds { paused_client: 70, ..Odds::USUAL };
        Mix { odds, subset: true, ..mix }.at_pace(Pace::PerMinute(20))
    }

    /// Returns a mix in which unthrottled clients flood nodes with slow processors, and nothing else goes
    /// wrong.
    pub fn floods() -> Self {
        let odds = Odds { flood: 100, slow_in_flood: 60, ..Odds::USUAL };
        let mix = Mix::only(&[Kind::Flood, Kind::Flood, Kind::Flood, Kind::SlowProcessor]);
        Mix { odds, ..mix }.at_pace(Pace::PerMinute(15))
    }

    pub fn calm() -> Self {
        Mix::only(&[])
    }

    /// Returns a mix of these kinds, all enabled in every seed.
    pub fn only(kinds: &[Kind]) -> Self {
        let (pace, odds) = (Pace::BySeed, Odds::USUAL);
        Mix { kinds: kinds.to_vec(), pace, subset: false, over_budget: false, odds }
    }

    /// Allows damaged or lost disks of a majority: the run may stop, but no answer may be wrong.
    #[must_use]
    pub fn over_budget(mut self) -> Self {
        self.over_budget = true;
        self
    }

    #[must_use]
    pub fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }
}
