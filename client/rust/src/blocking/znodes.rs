//! The znode calls, for callers that block. Each waits for the servers alone, so that the operation timeout
//! applies.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{Acl, CreateMode, Stat, Version, WatchedEvent};

use super::Client;
use super::caller::Caller;
use super::handle::calls;
use crate::error::Error;
use crate::transaction::{Outcome, Transaction};
use crate::znode::{AccessList, Children, Created, Watched, Znode};

/// A watch on one path: [`crate::OneshotWatch`].
#[derive(Debug)]
pub struct OneshotWatch {
    caller: Caller,
    watch: crate::OneshotWatch,
}

impl OneshotWatch {
    /// Waits for the event; returns the same one when called again.
    ///
    /// # Errors
    /// As [`crate::OneshotWatch::changed`].
    pub fn changed(&mut self) -> Result<WatchedEvent, Error> {
        self.caller.wait(self.watch.changed())
    }

    /// [`OneshotWatch::changed`] for at most `patience`; `None`: nothing happened.
    ///
    /// # Errors
    /// As [`crate::OneshotWatch::changed`].
    pub fn changed_timeout(&mut self, patience: Duration) -> Result<Option<WatchedEvent>, Error> {
        let changed = self.watch.changed();
        self.caller.wait(async { time::timeout(patience, changed).await.ok().transpose() })
    }
}

fn watched<T>(caller: &Caller, read: Watched<T>) -> Watched<T, OneshotWatch> {
    Watched { value: read.value, watch: OneshotWatch { caller: caller.clone(), watch: read.watch } }
}

impl Client {
    calls! { "Client" {
        ask fn create(path: &str, data: Option<Bytes>, mode: CreateMode, acl: Vec<Acl>) -> Created;
        ask fn create_with_ttl(
            path: &str, data: Option<Bytes>, mode: CreateMode, acl: Vec<Acl>, ttl: Duration
        ) -> Created;
        ask fn delete(path: &str, version: Option<Version>) -> ();
        ask fn exists(path: &str) -> Option<Stat>;
        ask fn exists_watched(path: &str) -> Watched<Option<Stat>, OneshotWatch>, watched;
        ask fn get(path: &str) -> Znode;
        ask fn get_watched(path: &str) -> Watched<Znode, OneshotWatch>, watched;
        ask fn get_children(path: &str) -> Children;
        ask fn get_children_watched(path: &str) -> Watched<Children, OneshotWatch>, watched;
        ask fn set(path: &str, data: Option<Bytes>, version: Option<Version>) -> Stat;
        ask fn get_acl(path: &str) -> AccessList;
        ask fn set_acl(path: &str, acl: Vec<Acl>, version: Option<Version>) -> Stat;
        ask fn sync(path: &str) -> ();
        ask fn get_ephemerals(prefix: &str) -> Vec<String>;
        ask fn commit(transaction: Transaction) -> Vec<Outcome>;
        ask fn add_auth(scheme: impl Into<String>, secret: impl Into<Bytes>) -> ();
    } }
}
