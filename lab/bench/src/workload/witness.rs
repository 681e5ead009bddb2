//! Checks that one lock of a trial never has two holders at once: that would be an error of the system, not a
//! figure.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};

/// Who holds one lock; 0: it is free.
#[derive(Default)]
pub struct Witness(AtomicU64);

impl Witness {
    /// Client `n` has just been told that it holds the lock.
    ///
    /// # Errors
    /// Another client still holds it.
    pub fn enter(&self, n: usize) -> Result<()> {
        match self.0.compare_exchange(0, n as u64 + 1, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Ok(()),
            Err(other) => bail!("client {n} was granted the lock that client {} holds", other - 1),
        }
    }

    /// Client `n` is about to give it back.
    pub fn leave(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
