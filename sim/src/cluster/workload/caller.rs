//! Session of the production client that reports all calls, replies and events to the checkers.
//!
//! Invariant: this module and [`super::section`] alone fulfill the duties of [`crate::history::client`]. All
//! client calls below [`DATA`](crate::history::client::DATA) and all waits for locks pass here.
//! lock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::{
    Acl, Children, Client, CreateMode, Created, Error, FencingToken, OneshotWatch, Outcome, SessionId,
    Transaction, Version, Watched, Znode,
};
use rowlock_proto::lock::Mode;
use rowlock_world::trace::What;

use super::section::{HeldLock, Section};
use super::watches::Watches;
use super::{Journal, Profile};
use crate::history::Lock;
use crate::history::client::{Answer, CallId, ClientFact, Failure, Op, ReadKind, WatchId};

/// Lifetime of TTL znodes without a change.
const TTL: Duration = Duration::from_millis(700);

/// One session, and its handle for reports. Clones share the session.
#[derive(Clone)]
pub(super) struct Caller {
    parts: Arc<Parts>,
}

struct Parts {
    client: Client,
    session: SessionId,
    journal: Journal,
    profile: Arc<Profile>,
    watches: Watches,
}

impl Caller {
    /// Reports the session that `client` has just opened.
    pub(super) fn new(client: Client, journal: Journal, profile: Arc<Profile>) -> Self {
        let session = client.session_id();
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        journal.record(ClientFact::Session {
            session,
            timeout_ms: millis(client.session_timeout()),
            grace_ms: profile.grace.map(millis),
        });
        let watches = Watches::default();
        Caller { parts: Arc::new(Parts { client, session, journal, profile, watches }) }
    }

    /// Returns the client, for lock handles and for recipes that are not reported as calls.
    pub(super) fn client(&self) -> &Client {
        &self.parts.client
    }

    pub(super) fn session(&self) -> SessionId {
        self.parts.session
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.parts.journal
    }

    pub(super) fn profile(&self) -> &Profile {
        &self.parts.profile
    }

    /// Returns the path of a lock, which is the lock's name in traces as well.
    pub(super) fn lock_path(&self, lock: Lock) -> &str {
        self.parts.profile.locks.path(lock)
    }

    /// Returns whether the session is alive as far as the client knows, and reports a session that is alive.
    pub(super) fn is_alive(&self) -> bool {
        let Some(until) = self.parts.client.valid_until() else { return false };
        let left = until.saturating_since(rowlock_env::time::now());
        if left.is_zero() {
            return false;
        }
        let for_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        self.parts.journal.record(ClientFact::Alive { session: self.parts.session, for_ms });
        true
    }

    pub(super) fn is_over(&self) -> bool {
        self.parts.client.valid_until().is_none()
    }

    /// Reports the fired watches.
    pub(super) fn hear(&self) {
        self.parts.watches.fired().into_iter().for_each(|event| self.parts.journal.record(event));
    }

    /// Returns the number of a new watch, if there is room for another watch.
    pub(super) fn next_watch(&self) -> Option<WatchId> {
        self.parts.watches.has_room().then(|| self.parts.journal.next_watch())
    }

    /// Makes the call that `make` builds from the call's number, and reports the call.
    ///
    /// # Cancel safety
    /// A dropped call is reported with an unknown outcome.
    pub(super) async fn call(&self, make: impl FnOnce(CallId) -> Op) -> Result<Answer, Failure> {
        let call = self.parts.journal.next_call();
        let op = Arc::new(make(call));
        let begun = self.begin(call, op.clone());
        let result = self.run(&op).await;
        self.hear();
        let (result, watch) = match result {
            Ok((answer, watch)) => (Ok(answer), watch),
            Err(error) => (Err(failure(&error)), None),
        };
        begun.end(result.clone());
        if let (Op::Read { watch: Some(id), .. }, Some(watch)) = (&*op, watch) {
            self.parts.watches.add(*id, watch);
            // The watch may have fired right after the reply.
            self.hear();
        }
        result
    }

    /// Reports the beginning of a call. The caller polls the call's future next.
    pub(super) fn begin_next(&self, op: Op) -> Begun {
        self.begin(self.parts.journal.next_call(), Arc::new(op))
    }

    fn begin(&self, call: CallId, op: Arc<Op>) -> Begun {
        let session = self.parts.session;
        self.parts.journal.record(ClientFact::Invoked { call, session, op });
        Begun { caller: self.clone(), call, is_reported: false }
    }

    /// Waits for locks through `asking` (`None`: the locks are not free) and reports the wait.
    ///
    /// # Cancel safety
    /// As [`Caller::call`].
    pub(super) async fn acquire(
        &self,
        wanted: Vec<(Lock, Mode)>,
        asking: impl Future<Output = Result<Option<HeldLock>, Error>>,
    ) -> Result<Option<Section>, Error> {
        let begin = |(lock, mode): &(Lock, Mode)| {
            let waiting = Waiting::new(self, *lock);
            (self.begin_next(Op::Acquire { lock: *lock, mode: *mode }), waiting)
        };
        let begun: Vec<(Begun, Waiting)> = wanted.iter().map(begin).collect();
        let result = asking.await;
        self.hear();
        let tokens: Vec<FencingToken> = match &result {
            Ok(Some(held_lock)) => held_lock.guards().iter().map(|guard| guard.token()).collect(),
            _ => Vec::new(),
        };
        for (at, (call, waiting)) in begun.into_iter().enumerate() {
            let outcome = match (&result, tokens.get(at)) {
                (Err(error), _) => Err(failure(error)),
                (Ok(_), None) => Err(Failure::NotDone),
                (Ok(_), Some(token)) => Ok(Answer::Acquired(*token)),
            };
            if outcome.is_ok() {
                waiting.granted();
            }
            call.end(outcome);
        }
        Ok(result?.map(|held_lock| Section::new(self.clone(), held_lock, wanted)))
    }

    async fn run(&self, op: &Op) -> Result<(Answer, Option<OneshotWatch>), Error> {
        let client = &self.parts.client;
        let answer = match op {
            Op::Create { path, data, mode } => {
                let (data, acl) = (data.clone(), Acl::open());
                let created = match mode {
                    CreateMode::PersistentWithTtl => {
                        client.create_with_ttl(path, data, CreateMode::Persistent, acl, TTL).await
                    }
                    _ => client.create(path, data, *mode, acl).await,
                };
                let Created { path, stat } = created?;
                Answer::Created { path, stat }
            }
            Op::Set { path, data, version } => {
                Answer::Set(client.set(path, data.clone(), Some(*version)).await?)
            }
            Op::Delete { path, version } => {
                client.delete(path, Some(*version)).await?;
                Answer::Deleted
            }
            Op::Multi(ops) => {
                let transaction = ops.iter().fold(Transaction::new(), also);
                Answer::Multi(client.commit(transaction).await?.into_iter().map(outcome).collect())
            }
            Op::Read { kind, path, watch, synced } => {
                if *synced {
                    client.sync(path).await?;
                }
                return self.read(*kind, path, watch.is_some()).await;
            }
            Op::Sync => {
                client.sync("/").await?;
                Answer::Synced
            }
            Op::Check { .. } => return Err(Error::InvalidArgument("a check outside of a multi")),
            Op::Acquire { .. }
            | Op::Release { .. }
            | Op::Held { .. }
            | Op::Force { .. }
            | Op::Verify { .. } => {
                return Err(Error::InvalidArgument("locks have handles of their own"));
            }
        };
        Ok((answer, None))
    }

    async fn read(
        &self,
        kind: ReadKind,
        path: &str,
        is_watched: bool,
    ) -> Result<(Answer, Option<OneshotWatch>), Error> {
        let client = &self.parts.client;
        Ok(match (kind, is_watched) {
            (ReadKind::Data, false) => {
                let Znode { data, stat } = client.get(path).await?;
                (Answer::Data(data, stat), None)
            }
            (ReadKind::Data, true) => {
                let Watched { value: Znode { data, stat }, watch } = client.get_watched(path).await?;
                (Answer::Data(data, stat), Some(watch))
            }
            (ReadKind::Exists, false) => (Answer::Exists(client.exists(path).await?), None),
            (ReadKind::Exists, true) => {
                let Watched { value: stat, watch } = client.exists_watched(path).await?;
                (Answer::Exists(stat), Some(watch))
            }
            (ReadKind::Children, false) => {
                let Children { names, stat } = client.get_children(path).await?;
                (Answer::Children(names, stat), None)
            }
            (ReadKind::Children, true) => {
                let Watched { value: Children { names, stat }, watch } =
                    client.get_children_watched(path).await?;
                (Answer::Children(names, stat), Some(watch))
            }
        })
    }
}

/// A call whose beginning has been reported. Its drop reports an unknown outcome.
#[must_use = "its drop reports an unknown outcome"]
pub(super) struct Begun {
    caller: Caller,
    call: CallId,
    is_reported: bool,
}

impl Begun {
    pub(super) fn end(mut self, result: Result<Answer, Failure>) {
        self.report(result);
    }

    fn report(&mut self, result: Result<Answer, Failure>) {
        self.is_reported = true;
        self.caller.journal().record(ClientFact::Returned { call: self.call, result });
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_reported {
            self.report(Err(Failure::Unknown));
        }
    }
}

/// A wait for a lock, for the diagram.
struct Waiting {
    caller: Caller,
    lock: Lock,
    is_granted: bool,
}

impl Waiting {
    fn new(caller: &Caller, lock: Lock) -> Self {
        let host = caller.profile().host;
        caller.journal().trace(|| What::Waits { host, lock: caller.lock_path(lock).to_owned() });
        Waiting { caller: caller.clone(), lock, is_granted: false }
    }

    fn granted(mut self) {
        self.is_granted = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_granted {
            let host = self.caller.profile().host;
            let lock = || self.caller.lock_path(self.lock).to_owned();
            self.caller.journal().trace(|| What::GaveUp { host, lock: lock() });
        }
    }
}

/// Returns the outcome of a call that an error implies.
pub(super) fn failure(error: &Error) -> Failure {
    match error {
        error if error.may_have_happened() => Failure::Unknown,
        Error::Rejected(code) => Failure::Refused(*code),
        Error::TransactionRejected { index, code } => Failure::RefusedAt(*index, *code),
        _ => Failure::NotDone,
    }
}

/// Returns data unique in the run: the call's number, and a place within the call.
pub(super) fn data(call: CallId, place: usize) -> Option<Bytes> {
    Some(Bytes::from(format!("{}.{place}", call.0)))
}

fn also(transaction: Transaction, op: &Op) -> Transaction {
    match op {
        Op::Create { path, data, mode } => transaction.create(path, data.clone(), *mode, Acl::open()),
        Op::Set { path, data, version } => transaction.set(path, data.clone(), some(*version)),
        Op::Delete { path, version } => transaction.delete(path, some(*version)),
        Op::Check { path, version } => transaction.check(path, some(*version)),
        Op::Multi(_)
        | Op::Read { .. }
        | Op::Sync
        | Op::Acquire { .. }
        | Op::Release { .. }
        | Op::Held { .. }
        | Op::Force { .. }
        | Op::Verify { .. } => unreachable!("a multi is made of writes and checks"),
    }
}

fn some(version: Version) -> Option<Version> {
    (version != Version::ANY).then_some(version)
}

fn outcome(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Created(path, stat) => Answer::Created { path, stat: stat.unwrap_or_default() },
        Outcome::Deleted => Answer::Deleted,
        Outcome::Set(stat) => Answer::Set(stat),
        Outcome::Checked => Answer::Checked,
    }
}

#[cfg(test)]
mod tests {
    use rowlock_client::ErrorCode;

    use super::*;

    #[test]
    fn an_error_is_reported_as_what_the_client_says_of_it() {
        let refused = |code| Failure::Refused(code);
        for (error, reported) in [
            (Error::ConnectionLoss, Failure::Unknown),
            (Error::Protocol("odd"), Failure::Unknown),
            (Error::Rejected(ErrorCode::OperationTimeout), Failure::Unknown),
            (Error::Rejected(ErrorCode::NoNode), refused(ErrorCode::NoNode)),
            (Error::Rejected(ErrorCode::SessionMoved), refused(ErrorCode::SessionMoved)),
            (
                Error::TransactionRejected { index: 2, code: ErrorCode::BadVersion },
                Failure::RefusedAt(2, ErrorCode::BadVersion),
            ),
            (Error::SessionExpired, Failure::NotDone),
            (Error::Timeout { position: None, holder: None }, Failure::NotDone),
            (Error::Deadlock { cycle: Vec::new() }, Failure::NotDone),
        ] {
            assert_eq!(failure(&error), reported, "{error}");
        }
    }

    #[test]
    fn no_two_calls_write_the_same_data() {
        assert_ne!(data(CallId(1), 11), data(CallId(11), 1));
        assert_ne!(data(CallId(1), 0), data(CallId(1), 1));
    }
}
