//! Clients that take locks by the cluster's own requests: acquire, release, abandon, verify.
//!
//! Most number their writes and repeat unanswered ones under the same number; some do not, and rely on names
//! and tokens. Both wait for pushed grants, ask for their state after a lost connection, and verify what they
//! hold. `learn` processes answers and notices.

mod learn;
mod outbox;
mod place;

use rowlock_proto::lock::{Claim, Mode, Owner};
use rowlock_proto::request::{Op, SetData};
use rowlock_proto::{SessionId, Version};
use rowlock_state::command::Command;

use super::{Act, Moment, lock_path};
use crate::history::{Fact, Lock, Millis};
use crate::state::message::{Tag, Up};
use crate::state::mutant::Mutant;

use outbox::Outbox;
use place::{Place, Stage, Wish, owner_of};

/// The locks of the workload that acquire takes: the plain ones, and one that does not exist before.
pub(super) const LOCKS: usize = super::LOCKS + 1;

/// Operations in one of a hoarder's writes: a few of them fill what the cluster keeps for a session.
const HOARD: usize = 1_000;

/// What such a client does besides taking locks.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Numbers its writes.
    pub tagged: bool,
    /// Never says which answers it knows, until the cluster refuses to keep more.
    pub hoards: bool,
}

/// A client's turn: who it is now, and what it may do.
pub(super) struct Turn<'a, 'b> {
    pub(super) moment: &'a mut Moment<'b>,
    pub(super) session: SessionId,
    pub(super) timeout_ms: u32,
    /// Its belief in its session ends then.
    pub(super) deadline: Millis,
    /// It has ended.
    pub(super) past_deadline: bool,
    pub(super) tags: &'a mut u64,
    pub(super) mutant: Option<Mutant>,
}

impl Turn<'_, '_> {
    fn tag(&mut self) -> Tag {
        *self.tags += 1;
        Tag(*self.tags)
    }
}

/// The locks of such a client.
#[derive(Debug)]
pub(super) struct Acquirer {
    number: usize,
    style: Style,
    attempts: u64,
    /// For whom it asks. One as long as it has places: it does one thing at a time.
    owner: Owner,
    outbox: Outbox,
    places: Vec<Place>,
    /// The lock that it left last: a client that wants it again soon meets its own late messages.
    last: Lock,
    /// The verification that is not answered.
    verifying: Option<Tag>,
    /// What it asks about.
    verified_claims: Vec<Claim>,
}

impl Acquirer {
    /// Without places.
    pub(super) fn new(number: usize, style: Style) -> Self {
        let outbox = Outbox::new(style);
        let (places, last) = (Vec::new(), Lock(0));
        Acquirer {
            number,
            style,
            attempts: 0,
            owner: owner_of(number),
            outbox,
            places,
            last,
            verifying: None,
            verified_claims: Vec::new(),
        }
    }

    /// Its process or its session is gone, and so are its places.
    pub(super) fn lose_all(&mut self, session: Option<SessionId>, facts: &mut Vec<Fact>) {
        if let Some(session) = session {
            self.end_beliefs(session, facts);
            facts.extend(self.places.iter().map(|place| Fact::Unwanted { lock: place.lock, session }));
        }
        let attempts = self.attempts;
        *self = Acquirer { attempts, ..Acquirer::new(self.number, self.style) };
    }

    /// It has no places and waits for no answer.
    pub(super) fn is_idle(&self) -> bool {
        self.places.is_empty() && self.outbox.is_empty()
    }

    /// The path of a place that it believes to hold.
    pub(super) fn held_place(&self) -> Option<String> {
        let held = self.places.iter().find(|place| place.believed);
        held.and_then(|place| place.held()).map(|claim| claim.path.clone())
    }

    /// A write on plain znodes.
    pub(super) fn write(&mut self, command: Command, turn: &mut Turn<'_, '_>) -> Act {
        self.outbox.send(command, turn)
    }

    /// Stops to believe in anything.
    pub(super) fn end_beliefs(&mut self, session: SessionId, facts: &mut Vec<Fact>) {
        for place in self.places.iter_mut().filter(|place| place.believed) {
            place.believed = false;
            facts.push(Fact::BeliefEnded { lock: place.lock, session });
        }
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.verifying = None;
    }

    /// After the session was attached to a new connection.
    pub(super) fn resume(&mut self, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        if turn.mutant == Some(Mutant::FreshNameOnRetry) {
            self.rename_unanswered();
        }
        let mut acts = self.outbox.resend(turn);
        if turn.mutant != Some(Mutant::TrustOldPush) {
            let waiting: Vec<usize> = self.indexes(|place| matches!(place.stage, Stage::Waiting(_)));
            let unasked = waiting.into_iter().filter(|at| !self.is_asked(*at)).collect::<Vec<_>>();
            if !unasked.is_empty() {
                acts.push(self.ask(&unasked, turn));
            }
        }
        acts.extend(self.verify(turn));
        acts
    }

    /// Its turn, connected and with nothing more urgent.
    pub(super) fn act(&mut self, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        self.end_overdue(turn);
        let doubted = self.places.iter().any(|place| place.settled().is_some() && !place.believed);
        if doubted && let Some(overdue) = self.give_up_overdue(turn) {
            return vec![overdue];
        }
        if doubted && self.verifying.is_none() {
            return self.verify(turn).into_iter().collect();
        }
        if let Some(stale) = self.stale_waiter(turn) {
            return vec![self.ask(&[stale], turn)];
        }
        if turn.moment.settling {
            return self.release(turn).into_iter().collect();
        }
        if self.outbox.hoards && turn.moment.rng.chance(20) {
            let check = Op::Check { path: "/data/a".to_owned(), version: Version(-9) };
            return vec![self.outbox.send(Command::Multi(vec![check; HOARD]), turn)];
        }
        let may_begin = match self.attempt_count() {
            0 => turn.moment.rng.chance(turn.moment.eager),
            // Waiting while it holds: that is what deadlocks are made of.
            1 => turn.moment.rng.chance(15),
            _ => false,
        };
        if may_begin {
            return self.begin(turn);
        }
        match turn.moment.rng.below(20) {
            0 => self.abandon(turn).into_iter().collect(),
            1 => vec![self.resize(turn)],
            7..=9 => self.upgrade(turn).into_iter().collect(),
            2..=6 => self.release(turn).into_iter().collect(),
            _ => self.use_lock(turn).into_iter().collect(),
        }
    }

    fn attempt_count(&self) -> usize {
        let mut attempts: Vec<u64> = self.places.iter().map(|place| place.attempt).collect();
        attempts.dedup();
        attempts.len()
    }

    /// Asks for one lock or several, in any order.
    fn begin(&mut self, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        let taken = |lock: &usize| self.places.iter().any(|place| place.lock == Lock(*lock));
        let mut free: Vec<usize> = (0..LOCKS).filter(|lock| !taken(lock)).collect();
        let rng = &mut *turn.moment.rng;
        let wanted = if rng.chance(70) { 1 } else { 2 + rng.below(2) };
        let wait = rng.chance(85);
        if self.places.is_empty() {
            let above = turn.moment.above.take().filter(|_| rng.chance(40));
            self.owner = above.map_or(owner_of(self.number), |path| Owner::under(&path));
        }
        self.attempts += 1;
        let first = self.places.len();
        for _ in 0..wanted.min(free.len()) {
            let again = free.iter().position(|lock| Lock(*lock) == self.last).filter(|_| rng.chance(40));
            let lock = Lock(free.swap_remove(again.unwrap_or_else(|| rng.below(free.len()))));
            let wish = Wish::random(self.owner, wait, rng);
            turn.moment.facts.push(Fact::Wanted { lock, session: turn.session });
            self.places.push(Place {
                lock,
                attempt: self.attempts,
                prefix: prefix(self.number, self.attempts, wish.mode),
                wish,
                stage: Stage::Asked,
                waited_at: turn.moment.now,
                cap: None,
                believed: false,
                upgrade: None,
            });
        }
        let new: Vec<usize> = (first..self.places.len()).collect();
        if new.is_empty() { Vec::new() } else { vec![self.ask(&new, turn)] }
    }

    /// Asks for these places, for the first time or again.
    fn ask(&mut self, at: &[usize], turn: &mut Turn<'_, '_>) -> Act {
        let all = at.iter().map(|at| self.places[*at].acquire(self.places[*at].wish.limit)).collect();
        self.outbox.send(Command::Acquire(all), turn)
    }

    /// Gives back what one of its attempts holds. While the same place is asked for again, its claim may be
    /// out of date.
    fn release(&mut self, turn: &mut Turn<'_, '_>) -> Option<Act> {
        let mut held = self.indexes(|place| place.settled().is_some());
        held.retain(|at| !self.is_asked(*at));
        if held.is_empty() {
            return None;
        }
        let attempt = self.places[turn.moment.rng.pick(&held)].attempt;
        let mut claims = Vec::new();
        for at in held.into_iter().filter(|at| self.places[*at].attempt == attempt).collect::<Vec<_>>() {
            claims.extend(self.places[at].held().cloned());
            self.leave(at, turn);
        }
        Some(self.outbox.send(Command::Release(claims.into()), turn))
    }

    /// Leaves the queues of one of its attempts, wherever it stands.
    fn abandon(&mut self, turn: &mut Turn<'_, '_>) -> Option<Act> {
        let here = self.indexes(|place| place.stage != Stage::Leaving && place.upgrade.is_none());
        if here.is_empty() {
            return None;
        }
        let attempt = self.places[turn.moment.rng.pick(&here)].attempt;
        let mut attempts = Vec::new();
        for at in here.into_iter().filter(|at| self.places[*at].attempt == attempt).collect::<Vec<_>>() {
            attempts.push(self.places[at].as_attempt());
            self.leave(at, turn);
        }
        Some(self.outbox.send(Command::Abandon(attempts), turn))
    }

    /// Its belief ends before the request to leave is sent.
    fn leave(&mut self, at: usize, turn: &mut Turn<'_, '_>) {
        self.end_belief(at, turn);
        self.places[at].stage = Stage::Leaving;
    }

    fn end_belief(&mut self, at: usize, turn: &mut Turn<'_, '_>) {
        let place = &mut self.places[at];
        if std::mem::take(&mut place.believed) {
            turn.moment.facts.push(Fact::BeliefEnded { lock: place.lock, session: turn.session });
        }
    }

    /// Asks whether it still holds what it was granted.
    fn verify(&mut self, turn: &mut Turn<'_, '_>) -> Option<Act> {
        let claims: Vec<Claim> = self.places.iter().filter_map(Place::settled).cloned().collect();
        if claims.is_empty() {
            return None;
        }
        let tag = turn.tag();
        self.verifying = Some(tag);
        self.verified_claims = claims.clone();
        Some(Act::Send(Up::Write { tag, command: Command::Verify(claims.into()) }))
    }

    /// Asks to hold a lock alone that it shares. Only with a number: without one, a second request after a
    /// lost reply would not know the place that the first has made.
    fn upgrade(&mut self, turn: &mut Turn<'_, '_>) -> Option<Act> {
        let mut shared = self.indexes(|place| place.settled().is_some() && place.wish.mode == Mode::Shared);
        shared.retain(|at| self.style.tagged && !self.is_asked(*at));
        if shared.is_empty() {
            return None;
        }
        let place = &mut self.places[turn.moment.rng.pick(&shared)];
        let claim = place.held().expect("just looked at").clone();
        self.attempts += 1;
        let prefix = prefix(self.number, self.attempts, Mode::Exclusive);
        place.upgrade = Some(prefix.clone());
        Some(self.outbox.send(Command::Convert { claim, mode: Mode::Exclusive, prefix }, turn))
    }

    /// Changes the number of permits of some lock.
    fn resize(&mut self, turn: &mut Turn<'_, '_>) -> Act {
        let lock = Lock(turn.moment.rng.below(LOCKS));
        let data = Some(format!("permits={}", turn.moment.rng.pick(&[1, 2, 3, 3, 5])).into());
        let set = SetData { path: lock_path(lock), data, version: Version::ANY };
        self.outbox.send(Command::SetData(set), turn)
    }

    /// Writes to the resource of a lock that only it holds.
    fn use_lock(&mut self, turn: &mut Turn<'_, '_>) -> Option<Act> {
        let mine = self.indexes(|place| place.believed && place.wish.mode == Mode::Exclusive);
        if mine.is_empty() {
            return None;
        }
        let place = &self.places[turn.moment.rng.pick(&mine)];
        place.held().map(|claim| Act::Write(place.lock, claim.token))
    }

    /// A client that holds for too long gives up.
    fn end_overdue(&mut self, turn: &mut Turn<'_, '_>) {
        let now = turn.moment.now;
        for at in self.indexes(|place| place.believed && place.cap.is_some_and(|cap| cap <= now)) {
            self.end_belief(at, turn);
        }
    }

    /// Leaves a place that it may not believe in any more, whatever the cluster says.
    fn give_up_overdue(&mut self, turn: &mut Turn<'_, '_>) -> Option<Act> {
        let now = turn.moment.now;
        let overdue = |place: &Place| place.settled().is_some() && place.cap.is_some_and(|cap| cap <= now);
        let at = *self.indexes(overdue).first()?;
        let attempt = self.places[at].as_attempt();
        self.leave(at, turn);
        Some(self.outbox.send(Command::Abandon(vec![attempt]), turn))
    }

    /// A waiter who could not tell, if it were granted the lock now, whether it has been so for too long
    /// already.
    fn stale_waiter(&self, turn: &Turn<'_, '_>) -> Option<usize> {
        let is_stale = |place: &Place| {
            matches!(place.stage, Stage::Waiting(_))
                && place.wish.max_hold_ms > 0
                && turn.moment.now.0 > place.waited_at.0 + i64::from(turn.timeout_ms / 2)
        };
        self.indexes(is_stale).into_iter().find(|at| !self.is_asked(*at))
    }

    /// A request for this place is on its way.
    fn is_asked(&self, at: usize) -> bool {
        let (lock, prefix) = (lock_path(self.places[at].lock), &self.places[at].prefix);
        self.outbox.any(|command| match command {
            Command::Acquire(all) => {
                all.iter().any(|acquire| *acquire.prefix == **prefix && *acquire.lock == *lock)
            }
            _ => false,
        })
    }

    fn indexes(&self, is_it: impl Fn(&Place) -> bool) -> Vec<usize> {
        self.places.iter().enumerate().filter(|(_, place)| is_it(place)).map(|(at, _)| at).collect()
    }

    /// The mistake of a client that gives a new name to what it may have asked for already.
    fn rename_unanswered(&mut self) {
        for place in self.places.iter_mut().filter(|place| place.stage == Stage::Asked) {
            let new = format!("again-{}", place.prefix);
            let old = std::mem::replace(&mut place.prefix, new);
            self.outbox.change(|command| {
                if let Command::Acquire(all) = command {
                    let same = all.iter_mut().filter(|acquire| *acquire.prefix == *old);
                    same.for_each(|acquire| acquire.prefix = place.prefix.as_str().into());
                }
            });
        }
    }
}

/// What the queue znodes of an attempt are called before the server's number.
fn prefix(number: usize, attempt: u64, mode: Mode) -> String {
    let kind = match mode {
        Mode::Exclusive => "-lock-",
        Mode::Shared => "-__READ__",
        Mode::Permits(_) => "-permit-",
    };
    format!("c{number}-{attempt}{kind}")
}
