//! What happened: a fingerprint of everything and, on request, a record for people (stories and diagrams).
//!
//! The fingerprint is always taken, and covers more than the record: two runs of one seed must have the same
//! one.

use parking_lot::Mutex;

use crate::time::{HostId, Nanos};

/// A message between two hosts, as the diagram draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A host came into being. `kind` is its lane's heading in the diagram: `node`, `client`, ...
    Host {
        host: HostId,
        name: String,
        kind: &'static str,
    },
    /// The host's process began.
    Up {
        host: HostId,
    },
    /// The host's process ended: `how` is `killed`, `power lost`, `stopped`.
    Down {
        host: HostId,
        how: &'static str,
    },
    /// The host's process stands still (SIGSTOP, a paused VM).
    Paused {
        host: HostId,
    },
    Resumed {
        host: HostId,
    },
    /// Bytes left a host.
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
    /// A fault began, or changed the world at once. `hosts`: whom it concerns.
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
    /// A host believes from now that it holds a lock.
    Holds {
        host: HostId,
        lock: String,
        token: i64,
    },
    /// It stopped to believe that.
    LetGo {
        host: HostId,
        lock: String,
        token: i64,
    },
    /// A host waits for a lock.
    Waits {
        host: HostId,
        lock: String,
    },
    /// It waits no more without having got it.
    GaveUp {
        host: HostId,
        lock: String,
    },
    /// The host leads its cluster from now, in this term.
    Leads {
        host: HostId,
        term: u64,
    },
    /// A line of a host's log, or of the story.
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

/// The record of a world. Shared by its parts.
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

/// A record has at most this many entries; further ones are counted.
pub const HAPPENINGS_MAX: usize = 2_000_000;

impl Trace {
    /// An empty one. `keep`: whether the record is wanted, beside the fingerprint.
    pub fn new(keep: bool) -> Self {
        let inner = Inner { fingerprint: 0xcbf2_9ce4_8422_2325, happenings: Vec::new(), left_out: 0 };
        Trace { keep, inner: Mutex::new(inner) }
    }

    /// Whether there is a record for what is [noted](Trace::note): texts need not be made if not.
    pub fn is_kept(&self) -> bool {
        self.keep
    }

    /// Takes numbers into the fingerprint.
    pub fn print(&self, numbers: &[u64]) {
        let mut inner = self.inner.lock();
        for number in numbers {
            inner.fingerprint =
                (inner.fingerprint ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    /// Writes down what happened, if the record is wanted.
    pub fn note(&self, at: Nanos, what: impl FnOnce() -> What) {
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

    /// The record so far, and how many entries did not fit.
    pub fn take(&self) -> (Vec<Happening>, u64) {
        let mut inner = self.inner.lock();
        (std::mem::take(&mut inner.happenings), inner.left_out)
    }
}
