//! Keeper of the current TLS material. Reloads changed files, all together; an unusable file changes nothing.

use std::sync::Arc;

use rowlock_env::reload::{self, Reloadable};

use crate::error::TlsError;
use crate::files::{Contents, Files};
use crate::material::{AllWatched, ClientAuth, Material};

pub type Reloaded = reload::Reloaded<TlsError>;

/// Keeps a node's material up to date.
pub struct Keeper {
    files: Reloadable<Contents, Material, TlsError>,
    watched: Arc<AllWatched>,
}

impl Keeper {
    /// Reads the files for the first time. `check` refuses material unfit for this node. Blocks.
    ///
    /// # Errors
    /// The file, the problem, and the remedy.
    pub fn open(
        files: Files,
        client_auth: ClientAuth,
        check: impl Fn(&Material) -> Result<(), TlsError> + Send + Sync + 'static,
    ) -> Result<Keeper, TlsError> {
        let watched = Arc::new(AllWatched::default());
        let (paths, registries) = (files.clone(), watched.clone());
        let build = move |contents: &Contents| {
            let material = Material::of(&paths, contents, client_auth, registries.registries())?;
            check(&material)?;
            Ok(material)
        };
        Ok(Keeper { files: Reloadable::open(move || files.read(), build)?, watched })
    }

    pub fn material(&self) -> Arc<Material> {
        self.files.current()
    }

    /// Makes [`Keeper::run`] reload the files soon.
    pub fn reload_soon(&self) {
        self.files.reload_soon();
    }

    /// Reloads the files, and uses the new files if all are valid. Returns a failure once per change. Blocks.
    pub fn reload(&self) -> Reloaded {
        let old = self.material();
        let reloaded = self.files.reload();
        if reloaded == Reloaded::New {
            old.is_replaced();
        }
        reloaded
    }

    /// Closes the connections with expired certificates, and after new files also the connections with
    /// untrusted certificates. Call after [`Keeper::reload`]. Returns the number of closed connections.
    /// Blocks.
    pub fn close_outdated(&self, reloaded: &Reloaded) -> usize {
        let material = self.material();
        self.watched.close_outdated((*reloaded == Reloaded::New).then_some(&material))
    }

    /// Reloads the files periodically without end, closes connections with outdated certificates, and passes
    /// each result with the number of closed connections to `report`.
    pub async fn run(self: Arc<Self>, report: impl Fn(&Material, &Reloaded, usize)) {
        let keeper = self.clone();
        let reload = move || {
            let reloaded = keeper.reload();
            let closed = keeper.close_outdated(&reloaded);
            (reloaded, closed)
        };
        self.files
            .run("tls-files", reload, |(reloaded, closed)| report(&self.material(), &reloaded, closed))
            .await;
    }
}
