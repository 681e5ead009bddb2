//! [`Site`]: where a handle's znode is. All handles have one, so that names are checked in one place.
//!
//! Locks are below the lock base, elections below its folder `@elections`: what has a queue has a name with
//! levels ([`rowlock_proto::name`]), so the lock `@elections/x` is the queue of the election `x`. Recipes on
//! plain znodes have one folder per kind, whose name begins with `@` too. Their children are members, or
//! their existence alone counts, so a name is one level there, its slashes encoded.

use rowlock_proto::name;
use rowlock_proto::path;

use crate::client::Client;
use crate::error::{Error, NameError};

/// The kind of recipe that a name belongs to.
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

/// A handle's znode, on a session. Making one does nothing.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    client: Client,
    /// As the application would write it, without the chroot.
    path: String,
    /// Why it cannot be used.
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

    /// The same, but every use of it fails like this.
    pub(crate) fn refused(self, error: Error) -> Site {
        Site { refusal: self.refusal.or(Some(error)), ..self }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Also of one that cannot be used.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The path of one that can be used.
    pub(crate) fn usable(&self) -> Result<&str, Error> {
        match &self.refusal {
            None => Ok(&self.path),
            Some(error) => Err(error.clone()),
        }
    }

    /// The path on the server of one that can be used.
    pub(crate) fn absolute(&self) -> Result<String, Error> {
        Ok(self.client.absolute(self.usable()?))
    }
}
