//! Clients that authenticate and try operations that the rules of locks permit or forbid, and operators that
//! change the rules meanwhile. Clients record the rights that each request takes, and its answer.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::{Acquire, Ask, Claim, Mode, Party, QueuePosition};
use rowlock_proto::report::{Locks, in_query};
use rowlock_proto::request::{Create, Op, PathWatch, ReadOp, SetAcl, SetData};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{
    Acl, CreateMode, ErrorCode, FencingToken, Request, Right, SessionId, Version, Zxid, perms,
};

use super::super::chance::{about, between, chance, millis, pick, weighted};
use super::super::life::Place as Life;
use super::closed::{self, lock_of, need, need_to_delete, needs_of_force, some_lock};
use super::guarded::{FOLDERS, Known, LEAVES, LOCKS, Person, any_rules};
use super::session::{Fate, Session};
use crate::history::access::{Access, CLOSED, GUARDED, Need, RULES, is_closed};

/// Mean time between two requests.
const PAUSE: Duration = Duration::from_millis(120);
/// Maximum number of places of a session at a time.
const PLACES: usize = 3;
/// Mean number of requests in a session; a session of another user follows.
const REQUESTS: u64 = 40;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Acquire,
    CreatePlace,
    GiveBack,
    Ask,
    /// An operation on a place of another client.
    Meddle,
    /// An operation on the znode of a lock.
    ChangeLock,
    Read,
    ReadSeveral,
    Watch,
    Report,
    Rules,
    Closed,
    ProveMore,
}

const ACTIONS: [(Action, u64); 13] = [
    (Action::Acquire, 8),
    (Action::CreatePlace, 3),
    (Action::GiveBack, 5),
    (Action::Ask, 3),
    (Action::Meddle, 8),
    (Action::ChangeLock, 3),
    (Action::Read, 12),
    (Action::ReadSeveral, 1),
    (Action::Watch, 3),
    (Action::Report, 4),
    (Action::Rules, 1),
    (Action::Closed, 8),
    (Action::ProveMore, 1),
];
/// Percentage of an operator's requests that change the rules.
const CHANGES_PERCENT: u64 = 25;

/// Opens sessions of one user after another, until the client's time in the run ends.
pub(in super::super) async fn live(life: Life) {
    while !life.is_over() {
        let Some(session) = Session::open_or_rest(&life).await else { continue };
        let person = Person::any(life.caller.journal().address());
        let mut user = User { life: &life, session, person, places: Vec::new(), made: 0 };
        // The session proves its digests again on each new connection.
        let _ = user.prove().await;
        let _ = user.create_closed().await;
        for _ in 0..between(1, 2 * REQUESTS) {
            if life.is_over() || user.session.is_over() {
                break;
            }
            let _ = user.turn().await;
            user.session.idle(about(PAUSE)).await;
        }
        user.session.close().await;
    }
}

/// A place that the session owns, and the time to give the place back.
struct Own {
    claim: Claim,
    until: Instant,
}

pub(super) struct User<'a> {
    life: &'a Life,
    pub(super) session: Session,
    pub(super) person: Person,
    places: Vec<Own>,
    /// Number of names that the session has used.
    made: u64,
}

impl User<'_> {
    pub(super) async fn prove(&mut self) -> Result<(), Fate> {
        let Person { proofs, who, .. } = self.person.clone();
        let session = self.session.id();
        let proving = self.session.prove(proofs).await;
        self.session.record_access(Access::Proves { session, who });
        proving
    }

    /// Sends the request and records its answer.
    pub(super) async fn ask(
        &mut self,
        needs: Vec<Need>,
        request: Request,
    ) -> Result<(Zxid, Option<Response>), Fate> {
        self.ask_since(None, needs, request).await
    }

    /// Does the same for a request that a node answers from a state between `since` and the reply's zxid.
    async fn ask_since(
        &mut self,
        since: Option<Zxid>,
        needs: Vec<Need>,
        request: Request,
    ) -> Result<(Zxid, Option<Response>), Fate> {
        let (zxid, answer) = self.session.ask(request).await?;
        Ok((zxid, self.record_answer((since.unwrap_or(zxid), zxid), needs, answer)))
    }

    /// Records an answer. Returns the answer unless a part is refused.
    pub(super) fn record_answer(
        &self,
        (since, zxid): (Zxid, Zxid),
        needs: Vec<Need>,
        answer: Result<Response, ErrorCode>,
    ) -> Option<Response> {
        let refused = match &answer {
            Ok(Response::Multi(results)) => results.iter().find_map(|result| match result {
                OpResult::Error(Some(code)) if *code != ErrorCode::RuntimeInconsistency => Some(*code),
                _ => None,
            }),
            Ok(_) => None,
            Err(code) => Some(*code),
        };
        let result = refused.map_or(Ok(()), Err);
        let session = self.session.id();
        self.session.record_access(Access::Answered { session, since, zxid, needs, result });
        answer.ok().filter(|_| refused.is_none())
    }

    fn record_shown(&self, zxid: Zxid, path: &str) {
        let session = self.session.id();
        self.session.record_access(Access::Shown { session, zxid, path: path.to_owned() });
    }

    async fn turn(&mut self) -> Result<(), Fate> {
        if !self.session.is_attached() {
            self.session.attach().await?;
        }
        self.release_hold_due().await?;
        if self.person.is_operator && chance(CHANGES_PERCENT) {
            return self.change_rules().await;
        }
        match weighted(&ACTIONS) {
            Action::Acquire => self.acquire().await,
            Action::CreatePlace => self.create_places().await,
            Action::GiveBack => self.release_hold(0).await,
            Action::Ask => self.ask_holders().await,
            Action::Meddle => self.meddle().await,
            Action::ChangeLock => self.change_lock().await,
            Action::Read => self.read().await,
            Action::ReadSeveral => self.read_several().await,
            Action::Watch => self.watch().await,
            Action::Report => self.report().await,
            Action::Rules => self.touch_rules().await,
            Action::Closed => self.change_closed().await,
            Action::ProveMore => self.prove_more().await,
        }
    }

    /// Returns a new unique name that contains the session's id.
    fn name(&mut self) -> String {
        self.made += 1;
        format!("_c_{:016x}{:04x}-lock-", self.session.id().0, self.made)
    }

    fn add(&mut self, lock: &'static str, claim: Claim) {
        let owner = self.session.id();
        self.life.caller.profile().guarded.add(Known { lock, claim: claim.clone(), owner });
        self.places.push(Own { claim, until: time::now() + millis(50, 1_500) });
    }

    /// Draws one lock, or sometimes two in any order.
    fn some_locks() -> Vec<&'static str> {
        let mut locks: Vec<&str> = LOCKS.into_iter().chain([closed::LOCK]).collect();
        rowlock_env::rng::shuffle(&mut locks);
        locks.truncate(if chance(15) { 2 } else { 1 });
        locks
    }

    async fn acquire(&mut self) -> Result<(), Fate> {
        if self.places.len() >= PLACES {
            return self.release_hold(0).await;
        }
        let (locks, wait) = (Self::some_locks(), chance(60));
        let mut all = Vec::new();
        for lock in &locks {
            let mode = pick(&[Mode::Exclusive, Mode::Exclusive, Mode::Shared]);
            let data = Some(Bytes::from_static(b"under rules"));
            all.push(Acquire { mode, wait, data, ..Acquire::exclusive(*lock, self.name()) });
        }
        let (zxid, answer) = self.session.ask(Request::Acquire(all.into())).await?;
        // A lock behind one that is busy needs no right: the answer says nothing about it.
        let is_unread = |at: usize| match &answer {
            Ok(Response::QueuePositions(states)) => states.get(at) == Some(&QueuePosition::Absent),
            _ => false,
        };
        let read = locks.iter().enumerate().filter(|(at, _)| !is_unread(*at));
        let needs = read.map(|(_, lock)| need(lock, Right::Take)).collect();
        let answer = self.record_answer((zxid, zxid), needs, answer);
        let Some(Response::QueuePositions(states)) = answer else { return Ok(()) };
        for (lock, state) in locks.into_iter().zip(states) {
            match state {
                QueuePosition::Held(claim) => self.add(lock, claim),
                QueuePosition::Waiting { claim, ahead, holder } => {
                    self.record_ahead(zxid, (lock, ahead), holder);
                    self.add(lock, claim);
                }
                QueuePosition::Busy { ahead, holder } => self.record_ahead(zxid, (lock, ahead), holder),
                QueuePosition::Deadlock(parties) => self.record_parties(zxid, lock, parties),
                QueuePosition::LimitIs(_) | QueuePosition::Absent => {}
            }
        }
        Ok(())
    }

    /// Records the shown part of a queue. A client that may not see the lock learns only that it waits.
    fn record_ahead(&self, zxid: Zxid, (lock, ahead): (&str, u32), holder: Option<Party>) {
        if ahead > 1 {
            self.record_shown(zxid, lock);
        }
        self.record_parties(zxid, lock, holder);
    }

    /// Records the places that an answer about `lock` shows. All fields of a hidden place are empty.
    fn record_parties(&self, zxid: Zxid, lock: &str, parties: impl IntoIterator<Item = Party>) {
        for Party { path, session, token, label, since_ms } in parties {
            if is_closed(&path) {
                // The list of the lock decides about the path.
                self.record_shown(zxid, lock_of(&path));
            } else if !path.is_empty() {
                self.record_shown(zxid, &path);
            } else if session != SessionId::NONE || token.0 != 0 || !label.is_empty() || since_ms != 0 {
                self.record_shown(zxid, lock);
            }
        }
    }

    /// Creates places as plain clients do: one, or two in a transaction.
    async fn create_places(&mut self) -> Result<(), Fate> {
        if self.places.len() >= PLACES {
            return self.release_hold(0).await;
        }
        let locks = Self::some_locks();
        let mut ops = Vec::new();
        for lock in &locks {
            let (path, flags) = (format!("{lock}/{}", self.name()), CreateMode::EphemeralSequential.flags());
            ops.push(Op::Create2(Create { path, data: None, acl: Some(Acl::shared_open()), flags }));
        }
        let needs = locks.iter().map(|lock| need(lock, Right::Take)).collect();
        let (_, answer) = self.ask(needs, Request::Multi(ops)).await?;
        let Some(Response::Multi(results)) = answer else { return Ok(()) };
        for (lock, result) in locks.into_iter().zip(results) {
            if let OpResult::Create2(path, stat) = result {
                self.add(lock, Claim { path: path.into(), token: FencingToken(stat.czxid.0) });
            }
        }
        Ok(())
    }

    /// Gives back the place at this index, if there is one. Giving back takes no right.
    async fn release_hold(&mut self, at: usize) -> Result<(), Fate> {
        if at >= self.places.len() {
            return Ok(());
        }
        let Own { claim, .. } = self.places.remove(at);
        let delete = need_to_delete(&claim.path);
        if chance(50) {
            self.ask(Vec::new(), Request::Release([claim.clone()].into())).await?;
        }
        let path = claim.path.to_string();
        self.ask(delete, Request::Delete { path, version: Version::ANY }).await.map(drop)
    }

    async fn release_hold_due(&mut self) -> Result<(), Fate> {
        while let Some(at) = self.places.iter().position(|place| place.until <= time::now()) {
            self.release_hold(at).await?;
        }
        Ok(())
    }

    async fn ask_holders(&mut self) -> Result<(), Fate> {
        let lock = some_lock();
        let within_ms = if chance(50) { 0 } else { u32::try_from(between(1_000, 3_000)).unwrap_or(1_000) };
        let mut needs = if within_ms == 0 { Vec::new() } else { needs_of_force(lock) };
        if within_ms == 0 || is_closed(lock) {
            needs.push(need(lock, Right::Ask));
        }
        let (reason, by) = ("wanted".to_owned(), String::new());
        let ask = Ask { lock: lock.to_owned(), reason, by, within_ms };
        let (zxid, answer) = self.ask(needs, Request::Ask(ask)).await?;
        if matches!(answer, Some(Response::Number(asked)) if asked > 1) {
            self.record_shown(zxid, lock);
        }
        Ok(())
    }

    async fn meddle(&mut self) -> Result<(), Fate> {
        let Some(Known { lock, claim, owner }) = self.life.caller.profile().guarded.any() else {
            return Ok(());
        };
        let (path, version, force) = (claim.path.to_string(), Version::ANY, vec![need(lock, Right::Force)]);
        match between(0, 9) {
            0..5 => self.ask(needs_of_force(lock), Request::ForceRelease(claim)).await.map(drop),
            5..7 => self.verify(lock, claim, owner == self.session.id()).await,
            // The owner may delete a place without any right.
            _ if owner == self.session.id() => Ok(()),
            7..9 => self.ask(force, Request::Delete { path, version }).await.map(drop),
            // The list of a position is open.
            _ if is_closed(lock) => Ok(()),
            _ => self.ask(force, Request::SetData(SetData { path, data: None, version })).await.map(drop),
        }
    }

    /// Asks whether a place is held. Any client may learn that a place is not held, or is gone.
    async fn verify(&mut self, lock: &str, claim: Claim, is_own: bool) -> Result<(), Fate> {
        let needs = if is_own { Vec::new() } else { vec![need(lock, Right::See)] };
        let (zxid, answer) = self.session.ask(Request::Verify([claim].into())).await?;
        let result = match answer {
            Ok(Response::Held(held)) if !held.contains(&true) => return Ok(()),
            answer => answer.map(drop),
        };
        let session = self.session.id();
        self.session.record_access(Access::Answered { session, since: zxid, zxid, needs, result });
        Ok(())
    }

    async fn change_lock(&mut self) -> Result<(), Fate> {
        let (lock, version) = (pick(&LOCKS), Version::ANY);
        let (path, take) = (lock.to_owned(), vec![need(lock, Right::Take)]);
        let (data, acl) = (Some(Bytes::from_static(b"note")), Some(Acl::shared_open()));
        match between(0, 3) {
            0 => self.ask(take, Request::SetData(SetData { path, data, version })).await,
            1 => self.ask(take, Request::Delete { path, version }).await,
            2 => {
                let create = Create { path, data, acl, flags: CreateMode::Container.flags() };
                self.ask(take, Request::CreateContainer(create)).await
            }
            _ => {
                let lock = pick(&LEAVES);
                let set = SetAcl { path: lock.to_owned(), acl, version };
                self.ask(vec![need(lock, Right::Force)], Request::SetAcl(set)).await
            }
        }
        .map(drop)
    }

    /// Draws a path, and the right that reading it takes.
    fn any_path(&self) -> (String, Need) {
        let known = self.life.caller.profile().guarded.any();
        let path = match between(0, 14) {
            10.. => pick(&closed::ZNODES),
            0 => RULES,
            1 => pick(&FOLDERS),
            2..6 if let Some(Known { lock, claim, .. }) = known => {
                let lock = if is_closed(lock) { &*claim.path } else { lock };
                return (claim.path.to_string(), need(lock, Right::See));
            }
            _ => pick(&LOCKS),
        };
        (path.to_owned(), need(path, Right::See))
    }

    async fn read(&mut self) -> Result<(), Fate> {
        let (path, mut need) = self.any_path();
        let asked = PathWatch { path: path.clone(), watch: chance(40) };
        let request = match between(0, 5) {
            0 => Request::Exists(asked),
            1 => Request::GetData(asked),
            2 => Request::GetChildren(asked),
            3 => Request::GetChildren2(asked),
            4 => {
                if let Need::Perms { any_of, .. } = &mut need {
                    *any_of |= perms::ADMIN;
                }
                Request::GetAcl(path)
            }
            _ => Request::GetAllChildrenNumber(path),
        };
        self.ask(vec![need], request).await.map(drop)
    }

    /// Sends two reads in one request; each has its own answer.
    async fn read_several(&mut self) -> Result<(), Fate> {
        let ((data, of_data), (children, of_children)) = (self.any_path(), self.any_path());
        let reads = vec![ReadOp::GetData(data), ReadOp::GetChildren(children)];
        let (zxid, answer) = self.session.ask(Request::MultiRead(reads)).await?;
        let Ok(Response::Multi(results)) = answer else { return Ok(()) };
        let (session, since) = (self.session.id(), zxid);
        for (need, result) in [of_data, of_children].into_iter().zip(results) {
            let result = if let OpResult::Error(Some(code)) = result { Err(code) } else { Ok(()) };
            let needs = vec![need];
            self.session.record_access(Access::Answered { session, since, zxid, needs, result });
        }
        Ok(())
    }

    /// Watches a lock, or a folder.
    async fn watch(&mut self) -> Result<(), Fate> {
        let path = if chance(60) { pick(&[GUARDED, CLOSED]) } else { pick(&LOCKS) };
        let mode = i32::from(chance(50));
        let request = Request::AddWatch { path: path.to_owned(), mode };
        // A watch is added by the rules alone, and each event needs READ.
        let needs = [need(path, Right::See)].into_iter().filter(|_| !is_closed(path)).collect();
        self.ask(needs, request).await.map(drop)
    }

    async fn report(&mut self) -> Result<(), Fate> {
        let (lock, since, session) = (pick(&LOCKS), self.session.last_zxid(), self.session.id());
        let see = vec![need(lock, Right::See)];
        let kind = between(0, 3);
        if kind < 2 {
            let question = Request::Report("/v1/locks?limit=1000".to_owned());
            let (_, answer) = self.ask(Vec::new(), question).await?;
            if let Some(Response::Report(text)) = answer {
                let locks: Locks = serde_json::from_str(&text).expect("a list of locks");
                self.session.record_access(Access::Listed { session, locks: Box::new(locks) });
            }
            return Ok(());
        }
        let what = if kind == 2 { "queue" } else { "history" };
        let question = Request::Report(format!("/v1/{what}?lock={}", in_query(lock)));
        self.ask_since(Some(since), see, question).await.map(drop)
    }

    /// Tries to change the rules, which only operators may.
    async fn touch_rules(&mut self) -> Result<(), Fate> {
        if self.person.is_operator {
            return self.change_rules().await;
        }
        let (path, version, needs) = (RULES.to_owned(), Version::ANY, vec![need(RULES, Right::Force)]);
        let data = Some(Bytes::from_static(b"all /* anyone"));
        let request = match between(0, 2) {
            0 => Request::Delete { path, version },
            1 => Request::SetData(SetData { path, data, version }),
            _ => Request::Create2(Create { path, data, acl: Some(Acl::shared_open()), flags: 0 }),
        };
        self.ask(needs, request).await.map(drop)
    }

    async fn change_rules(&mut self) -> Result<(), Fate> {
        let (path, version) = (RULES.to_owned(), Version::ANY);
        if chance(5) {
            return self.session.attempt(Request::Delete { path, version }).await;
        }
        let data = Some(Bytes::from(any_rules()));
        let set = SetData { path: path.clone(), data: data.clone(), version };
        let (_, mut answer) = self.session.ask(Request::SetData(set)).await?;
        if answer == Err(ErrorCode::NoNode) {
            let create = Create { path, data, acl: Some(Acl::shared_open()), flags: 0 };
            answer = self.session.ask(Request::Create2(create)).await?.1;
        }
        let is_refused = matches!(answer, Err(ErrorCode::NoAuth | ErrorCode::BadArguments));
        assert!(!is_refused, "an operator may make rules: {answer:?}");
        Ok(())
    }
}
