//! Match between commands of the log and calls of clients, shared by several checkers.
//!
//! Commands and calls match by operation, which is unique except for deletes, and by order within a session.
//! The match includes only sessions whose clients report: other sessions prepare the workload.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rowlock_proto::SessionId;

use crate::history::Fact;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, DATA, Failure, Logged, Op};

/// Number of later calls of a session among which a call with uncertain effect stays.
const KEPT_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) call: CallId,
    pub(super) client: ClientId,
    pub(super) session: SessionId,
    pub(super) op: Arc<Op>,
    /// Outcome in the log so far.
    pub(super) logged: Option<Arc<Logged>>,
    /// Rank among the writes of the run in the order of sending.
    order: u64,
    is_over: bool,
}

/// Meaning of a fact for the writes of the clients.
pub(super) enum Matched {
    Nothing,
    /// The log ran a call. `overtaken_by`: a call sent later that ran before.
    Ran {
        overtaken_by: Option<CallId>,
    },
    /// The log ran a command for a session without a matching unanswered call.
    RanUnasked(Arc<Logged>),
    /// A call has ended.
    Answered(Sent, Result<Answer, Failure>),
}

#[derive(Default)]
pub(super) struct Matching {
    reporting: BTreeSet<SessionId>,
    /// Writes in the order of sending.
    sent: BTreeMap<SessionId, VecDeque<Sent>>,
    sessions: BTreeMap<CallId, SessionId>,
    sent_so_far: u64,
    /// Last executed call of each session, in order of sending.
    last_run: BTreeMap<SessionId, (u64, CallId)>,
}

impl Matching {
    pub(super) fn observe(&mut self, fact: &Fact) -> Matched {
        match fact {
            Fact::Client { client, what, .. } => self.client(*client, what),
            Fact::Logged(logged) => self.ran(logged),
            Fact::SessionEnded { session, .. } => {
                if let Some(sent) = self.sent.get_mut(session) {
                    sent.retain(|sent| !sent.is_over);
                }
                Matched::Nothing
            }
            _ => Matched::Nothing,
        }
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) -> Matched {
        match what {
            ClientFact::Session { session, .. } => {
                self.reporting.insert(*session);
            }
            ClientFact::Invoked { call, session, op } if is_plain_write(op) => {
                self.reporting.insert(*session);
                self.sessions.insert(*call, *session);
                self.sent_so_far += 1;
                let (call, session, op, order) = (*call, *session, op.clone(), self.sent_so_far);
                let sent = self.sent.entry(session).or_default();
                sent.push_back(Sent { call, client, session, op, logged: None, order, is_over: false });
                if sent.len() > KEPT_MAX && sent[0].is_over {
                    sent.pop_front();
                }
            }
            ClientFact::Returned { call, result } => {
                if let Some(session) = self.sessions.remove(call) {
                    return self.returned(session, *call, result);
                }
            }
            _ => {}
        }
        Matched::Nothing
    }

    fn returned(&mut self, session: SessionId, call: CallId, result: &Result<Answer, Failure>) -> Matched {
        let Some(sent) = self.sent.get_mut(&session) else { return Matched::Nothing };
        let Some(at) = sent.iter().position(|sent| sent.call == call) else { return Matched::Nothing };
        let op = sent[at].op.clone();
        let is_denied =
            matches!(result, Err(Failure::Refused(_) | Failure::RefusedAt(..) | Failure::NotDone));
        if sent[at].logged.is_none() && result.is_ok() {
            // An earlier, equal call got the log entry, but the client of that call knows of no effect.
            let other = (0..at).rev().find(|other| sent[*other].op == op && sent[*other].logged.is_some());
            sent[at].logged = other.and_then(|other| sent[other].logged.take());
        } else if is_denied && sent[at].logged.as_ref().is_some_and(|logged| logged.result.is_ok()) {
            // An equal later call has caused the log entry.
            let mut behind = at + 1..sent.len();
            if let Some(other) = behind.find(|other| sent[*other].op == op && sent[*other].logged.is_none()) {
                sent[other].logged = sent[at].logged.take();
            }
        }
        sent[at].is_over = true;
        let answered = sent[at].clone();
        if *result != Err(Failure::Unknown) {
            sent.remove(at);
        }
        Matched::Answered(answered, result.clone())
    }

    fn ran(&mut self, logged: &Arc<Logged>) -> Matched {
        let session = logged.session;
        if !self.reporting.contains(&session) {
            return Matched::Nothing;
        }
        let last = self.last_run.get(&session).copied();
        let sent = self.sent.entry(session).or_default();
        let fits = |sent: &Sent| sent.logged.is_none() && *sent.op == logged.op;
        let is_behind_last = |sent: &Sent| last.is_none_or(|(last, _)| sent.order > last);
        let in_order = sent.iter().position(|sent| fits(sent) && is_behind_last(sent));
        let Some(at) = in_order.or_else(|| sent.iter().position(fits)) else {
            return Matched::RanUnasked(logged.clone());
        };
        sent[at].logged = Some(logged.clone());
        let this = (sent[at].order, sent[at].call);
        match last.filter(|last| this.0 < last.0) {
            Some((_, last)) => Matched::Ran { overtaken_by: Some(last) },
            None => {
                self.last_run.insert(session, this);
                Matched::Ran { overtaken_by: None }
            }
        }
    }
}

/// Reports whether the call changes only znodes below [`DATA`], whose changes the simulation reports.
pub(super) fn is_plain_write(op: &Op) -> bool {
    let is_below_data =
        |path: &String| path.strip_prefix(DATA).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match op {
        Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } => is_below_data(path),
        Op::Multi(all) => {
            let is_plain = |op: &Op| match op {
                Op::Check { path, .. } => is_below_data(path),
                op => is_plain_write(op),
            };
            !all.is_empty() && all.iter().all(is_plain)
        }
        _ => false,
    }
}
