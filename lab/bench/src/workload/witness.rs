//! Check that one lock of a trial never has two holders at once: a second holder is an error of the system,
//! not a figure.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};

/// Number of the lock's holder; 0 means free.
#[derive(Default)]
pub struct Witness(AtomicU64);

impl Witness {
    /// Records that client `n` has been granted the lock.
    ///
    /// # Errors
    /// Another client still holds the lock.
    pub fn enter(&self, n: usize) -> Result<()> {
        match self.0.compare_exchange(0, n as u64 + 1, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Ok(()),
            Err(other) => bail!("client {n} was granted the lock that client {} holds", other - 1),
        }
    }

    /// Records that client `n` is about to release.
    pub fn leave(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
