//! Removes a queue znode that is not needed any more, in the background.
//!
//! Posted by drops, done by the session machine between the calls of the application. It goes on over
//! reconnects until the znode is gone; when the session ends, the servers remove the znode by themselves.
//!
//! After a create with unknown outcome (a dropped future, or a lost reply) the removal looks for the random
//! id in the znode's name. A sync precedes the list: the lost reply may have come from another server, and
//! the connected server may not have seen the create yet. On a Rowlock server a single request does all of
//! this.

use rowlock_proto::lock::Attempt;
use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, Request, Response, Version, path};
use tokio::sync::OwnedSemaphorePermit;

use super::extensions::Extensions;
use crate::limits::TRIES;

/// A removal of a znode and its progress.
pub(crate) struct ZnodeRemoval {
    /// The lock's znode, absolute.
    parent: String,
    /// The queue znode's name before the server's number; random, so no other client has it.
    prefix: String,
    step: Step,
    /// Connections that broke while it was the first one without an answer.
    breaks: u32,
    /// Its share of [`crate::limits::LOCK_SLOTS`].
    _slot: Option<OwnedSemaphorePermit>,
}

enum Step {
    /// Not told yet, whatever way: behind a [`Step::Sync`] where the server does not know how to abandon.
    Abandon,
    Sync,
    List,
    Delete(String),
}

/// The next step after a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    Again,
    /// The znode is gone.
    Done,
    /// The server refuses the removal; the znode goes with the session.
    GivenUp(ErrorCode),
}

impl ZnodeRemoval {
    pub(crate) fn new(
        parent: String,
        prefix: String,
        path: Option<String>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        ZnodeRemoval { parent, prefix, step: path.map_or(Step::Sync, Step::Delete), breaks: 0, _slot: slot }
    }

    /// Starts a removal from a queue that the server keeps.
    pub(crate) fn abandon(parent: String, prefix: String, slot: Option<OwnedSemaphorePermit>) -> Self {
        ZnodeRemoval { parent, prefix, step: Step::Abandon, breaks: 0, _slot: slot }
    }

    /// The request of the present step. Deleting needs no version: the name is random, so no other client has
    /// it.
    pub(crate) fn request(&mut self, extensions: Extensions) -> Request {
        if matches!(self.step, Step::Abandon) && !extensions.has_locks() {
            self.step = Step::Sync;
        }
        match &self.step {
            Step::Abandon => {
                let (lock, prefix) = (self.parent.clone(), self.prefix.clone());
                Request::Abandon(vec![Attempt { lock, prefix }])
            }
            Step::Sync => Request::Sync(self.parent.clone()),
            Step::List => Request::GetChildren(PathWatch { path: self.parent.clone(), watch: false }),
            Step::Delete(path) => Request::Delete { path: path.clone(), version: Version::ANY },
        }
    }

    /// Takes the reply of the present step.
    pub(crate) fn replied(&mut self, reply: Result<&Response, ErrorCode>) -> NextStep {
        use ErrorCode::{
            ConnectionLoss, NoNode, OperationTimeout, RequestTimeout, SessionMoved, ThrottledOp,
        };
        match (&self.step, reply) {
            (_, Err(ConnectionLoss | OperationTimeout | RequestTimeout | SessionMoved | ThrottledOp)) => {
                NextStep::Again
            }
            (Step::Abandon | Step::List | Step::Delete(_), Err(NoNode)) => NextStep::Done,
            (_, Err(code)) => NextStep::GivenUp(code),
            (Step::Sync, Ok(_)) => {
                self.step = Step::List;
                NextStep::Again
            }
            (Step::List, Ok(Response::Children(names))) => {
                match names.iter().find(|name| name.starts_with(&self.prefix)) {
                    Some(name) => {
                        self.step = Step::Delete(path::join(&self.parent, name));
                        NextStep::Again
                    }
                    None => NextStep::Done,
                }
            }
            (Step::Abandon | Step::List | Step::Delete(_), Ok(_)) => NextStep::Done,
        }
    }

    /// Returns to the sync after a broken connection, since a list may be out of date. `false`: gives up,
    /// since the removal may be the cause.
    pub(crate) fn disconnected(&mut self, was_first: bool) -> bool {
        if let Step::List = self.step {
            self.step = Step::Sync;
        }
        self.breaks += u32::from(was_first);
        self.breaks < TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_create_is_looked_for_behind_a_sync_and_deleted() {
        let plain = Extensions::NONE;
        let mut it = ZnodeRemoval::new("/l".into(), "_c_abc-lock-".into(), None, None);
        assert!(matches!(it.request(plain), Request::Sync(p) if p == "/l"));
        assert_eq!(it.replied(Ok(&Response::Path("/l".into()))), NextStep::Again);
        assert!(matches!(it.request(plain), Request::GetChildren(_)));
        assert!(it.disconnected(false));
        assert!(matches!(it.request(plain), Request::Sync(_)), "a list of before the reconnect was trusted");
        it.replied(Ok(&Response::Path("/l".into())));
        let names = vec!["_c_xyz-lock-0000000001".to_owned(), "_c_abc-lock-0000000002".to_owned()];
        assert_eq!(it.replied(Ok(&Response::Children(names))), NextStep::Again);
        assert!(
            matches!(it.request(plain), Request::Delete { path, .. } if path == "/l/_c_abc-lock-0000000002")
        );
        assert_eq!(it.replied(Err(ErrorCode::ThrottledOp)), NextStep::Again);
        assert_eq!(it.replied(Ok(&Response::Empty)), NextStep::Done);
    }

    #[test]
    fn a_place_that_the_server_keeps_is_abandoned_in_one_request() {
        let rowlock = Extensions { acquire: 1, ..Extensions::NONE };
        let mut it = ZnodeRemoval::abandon("/l".into(), "_c_abc-lock-".into(), None);
        let attempt = Attempt { lock: "/l".into(), prefix: "_c_abc-lock-".into() };
        assert_eq!(it.request(rowlock), Request::Abandon(vec![attempt]));
        assert_eq!(it.replied(Err(ErrorCode::ThrottledOp)), NextStep::Again);
        assert!(it.disconnected(false));
        assert!(matches!(it.request(Extensions::NONE), Request::Sync(_)), "a server without it now");
    }

    #[test]
    fn what_is_gone_is_done() {
        assert_eq!(
            ZnodeRemoval::new("/l".into(), "a".into(), Some("/l/a1".into()), None)
                .replied(Err(ErrorCode::NoNode)),
            NextStep::Done
        );
        let mut it = ZnodeRemoval::new("/l".into(), "a".into(), None, None);
        it.replied(Ok(&Response::Path("/l".into())));
        assert_eq!(it.replied(Ok(&Response::Children(vec!["b".into()]))), NextStep::Done);
        assert_eq!(
            ZnodeRemoval::new("/l".into(), "a".into(), Some("/l/a1".into()), None)
                .replied(Err(ErrorCode::NoAuth)),
            NextStep::GivenUp(ErrorCode::NoAuth)
        );
    }
}
