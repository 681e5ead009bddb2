//! Removes a queue znode that is not needed any more, in the background.
//!
//! Posted by drops, done by the session machine between the calls of the application. It goes on over
//! reconnects until the znode is gone; when the session ends, the servers remove the znode by themselves.
//!
//! After a create with unknown outcome (a dropped future, or a lost reply) the removal looks for the random
//! id in the znode's name. A sync precedes the list: the lost reply may have come from another server, and
//! the connected server may not have seen the create yet. On a Rowlock server a single request does all of
//! this.
//!
//! A dropped guard knows the znode: the removal is then a release that no caller waits for, as cheap for the
//! servers as one with a caller. Repeating a release is safe: only this znode has this path and token.

use rowlock_proto::lock::{Attempt, Claim};
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
    /// An earlier copy of the present request may have taken effect.
    is_repeated: bool,
    /// Its share of [`crate::limits::LOCK_SLOTS`].
    _slot: Option<OwnedSemaphorePermit>,
}

enum Step {
    /// Not told yet, whatever way: behind a [`Step::Sync`] where the server does not know how to abandon.
    Abandon,
    /// Releases a held lock: a [`Step::Delete`] where the server does not keep queues.
    Release(Claim),
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
    /// The lock of a guard was lost before its release.
    NotHeld,
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
        ZnodeRemoval::starting_at(path.map_or(Step::Sync, Step::Delete), (parent, prefix), slot)
    }

    /// Starts a removal from a queue that the server keeps.
    pub(crate) fn abandon(parent: String, prefix: String, slot: Option<OwnedSemaphorePermit>) -> Self {
        ZnodeRemoval::starting_at(Step::Abandon, (parent, prefix), slot)
    }

    /// Starts the release of a lock whose queue the server keeps.
    pub(crate) fn release(
        (parent, prefix): (String, String),
        claim: Claim,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        ZnodeRemoval::starting_at(Step::Release(claim), (parent, prefix), slot)
    }

    fn starting_at(
        step: Step,
        (parent, prefix): (String, String),
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        ZnodeRemoval { parent, prefix, step, breaks: 0, is_repeated: false, _slot: slot }
    }

    /// Returns the lock's znode.
    pub(crate) fn lock(&self) -> &str {
        &self.parent
    }

    /// Returns the claim of a release.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        if let Step::Release(claim) = &self.step { Some(claim) } else { None }
    }

    /// The request of the present step. Deleting needs no version: the name is random, so no other client has
    /// it.
    pub(crate) fn request(&mut self, extensions: Extensions) -> Request {
        if !extensions.has_locks() {
            match &self.step {
                Step::Abandon => self.step = Step::Sync,
                Step::Release(claim) => self.step = Step::Delete(claim.path.to_string()),
                Step::Sync | Step::List | Step::Delete(_) => {}
            }
        }
        match &self.step {
            Step::Abandon => {
                let (lock, prefix) = (self.parent.clone(), self.prefix.clone());
                Request::Abandon(vec![Attempt { lock, prefix }])
            }
            Step::Release(claim) => Request::Release([claim.clone()].into()),
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
                self.is_repeated = true;
                NextStep::Again
            }
            (Step::Release(_), Ok(Response::Held(held))) if held[..] != [true] && !self.is_repeated => {
                NextStep::NotHeld
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
            (Step::Abandon | Step::Release(_) | Step::List | Step::Delete(_), Ok(_)) => NextStep::Done,
        }
    }

    /// Returns to the sync after a broken connection, since a list may be out of date. `false`: gives up,
    /// since the removal may be the cause.
    pub(crate) fn disconnected(&mut self, was_first: bool) -> bool {
        if let Step::List = self.step {
            self.step = Step::Sync;
        }
        self.is_repeated = true;
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
    fn an_unwaited_release_reports_a_lost_lock_unless_an_earlier_copy_may_have_released_it() {
        let rowlock = Extensions { acquire: 1, ..Extensions::NONE };
        let claim = Claim { path: "/l/_c_abc-lock-0000000002".into(), token: rowlock_proto::FencingToken(7) };
        let release = || ZnodeRemoval::release(("/l".into(), "_c_abc-lock-".into()), claim.clone(), None);
        let held = |held: bool| Response::Held(vec![held].into());
        let mut it = release();
        assert_eq!(it.request(rowlock), Request::Release([claim.clone()].into()));
        assert_eq!(it.replied(Ok(&held(true))), NextStep::Done);
        assert_eq!(release().replied(Ok(&held(false))), NextStep::NotHeld);
        let mut it = release();
        assert!(it.disconnected(true));
        assert_eq!(it.request(rowlock), Request::Release([claim.clone()].into()), "the same once more");
        assert_eq!(it.replied(Ok(&held(false))), NextStep::Done, "the first copy may have done it");
        let mut it = release();
        assert_eq!(it.replied(Err(ErrorCode::OperationTimeout)), NextStep::Again);
        assert_eq!(it.replied(Ok(&held(false))), NextStep::Done);
        assert!(matches!(it.request(Extensions::NONE), Request::Delete { path, .. } if *path == *claim.path));
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
