//! A trace for the eye: hosts side by side, and the state of each host over time.

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
        build::scene(record, end)
    }
}
