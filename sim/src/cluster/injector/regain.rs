//! A leader loses its leadership and regains it, while a message of another node to it is delayed.
//!
//! First no node hears the leader, but it still accepts forwarded proposals: none of them will be committed.
//! Then the messages of `late` to it are held back. When another node leads, the others hear the old leader
//! again, and the leadership is handed back to it. After that the held messages arrive.

use std::time::Duration;

use rowlock_world::time::{HostId, Nanos};

use super::super::cuts::{Link, one_way};
use super::super::node_statuses::{Order, node_id};
use super::{End, Injector};
use crate::fault::Target;

/// How often to check who leads.
const LOOK: Duration = Duration::from_millis(10);

/// How far it has come.
pub(super) struct Regain {
    leader: usize,
    /// Whose messages come late.
    late: HostId,
    /// Cut at the moment, away from the leader and to it.
    links: Vec<Link>,
    /// Another node leads, or has led.
    is_lost: bool,
    /// The fault ends at this time, whatever its outcome.
    until: Nanos,
}

impl Injector {
    /// Takes the leadership away from the current leader, if there is one.
    pub(super) fn take_leadership(&mut self, late: Target, after: Duration, lasts: Duration) {
        let (Some(leader), Some(late)) =
            (self.patients.statuses.leader(), self.hosts(&[late]).first().copied())
        else {
            return;
        };
        let host = self.patients.nodes[leader];
        if host == late {
            return;
        }
        let links = one_way(&[host], &self.patients.nodes);
        self.cuts.cut(self.sim.network(), &links);
        let until = self.sim.now() + lasts;
        self.later(after, End::Regain(Regain { leader, late, links, is_lost: false, until }));
    }

    pub(super) fn go_on(&mut self, mut regain: Regain) {
        let host = self.patients.nodes[regain.leader];
        let now_leads = self.patients.statuses.leader();
        let is_back = regain.is_lost && now_leads == Some(regain.leader);
        if is_back || self.sim.now() >= regain.until || !self.sim.is_up(host) {
            return self.give_up(&regain);
        }
        let held = [(regain.late, host)];
        if !regain.links.contains(&held[0]) {
            self.cuts.cut(self.sim.network(), &held);
            regain.links.extend(held);
        }
        match now_leads.filter(|now| *now != regain.leader) {
            // It cannot hand over to whom it does not reach.
            Some(now) if self.patients.nodes[now] == regain.late => return self.give_up(&regain),
            Some(now) => {
                if !regain.is_lost {
                    regain.is_lost = true;
                    let is_late = |link: &Link| link.0 == regain.late || link.1 == regain.late;
                    let (stay, join): (Vec<Link>, Vec<Link>) =
                        regain.links.iter().partition(|link| is_late(link));
                    self.cuts.join(self.sim.network(), &join);
                    regain.links = stay;
                }
                self.patients.statuses.order(now, Order::HandOver(node_id(regain.leader)));
            }
            None => {}
        }
        self.later(LOOK, End::Regain(regain));
    }

    /// All nodes hear each other again.
    pub(super) fn give_up(&mut self, regain: &Regain) {
        self.cuts.join(self.sim.network(), &regain.links);
    }
}
