//! Reads the trace once and turns beginnings and ends into spans.

use std::collections::BTreeMap;

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::cuts::Cuts;
use super::message::Messages;
use crate::report::ends;

use super::{Being, FaultSpell, Lane, Scene, Spell};

pub(super) fn scene(record: &[Happening], end: Nanos) -> Scene {
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
