//! Draws one fault of a given kind, with targets, times and sizes within the budget.

use std::time::Duration;

use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use super::budget::Budget;
use super::kind::Kind;
use super::mix::Odds;
use super::script::{CrashPoint, Down, Fault, Moment, Target};
use super::torrent::Torrent;

/// Deviation of a clock in millionths: two clocks that deviate in opposite directions still differ by less
/// than the documented 5 %.
const PPM: usize = 24_000;
/// Time for the operator after a moved node runs again.
pub(super) const MOVE: Duration = Duration::from_secs(3);
/// Share of resets that hit the connections of all clients with all nodes: every client comes back at once.
const ALL_BACK_PERCENT: usize = 15;
/// Share of full disks that hit all nodes.
const ALL_DISKS_PERCENT: usize = 30;
/// Room left on a full disk, in KiB: a segment of the log has 12 to 64.
const LEFT_KIB: [u32; 4] = [0, 0, 24, 90];
/// Largest jump of a wall clock, in either direction.
const JUMP_MS: usize = 3_600_000;

/// Random numbers and budget of one script.
pub(super) struct Draw {
    pub(super) rng: Rng,
    pub(super) budget: Budget,
    pub(super) clients: usize,
    pub(super) quiet: Nanos,
    pub(super) odds: Odds,
}

impl Draw {
    /// Draws a fault; `None` if the budget does not allow this kind at `at`.
    pub(super) fn fault(&mut self, kind: Kind, at: Nanos) -> Option<Fault> {
        match kind {
            Kind::Partition
            | Kind::OneWay
            | Kind::Bridge
            | Kind::Isolate
            | Kind::Clog
            | Kind::Lose
            | Kind::Distrust => self.link_fault(kind, at),
            Kind::Reset => {
                let all = (vec![Target::AllNodes], vec![Target::AllClients]);
                let (from, to) = if self.rng.chance(ALL_BACK_PERCENT) { all } else { self.ends() };
                Some(Fault::Reset { from, to })
            }
            Kind::Kill | Kind::PowerLoss | Kind::SyncFailure => self.crash(kind, at),
            Kind::Pause => Some(self.pause(at)),
            Kind::ClockRate => {
                let ppm = self.rng.below(2 * PPM + 1) as i64 - PPM as i64;
                Some(Fault::ClockRate { target: self.one(), ppm, lasts: self.lasts(at) })
            }
            Kind::ClockJump => {
                let most = self.rng.pick(&[200, 5_000, JUMP_MS]);
                let by_ms = self.rng.below(2 * most + 1) as i64 - most as i64;
                Some(Fault::ClockJump { target: self.one(), by_ms })
            }
            Kind::SlowDisk => {
                let times = self.rng.pick(&[3, 20, 200]);
                Some(Fault::SlowDisk { target: self.node(), times, lasts: self.lasts(at) })
            }
            Kind::DiskFull => Some(self.disk_full(at)),
            Kind::Flood => self.flood(at),
            Kind::SlowProcessor => Some(self.slow_processor(at)),
            Kind::BitRot | Kind::LoseDisk | Kind::Wipe | Kind::RotTail => self.disk_loss(kind, at),
            // Only the leader that has the restored node's acknowledgment may detect the restored disk, so
            // nothing else may go wrong meanwhile.
            Kind::Restore => {
                let target = self.follower();
                self.budget.lose_some_node().then(|| Fault::Restore { target, lasts: self.lasts(at) })
            }
            Kind::AddVoter | Kind::Remove | Kind::Replace | Kind::Readdress
                if !self.budget.is_settled(at) =>
            {
                None
            }
            Kind::AddLearner => Some(Fault::AddLearner { node: self.budget.add_learner()? }),
            Kind::AddVoter => Some(Fault::AddVoter { node: self.budget.add_voter()? }),
            Kind::Remove => {
                let voters = self.budget.voters();
                let node = self.rng.pick(&voters);
                self.budget.remove(node).then_some(Fault::Remove { target: Target::Node(node) })
            }
            Kind::Replace => self.replace(),
            Kind::Readdress => self.readdress(at),
            Kind::Transfer => Some(Fault::Transfer { to: self.follower() }),
            Kind::Regain => self.regain(at),
            Kind::FallBehind => Some(self.fall_behind(at)),
            // `generate` draws the rebirths and changes of members, and a guided search inserts `NewChoices`.
            Kind::RestoreBackup | Kind::Recover | Kind::Depose | Kind::NewChoices => None,
            Kind::DieWaiting => {
                let down = self.client_down(at);
                Some(Fault::DieWaiting { client: 1 + self.rng.below(self.clients), down })
            }
            Kind::Disconnect => Some(Fault::Disconnect { client: 1 + self.rng.below(self.clients) }),
            Kind::EndRuntime => Some(Fault::EndRuntime { client: 1 + self.rng.below(self.clients) }),
            Kind::ReturnFromMain => {
                let down = self.client_down(at);
                Some(Fault::ReturnFromMain { client: 1 + self.rng.below(self.clients), down })
            }
        }
    }

    /// Draws a full disk, often for all nodes, whose disks have the same size and the same data. On a full
    /// disk the log takes its reserve and then waits; with a little room left, the node refuses only growing
    /// writes.
    fn disk_full(&mut self, at: Nanos) -> Fault {
        let target = if self.rng.chance(ALL_DISKS_PERCENT) { Target::AllNodes } else { self.node() };
        let leaves_kib = self.rng.pick(&LEFT_KIB);
        Fault::DiskFull { target, leaves_kib, lasts: self.lasts(at) }
    }

    fn slow_processor(&mut self, at: Nanos) -> Fault {
        let times = self.rng.pick(&[2, 4, 10]);
        Fault::SlowProcessor { target: self.node(), times, lasts: self.lasts(at) }
    }

    /// Draws a flood that spans several elections, and no longer, since a flood costs a run much time.
    fn flood(&mut self, at: Nanos) -> Option<Fault> {
        let lasts = self.between_ms(2_000, 5_000);
        if !self.rng.chance(self.odds.flood) || at + lasts > self.quiet || !self.budget.flood(at, at + lasts)
        {
            return None;
        }
        let torrent = self.rng.pick(&Torrent::ALL);
        let connections = self.rng.pick(torrent.connections());
        // The leader's queue holds the requests of all nodes.
        let at_all = if torrent == Torrent::LargeWrites { 60 } else { 30 };
        let target = if self.rng.chance(at_all) { Target::AllNodes } else { self.node() };
        Some(Fault::Flood { target, torrent, connections, lasts })
    }

    /// Draws the replacement of a node with a lost disk, if the budget allows another voter.
    fn replace(&mut self) -> Option<Fault> {
        let lost = self.some_alive()?;
        if !self.budget.lose_node(lost) {
            return None;
        }
        let target = Target::Node(lost);
        let new = self.budget.may_remove().then(|| self.budget.add_voter());
        let Some(node) = new.flatten() else { return Some(Fault::LoseDisk { target }) };
        let goes = self.budget.remove(lost);
        assert!(goes, "the one that is new makes up for it");
        Some(Fault::Replace { target, node })
    }

    /// Draws a move of one node to a new address. Other nodes find the moved node after the operator has
    /// updated the cluster, and nodes move in sequence: a majority might otherwise be unreachable.
    fn readdress(&mut self, at: Nanos) -> Option<Fault> {
        let node = self.some_alive()?;
        let lasts = self.crash_lasts(at);
        if !self.budget.majority_is_up(at) {
            return None;
        }
        self.budget.down(at + lasts);
        self.budget.unsettle(at + lasts + MOVE);
        Some(Fault::Readdress { target: Target::Node(node), lasts })
    }

    /// Draws a leader's loss and regain of the leadership. An election takes some hundred milliseconds, and
    /// the test is about messages sent before its end.
    fn regain(&mut self, at: Nanos) -> Option<Fault> {
        let late = self.follower();
        let (after, lasts) = (self.between_ms(5, 300), self.between_ms(1_500, 4_000));
        if self.budget.voters().len() < 3 || at + lasts > self.quiet || self.budget.cuts(at) > 0 {
            return None;
        }
        self.budget.cut(at + lasts);
        Some(Fault::Regain { late, after, lasts })
    }

    /// Draws a lag of one node. A node without contact to the leader goes on serving for about a second.
    fn fall_behind(&mut self, at: Nanos) -> Fault {
        let target = self.node();
        let is_short = self.rng.chance(self.odds.short_falls);
        let lasts = if is_short { self.between_ms(200, 800).min(self.quiet - at) } else { self.lasts(at) };
        Fault::FallBehind { target, lasts }
    }

    /// Draws the loss or damage of a disk. A node with damaged data counts as gone for good.
    fn disk_loss(&mut self, kind: Kind, at: Nanos) -> Option<Fault> {
        let node = self.some_alive()?;
        let target = Target::Node(node);
        let bits = 1 + self.rng.below(8) as u32;
        if !self.budget.lose_node(node) {
            return None;
        }
        Some(match kind {
            Kind::BitRot => Fault::BitRot { target, bits },
            Kind::Wipe => Fault::Wipe { target, lasts: self.crash_lasts(at) },
            Kind::RotTail => Fault::RotTail { target, lasts: self.crash_lasts(at) },
            _ => Fault::LoseDisk { target },
        })
    }

    fn link_fault(&mut self, kind: Kind, at: Nanos) -> Option<Fault> {
        let lasts = self.stop_lasts(at);
        let nodes = self.budget.voters();
        // Two cuts at a time show much; with more cuts no host reaches any other, and nothing happens.
        let cuts =
            matches!(kind, Kind::Partition | Kind::OneWay | Kind::Bridge | Kind::Isolate | Kind::Distrust);
        if cuts && self.budget.cuts(at) >= 2 && self.rng.chance(90) {
            return None;
        }
        if cuts {
            self.budget.cut(at + lasts);
        }
        match kind {
            Kind::Partition if nodes.len() < 2 => None,
            Kind::Partition => Some(Fault::Partition { groups: self.groups(&nodes), lasts }),
            Kind::Bridge if nodes.len() < 3 => None,
            Kind::Bridge => {
                let mut sides = self.shuffled(&nodes);
                let middle = Target::Node(sides.pop()?);
                let right = sides.split_off(1 + self.rng.below(sides.len() - 1));
                let targets = |side: Vec<usize>| side.into_iter().map(Target::Node).collect::<Vec<_>>();
                Some(Fault::Bridge { left: targets(sides), middle, right: targets(right), lasts })
            }
            Kind::Isolate => Some(Fault::Isolate { target: self.node(), lasts }),
            _ => {
                let to_leader = self.odds.slow_to_leader > 0 && self.rng.chance(self.odds.slow_to_leader);
                let (from, to) =
                    if to_leader { (vec![self.follower()], vec![Target::Leader]) } else { self.ends() };
                Some(match kind {
                    Kind::OneWay => Fault::OneWay { from, to, lasts },
                    Kind::Distrust => Fault::Distrust { from, to, lasts },
                    Kind::Clog => {
                        let least = self.between_ms(0, 300);
                        let most = least + self.between_ms(1, 2_000);
                        Fault::Clog { from, to, least, most, lasts }
                    }
                    _ => Fault::Lose { from, to, percent: 1 + self.rng.below(80) as u8, lasts },
                })
            }
        }
    }

    /// Draws two groups of nodes. Each client is on one side, or reaches both sides; or all clients are with
    /// the smaller group.
    fn groups(&mut self, nodes: &[usize]) -> Vec<Vec<Target>> {
        let nodes = self.shuffled(nodes);
        let cut = 1 + self.rng.below(nodes.len() - 1);
        let (left, right) = nodes.split_at(cut);
        let mut groups: Vec<Vec<Target>> =
            [left, right].map(|side| side.iter().copied().map(Target::Node).collect()).to_vec();
        let few = usize::from(cut > nodes.len() - cut);
        let are_with_few = self.odds.clients_with_few > 0 && self.rng.chance(self.odds.clients_with_few);
        for client in 1..=self.clients {
            let side = if are_with_few { few } else { self.rng.below(3) };
            if let Some(group) = groups.get_mut(side) {
                group.push(Target::Client(client));
            }
        }
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups
    }

    fn crash(&mut self, kind: Kind, at: Nanos) -> Option<Fault> {
        if kind == Kind::Kill && self.rng.chance(self.odds.killed_client) {
            let target = Target::Client(1 + self.rng.below(self.clients));
            return Some(Fault::Kill { target, down: self.client_down(at) });
        }
        let everyone = kind != Kind::SyncFailure && self.rng.chance(self.odds.all_nodes);
        if !everyone && !self.budget.majority_is_up(at) && self.rng.chance(80) {
            return None;
        }
        let target = if everyone { Target::AllNodes } else { self.node() };
        let down = match target {
            Target::AllNodes => Down::For(self.crash_lasts(at)),
            // The failed flush is repaired, so that the next failure does not find a second damaged copy.
            _ if kind == Kind::SyncFailure => Down::For(self.lasts(at)),
            target => self.node_down(target, at),
        };
        if let Down::For(lasts) = down {
            if kind == Kind::SyncFailure && !self.budget.spoil_flush(at, at + lasts + Duration::from_secs(2))
            {
                return None;
            }
            self.budget.down(at + lasts);
        }
        Some(match kind {
            Kind::Kill => Fault::Kill { target, down },
            Kind::SyncFailure => Fault::SyncFailure { target, down },
            _ => {
                let moments = Moment::ALL;
                let point = if self.rng.chance(70) { self.moment(&moments) } else { CrashPoint::AtOnce };
                Fault::PowerLoss { target, point, down }
            }
        })
    }

    /// Draws one of the next moments of a kind. In a procedure of several steps, the first steps matter.
    pub(super) fn moment(&mut self, moments: &[Moment]) -> CrashPoint {
        let moment = self.rng.pick(moments);
        let most = match moment {
            Moment::DiskOperation => 40,
            Moment::Flush => 6,
            Moment::Rename => 3,
            Moment::Message => 12,
        };
        CrashPoint::At(moment, 1 + self.rng.below(most) as u32)
    }

    /// Draws the node's downtime: now and then for good, if the budget allows that.
    fn node_down(&mut self, target: Target, at: Nanos) -> Down {
        let for_good = self.rng.chance(6)
            && match target {
                Target::Node(node) => self.budget.lose_node(node),
                _ => self.budget.lose_some_node(),
            };
        if for_good { Down::ForGood } else { Down::For(self.crash_lasts(at)) }
    }

    fn client_down(&mut self, at: Nanos) -> Down {
        let for_good = self.rng.chance(15) && self.budget.lose_client();
        if for_good { Down::ForGood } else { Down::For(self.lasts(at)) }
    }

    fn pause(&mut self, at: Nanos) -> Fault {
        if self.rng.chance(100 - self.odds.paused_client) {
            return Fault::Pause { target: self.node(), lasts: self.stop_lasts(at) };
        }
        // Often past the session timeout: fencing tokens protect in this case.
        let lasts = self.rng.pick(&[1_000, 5_000, 15_000, 30_000]);
        let lasts = self.between_ms(lasts / 2, lasts).min(self.quiet - at);
        Fault::Pause { target: Target::Client(1 + self.rng.below(self.clients)), lasts }
    }

    fn shuffled(&mut self, items: &[usize]) -> Vec<usize> {
        let mut items = items.to_vec();
        for last in (1..items.len()).rev() {
            items.swap(last, self.rng.below(last + 1));
        }
        items
    }

    /// Draws a voter that is not known to be gone.
    fn some_alive(&mut self) -> Option<usize> {
        let alive = self.budget.alive();
        (!alive.is_empty()).then(|| self.rng.pick(&alive))
    }

    /// Draws a voter by its role.
    pub(super) fn some_node(&mut self) -> Target {
        if self.rng.chance(40) { Target::Leader } else { self.follower() }
    }

    /// Draws one node, half of the time the leader: most failures happen on the leader.
    fn node(&mut self) -> Target {
        match self.rng.below(4) {
            0 | 1 => Target::Leader,
            2 => self.follower(),
            _ => self.some_alive().map_or(Target::Leader, Target::Node),
        }
    }

    pub(super) fn follower(&mut self) -> Target {
        let others = self.budget.voters().len().saturating_sub(1).max(1);
        Target::Follower(1 + self.rng.below(others))
    }

    fn one(&mut self) -> Target {
        if self.rng.chance(60) { self.node() } else { Target::Client(1 + self.rng.below(self.clients)) }
    }

    /// Draws two ends of a link in use: clients talk to nodes only, and no host to itself.
    fn ends(&mut self) -> (Vec<Target>, Vec<Target>) {
        let node = self.node();
        let other = match self.rng.below(6) {
            0 => Target::AllNodes,
            1 => Target::AllClients,
            2 | 3 => Target::Client(1 + self.rng.below(self.clients)),
            // Roles name two different nodes; two numbers may be equal.
            _ if node == Target::Leader => self.follower(),
            _ => Target::Leader,
        };
        if self.rng.chance(50) { (vec![node], vec![other]) } else { (vec![other], vec![node]) }
    }

    /// Draws a duration that ends before the quiet: shorter than a heartbeat, longer than an election, or
    /// longer than a session.
    fn lasts(&mut self, at: Nanos) -> Duration {
        let (least, most) =
            self.rng.pick(&[(20, 500), (500, 3_000), (500, 3_000), (2_000, 8_000), (8_000, 20_000)]);
        self.between_ms(least, most).min(self.quiet - at)
    }

    fn stop_lasts(&mut self, at: Nanos) -> Duration {
        let is_long = self.odds.long_stops > 0 && self.rng.chance(self.odds.long_stops);
        if is_long { self.between_ms(6_000, 15_000).min(self.quiet - at) } else { self.lasts(at) }
    }

    fn crash_lasts(&mut self, at: Nanos) -> Duration {
        let is_back_at_once = self.odds.back_at_once > 0 && self.rng.chance(self.odds.back_at_once);
        if is_back_at_once { self.between_ms(1, 300).min(self.quiet - at) } else { self.lasts(at) }
    }

    pub(super) fn between_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.rng.below((most - least + 1) as usize) as u64)
    }
}
