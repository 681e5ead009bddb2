//! [`Site`]: path of a handle's znode. All handles have a `Site`, and all checks of names are here.
//!
//! Locks are below the lock base, elections below the folder `@elections`: recipes with a queue have names
//! with levels ([`rowlock_proto::name`]), hence the lock `@elections/x` is the queue of the election `x`.
//! Recipes on plain znodes have a folder per kind, also with a leading `@`. Their children are members, or
//! their existence alone counts, hence a name is a single level there, with encoded slashes.

use rowlock_proto::name;
use rowlock_proto::path;

use crate::client::Client;
use crate::error::{Error, NameError};

/// Kind of recipe, by which names are resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Latch,
    Lock,
}

impl Kind {
    /// Below the lock base.
    fn folder(self) -> Option<&'static str> {
        match self {
            Kind::Barrier => Some("@barriers"),
            Kind::Counter => Some("@counters"),
            Kind::DoubleBarrier => Some("@double-barriers"),
            Kind::Election => Some("@elections"),
            Kind::Latch => Some("@latches"),
            Kind::Lock => None,
        }
    }
}

/// Znode of a handle, on a session. Making a site does nothing.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    client: Client,
    /// Path of the application, without the chroot.
    path: String,
    /// Reason for refusing every use.
    refusal: Option<Error>,
}

impl Site {
    pub(crate) fn named(client: &Client, kind: Kind, name: &str) -> Site {
        let base = &client.config().lock_base;
        let folder = kind.folder().map_or_else(|| base.clone(), |folder| path::join(base, folder));
        let path = match kind {
            Kind::Lock | Kind::Election => name::path_below(&folder, name),
            Kind::Barrier | Kind::Counter | Kind::DoubleBarrier | Kind::Latch => {
                name::path_of_one_level(&folder, name)
            }
        };
        let refusal = path.as_ref().err().map(|rule| Error::InvalidName(rule.clone().into()));
        let path = path.unwrap_or_else(|_| path::join(&folder, &name::escape(name)));
        Site { client: client.clone(), path, refusal }
    }

    pub(crate) fn at(client: &Client, path: &str) -> Site {
        let refusal = match path::validate(path) {
            Ok(()) if path != "/" => None,
            Ok(()) => Some(NameError::Root),
            Err(error) => Some(NameError::Path(error)),
        };
        Site { client: client.clone(), path: path.to_owned(), refusal: refusal.map(Error::InvalidName) }
    }

    /// Makes every use of the site fail with `error`.
    pub(crate) fn refused(self, error: Error) -> Site {
        Site { refusal: self.refusal.or(Some(error)), ..self }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Path of the znode, valid or not.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Path of the znode, or the reason for a refusal.
    pub(crate) fn usable(&self) -> Result<&str, Error> {
        match &self.refusal {
            None => Ok(&self.path),
            Some(error) => Err(error.clone()),
        }
    }

    /// Path on the server, or the reason for a refusal.
    pub(crate) fn absolute(&self) -> Result<String, Error> {
        Ok(self.client.absolute(self.usable()?))
    }
}
