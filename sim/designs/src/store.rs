//! Protected data: a number that clients read, and write back incremented. One store accepts every write. The
//! other store checks tokens and refuses any token below the highest one so far, for reads and writes (a read
//! counts too: otherwise a late write could fall between a later holder's read and its write).
//!
//! For a design without tokens the checking store has nothing to compare: a random value names its holder,
//! but has no order. The checking store then behaves like the trusting one.

use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Number {
    value: u64,
    writes: u64,
    newest: u64,
    refused: u64,
}

impl Number {
    fn admits(&mut self, token: Option<u64>) -> bool {
        match token {
            Some(token) if token < self.newest => {
                self.refused += 1;
                false
            }
            Some(token) => {
                self.newest = token;
                true
            }
            None => true,
        }
    }

    fn read(&mut self, token: Option<u64>) -> Option<u64> {
        self.admits(token).then_some(self.value)
    }

    fn write(&mut self, token: Option<u64>, value: u64) {
        if self.admits(token) {
            self.value = value;
            self.writes += 1;
        }
    }
}

/// Both stores; clones share the data.
#[derive(Clone, Debug, Default)]
pub struct Stores(Arc<Mutex<[Number; 2]>>);

/// Values that a client has read from both stores.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    plain: Option<u64>,
    fenced: Option<u64>,
}

/// Fate of the writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Accepted writes of the trusting store that its number lacks.
    pub plain: u64,
    /// Accepted writes of the fenced store that its number lacks.
    pub fenced: u64,
    /// Reads and writes that the fenced store has refused.
    pub refused: u64,
    /// Jobs whose writes the trusting store has.
    pub jobs: u64,
}

impl Stores {
    pub fn read(&self, token: Option<u64>) -> Seen {
        let [plain, fenced] = &mut *self.0.lock();
        Seen { plain: plain.read(None), fenced: fenced.read(token) }
    }

    /// Writes both stores, one higher than the value read.
    pub fn write(&self, token: Option<u64>, seen: Seen) {
        let [plain, fenced] = &mut *self.0.lock();
        if let Some(value) = seen.plain {
            plain.write(None, value + 1);
        }
        if let Some(value) = seen.fenced {
            fenced.write(token, value + 1);
        }
    }

    pub fn losses(&self) -> Losses {
        let [plain, fenced] = &*self.0.lock();
        Losses {
            plain: plain.writes - plain.value,
            fenced: fenced.writes - fenced.value,
            refused: fenced.refused,
            jobs: plain.writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fenced_store_refuses_a_late_write() {
        let stores = Stores::default();
        let old = stores.read(Some(1));
        let new = stores.read(Some(2));
        stores.write(Some(2), new);
        stores.write(Some(1), old);
        assert_eq!(stores.losses(), Losses { plain: 1, fenced: 0, refused: 1, jobs: 2 });
    }

    #[test]
    fn a_late_write_before_the_later_holders_write_is_refused_too() {
        let stores = Stores::default();
        let old = stores.read(Some(1));
        let new = stores.read(Some(2));
        stores.write(Some(1), old);
        stores.write(Some(2), new);
        assert_eq!(stores.losses().fenced, 0);
    }

    #[test]
    fn without_tokens_the_fenced_store_can_do_nothing() {
        let stores = Stores::default();
        let (old, new) = (stores.read(None), stores.read(None));
        stores.write(None, new);
        stores.write(None, old);
        assert_eq!((stores.losses().plain, stores.losses().fenced), (1, 1));
    }
}
