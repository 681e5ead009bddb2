//! Reloading of files in a running program: certificates, tokens.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::sync::watch;
use crate::{time, worker};

/// Interval of reading the files. Including the reading, a change takes effect within ten seconds.
const READ_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded<E> {
    Same,
    /// The new files are in use.
    New,
    /// The changed files are unusable, and the old value stays in use. Returned once per change.
    Failed(E),
}

type Read<C, E> = dyn Fn() -> Result<C, E> + Send + Sync;
type Build<C, T, E> = dyn Fn(&C) -> Result<T, E> + Send + Sync;

/// A value built from the contents `C` of files. Changed files replace the value as a whole; unusable files
/// leave the value unchanged.
pub struct Reloadable<C, T, E> {
    read: Box<Read<C, E>>,
    build: Box<Build<C, T, E>>,
    current: RwLock<Arc<T>>,
    seen: Mutex<Result<C, E>>,
    failure: Mutex<Option<E>>,
    asked: watch::Sender<u64>,
}

impl<C: PartialEq, T, E: Clone + PartialEq> Reloadable<C, T, E> {
    /// Reads the files for the first time. Blocks.
    ///
    /// # Errors
    /// The errors of `read` and `build`.
    pub fn open(
        read: impl Fn() -> Result<C, E> + Send + Sync + 'static,
        build: impl Fn(&C) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let contents = read()?;
        let current = RwLock::new(Arc::new(build(&contents)?));
        let (seen, failure, asked) = (Mutex::new(Ok(contents)), Mutex::new(None), watch::channel(0).0);
        Ok(Reloadable { read: Box::new(read), build: Box::new(build), current, seen, failure, asked })
    }

    pub fn current(&self) -> Arc<T> {
        self.current.read().clone()
    }

    /// Returns the error of the present files, or `None` if the files are in use.
    pub fn failure(&self) -> Option<E> {
        self.failure.lock().clone()
    }

    /// Makes [`Reloadable::run`] read the files soon.
    pub fn reload_soon(&self) {
        self.asked.modify(|asked| *asked = asked.wrapping_add(1));
    }

    /// Reads the files, and replaces the value if the changed files are usable. Blocks.
    pub fn reload(&self) -> Reloaded<E> {
        let mut seen = self.seen.lock();
        let now = (self.read)();
        if *seen == now {
            return Reloaded::Same;
        }
        let built = now.as_ref().map_err(Clone::clone).and_then(|contents| (self.build)(contents));
        *seen = now;
        *self.failure.lock() = built.as_ref().err().cloned();
        match built {
            Ok(value) => {
                *self.current.write() = Arc::new(value);
                Reloaded::New
            }
            Err(error) => Reloaded::Failed(error),
        }
    }

    /// Calls `reload` on a thread called `name` every five seconds and on request, and passes each result to
    /// `report`. Runs without end.
    pub async fn run<R: Send + 'static>(
        &self,
        name: &str,
        reload: impl Fn() -> R + Clone + Send + 'static,
        report: impl Fn(R),
    ) {
        let mut asked = self.asked.subscribe();
        loop {
            // `self` keeps the channel open.
            let _ = time::timeout(READ_EVERY, asked.changed()).await;
            report(worker::run_blocking(name, reload.clone()).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usable_change_applies_and_a_failure_is_returned_once() {
        let file = Arc::new(Mutex::new(Ok("1")));
        let read = {
            let file = file.clone();
            move || *file.lock()
        };
        let number = |text: &&'static str| text.parse::<u32>().map_err(|_| "not a number");
        let numbers = Reloadable::open(read, number).expect("is a number");
        let then = |now| {
            *file.lock() = now;
            [numbers.reload(), numbers.reload()].map(|reload| (reload, *numbers.current()))
        };
        let (same, new) = (Reloaded::Same, Reloaded::New);
        assert_eq!(then(Ok("1")), [(same.clone(), 1), (same.clone(), 1)]);
        assert_eq!(then(Ok("x")), [(Reloaded::Failed("not a number"), 1), (same.clone(), 1)]);
        assert_eq!(then(Err("gone")), [(Reloaded::Failed("gone"), 1), (same.clone(), 1)]);
        assert_eq!(then(Ok("1")), [(new.clone(), 1), (same.clone(), 1)]);
        assert_eq!(then(Ok("2")), [(new, 2), (same, 2)]);
    }
}
