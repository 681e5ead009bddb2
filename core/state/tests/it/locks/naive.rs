//! Locks as one would explain them: a list per lock, gone through from the front after every change.

use rowlock_proto::SessionId;
use rowlock_proto::lock::{Claim, Mode, QueuePosition};

/// What observers are told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    Gone(String, bool),
    Granted(String),
}

struct One {
    path: String,
    mode: Mode,
    session: SessionId,
    holds: bool,
}

pub struct Naive {
    locks: Vec<Vec<One>>,
    limits: Vec<u32>,
}

pub fn claim(position: &QueuePosition) -> Option<Claim> {
    match position {
        QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => Some(claim.clone()),
        _ => None,
    }
}

/// Whether it holds, and how many are before it if not.
pub fn position(position: &QueuePosition) -> Option<usize> {
    match position {
        QueuePosition::Waiting { ahead, .. } => Some(*ahead as usize),
        _ => None,
    }
}

impl Naive {
    pub fn new(locks: usize) -> Self {
        Naive { locks: (0..locks).map(|_| Vec::new()).collect(), limits: vec![3; locks] }
    }

    fn fits(&self, lock: usize, mode: Mode) -> bool {
        let holders: Vec<Mode> =
            self.locks[lock].iter().filter(|one| one.holds).map(|one| one.mode).collect();
        let permits = |mode: &Mode| if let Mode::Permits(n) = mode { *n } else { 0 };
        let taken: u32 = holders.iter().map(permits).sum();
        holders.iter().all(|holder| match (holder, mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits(_), Mode::Permits(n)) => taken + n <= self.limits[lock],
            _ => false,
        })
    }

    pub fn may_enter(&self, lock: usize, mode: Mode, wait: bool) -> bool {
        let within = !matches!(mode, Mode::Permits(n) if n > self.limits[lock]);
        let at_once = self.locks[lock].iter().all(|one| one.holds) && self.fits(lock, mode);
        within && (wait || at_once)
    }

    /// From the front: the first that does not hold is granted the lock if it fits beside the holders, and so
    /// on.
    fn settle(&mut self, lock: usize, seen: &mut Vec<Seen>) {
        while let Some(next) = self.locks[lock].iter().position(|one| !one.holds) {
            if !self.fits(lock, self.locks[lock][next].mode) {
                return;
            }
            self.locks[lock][next].holds = true;
            seen.push(Seen::Granted(self.locks[lock][next].path.clone()));
        }
    }

    pub fn enter(&mut self, places: &[(usize, String, Mode, SessionId)]) -> Vec<Seen> {
        let mut seen = Vec::new();
        for (lock, path, mode, session) in places {
            self.locks[*lock].push(One { path: path.clone(), mode: *mode, session: *session, holds: false });
        }
        let mut changed: Vec<usize> = places.iter().map(|(lock, ..)| *lock).collect();
        changed.sort_unstable();
        for lock in changed {
            self.settle(lock, &mut seen);
        }
        seen
    }

    pub fn leave(&mut self, lock: usize, path: &str) -> Vec<Seen> {
        let at = self.locks[lock].iter().position(|one| one.path == path).unwrap();
        let one = self.locks[lock].remove(at);
        let mut seen = vec![Seen::Gone(one.path, one.holds)];
        self.settle(lock, &mut seen);
        seen
    }

    pub fn end(&mut self, session: SessionId) -> Vec<Seen> {
        let mut seen = Vec::new();
        for lock in 0..self.locks.len() {
            let (gone, stay): (Vec<One>, Vec<One>) =
                std::mem::take(&mut self.locks[lock]).into_iter().partition(|one| one.session == session);
            self.locks[lock] = stay;
            seen.extend(gone.into_iter().map(|one| Seen::Gone(one.path, one.holds)));
        }
        for lock in 0..self.locks.len() {
            self.settle(lock, &mut seen);
        }
        seen
    }

    pub fn resize(&mut self, lock: usize, limit: u32) -> Vec<Seen> {
        self.limits[lock] = limit;
        let mut seen = Vec::new();
        self.settle(lock, &mut seen);
        seen
    }

    pub fn convert(&mut self, lock: usize, path: &str, mode: Mode, new: Option<&str>) -> Vec<Seen> {
        let len = self.locks[lock].len();
        let one = self.locks[lock].iter_mut().find(|one| one.path == path).unwrap();
        let mut seen = Vec::new();
        match (one.mode, mode) {
            _ if !one.holds => {}
            (Mode::Exclusive, Mode::Shared) => one.mode = mode,
            (Mode::Permits(before), Mode::Permits(after)) if after < before => one.mode = mode,
            (Mode::Shared, Mode::Exclusive) if len == 1 => {
                seen.push(Seen::Gone(path.to_owned(), true));
                seen.push(Seen::Granted(new.expect("alone, so the conversion succeeds").to_owned()));
                (one.path, one.mode) = (new.unwrap().to_owned(), mode);
            }
            _ => {}
        }
        self.settle(lock, &mut seen);
        seen
    }

    pub fn position(&self, lock: usize, path: &str) -> Option<usize> {
        let at = self.locks[lock].iter().position(|one| one.path == path).unwrap();
        (!self.locks[lock][at].holds).then_some(at)
    }

    /// The n-th contender, modulo their number: path, session, whether it holds.
    pub fn at(&self, lock: usize, at: usize) -> Option<(String, SessionId, bool)> {
        let queue = &self.locks[lock];
        let one = queue.get(at % queue.len().max(1))?;
        Some((one.path.clone(), one.session, one.holds))
    }

    pub fn queue(&self, lock: usize) -> Vec<(String, Mode, bool)> {
        self.locks[lock].iter().map(|one| (one.path.clone(), one.mode, one.holds)).collect()
    }
}
