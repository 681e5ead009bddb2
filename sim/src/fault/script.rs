//! The types of a script: who, what, how long, when.
//!
//! Invariant: a [`Script`] says everything about the faults of a run. The leader is looked up when a fault
//! begins, so one script may hit different nodes in different runs, but the same ones in two runs of one
//! seed.

use std::time::Duration;

use rowlock_world::time::Nanos;

use super::kind::Kind;
use super::torrent::Torrent;

/// A new cluster elects a leader, and opens no session before that one has waited for the longest timeout.
pub const NEW_CLUSTER: Duration = Duration::from_secs(14);

/// Whom a fault hits. Numbers begin with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Node(usize),
    /// The leader when the fault begins; the node with the lowest number if there is none.
    Leader,
    /// The k-th of the nodes that do not lead when the fault begins, by number.
    Follower(usize),
    Client(usize),
    AllNodes,
    AllClients,
}

/// For how long a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Down {
    /// It is restarted after this long.
    For(Duration),
    ForGood,
}

/// When exactly the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CrashPoint {
    /// As the fault begins.
    AtOnce,
    /// At the n-th of these moments from then on, counted from 1. If this many do not come soon, at last all
    /// the same.
    At(Moment, u32),
}

/// What a program does that must not be taken apart by a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    DiskOperation,
    /// A flush, of a file or of names.
    Flush,
    /// A change of a file's name.
    Rename,
    /// Right after a message was sent.
    Message,
}

impl Moment {
    pub const ALL: [Moment; 4] = [Moment::DiskOperation, Moment::Flush, Moment::Rename, Moment::Message];

    /// The keyword before the number.
    pub(super) fn word(self) -> &'static str {
        match self {
            Moment::DiskOperation => "at-operation",
            Moment::Flush => "at-flush",
            Moment::Rename => "at-rename",
            Moment::Message => "at-message",
        }
    }
}

/// One thing that goes wrong, or that an operator does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Cuts all links between groups. A host in no group talks with all.
    Partition { groups: Vec<Vec<Target>>, lasts: Duration },
    /// Cuts the direction from `from` to `to`; the other direction works.
    OneWay { from: Vec<Target>, to: Vec<Target>, lasts: Duration },
    /// Two sides that do not see each other, and one in the middle that sees both.
    Bridge { left: Vec<Target>, middle: Target, right: Vec<Target>, lasts: Duration },
    /// Cuts the target off from all other nodes. Clients still reach it.
    Isolate { target: Target, lasts: Duration },
    /// Delays segments from `from` to `to`, each by a time between `least` and `most`.
    Clog { from: Vec<Target>, to: Vec<Target>, least: Duration, most: Duration, lasts: Duration },
    /// This percentage of segments from `from` to `to` is lost: they come late, as the sender's kernel
    /// repeats them.
    Lose { from: Vec<Target>, to: Vec<Target>, percent: u8, lasts: Duration },
    /// The hosts of the two sides do not believe each other, as with a certificate that has run out: their
    /// connections are reset, and new ones open and break in the handshake, whichever side begins it.
    Distrust { from: Vec<Target>, to: Vec<Target>, lasts: Duration },
    /// All connections between the two are reset.
    Reset { from: Vec<Target>, to: Vec<Target> },
    /// The process is killed (SIGKILL). What it wrote to its disk is there when it comes back, flushed or
    /// not.
    Kill { target: Target, down: Down },
    /// The power goes: what was not flushed may be there, gone, torn or out of order.
    PowerLoss { target: Target, point: CrashPoint, down: Down },
    /// The process stands still: SIGSTOP, a paused virtual machine, a long collection of garbage.
    Pause { target: Target, lasts: Duration },
    /// The monotonic clock runs faster or slower by this many millionths.
    ClockRate { target: Target, ppm: i64, lasts: Duration },
    /// The wall clock jumps by this many milliseconds, and stays there.
    ClockJump { target: Target, by_ms: i64 },
    /// Every operation on the disk takes this many times as long.
    SlowDisk { target: Target, times: u32, lasts: Duration },
    /// The next flush fails, and what it should have flushed is lost. If the node stops over it, it comes
    /// back after `down`.
    SyncFailure { target: Target, down: Down },
    /// The disk has room for this number of KiB, and no more.
    DiskFull { target: Target, leaves_kib: u32, lasts: Duration },
    /// This many bits of the data on the disk flip.
    BitRot { target: Target, bits: u32 },
    /// The machine is lost with its disk. It never comes back under its number.
    LoseDisk { target: Target },
    /// The machine is lost with its disk, and comes back after a while with an empty one, under its old
    /// number.
    Wipe { target: Target, lasts: Duration },
    /// The node is cut off from all others until its log has rested for a moment. Then the process is killed,
    /// a bit flips in the last entry or vote of the log, which has been flushed, and the node is started
    /// again after a while. Nothing happens if the log does not come to rest.
    RotTail { target: Target, lasts: Duration },
    /// A copy is taken of the disk, and put back after a while: the process is killed and started again on
    /// it.
    Restore { target: Target, lasts: Duration },
    /// An operator starts a node with an empty disk and this number (a number that no node has had) as a
    /// learner.
    AddLearner { node: usize },
    /// An operator makes the node a voter; if there is none with this number, it is started as a learner
    /// first.
    AddVoter { node: usize },
    /// An operator takes the target out of the membership and stops it.
    Remove { target: Target },
    /// The target's machine is lost with its disk. An operator starts a node with this number (a number that
    /// no node has had) in its place, as `rowlock member replace` does it: when it has caught up, it votes
    /// and the lost one is taken out, in one change.
    Replace { target: Target, node: usize },
    /// Its process ends, and starts later at another port for nodes; the operator tells the cluster.
    Readdress { target: Target, lasts: Duration },
    /// An operator asks for the leadership to be given to the target.
    Transfer { to: Target },
    /// No node hears the leader until another one leads; then it gets its leadership back. What `late` sends
    /// to it arrives for so long (`after`), and the rest of it when the leader leads again.
    Regain { late: Target, after: Duration, lasts: Duration },
    /// The target is cut off from the other nodes, which snapshot and purge their logs before it comes back,
    /// on new connections: it needs a snapshot.
    FallBehind { target: Target, lasts: Duration },
    /// An operator takes a backup through the target. After a while all nodes are killed, and a new cluster
    /// begins with the backup: the voters' folders are made from it, and the nodes start again. Nothing
    /// happens if there is no backup by then.
    RestoreBackup { from: Target, after: Duration, lasts: Duration },
    /// All other nodes are lost with their disks. After a while the target's node becomes a new cluster of
    /// one. One of the others was not lost: it comes back with its old disk.
    Recover { target: Target, lasts: Duration },
    /// The client is killed at the first moment from now at which it waits for a lock.
    DieWaiting { client: usize, down: Down },
    /// All of the client's connections are reset at once.
    Disconnect { client: usize },
    /// The runtime that serves the client's session ends, while all that relies on the session goes on
    /// elsewhere.
    EndRuntime { client: usize },
    /// The client's program returns from `main`, whatever it is at.
    ReturnFromMain { client: usize, down: Down },
    /// A client floods each target node with this, on this number of connections.
    Flood { target: Target, torrent: Torrent, connections: u16, lasts: Duration },
    /// The processor is this many times slower, down to a tenth of the usual speed.
    SlowProcessor { target: Target, times: u32, lasts: Duration },
    /// Nothing goes wrong, but what is left to chance is drawn from this seed from here on: the run goes
    /// on from here in another way.
    NewChoices { seed: u64 },
}

impl Fault {
    pub fn kind(&self) -> Kind {
        match self {
            Fault::Partition { .. } => Kind::Partition,
            Fault::OneWay { .. } => Kind::OneWay,
            Fault::Bridge { .. } => Kind::Bridge,
            Fault::Isolate { .. } => Kind::Isolate,
            Fault::Clog { .. } => Kind::Clog,
            Fault::Lose { .. } => Kind::Lose,
            Fault::Distrust { .. } => Kind::Distrust,
            Fault::Reset { .. } => Kind::Reset,
            Fault::Kill { .. } => Kind::Kill,
            Fault::PowerLoss { .. } => Kind::PowerLoss,
            Fault::Pause { .. } => Kind::Pause,
            Fault::ClockRate { .. } => Kind::ClockRate,
            Fault::ClockJump { .. } => Kind::ClockJump,
            Fault::SlowDisk { .. } => Kind::SlowDisk,
            Fault::SyncFailure { .. } => Kind::SyncFailure,
            Fault::DiskFull { .. } => Kind::DiskFull,
            Fault::BitRot { .. } => Kind::BitRot,
            Fault::LoseDisk { .. } => Kind::LoseDisk,
            Fault::Wipe { .. } => Kind::Wipe,
            Fault::RotTail { .. } => Kind::RotTail,
            Fault::Restore { .. } => Kind::Restore,
            Fault::AddLearner { .. } => Kind::AddLearner,
            Fault::AddVoter { .. } => Kind::AddVoter,
            Fault::Remove { .. } => Kind::Remove,
            Fault::Replace { .. } => Kind::Replace,
            Fault::Readdress { .. } => Kind::Readdress,
            Fault::Transfer { .. } => Kind::Transfer,
            Fault::Regain { .. } => Kind::Regain,
            Fault::FallBehind { .. } => Kind::FallBehind,
            Fault::RestoreBackup { .. } => Kind::RestoreBackup,
            Fault::Recover { .. } => Kind::Recover,
            Fault::DieWaiting { .. } => Kind::DieWaiting,
            Fault::Disconnect { .. } => Kind::Disconnect,
            Fault::EndRuntime { .. } => Kind::EndRuntime,
            Fault::ReturnFromMain { .. } => Kind::ReturnFromMain,
            Fault::Flood { .. } => Kind::Flood,
            Fault::SlowProcessor { .. } => Kind::SlowProcessor,
            Fault::NewChoices { .. } => Kind::NewChoices,
        }
    }

    pub fn targets(&self) -> Vec<Target> {
        match self {
            Fault::Partition { groups, .. } => groups.concat(),
            Fault::OneWay { from, to, .. }
            | Fault::Clog { from, to, .. }
            | Fault::Lose { from, to, .. }
            | Fault::Distrust { from, to, .. }
            | Fault::Reset { from, to } => [from.clone(), to.clone()].concat(),
            Fault::Bridge { left, middle, right, .. } => {
                [left.clone(), vec![*middle], right.clone()].concat()
            }
            Fault::Isolate { target, .. }
            | Fault::Kill { target, .. }
            | Fault::PowerLoss { target, .. }
            | Fault::Pause { target, .. }
            | Fault::ClockRate { target, .. }
            | Fault::ClockJump { target, .. }
            | Fault::SlowDisk { target, .. }
            | Fault::Flood { target, .. }
            | Fault::SlowProcessor { target, .. }
            | Fault::SyncFailure { target, .. }
            | Fault::DiskFull { target, .. }
            | Fault::BitRot { target, .. }
            | Fault::LoseDisk { target }
            | Fault::Wipe { target, .. }
            | Fault::Readdress { target, .. }
            | Fault::RotTail { target, .. }
            | Fault::Restore { target, .. }
            | Fault::RestoreBackup { from: target, .. }
            | Fault::Recover { target, .. }
            | Fault::Remove { target }
            | Fault::Transfer { to: target }
            | Fault::Regain { late: target, .. }
            | Fault::FallBehind { target, .. } => vec![*target],
            Fault::NewChoices { .. } => Vec::new(),
            Fault::AddLearner { node } | Fault::AddVoter { node } => vec![Target::Node(*node)],
            Fault::Replace { target, node } => vec![*target, Target::Node(*node)],
            Fault::DieWaiting { client, .. }
            | Fault::Disconnect { client }
            | Fault::EndRuntime { client }
            | Fault::ReturnFromMain { client, .. } => vec![Target::Client(*client)],
        }
    }

    /// How long it lasts; `None` if it is over at once or never.
    pub fn lasts(&self) -> Option<Duration> {
        self.clone().lasts_mut().copied()
    }

    /// The same fault, for another time, if it has one.
    #[must_use]
    pub fn lasting(mut self, lasts: Duration) -> Self {
        if let Some(old) = self.lasts_mut() {
            *old = lasts;
        }
        self
    }

    fn lasts_mut(&mut self) -> Option<&mut Duration> {
        match self {
            Fault::Partition { lasts, .. }
            | Fault::OneWay { lasts, .. }
            | Fault::Bridge { lasts, .. }
            | Fault::Isolate { lasts, .. }
            | Fault::Clog { lasts, .. }
            | Fault::Lose { lasts, .. }
            | Fault::Distrust { lasts, .. }
            | Fault::Pause { lasts, .. }
            | Fault::ClockRate { lasts, .. }
            | Fault::SlowDisk { lasts, .. }
            | Fault::Flood { lasts, .. }
            | Fault::SlowProcessor { lasts, .. }
            | Fault::DiskFull { lasts, .. }
            | Fault::Wipe { lasts, .. }
            | Fault::Readdress { lasts, .. }
            | Fault::RotTail { lasts, .. }
            | Fault::Restore { lasts, .. }
            | Fault::RestoreBackup { lasts, .. }
            | Fault::Recover { lasts, .. }
            | Fault::Regain { lasts, .. }
            | Fault::FallBehind { lasts, .. } => Some(lasts),
            Fault::Kill { down: Down::For(lasts), .. }
            | Fault::PowerLoss { down: Down::For(lasts), .. }
            | Fault::SyncFailure { down: Down::For(lasts), .. }
            | Fault::ReturnFromMain { down: Down::For(lasts), .. }
            | Fault::DieWaiting { down: Down::For(lasts), .. } => Some(lasts),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    pub at: Nanos,
    pub fault: Fault,
}

impl Step {
    /// When the fault is over; `None` if never. A new cluster opens sessions by then. Faults without a
    /// duration are over as they begin.
    pub fn ends(&self) -> Option<Nanos> {
        match (&self.fault, self.fault.lasts()) {
            (Fault::RestoreBackup { after, lasts, .. }, _) => Some(self.at + *after + *lasts + NEW_CLUSTER),
            (Fault::Recover { lasts, .. }, _) => Some(self.at + *lasts + NEW_CLUSTER),
            (_, Some(lasts)) => Some(self.at + lasts),
            (
                Fault::Kill { .. }
                | Fault::PowerLoss { .. }
                | Fault::SyncFailure { .. }
                | Fault::DieWaiting { .. }
                | Fault::ReturnFromMain { .. }
                | Fault::LoseDisk { .. }
                | Fault::Replace { .. }
                | Fault::BitRot { .. },
                None,
            ) => None,
            (_, None) => Some(self.at),
        }
    }
}

/// All faults of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Script {
    steps: Vec<Step>,
    over_budget: bool,
}

impl Script {
    /// The steps, put in the order of their times (those of one time stay in the order given).
    pub fn new(mut steps: Vec<Step>) -> Self {
        steps.sort_by_key(|step| step.at);
        Script { steps, over_budget: false }
    }

    /// The same faults, where `over_budget` says that more is broken than the promises allow for: the run may
    /// stop for ever and lose what only the broken disks had, but no answer may be wrong.
    #[must_use]
    pub fn with_over_budget(mut self, over_budget: bool) -> Self {
        self.over_budget = over_budget;
        self
    }

    /// In the order of their times.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether more is broken than the promises allow for.
    pub fn is_over_budget(&self) -> bool {
        self.over_budget
    }

    /// When the last fault that ends has ended: from then on there must be progress.
    pub fn healed_at(&self) -> Nanos {
        self.steps.iter().map(|step| step.ends().unwrap_or(step.at)).max().unwrap_or_default()
    }
}
