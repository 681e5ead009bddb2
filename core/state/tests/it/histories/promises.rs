//! Promises to clients, checked against the responses and events that clients receive, not against the state.

use std::collections::BTreeMap;

use rowlock_proto::Request;
use rowlock_proto::lock::{Acquire, Claim, Mode, Party, QueuePosition};
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{FencingToken, SessionId};
use rowlock_state::command::{Batch, Command, Proposal};
use rowlock_state::outcome::{Applied, EndReason};
use rowlock_state::{Deadline, Machine, PARTIES_MAX_BYTES};

/// An answer's bytes for each of the request's: a multi of the shortest setData is answered with Stats.
const ANSWER_PER_REQUEST: usize = 8;

#[derive(Clone, Debug)]
pub struct Place {
    pub lock: String,
    pub path: String,
    pub token: FencingToken,
    pub session: SessionId,
}

/// What a sink is told that promises are about.
#[derive(Clone, Debug)]
pub enum Told {
    Timeout(SessionId, u32),
    /// A place was made, in the order in which places were.
    Requested(Place),
    Granted(Place, i64),
    Gone(Place, EndReason, i64),
    /// The place at this path has a question, and maybe a deadline.
    Asked(String, Option<Deadline>),
}

#[derive(Default)]
pub struct Promises {
    /// The longest timeout of each session.
    timeouts: BTreeMap<SessionId, u32>,
    /// When holders were granted their lock, and for how long at most.
    granted: BTreeMap<String, i64>,
    max_holds: BTreeMap<String, u32>,
    /// By when holders have to give their lock back.
    deadlines: BTreeMap<String, Deadline>,
    /// For how long holders hold at least, and whether only a release counts.
    min_holds: BTreeMap<String, (u32, bool)>,
    /// Until when locks are kept for holders that have gone.
    kept_until: BTreeMap<String, i64>,
    /// The last token that was granted of each lock, and to whom.
    tokens: BTreeMap<String, (FencingToken, SessionId)>,
    /// In which order the places that are there were made.
    made: BTreeMap<String, usize>,
    count: usize,
}

impl Promises {
    pub fn check(
        &mut self,
        before: &Machine,
        after: &Machine,
        proposal: &Proposal,
        applied: &Applied,
        told: &[Told],
    ) -> Result<(), String> {
        if after.time_ms() < before.time_ms() {
            return Err("time has gone back".to_owned());
        }
        let changes_queues = told.iter().any(|one| !matches!(one, Told::Asked(..)));
        if matches!(proposal.command, Command::Client(Request::Ask(_))) && changes_queues {
            return Err(format!("a question changes a queue: {told:?}"));
        }
        // A conversion makes a new place of an old one.
        self.note_holds(proposal, applied, told);
        let ended = |lock: &str| {
            let znode = |machine: &Machine| machine.stat(lock).map(|stat| stat.czxid);
            let forced =
                Command::Client(Request::ForceRelease(Claim { path: lock.into(), token: FencingToken(0) }));
            znode(before) != znode(after) || *written(&proposal.command) == forced
        };
        for one in told {
            self.hear(before, &ended, one)?;
        }
        self.kept_until.retain(|lock, _| !(ended(lock) && applied.result.is_ok()));
        self.queues_are_in_the_order_of_creation(after)?;
        whoever_is_told_that_it_holds_does(after, applied)?;
        if applied.zxid == before.last_zxid() {
            // Nothing was done: what is kept is answered, and was right and in proportion then.
            return Ok(());
        }
        a_conversion_that_is_not_answered_held_leaves_the_hold(before, after, proposal, applied)?;
        an_answer_is_in_proportion_to_its_request(proposal, applied)
    }

    fn hear(&mut self, before: &Machine, ended: &dyn Fn(&str) -> bool, told: &Told) -> Result<(), String> {
        match told {
            Told::Timeout(session, timeout_ms) => {
                let longest = self.timeouts.entry(*session).or_default();
                *longest = (*longest).max(*timeout_ms);
            }
            Told::Requested(place) => {
                self.count += 1;
                self.made.insert(place.path.clone(), self.count);
            }
            Told::Granted(place, time_ms) => {
                let until_ms = before.lock_queue(&place.lock).and_then(|lock| lock.delayed_until_ms());
                // The delay ends with the lock's znode, too, and by force.
                if until_ms.is_some_and(|until_ms| *time_ms < until_ms) && !ended(&place.lock) {
                    return Err(format!("{place:?} is granted the lock before the lock-delay is over"));
                }
                let kept_until = self.kept_until.remove(&place.lock);
                if kept_until.is_some_and(|until_ms| *time_ms < until_ms) && !ended(&place.lock) {
                    return Err(format!("{place:?} is granted the lock within another's minimum hold"));
                }
                self.granted.insert(place.path.clone(), *time_ms);
                // One multi makes its places under one zxid, and they are of one session.
                let this = (place.token, place.session);
                if let Some(last) = self.tokens.insert(place.lock.clone(), this)
                    && last.0 >= place.token
                    && last != this
                {
                    return Err(format!("{place:?} is granted the lock after {last:?}"));
                }
            }
            Told::Gone(place, why, time_ms) => {
                let granted_ms = self.granted.remove(&place.path);
                let max_hold_ms = self.max_holds.remove(&place.path);
                self.made.remove(&place.path);
                if let Some((granted_ms, (min_hold_ms, lapses))) =
                    granted_ms.zip(self.min_holds.remove(&place.path))
                    && *why != EndReason::Forced
                    && (*why == EndReason::Released || !lapses)
                {
                    let until_ms = granted_ms + i64::from(min_hold_ms);
                    let kept = self.kept_until.entry(place.lock.clone()).or_insert(until_ms);
                    *kept = until_ms.max(*kept);
                }
                let deadline = self.deadlines.remove(&place.path);
                if *why == EndReason::Revoked {
                    let longest = granted_ms.zip(max_hold_ms.filter(|most_ms| *most_ms != 0));
                    let asked = deadline.map(|deadline| (deadline.since_ms, deadline.within_ms));
                    let timeout_ms = i64::from(self.timeouts[&place.session]);
                    let given_up_ms = |(since_ms, most_ms): (i64, u32)| {
                        since_ms + i64::from(most_ms) + i64::from(most_ms) / 8 + timeout_ms
                    };
                    let first_ms = longest.into_iter().chain(asked).map(given_up_ms).min();
                    if first_ms.is_none_or(|first_ms| *time_ms < first_ms) {
                        return Err(format!("{place:?} is taken away before its client has given up"));
                    }
                }
            }
            Told::Asked(path, deadline) => {
                if !self.granted.contains_key(path) {
                    return Err(format!("{path} is asked and does not hold"));
                }
                let at_ms = |deadline: Option<&Deadline>| deadline.map_or(i64::MAX, |it| it.at_ms());
                if at_ms(self.deadlines.get(path)) < at_ms(deadline.as_ref()) {
                    return Err(format!("a question to {path} has moved its deadline"));
                }
                self.deadlines.extend(deadline.map(|deadline| (path.clone(), deadline)));
            }
        }
        Ok(())
    }

    /// For how long those hold at most and at least that this command has made, as it has asked.
    fn note_holds(&mut self, proposal: &Proposal, applied: &Applied, told: &[Told]) {
        let command = written(&proposal.command);
        let Ok(Response::QueuePositions(positions)) = &applied.result else { return };
        let is_new = |claim: &Claim| {
            told.iter().any(|one| matches!(one, Told::Requested(place) if *place.path == *claim.path))
        };
        for (at, position) in positions.iter().enumerate() {
            let (QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. }) = position else {
                continue;
            };
            if !is_new(claim) {
                continue;
            }
            let (max_hold_ms, min_hold) = match command {
                Command::Client(Request::Acquire(all)) => {
                    let Acquire { max_hold_ms, min_hold_ms, min_hold_lapses, .. } = all[at];
                    (Some(max_hold_ms), Some((min_hold_ms, min_hold_lapses)))
                }
                Command::Client(Request::Convert { claim: old, .. }) => {
                    let deadline = self.deadlines.remove(&*old.path);
                    self.deadlines.extend(deadline.map(|deadline| (claim.path.to_string(), deadline)));
                    (self.max_holds.get(&*old.path).copied(), self.min_holds.remove(&*old.path))
                }
                _ => (None, None),
            };
            self.max_holds.extend(max_hold_ms.map(|max_hold_ms| (claim.path.to_string(), max_hold_ms)));
            self.min_holds.extend(min_hold.map(|min_hold| (claim.path.to_string(), min_hold)));
        }
    }

    fn queues_are_in_the_order_of_creation(&self, after: &Machine) -> Result<(), String> {
        for lock in after.locks() {
            let queue: Vec<_> = lock.holders().chain(lock.waiters()).map(|place| place.path).collect();
            let order: Vec<_> = queue.iter().map(|path| self.made.get(path)).collect();
            if !order.is_sorted() {
                return Err(format!("the queue is not in the order of creation: {queue:?} {order:?}"));
            }
        }
        Ok(())
    }
}

/// The write itself, with or without a number.
fn written(command: &Command) -> &Command {
    if let Command::Tagged { command, .. } = command { command } else { command }
}

fn a_conversion_that_is_not_answered_held_leaves_the_hold(
    before: &Machine,
    after: &Machine,
    proposal: &Proposal,
    applied: &Applied,
) -> Result<(), String> {
    let Command::Client(Request::Convert { claim, .. }) = written(&proposal.command) else { return Ok(()) };
    let Some(mode) = held(before, claim) else { return Ok(()) };
    let answer = match &applied.result {
        Ok(Response::QueuePositions(positions)) => positions.first(),
        _ => None,
    };
    let is_kept = match answer {
        Some(QueuePosition::Held(new)) => held(after, new).is_some(),
        _ => held(after, claim) == Some(mode),
    };
    if is_kept { Ok(()) } else { Err(format!("{claim:?} was held and the answer is {answer:?}")) }
}

/// Now, and not when the write was done of which this is the answer once more.
fn whoever_is_told_that_it_holds_does(after: &Machine, applied: &Applied) -> Result<(), String> {
    let Ok(Response::QueuePositions(positions)) = &applied.result else { return Ok(()) };
    let mut told = positions.iter().filter_map(|position| match position {
        QueuePosition::Held(claim) => Some(claim),
        _ => None,
    });
    let wrong = told.find(|claim| held(after, claim).is_none());
    wrong.map_or(Ok(()), |claim| Err(format!("{claim:?} is told to hold, and does not")))
}

fn held(machine: &Machine, claim: &Claim) -> Option<Mode> {
    let (lock, _) = claim.path.rsplit_once('/')?;
    let mut holders = machine.lock_queue(if lock.is_empty() { "/" } else { lock })?.holders();
    holders
        .find(|holder| *holder.path == *claim.path && holder.token == claim.token)
        .map(|holder| holder.mode)
}

fn an_answer_is_in_proportion_to_its_request(proposal: &Proposal, applied: &Applied) -> Result<(), String> {
    let request = Batch { proposals: vec![proposal.clone()], ..Batch::default() }.encode().len();
    let answer = match &applied.result {
        Ok(Response::QueuePositions(positions)) => positions.iter().map(position_bytes).sum(),
        Ok(Response::Multi(results)) => results.iter().map(result_bytes).sum(),
        Ok(Response::PathStat(path, _)) => path.len(),
        _ => 0,
    };
    if answer <= ANSWER_PER_REQUEST * request + PARTIES_MAX_BYTES {
        Ok(())
    } else {
        Err(format!("an answer of {answer} bytes to a request of {request}"))
    }
}

fn position_bytes(position: &QueuePosition) -> usize {
    let party = |party: &Party| party.path.len() + party.label.len();
    let holder = |holder: &Option<Party>| holder.as_ref().map_or(0, party);
    match position {
        QueuePosition::Held(claim) => claim.path.len(),
        QueuePosition::Waiting { claim, holder: one, .. } => claim.path.len() + holder(one),
        QueuePosition::Busy { holder: one, .. } => holder(one),
        QueuePosition::Deadlock(circle) => circle.iter().map(party).sum(),
        QueuePosition::LimitIs(_) | QueuePosition::Absent => 0,
    }
}

fn result_bytes(result: &OpResult) -> usize {
    match result {
        OpResult::Create(path) | OpResult::Create2(path, _) => path.len() + 68,
        OpResult::Check | OpResult::Delete => 9,
        _ => 68,
    }
}
