//! A leader loses its leadership and regains the lead, while a message from another node to this leader is
//! delayed.
//!
//! First the injector cuts the links from the leader: the leader still accepts forwarded proposals but cannot
//! commit them. Then the injector holds back messages from `late` to the leader. When another node leads, the
//! injector reconnects the old leader, and the new leader hands the leadership back. After that the held
//! messages arrive.

use std::time::Duration;

use rowlock_world::executor::Halt;
use rowlock_world::time::{HostId, Nanos};

use super::super::cuts::{Link, one_way};
use super::super::node_statuses::{Order, node_id};
use super::{End, Injector};
use crate::fault::{Down, Fault, Target};
use crate::history::node::Position;

/// Interval between checks of the leadership.
const LOOK: Duration = Duration::from_millis(10);

/// Progress of the fault.
pub(super) struct Regain {
    leader: usize,
    /// Host whose messages are delayed.
    late: HostId,
    /// Links cut at the moment, from and to the leader.
    links: Vec<Link>,
    /// Whether another node leads, or has led.
    is_lost: bool,
    /// Time limit of the fault.
    until: Nanos,
}

impl Injector {
    /// Takes the leadership away from the current leader, if there is one.
    pub(super) fn take_leadership(&mut self, late: Target, after: Duration, lasts: Duration) {
        let (Some(leader), Some(late)) =
            (self.targets.statuses.leader(), self.hosts(&[late]).first().copied())
        else {
            return;
        };
        let host = self.targets.nodes[leader];
        if host == late {
            return;
        }
        let links = one_way(&[host], &self.targets.nodes);
        self.cuts.cut(self.sim.network(), &links);
        let until = self.sim.now() + lasts;
        self.later(after, End::Regain(Regain { leader, late, links, is_lost: false, until }));
    }

    pub(super) fn go_on(&mut self, mut regain: Regain) {
        let host = self.targets.nodes[regain.leader];
        let now_leads = self.targets.statuses.leader();
        let is_back = regain.is_lost && now_leads == Some(regain.leader);
        if is_back || self.sim.now() >= regain.until || !self.sim.is_up(host) {
            return self.reconnect(&regain);
        }
        let held = [(regain.late, host)];
        if !regain.links.contains(&held[0]) {
            self.cuts.cut(self.sim.network(), &held);
            regain.links.extend(held);
        }
        match now_leads.filter(|now| *now != regain.leader) {
            // A leader cannot hand over to a node out of its reach.
            Some(now) if self.targets.nodes[now] == regain.late => return self.reconnect(&regain),
            Some(now) => {
                if !regain.is_lost {
                    regain.is_lost = true;
                    let is_late = |link: &Link| link.0 == regain.late || link.1 == regain.late;
                    let (stay, join): (Vec<Link>, Vec<Link>) =
                        regain.links.iter().partition(|link| is_late(link));
                    self.cuts.join(self.sim.network(), &join);
                    regain.links = stay;
                }
                self.targets.statuses.order(now, Order::HandOver(node_id(regain.leader)));
            }
            None => {}
        }
        self.later(LOOK, End::Regain(regain));
    }

    pub(super) fn reconnect(&mut self, regain: &Regain) {
        self.cuts.join(self.sim.network(), &regain.links);
    }

    /// Returns whether the leader of a change of voters is to be lost now.
    pub fn deposes(&self) -> impl Fn() -> bool + use<> {
        let (due, record) = (self.deposing.clone(), self.targets.record.clone());
        move || due.iter().any(|(before, fault)| is_due(fault, *before, record.changing()))
    }

    /// Takes the leadership from the leader of a change of voters, if a fault demands that.
    pub fn depose(&mut self) -> Result<(), Halt> {
        let now = self.targets.record.changing();
        let is_due = |(before, fault): &mut (Position, Fault)| is_due(fault, *before, now);
        let due: Vec<_> = self.deposing.extract_if(.., is_due).collect();
        for (_, fault) in due {
            let Fault::Depose { kills, lasts, .. } = fault else { continue };
            let target = Target::Node(now.0.leader.0 as usize);
            let fault = match kills {
                true => Fault::Kill { target, down: Down::For(lasts) },
                false => Fault::Isolate { target, lasts },
            };
            self.trace(format!("in the middle of a change of voters: {fault}"));
            self.begin(fault)?;
        }
        Ok(())
    }
}

/// Returns whether enough nodes have the first half of a change that is newer than `before`.
fn is_due(fault: &Fault, before: Position, (now, nodes): (Position, usize)) -> bool {
    matches!(fault, Fault::Depose { copies, .. } if now > before && nodes >= *copies)
}
