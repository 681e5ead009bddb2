//! Events of a world: a fingerprint of all events and, on request, a record for people (stories and
//! diagrams).
//!
//! The fingerprint is always computed, and covers more than the record: two runs of one seed must have equal
//! fingerprints.

use parking_lot::Mutex;

use crate::time::{HostId, Nanos};

/// Message between two hosts, as drawn in the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A host was created. `kind` is its lane's heading in the diagram: `node`, `client`, ...
    Host {
        host: HostId,
        name: String,
        kind: &'static str,
    },
    Up {
        host: HostId,
    },
    /// The host's process ended: `how` is `killed`, `power lost`, `stopped`.
    Down {
        host: HostId,
        how: &'static str,
    },
    /// The host's process was paused (SIGSTOP, a paused VM).
    Paused {
        host: HostId,
    },
    Resumed {
        host: HostId,
    },
    Sent {
        message: MessageId,
        from: HostId,
        to: HostId,
        bytes: usize,
        label: String,
    },
    Arrived {
        message: MessageId,
    },
    Lost {
        message: MessageId,
    },
    /// A fault began, or changed the world at once. `hosts` are the affected hosts.
    Fault {
        text: String,
        hosts: Vec<HostId>,
    },
    Healed {
        text: String,
        hosts: Vec<HostId>,
    },
    /// The link from one host to the other is cut.
    Cut {
        from: HostId,
        to: HostId,
    },
    Joined {
        from: HostId,
        to: HostId,
    },
    /// A host considers itself the holder of a lock from now on.
    Holds {
        host: HostId,
        lock: String,
        token: i64,
    },
    /// The host no longer considers itself the holder.
    LetGo {
        host: HostId,
        lock: String,
        token: i64,
    },
    Waits {
        host: HostId,
        lock: String,
    },
    /// The host stopped waiting without the lock.
    GaveUp {
        host: HostId,
        lock: String,
    },
    /// The host leads its cluster from now on, in this term.
    Leads {
        host: HostId,
        term: u64,
    },
    /// Line of a host's log, or of the story.
    Note {
        host: Option<HostId>,
        text: String,
    },
    /// A promise was broken.
    Violation {
        text: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    pub at: Nanos,
    pub what: What,
}

/// Record of a world, shared by its components.
#[derive(Debug)]
pub struct Trace {
    keep: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    fingerprint: u64,
    happenings: Vec<Happening>,
    left_out: u64,
}

/// Most entries of a record; further ones are only counted.
pub const HAPPENINGS_MAX: usize = 2_000_000;

impl Trace {
    /// Creates an empty trace. With `keep` the trace keeps the record beside the fingerprint.
    pub fn new(keep: bool) -> Self {
        let inner = Inner { fingerprint: 0xcbf2_9ce4_8422_2325, happenings: Vec::new(), left_out: 0 };
        Trace { keep, inner: Mutex::new(inner) }
    }

    /// Returns whether the trace keeps the record: without a record callers need not format texts.
    pub fn is_kept(&self) -> bool {
        self.keep
    }

    /// Mixes numbers into the fingerprint.
    pub fn print(&self, numbers: &[u64]) {
        let mut inner = self.inner.lock();
        for number in numbers {
            inner.fingerprint =
                (inner.fingerprint ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    /// Records an event, if the trace keeps the record.
    pub fn record(&self, at: Nanos, what: impl FnOnce() -> What) {
        if !self.keep {
            return;
        }
        let what = what();
        let mut inner = self.inner.lock();
        if inner.happenings.len() < HAPPENINGS_MAX {
            inner.happenings.push(Happening { at, what });
        } else {
            inner.left_out += 1;
        }
    }

    /// Returns the fingerprint of all events so far.
    pub fn fingerprint(&self) -> u64 {
        self.inner.lock().fingerprint
    }

    /// Returns the record so far, and the number of entries beyond the limit.
    pub fn take(&self) -> (Vec<Happening>, u64) {
        let mut inner = self.inner.lock();
        (std::mem::take(&mut inner.happenings), inner.left_out)
    }
}
