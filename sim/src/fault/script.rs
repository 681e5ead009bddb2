//! Types of a script: targets, faults, durations, times.
//!
//! Invariant: a [`Script`] determines all faults of a run. The run resolves `leader` at the start of a fault,
//! so one script may hit different nodes in different runs, but the same nodes in two runs of one seed.

use std::time::Duration;

use rowlock_world::time::Nanos;

use super::kind::Kind;
use super::torrent::Torrent;

/// Time for a new cluster to elect a leader and open sessions: the leader first waits for the longest
/// timeout.
pub const NEW_CLUSTER: Duration = Duration::from_secs(14);

/// Target of a fault. Numbers begin with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Node(usize),
    /// Leader at the start of the fault; the node with the lowest number if no node leads.
    Leader,
    /// The k-th node, by number, of the nodes that do not lead at the start of the fault.
    Follower(usize),
    Client(usize),
    AllNodes,
    AllClients,
}

/// Downtime of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Down {
    /// Time until the restart.
    For(Duration),
    ForGood,
}

/// Moment of a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CrashPoint {
    /// At the start of the fault.
    AtOnce,
    /// At the n-th of these moments from then on, counted from 1; after a delay without enough of them,
    /// anyway.
    At(Moment, u32),
}

/// Steps of a program that a power loss must not leave half done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    DiskOperation,
    /// A flush of a file or of names.
    Flush,
    /// A change of a file's name.
    Rename,
    /// The moment right after a process has sent a message.
    Message,
}

impl Moment {
    pub const ALL: [Moment; 4] = [Moment::DiskOperation, Moment::Flush, Moment::Rename, Moment::Message];

    /// Returns the keyword before the number.
    pub(super) fn word(self) -> &'static str {
        match self {
            Moment::DiskOperation => "at-operation",
            Moment::Flush => "at-flush",
            Moment::Rename => "at-rename",
            Moment::Message => "at-message",
        }
    }
}

/// Failure, or an operator's action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Cuts all links between groups. A host in no group reaches all hosts.
    Partition { groups: Vec<Vec<Target>>, lasts: Duration },
    /// Cuts the direction from `from` to `to`; the other direction works.
    OneWay { from: Vec<Target>, to: Vec<Target>, lasts: Duration },
    /// Cuts all links between two sides; the node in the middle reaches both.
    Bridge { left: Vec<Target>, middle: Target, right: Vec<Target>, lasts: Duration },
    /// Cuts the target off from all other nodes. Clients still reach the target.
    Isolate { target: Target, lasts: Duration },
    /// Delays segments from `from` to `to`, each by a time between `least` and `most`.
    Clog { from: Vec<Target>, to: Vec<Target>, least: Duration, most: Duration, lasts: Duration },
    /// Loses this percentage of segments from `from` to `to`: lost segments come late, after the sender's
    /// kernel repeats them.
    Lose { from: Vec<Target>, to: Vec<Target>, percent: u8, lasts: Duration },
    /// Breaks the trust between two sides, as with an expired certificate: existing connections are reset,
    /// and new ones open and break in the handshake, whichever side begins.
    Distrust { from: Vec<Target>, to: Vec<Target>, lasts: Duration },
    /// Resets all connections between the two sides.
    Reset { from: Vec<Target>, to: Vec<Target> },
    /// Kills the process (SIGKILL). All its writes are on the disk at its restart, flushed or not.
    Kill { target: Target, down: Down },
    /// Cuts the power: unflushed data may be there, gone, torn or out of order.
    PowerLoss { target: Target, point: CrashPoint, down: Down },
    /// Pauses the process: SIGSTOP, a paused virtual machine, a long garbage collection.
    Pause { target: Target, lasts: Duration },
    /// Speeds the monotonic clock up or slows it down by this many millionths.
    ClockRate { target: Target, ppm: i64, lasts: Duration },
    /// Moves the wall clock by this many milliseconds for good.
    ClockJump { target: Target, by_ms: i64 },
    /// Slows every operation on the disk by this factor.
    SlowDisk { target: Target, times: u32, lasts: Duration },
    /// Fails the next flush and loses its data. A node that stops over the failure comes back after `down`.
    SyncFailure { target: Target, down: Down },
    /// Leaves this number of KiB on the disk.
    DiskFull { target: Target, leaves_kib: u32, lasts: Duration },
    /// Flips this many bits of the data on the disk.
    BitRot { target: Target, bits: u32 },
    /// Destroys the machine and its disk. The node never comes back under its number.
    LoseDisk { target: Target },
    /// Destroys the machine and its disk. The node comes back after a while with an empty disk, under its old
    /// number.
    Wipe { target: Target, lasts: Duration },
    /// Isolates the node until its log has rested for a moment. Then kills the process, flips a bit in the
    /// last entry or vote of the log, which has been flushed, and starts the node again after a while.
    /// Nothing happens if the log does not come to rest.
    RotTail { target: Target, lasts: Duration },
    /// Copies the disk, and restores the copy after a while: the process is killed and started again on the
    /// copy.
    Restore { target: Target, lasts: Duration },
    /// An operator starts a node with an empty disk and this number (which no node has had) as a learner.
    AddLearner { node: usize },
    /// An operator makes the node a voter; a node that does not exist is first started as a learner.
    AddVoter { node: usize },
    /// An operator removes the target from the membership and stops the target.
    Remove { target: Target },
    /// Destroys the target's machine and its disk. An operator starts a node with this number (which no node
    /// has had) as the replacement, like `rowlock member replace`: once the new node has caught up, one
    /// change makes the new node a voter and removes the lost node.
    Replace { target: Target, node: usize },
    /// Stops the process in order, and starts it later at another port for nodes; the operator updates the
    /// cluster.
    Readdress { target: Target, lasts: Duration },
    /// An operator transfers the leadership to the target.
    Transfer { to: Target },
    /// Cuts the leader off from all nodes until another node leads; then the old leader gets the leadership
    /// back. Messages of `late` to the leader arrive for the time `after`, and the rest once the old leader
    /// leads again.
    Regain { late: Target, after: Duration, lasts: Duration },
    /// Kills the leader of the next change of voters, or cuts the leader off from all nodes, when `copies`
    /// nodes, the leader included, have the first half of the change in their logs.
    Depose { kills: bool, copies: usize, lasts: Duration },
    /// Isolates the target from the other nodes, which snapshot and purge their logs before the target comes
    /// back on new connections: the target needs a snapshot.
    FallBehind { target: Target, lasts: Duration },
    /// An operator takes a backup through the target. After a while all nodes are killed, and a new cluster
    /// begins with the backup: the operator creates the voters' folders from the backup, and the nodes start
    /// again. Nothing happens without a backup by then.
    RestoreBackup { from: Target, after: Duration, lasts: Duration },
    /// Destroys all other nodes and their disks. After a while the target's node becomes a new cluster of
    /// one. Another node survives and comes back with the old disk.
    Recover { target: Target, lasts: Duration },
    /// Kills the client at its first moment from now of waiting for a lock.
    DieWaiting { client: usize, down: Down },
    /// Resets all of the client's connections at once.
    Disconnect { client: usize },
    /// Ends the runtime that serves the client's session, while all users of the session go on elsewhere.
    EndRuntime { client: usize },
    /// Returns from `main` of the client's program, whatever the program is doing.
    ReturnFromMain { client: usize, down: Down },
    /// Floods each target node from a client on this number of connections.
    Flood { target: Target, torrent: Torrent, connections: u16, lasts: Duration },
    /// Slows the processor by this factor, down to a tenth of the usual speed.
    SlowProcessor { target: Target, times: u32, lasts: Duration },
    /// Draws all later random choices from this seed: the run continues differently, and nothing goes wrong.
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
            Fault::Depose { .. } => Kind::Depose,
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
            Fault::NewChoices { .. } | Fault::Depose { .. } => Vec::new(),
            Fault::AddLearner { node } | Fault::AddVoter { node } => vec![Target::Node(*node)],
            Fault::Replace { target, node } => vec![*target, Target::Node(*node)],
            Fault::DieWaiting { client, .. }
            | Fault::Disconnect { client }
            | Fault::EndRuntime { client }
            | Fault::ReturnFromMain { client, .. } => vec![Target::Client(*client)],
        }
    }

    /// Returns the duration; `None` for a fault that is over at once or never.
    pub fn lasts(&self) -> Option<Duration> {
        self.clone().lasts_mut().copied()
    }

    /// Returns the same fault with another duration, if the fault has a duration.
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
            | Fault::Depose { lasts, .. }
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
    /// Returns the end of the fault; `None` for a permanent fault. By the end a new cluster opens sessions. A
    /// fault without a duration ends at its start.
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

/// Faults of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Script {
    steps: Vec<Step>,
    over_budget: bool,
}

impl Script {
    /// Sorts the steps by time (steps of one time keep their order).
    pub fn new(mut steps: Vec<Step>) -> Self {
        steps.sort_by_key(|step| step.at);
        Script { steps, over_budget: false }
    }

    /// Marks the script as over budget: the run may stop for ever and lose data that only the broken disks
    /// had, but no answer may be wrong.
    #[must_use]
    pub fn with_over_budget(mut self, over_budget: bool) -> Self {
        self.over_budget = over_budget;
        self
    }

    /// Returns the steps in the order of their times.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Reports whether the damage exceeds the promises.
    pub fn is_over_budget(&self) -> bool {
        self.over_budget
    }

    /// Reports whether the script makes a new cluster of the old one.
    pub fn is_reborn(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.fault.kind(), Kind::RestoreBackup | Kind::Recover))
    }

    /// Returns the end of the last temporary fault: from then on the cluster must make progress.
    pub fn healed_at(&self) -> Nanos {
        self.steps.iter().map(|step| step.ends().unwrap_or(step.at)).max().unwrap_or_default()
    }
}
