//! A chore: taking back a queue znode that nobody wants any more, in the background.
//!
//! Posted by drops, done by the session machine between the calls of the application. It goes on over reconnects until
//! the znode is gone; when the session ends, the servers remove the znode by themselves.
//!
//! When the create's outcome is unknown (its future was dropped, or its reply lost) the znode is looked for by the
//! random id in its name. A sync goes before the list: the reply that was lost may have come from another server, and
//! the one we are attached to now may not have seen the create yet.

use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, Request, Response, Version, path};
use tokio::sync::OwnedSemaphorePermit;

/// What is to be removed, and how far that is.
pub(crate) struct Chore {
    /// The lock's znode, absolute.
    parent: String,
    /// The random id in the queue znode's name.
    id: String,
    step: Step,
    /// Its share of [`crate::limits::LOCK_SLOTS`].
    _slot: Option<OwnedSemaphorePermit>,
}

enum Step {
    Sync,
    List,
    /// The absolute path is known.
    Delete(String),
}

/// What to do with a chore after a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send [`Chore::request`].
    Again,
    /// The znode is gone.
    Done,
    /// It cannot be removed by us; it goes with the session.
    GivenUp(ErrorCode),
}

impl Chore {
    pub(crate) fn new(
        parent: String,
        id: String,
        path: Option<String>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Chore { parent, id, step: path.map_or(Step::Sync, Step::Delete), _slot: slot }
    }

    /// The request of the present step. Deleting needs no version: the name is random, nobody else can have it.
    pub(crate) fn request(&self) -> Request {
        match &self.step {
            Step::Sync => Request::Sync(self.parent.clone()),
            Step::List => Request::GetChildren(PathWatch { path: self.parent.clone(), watch: false }),
            Step::Delete(path) => Request::Delete { path: path.clone(), version: Version::ANY },
        }
    }

    /// Takes the reply of the present step.
    pub(crate) fn replied(&mut self, reply: Result<&Response, ErrorCode>) -> Next {
        use ErrorCode::{
            ConnectionLoss, NoNode, OperationTimeout, RequestTimeout, SessionMoved, ThrottledOp,
        };
        match (&self.step, reply) {
            (_, Err(ConnectionLoss | OperationTimeout | RequestTimeout | SessionMoved | ThrottledOp)) => {
                Next::Again
            }
            (Step::List | Step::Delete(_), Err(NoNode)) => Next::Done,
            (_, Err(code)) => Next::GivenUp(code),
            (Step::Sync, Ok(_)) => {
                self.step = Step::List;
                Next::Again
            }
            (Step::List, Ok(Response::Children(names))) => {
                match names.iter().find(|name| name.contains(&self.id)) {
                    Some(name) => {
                        self.step = Step::Delete(path::join(&self.parent, name));
                        Next::Again
                    }
                    None => Next::Done,
                }
            }
            (Step::List | Step::Delete(_), Ok(_)) => Next::Done,
        }
    }

    /// The connection broke: what was listed may be out of date.
    pub(crate) fn disconnected(&mut self) {
        if let Step::List = self.step {
            self.step = Step::Sync;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_create_is_looked_for_behind_a_sync_and_deleted() {
        let mut it = Chore::new("/l".into(), "abc".into(), None, None);
        assert!(matches!(it.request(), Request::Sync(p) if p == "/l"));
        assert_eq!(it.replied(Ok(&Response::Path("/l".into()))), Next::Again);
        assert!(matches!(it.request(), Request::GetChildren(_)));
        it.disconnected();
        assert!(matches!(it.request(), Request::Sync(_)), "a list of before the reconnect was trusted");
        it.replied(Ok(&Response::Path("/l".into())));
        let names = vec!["_c_xyz-lock-0000000001".to_owned(), "_c_abc-lock-0000000002".to_owned()];
        assert_eq!(it.replied(Ok(&Response::Children(names))), Next::Again);
        assert!(matches!(it.request(), Request::Delete { path, .. } if path == "/l/_c_abc-lock-0000000002"));
        assert_eq!(it.replied(Err(ErrorCode::ThrottledOp)), Next::Again);
        assert_eq!(it.replied(Ok(&Response::Empty)), Next::Done);
    }

    #[test]
    fn what_is_gone_is_done() {
        assert_eq!(
            Chore::new("/l".into(), "a".into(), Some("/l/a1".into()), None).replied(Err(ErrorCode::NoNode)),
            Next::Done
        );
        let mut it = Chore::new("/l".into(), "a".into(), None, None);
        it.replied(Ok(&Response::Path("/l".into())));
        assert_eq!(it.replied(Ok(&Response::Children(vec!["b".into()]))), Next::Done);
        assert_eq!(
            Chore::new("/l".into(), "a".into(), Some("/l/a1".into()), None).replied(Err(ErrorCode::NoAuth)),
            Next::GivenUp(ErrorCode::NoAuth)
        );
    }
}
