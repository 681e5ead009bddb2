//! A trace for the eye: hosts side by side, and the state of each host over time.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, MessageId, What};

use crate::report::ends;

/// A run, ready to be drawn. Hosts are named by their place in [`Scene::lanes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// One lane for each host that ever ran: servers, then clients, then operators.
    pub lanes: Vec<Lane>,
    /// Messages between hosts, in the order of sending.
    pub messages: Vec<Message>,
    /// Unreachable hosts, one region for each period without a change.
    pub regions: Vec<Region>,
    pub faults: Vec<FaultSpell>,
    pub violations: Vec<(Nanos, String)>,
    /// End of the trace.
    pub end: Nanos,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    pub name: String,
    pub kind: &'static str,
    /// Time of the host's first start.
    pub born: Nanos,
    /// States of the host, in the order of their beginnings.
    pub spells: Vec<Spell>,
}

/// A period in which a host was in one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Spell {
    pub what: Being,
    pub from: Nanos,
    /// End of the state, at most the end of the trace.
    pub until: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Being {
    /// The host has no process: `how` is the cause (`killed`, `power lost`, `stopped`).
    Down {
        how: &'static str,
    },
    Paused,
    /// The host leads in this term, as far as the host knows.
    Leads {
        term: u64,
    },
    /// The host believes that it holds the lock.
    Holds {
        lock: String,
        token: i64,
    },
    Waits {
        lock: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpell {
    /// Text of the fault in the script.
    pub text: String,
    pub from: Nanos,
    /// End of the fault; `None` for a fault without duration, or without an end.
    pub until: Option<Nanos>,
    pub lanes: Vec<usize>,
}

impl Scene {
    /// Builds the scene of a trace that ends at `end`.
    pub fn of(record: &[Happening], end: Nanos) -> Scene {
        scene(record, end)
    }
}

fn scene(record: &[Happening], end: Nanos) -> Scene {
    let end = record.iter().map(|happening| happening.at).max().unwrap_or_default().max(end);
    let mut building = Building::with_lanes(record);
    for happening in record {
        building.take(happening.at, &happening.what);
    }
    building.finish(end)
}

fn first_ups(record: &[Happening]) -> BTreeMap<HostId, Nanos> {
    let mut ups = BTreeMap::new();
    for happening in record {
        if let What::Up { host } = happening.what {
            ups.entry(host).or_insert(happening.at);
        }
    }
    ups
}

struct Building {
    places: BTreeMap<HostId, usize>,
    scene: Scene,
    /// Current states of each lane, with their beginnings.
    open: Vec<Vec<(Being, Nanos)>>,
    messages: Messages,
    cuts: Cuts,
}

impl Building {
    /// Creates the lanes in advance, because a message may name its receiver before the receiver's first
    /// event. A host that never ran has no lane.
    fn with_lanes(record: &[Happening]) -> Self {
        let first_up = first_ups(record);
        let mut hosts: Vec<(HostId, Lane)> = record
            .iter()
            .filter_map(|happening| match &happening.what {
                What::Host { host, name, kind } => {
                    let (name, born) = (name.clone(), *first_up.get(host)?);
                    Some((*host, Lane { name, kind, born, spells: Vec::new() }))
                }
                _ => None,
            })
            .collect();
        hosts.sort_by_key(|(_, lane)| match lane.kind {
            "client" => 1,
            "operator" => 2,
            _ => 0,
        });
        let places: BTreeMap<HostId, usize> =
            hosts.iter().enumerate().map(|(place, (host, _))| (*host, place)).collect();
        let lanes: Vec<Lane> = hosts.into_iter().map(|(_, lane)| lane).collect();
        let open = vec![Vec::new(); lanes.len()];
        let cuts = Cuts::new(lanes.iter().map(|lane| lane.kind == "client").collect());
        let scene = Scene { lanes, ..Scene::default() };
        Building { places, scene, open, messages: Messages::default(), cuts }
    }

    fn take(&mut self, at: Nanos, what: &What) {
        match what {
            What::Host { .. } | What::Note { .. } => {}
            What::Up { host } => self.close(at, *host, |being| matches!(being, Being::Down { .. })),
            What::Down { host, how } => {
                // All states of a process end with the process.
                self.close(at, *host, |_| true);
                self.begin(at, *host, Being::Down { how });
            }
            What::Paused { host } => self.begin(at, *host, Being::Paused),
            What::Resumed { host } => self.close(at, *host, |being| *being == Being::Paused),
            What::Sent { message, from, to, bytes, label } => {
                if let (Some(from), Some(to)) = (self.places.get(from), self.places.get(to)) {
                    self.messages.sent(at, *message, (*from, *to), *bytes, label);
                }
            }
            What::Arrived { message } => self.messages.arrived(at, *message),
            What::Lost { message } => self.messages.lost(at, *message),
            What::Fault { text, hosts } => {
                let lanes = hosts.iter().filter_map(|host| self.places.get(host).copied()).collect();
                self.scene.faults.push(FaultSpell { text: text.clone(), from: at, until: None, lanes });
            }
            What::Healed { text, .. } => {
                let began = |fault: &&mut FaultSpell| fault.text == *text && fault.until.is_none();
                if let Some(fault) = self.scene.faults.iter_mut().find(began) {
                    fault.until = Some(at);
                }
            }
            What::Cut { from, to } => self.cut(at, *from, *to, true),
            What::Joined { from, to } => self.cut(at, *from, *to, false),
            What::Holds { host, lock, token } => {
                self.close(at, *host, |being| matches!(being, Being::Waits { lock: l } if l == lock));
                self.begin(at, *host, Being::Holds { lock: lock.clone(), token: *token });
            }
            What::LetGo { host, lock, token } => {
                let held = Being::Holds { lock: lock.clone(), token: *token };
                self.close(at, *host, |being| *being == held);
            }
            What::Waits { host, lock } => self.begin(at, *host, Being::Waits { lock: lock.clone() }),
            What::GaveUp { host, lock } => {
                self.close(at, *host, |being| matches!(being, Being::Waits { lock: l } if l == lock));
            }
            What::Leads { host, term } => self.leads(at, *host, *term),
            What::Violation { text } => self.scene.violations.push((at, text.clone())),
        }
    }

    /// Ends the leadership of all lower terms: the trace does not record when an old leader learns of the new
    /// term.
    fn leads(&mut self, at: Nanos, host: HostId, term: u64) {
        let hosts: Vec<HostId> = self.places.keys().copied().collect();
        for other in hosts {
            self.close(at, other, |being| matches!(being, Being::Leads { term: t } if *t < term));
        }
        self.begin(at, host, Being::Leads { term });
    }

    fn cut(&mut self, at: Nanos, from: HostId, to: HostId, cut: bool) {
        if let (Some(from), Some(to)) = (self.places.get(&from), self.places.get(&to)) {
            self.cuts.change(at, *from, *to, cut);
        }
    }

    fn begin(&mut self, at: Nanos, host: HostId, being: Being) {
        let Some(place) = self.places.get(&host) else { return };
        let open = &mut self.open[*place];
        if !open.iter().any(|(other, _)| *other == being) {
            open.push((being, at));
        }
    }

    fn close(&mut self, at: Nanos, host: HostId, ends: impl Fn(&Being) -> bool) {
        let Some(place) = self.places.get(&host) else { return };
        let spells = &mut self.scene.lanes[*place].spells;
        self.open[*place].retain(|(being, from)| {
            let over = ends(being);
            if over {
                spells.push(Spell { what: being.clone(), from: *from, until: at });
            }
            !over
        });
    }

    fn finish(mut self, end: Nanos) -> Scene {
        let hosts: Vec<HostId> = self.places.keys().copied().collect();
        for host in hosts {
            self.close(end, host, |_| true);
        }
        let mut scene = self.scene;
        for lane in &mut scene.lanes {
            lane.spells.sort_by_key(|spell| spell.from);
        }
        for fault in &mut scene.faults {
            fault.until =
                fault.until.or_else(|| ends::by_text(&fault.text, fault.from)).map(|until| until.min(end));
        }
        scene.messages = self.messages.finish();
        scene.regions = self.cuts.finish(end);
        scene.end = end;
        scene
    }
}

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
struct Cuts {
    is_client: Vec<bool>,
    cut: BTreeSet<(usize, usize)>,
    since: Nanos,
    regions: Vec<Region>,
}

impl Cuts {
    fn new(is_client: Vec<bool>) -> Self {
        Cuts { is_client, cut: BTreeSet::new(), since: Nanos(0), regions: Vec::new() }
    }

    fn change(&mut self, at: Nanos, from: usize, to: usize, cut: bool) {
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

    fn finish(mut self, end: Nanos) -> Vec<Region> {
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

/// Bytes sent from one host to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Lane of the sender.
    pub from: usize,
    /// Lane of the receiver.
    pub to: usize,
    pub sent: Nanos,
    /// Time of the arrival or loss.
    pub ended: Option<Nanos>,
    pub lost: bool,
    pub bytes: usize,
    pub label: String,
}

impl Message {
    /// Returns the first word of the label, by which the page filters messages.
    pub fn kind(&self) -> &str {
        let end = self.label.find([' ', ':', '(', ',']).unwrap_or(self.label.len());
        if end == 0 { "other" } else { &self.label[..end] }
    }
}

/// Messages of a trace; messages in flight are indexed by number.
#[derive(Debug, Default)]
struct Messages {
    all: Vec<Message>,
    flying: BTreeMap<MessageId, usize>,
}

impl Messages {
    fn sent(&mut self, at: Nanos, id: MessageId, (from, to): (usize, usize), bytes: usize, label: &str) {
        self.flying.insert(id, self.all.len());
        let label = label.to_owned();
        self.all.push(Message { from, to, sent: at, ended: None, lost: false, bytes, label });
    }

    fn arrived(&mut self, at: Nanos, id: MessageId) {
        self.end(at, id, false);
    }

    fn lost(&mut self, at: Nanos, id: MessageId) {
        self.end(at, id, true);
    }

    fn end(&mut self, at: Nanos, id: MessageId, lost: bool) {
        if let Some(message) = self.flying.remove(&id).and_then(|index| self.all.get_mut(index)) {
            message.ended = Some(at);
            message.lost = lost;
        }
    }

    fn finish(self) -> Vec<Message> {
        self.all
    }
}
