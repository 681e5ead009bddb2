//! The material of now. Files that have changed are read again, all together: a bad one leaves everything as
//! it was.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::{time, worker};

use crate::error::TlsError;
use crate::files::{Contents, Files};
use crate::material::{AllWatched, ClientAuth, Material};

/// How often the files are looked at. With what reading takes, a change counts within ten seconds.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What became of a look at the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// They are as they were.
    Same,
    /// New ones count from now on.
    New,
    /// They cannot be used; the old ones count.
    Failed(TlsError),
}

/// What else the material must be for a node.
type Check = dyn Fn(&Material) -> Result<(), TlsError> + Send + Sync;

/// Keeps the material of a node up to date.
pub struct Keeper {
    files: Files,
    client_auth: ClientAuth,
    check: Box<Check>,
    current: RwLock<Arc<Material>>,
    /// What the current material, or the last that failed, was made of.
    seen: Mutex<Seen>,
    ask: watch::Sender<u64>,
    watched: AllWatched,
}

struct Seen {
    contents: Option<Contents>,
    failed: Option<TlsError>,
}

impl Keeper {
    /// Reads the files for the first time. `check` says what else the material must be for this node. Blocks.
    ///
    /// # Errors
    /// The file, what is wrong with it, and what to do.
    pub fn open(
        files: Files,
        client_auth: ClientAuth,
        check: impl Fn(&Material) -> Result<(), TlsError> + Send + Sync + 'static,
    ) -> Result<Keeper, TlsError> {
        let contents = files.read()?;
        let watched = AllWatched::default();
        let material = Material::of(&files, &contents, client_auth, watched.books())?;
        check(&material)?;
        let seen = Seen { contents: Some(contents), failed: None };
        Ok(Keeper {
            files,
            client_auth,
            check: Box::new(check),
            current: RwLock::new(Arc::new(material)),
            seen: Mutex::new(seen),
            ask: watch::channel(0).0,
            watched,
        })
    }

    /// The material of now.
    pub fn material(&self) -> Arc<Material> {
        self.current.read().clone()
    }

    /// Has the files looked at soon, by [`Keeper::run`].
    pub fn look_soon(&self) {
        self.ask.modify(|asked| *asked = asked.wrapping_add(1));
    }

    /// Looks at the files; takes new ones if they are good. A failure is told once for each change. Blocks.
    pub fn look(&self) -> Reloaded {
        let mut seen = self.seen.lock();
        let contents = match self.files.read() {
            Ok(contents) => contents,
            Err(error) if seen.failed.as_ref() == Some(&error) => return Reloaded::Same,
            Err(error) => {
                *seen = Seen { contents: None, failed: Some(error.clone()) };
                return Reloaded::Failed(error);
            }
        };
        if seen.contents.as_ref() == Some(&contents) {
            return Reloaded::Same;
        }
        let read = Material::of(&self.files, &contents, self.client_auth, self.watched.books());
        let read = read.and_then(|material| (self.check)(&material).map(|()| material));
        seen.contents = Some(contents);
        match read {
            Ok(material) => {
                let old = std::mem::replace(&mut *self.current.write(), Arc::new(material));
                old.is_replaced();
                seen.failed = None;
                Reloaded::New
            }
            Err(error) => {
                seen.failed = Some(error.clone());
                Reloaded::Failed(error)
            }
        }
    }

    /// After a look at the files: closes the connections whose certificates have expired, and with new files
    /// also those whose certificates do not count any more. Gives how many. Blocks.
    pub fn close_outdated(&self, reloaded: &Reloaded) -> usize {
        let material = self.material();
        self.watched.close_outdated((*reloaded == Reloaded::New).then_some(&material))
    }

    /// Looks at the files again and again until `shutdown`, closes connections whose certificates do not
    /// count any more, and tells `told` what became of each look and how many were closed.
    pub async fn run(self: Arc<Self>, told: impl Fn(&Material, &Reloaded, usize), shutdown: Shutdown) {
        let mut asked = self.ask.subscribe();
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                _ = asked.changed() => {}
                () = time::sleep(LOOK_EVERY) => {}
            }
            let keeper = self.clone();
            let (reloaded, closed) = worker::run_blocking("tls-files", move || {
                let reloaded = keeper.look();
                let closed = keeper.close_outdated(&reloaded);
                (reloaded, closed)
            })
            .await;
            told(&self.material(), &reloaded, closed);
        }
    }
}
