//! The material of now. Files that have changed are read again, all together: bad files change nothing.

use std::sync::Arc;

use rowlock_env::reload::{self, Reloadable};

use crate::error::TlsError;
use crate::files::{Contents, Files};
use crate::material::{AllWatched, ClientAuth, Material};

/// What became of reading the files again.
pub type Reloaded = reload::Reloaded<TlsError>;

/// Keeps the material of a node up to date.
pub struct Keeper {
    files: Reloadable<Contents, Material, TlsError>,
    watched: Arc<AllWatched>,
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
        let watched = Arc::new(AllWatched::default());
        let (paths, books) = (files.clone(), watched.clone());
        let build = move |contents: &Contents| {
            let material = Material::of(&paths, contents, client_auth, books.books())?;
            check(&material)?;
            Ok(material)
        };
        Ok(Keeper { files: Reloadable::open(move || files.read(), build)?, watched })
    }

    pub fn material(&self) -> Arc<Material> {
        self.files.current()
    }

    /// Has [`Keeper::run`] read the files soon.
    pub fn look_soon(&self) {
        self.files.look_soon();
    }

    /// Reads the files again; takes new ones if they are good. A failure is returned once for each change.
    /// Blocks.
    pub fn look(&self) -> Reloaded {
        let old = self.material();
        let reloaded = self.files.look();
        if reloaded == Reloaded::New {
            old.is_replaced();
        }
        reloaded
    }

    /// After a look at the files: closes the connections whose certificates have expired, and with new files
    /// also those whose certificates do not count any more. Returns how many. Blocks.
    pub fn close_outdated(&self, reloaded: &Reloaded) -> usize {
        let material = self.material();
        self.watched.close_outdated((*reloaded == Reloaded::New).then_some(&material))
    }

    /// Reads the files again and again without end, closes connections whose certificates do not count any
    /// more, and tells `told` what became of each look and how many were closed.
    pub async fn run(self: Arc<Self>, told: impl Fn(&Material, &Reloaded, usize)) {
        let keeper = self.clone();
        let look = move || {
            let reloaded = keeper.look();
            let closed = keeper.close_outdated(&reloaded);
            (reloaded, closed)
        };
        self.files
            .run("tls-files", look, |(reloaded, closed)| told(&self.material(), &reloaded, closed))
            .await;
    }
}
