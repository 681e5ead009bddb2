//! Files that are read again while the program runs: certificates, tokens.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::sync::watch;
use crate::{time, worker};

/// How often the files are read. With what reading takes, a change counts within ten seconds.
const READ_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded<E> {
    Same,
    /// The new files count from now on.
    New,
    /// The changed files cannot be used; the old ones count. Returned once for each change.
    Failed(E),
}

type Read<C, E> = dyn Fn() -> Result<C, E> + Send + Sync;
type Build<C, T, E> = dyn Fn(&C) -> Result<T, E> + Send + Sync;

/// A value built from the contents `C` of files. Files that have changed replace it all together; while they
/// cannot be used it stays.
pub struct Reloadable<C, T, E> {
    read: Box<Read<C, E>>,
    build: Box<Build<C, T, E>>,
    current: RwLock<Arc<T>>,
    seen: Mutex<Result<C, E>>,
    /// The reason why the files cannot be used as they are now.
    failure: Mutex<Option<E>>,
    asked: watch::Sender<u64>,
}

impl<C: PartialEq, T, E: Clone + PartialEq> Reloadable<C, T, E> {
    /// Reads the files for the first time. Blocks.
    ///
    /// # Errors
    /// Those of `read` and `build`.
    pub fn open(
        read: impl Fn() -> Result<C, E> + Send + Sync + 'static,
        build: impl Fn(&C) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let contents = read()?;
        let current = RwLock::new(Arc::new(build(&contents)?));
        let (seen, failure, asked) = (Mutex::new(Ok(contents)), Mutex::new(None), watch::channel(0).0);
        Ok(Reloadable { read: Box::new(read), build: Box::new(build), current, seen, failure, asked })
    }

    /// The value that counts now.
    pub fn current(&self) -> Arc<T> {
        self.current.read().clone()
    }

    /// Returns why the files cannot be used as they are now. `None`: they are in use.
    pub fn failure(&self) -> Option<E> {
        self.failure.lock().clone()
    }

    /// Has [`Reloadable::run`] read the files soon.
    pub fn look_soon(&self) {
        self.asked.modify(|asked| *asked = asked.wrapping_add(1));
    }

    /// Reads the files again; takes new ones if they can be used. Blocks.
    pub fn look(&self) -> Reloaded<E> {
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

    /// Calls `look` on a thread called `name` every five seconds and when asked, and passes on what it
    /// returns. Runs without end.
    pub async fn run<R: Send + 'static>(
        &self,
        name: &str,
        look: impl Fn() -> R + Clone + Send + 'static,
        told: impl Fn(R),
    ) {
        let mut asked = self.asked.subscribe();
        loop {
            // `self` keeps the channel open.
            let _ = time::timeout(READ_EVERY, asked.changed()).await;
            told(worker::run_blocking(name, look.clone()).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_when_it_can_be_used_and_a_failure_is_returned_once() {
        let file = Arc::new(Mutex::new(Ok("1")));
        let read = {
            let file = file.clone();
            move || *file.lock()
        };
        let number = |text: &&'static str| text.parse::<u32>().map_err(|_| "not a number");
        let numbers = Reloadable::open(read, number).expect("is a number");
        let then = |now| {
            *file.lock() = now;
            [numbers.look(), numbers.look()].map(|look| (look, *numbers.current()))
        };
        let (same, new) = (Reloaded::Same, Reloaded::New);
        assert_eq!(then(Ok("1")), [(same.clone(), 1), (same.clone(), 1)]);
        assert_eq!(then(Ok("x")), [(Reloaded::Failed("not a number"), 1), (same.clone(), 1)]);
        assert_eq!(then(Err("gone")), [(Reloaded::Failed("gone"), 1), (same.clone(), 1)]);
        assert_eq!(then(Ok("1")), [(new.clone(), 1), (same.clone(), 1)]);
        assert_eq!(then(Ok("2")), [(new, 2), (same, 2)]);
    }
}
