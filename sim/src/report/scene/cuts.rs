//! Cuts between hosts, as regions of time: sides, if the hosts fall into sides, and walls between single
//! hosts.

use std::collections::BTreeSet;

use rowlock_world::time::Nanos;

/// Period with unchanged cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub from: Nanos,
    pub until: Nanos,
    /// Side of each lane, if the cuts divide the hosts into sides without any connection; `None` for hosts
    /// that reach all others.
    pub sides: Vec<Option<usize>>,
    /// Cuts without sides: one-way cuts, bridges.
    pub walls: Vec<Wall>,
}

/// Two hosts with a cut between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall {
    /// Messages from this lane are cut.
    pub from: usize,
    pub to: usize,
    pub both: bool,
}

/// Current cuts, and the regions so far.
#[derive(Debug)]
pub(super) struct Cuts {
    is_client: Vec<bool>,
    cut: BTreeSet<(usize, usize)>,
    since: Nanos,
    regions: Vec<Region>,
}

impl Cuts {
    pub(super) fn new(is_client: Vec<bool>) -> Self {
        Cuts { is_client, cut: BTreeSet::new(), since: Nanos(0), regions: Vec::new() }
    }

    pub(super) fn change(&mut self, at: Nanos, from: usize, to: usize, cut: bool) {
        // Clients do not talk to each other: a cut between clients has no effect.
        if self.is_client[from] && self.is_client[to] || self.cut.contains(&(from, to)) == cut {
            return;
        }
        self.close(at);
        if cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    pub(super) fn finish(mut self, end: Nanos) -> Vec<Region> {
        self.close(end);
        self.regions
    }

    fn close(&mut self, at: Nanos) {
        if at > self.since && !self.cut.is_empty() {
            let sides = self.sides();
            let walls = if sides.is_some() { Vec::new() } else { self.walls() };
            let sides = sides.unwrap_or_else(|| vec![None; self.is_client.len()]);
            self.regions.push(Region { from: self.since, until: at, sides, walls });
        }
        self.since = at;
    }

    fn walls(&self) -> Vec<Wall> {
        let both = |from, to| self.cut.contains(&(to, from));
        self.cut
            .iter()
            .filter(|(from, to)| from < to || !both(*from, *to))
            .map(|(from, to)| Wall { from: *from, to: *to, both: both(*from, *to) })
            .collect()
    }

    /// Returns the sides, if no link is cut within a side and all links are cut between sides.
    fn sides(&self) -> Option<Vec<Option<usize>>> {
        let hosts = self.is_client.len();
        let concerned: Vec<usize> =
            (0..hosts).filter(|host| self.cut.iter().any(|(from, to)| from == host || to == host)).collect();
        let apart = |a: usize, b: usize| self.cut.contains(&(a, b)) && self.cut.contains(&(b, a));
        let together = |a: usize, b: usize| !self.cut.contains(&(a, b)) && !self.cut.contains(&(b, a));
        let talk = |a: usize, b: usize| !(self.is_client[a] && self.is_client[b]);

        let mut sides: Vec<Option<usize>> = vec![None; hosts];
        let mut count = 0;
        // Servers make the sides; each client then joins the side within its reach.
        let (clients, servers): (Vec<usize>, Vec<usize>) =
            concerned.iter().partition(|host| self.is_client[**host]);
        for host in servers.into_iter().chain(clients) {
            let same = concerned.iter().copied().filter(|other| sides[*other].is_some());
            let mut friends = same.filter(|other| talk(host, *other) && together(host, *other));
            let side = friends.next().and_then(|friend| sides[friend]).unwrap_or_else(|| {
                count += 1;
                count - 1
            });
            sides[host] = Some(side);
        }
        let clean = concerned.iter().all(|a| {
            concerned.iter().filter(|b| a != *b && talk(*a, **b)).all(|b| match sides[*a] == sides[*b] {
                true => together(*a, *b),
                false => apart(*a, *b),
            })
        });
        (clean && count > 1).then_some(sides)
    }
}
