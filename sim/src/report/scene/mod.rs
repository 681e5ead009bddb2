//! A record as a person sees it: hosts side by side, and the state of each over time.

mod build;
mod cuts;
mod message;

use rowlock_world::time::Nanos;
use rowlock_world::trace::Happening;

pub use cuts::{Region, Wall};
pub use message::Message;

/// A run, ready to be drawn. Hosts are named by their place in [`Scene::lanes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// One per host that ever ran: those that serve, then clients, then operators.
    pub lanes: Vec<Lane>,
    /// Messages between hosts, in the order of sending.
    pub messages: Vec<Message>,
    /// Who could not reach whom, one region per spell in which that stayed as it was.
    pub regions: Vec<Region>,
    /// The faults that were injected.
    pub faults: Vec<FaultSpell>,
    /// Promises that were broken.
    pub violations: Vec<(Nanos, String)>,
    /// When the record ends.
    pub end: Nanos,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    pub name: String,
    pub kind: &'static str,
    /// When it came into being.
    pub born: Nanos,
    /// What it was, in the order of beginning.
    pub spells: Vec<Spell>,
}

/// A time during which a host was something.
#[derive(Clone, Debug, PartialEq)]
pub struct Spell {
    pub what: Being,
    pub from: Nanos,
    /// Until then; the end of the record, if it was so to the end.
    pub until: Nanos,
}

/// State of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Being {
    /// Its process is not there: `how` says why (`killed`, `power lost`, `stopped`).
    Down { how: &'static str },
    /// Its process stands still.
    Paused,
    /// It leads in this term, as far as it knows.
    Leads { term: u64 },
    /// It believes that it holds the lock.
    Holds { lock: String, token: i64 },
    /// It waits for the lock.
    Waits { lock: String },
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpell {
    /// As the script says it.
    pub text: String,
    pub from: Nanos,
    /// When it was over; `None` if it was over at once, or never.
    pub until: Option<Nanos>,
    pub lanes: Vec<usize>,
}

impl Scene {
    /// The scene of a record that ends at `end`.
    pub fn of(record: &[Happening], end: Nanos) -> Scene {
        build::scene(record, end)
    }
}
