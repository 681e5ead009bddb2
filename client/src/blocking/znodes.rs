//! The znode calls, for callers that block. Each waits for the servers alone, so that the operation timeout
//! applies.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{Acl, CreateMode, Stat, Version, WatchedEvent};

use super::Client;
use super::caller::Caller;
use crate::error::Error;
use crate::transaction::{Outcome, Transaction};
use crate::watch::OneshotWatch;

/// A watch on one path: [`OneshotWatch`].
#[derive(Debug)]
pub struct Watch {
    caller: Caller,
    watch: OneshotWatch,
}

impl Watch {
    /// Waits for the event; returns the same one when called again.
    ///
    /// # Errors
    /// As [`OneshotWatch::changed`].
    pub fn changed(&mut self) -> Result<WatchedEvent, Error> {
        self.caller.wait(self.watch.changed())
    }

    /// [`Watch::changed`] for at most `patience`; `None`: nothing happened.
    ///
    /// # Errors
    /// As [`OneshotWatch::changed`].
    pub fn changed_timeout(&mut self, patience: Duration) -> Result<Option<WatchedEvent>, Error> {
        let changed = self.watch.changed();
        self.caller.wait(async {
            match time::timeout(patience, changed).await {
                Ok(event) => event.map(Some),
                Err(time::Elapsed) => Ok(None),
            }
        })
    }
}

impl Client {
    fn watch(&self, watch: OneshotWatch) -> Watch {
        Watch { caller: self.caller.clone(), watch }
    }

    /// See [`crate::Client::create`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn create(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
        acl: Vec<Acl>,
    ) -> Result<(String, Stat), Error> {
        self.caller.ask(self.caller.client().create(path, data, mode, acl))
    }

    /// See [`crate::Client::create_with_ttl`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn create_with_ttl(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
        acl: Vec<Acl>,
        ttl: Duration,
    ) -> Result<(String, Stat), Error> {
        self.caller.ask(self.caller.client().create_with_ttl(path, data, mode, acl, ttl))
    }

    /// See [`crate::Client::delete`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn delete(&self, path: &str, version: Option<Version>) -> Result<(), Error> {
        self.caller.ask(self.caller.client().delete(path, version))
    }

    /// See [`crate::Client::exists`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn exists(&self, path: &str) -> Result<Option<Stat>, Error> {
        self.caller.ask(self.caller.client().exists(path))
    }

    /// See [`crate::Client::exists_watched`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn exists_watched(&self, path: &str) -> Result<(Option<Stat>, Watch), Error> {
        let (stat, watch) = self.caller.ask(self.caller.client().exists_watched(path))?;
        Ok((stat, self.watch(watch)))
    }

    /// See [`crate::Client::get`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get(&self, path: &str) -> Result<(Option<Bytes>, Stat), Error> {
        self.caller.ask(self.caller.client().get(path))
    }

    /// See [`crate::Client::get_watched`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get_watched(&self, path: &str) -> Result<((Option<Bytes>, Stat), Watch), Error> {
        let (read, watch) = self.caller.ask(self.caller.client().get_watched(path))?;
        Ok((read, self.watch(watch)))
    }

    /// See [`crate::Client::get_children`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get_children(&self, path: &str) -> Result<(Vec<String>, Stat), Error> {
        self.caller.ask(self.caller.client().get_children(path))
    }

    /// See [`crate::Client::get_children_watched`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get_children_watched(&self, path: &str) -> Result<((Vec<String>, Stat), Watch), Error> {
        let (read, watch) = self.caller.ask(self.caller.client().get_children_watched(path))?;
        Ok((read, self.watch(watch)))
    }

    /// See [`crate::Client::set`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn set(&self, path: &str, data: Option<Bytes>, version: Option<Version>) -> Result<Stat, Error> {
        self.caller.ask(self.caller.client().set(path, data, version))
    }

    /// See [`crate::Client::get_acl`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get_acl(&self, path: &str) -> Result<(Vec<Acl>, Stat), Error> {
        self.caller.ask(self.caller.client().get_acl(path))
    }

    /// See [`crate::Client::set_acl`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn set_acl(&self, path: &str, acl: Vec<Acl>, version: Option<Version>) -> Result<Stat, Error> {
        self.caller.ask(self.caller.client().set_acl(path, acl, version))
    }

    /// See [`crate::Client::sync`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn sync(&self, path: &str) -> Result<(), Error> {
        self.caller.ask(self.caller.client().sync(path))
    }

    /// See [`crate::Client::get_ephemerals`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get_ephemerals(&self, prefix: &str) -> Result<Vec<String>, Error> {
        self.caller.ask(self.caller.client().get_ephemerals(prefix))
    }

    /// See [`crate::Client::commit`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn commit(&self, transaction: Transaction) -> Result<Vec<Outcome>, Error> {
        self.caller.ask(self.caller.client().commit(transaction))
    }

    /// See [`crate::Client::add_auth`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn add_auth(&self, scheme: impl Into<String>, secret: impl Into<Bytes>) -> Result<(), Error> {
        self.caller.ask(self.caller.client().add_auth(scheme, secret))
    }
}
