//! Search for an order of the calls that explains all answers (Wing and Gong 1993, with Lowe's cache of tried
//! states): call by call, keeping all remaining explanations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_proto::SessionId;

use super::model::{self, Node, Nodes, Outcome, Path};
use crate::history::client::{Answer, CallId, Failure, Op};

/// Bound on explanations; beyond the bound the search gives up on these znodes.
pub(super) const EXPLANATIONS_MAX: usize = 4_000;

/// Call that may take effect now.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) op: Arc<Op>,
    pub(super) session: SessionId,
    /// Rank in the order of sending.
    pub(super) order: u64,
    /// The call ended with an unknown outcome.
    pub(super) is_unknown: bool,
}

/// State of the znodes in agreement with all answers so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Explanation {
    nodes: Nodes,
    /// Outcomes of writes that have taken effect without an answer so far.
    done: BTreeMap<CallId, Outcome>,
    /// Possible results of each unanswered read since its start. Reads change nothing: a read needs no rank
    /// in the order, only a moment.
    reads: BTreeMap<CallId, BTreeSet<Outcome>>,
}

/// Znodes tied together by calls, with their unanswered calls and all explanations.
#[derive(Debug, Default)]
pub(super) struct Component {
    explanations: BTreeSet<Explanation>,
    pub(super) pending: BTreeMap<CallId, Pending>,
    pub(super) has_given_up: bool,
}

impl Component {
    /// Creates the component of one znode in its current state.
    pub(super) fn of(path: &Path, now: Option<Node>) -> Self {
        let nodes = now.map(|node| (path.clone(), node)).into_iter().collect();
        let only = Explanation { nodes, ..Explanation::default() };
        Component { explanations: [only].into(), ..Component::default() }
    }

    /// Joins two components: every explanation of one with every explanation of the other.
    pub(super) fn join(&mut self, other: Component) {
        self.has_given_up |= other.has_given_up;
        self.pending.extend(other.pending);
        let mut all = BTreeSet::new();
        if self.explanations.len() * other.explanations.len() > EXPLANATIONS_MAX {
            self.has_given_up = true;
        }
        if !self.has_given_up {
            for one in &self.explanations {
                for two in &other.explanations {
                    let mut both = one.clone();
                    both.nodes.extend(two.nodes.clone());
                    both.done.extend(two.done.clone());
                    both.reads.extend(two.reads.clone());
                    all.insert(both);
                }
            }
        }
        self.explanations = all;
    }

    pub(super) fn begin(&mut self, call: CallId, pending: Pending) {
        if let Op::Read { path, .. } = &*pending.op {
            let begun = |mut one: Explanation| {
                let shown = [model::read(&one.nodes, path)].into();
                one.reads.insert(call, shown);
                one
            };
            self.explanations = std::mem::take(&mut self.explanations).into_iter().map(begun).collect();
        }
        self.pending.insert(call, pending);
    }

    /// Removes the explanations that contradict the result of an ended call.
    ///
    /// # Errors
    /// No explanation is left; the text names the results that were possible.
    pub(super) fn end(&mut self, call: CallId, result: &Result<Answer, Failure>) -> Result<(), String> {
        let Some(pending) = self.pending.get(&call).cloned() else { return Ok(()) };
        if *result == Err(Failure::Unknown) && !matches!(*pending.op, Op::Read { .. }) {
            self.pending.entry(call).and_modify(|pending| pending.is_unknown = true);
            return Ok(());
        }
        let fits = |one: &Explanation| match one.reads.get(&call) {
            Some(shown) => shown.iter().any(|shown| model::fits(&pending.op, Some(shown), result)),
            None => match one.done.get(&call) {
                Some(outcome) => model::fits(&pending.op, Some(outcome), result),
                // A call without effect may stay without effect if the result allows that.
                None => result.is_err() && model::fits(&pending.op, None, result),
            },
        };
        let is_over = |one: &Explanation| one.done.contains_key(&call) || fits(one);
        let (reached, tried) = self.reach(is_over);
        let told = |reached: &BTreeSet<Explanation>| {
            let all = reached.iter().chain(&tried).take(4).map(|one| could(one, call));
            all.collect::<Vec<_>>().join(" or ")
        };
        let could = if reached.iter().any(fits) { String::new() } else { told(&reached) };
        let mut left: BTreeSet<Explanation> = reached.into_iter().filter(|one| fits(one)).collect();
        self.pending.remove(&call);
        if self.has_given_up {
            return Ok(());
        }
        if left.is_empty() {
            self.has_given_up = true;
            return Err(could);
        }
        if left.iter().any(|one| one.done.contains_key(&call) || one.reads.contains_key(&call)) {
            left = left.into_iter().map(|one| forget(one, call)).collect();
        }
        self.explanations = left;
        Ok(())
    }

    /// Ends a call with unknown outcome: the call was done before or never will be.
    pub(super) fn resolve(&mut self, call: CallId) {
        if !self.pending.contains_key(&call) {
            return;
        }
        let without = self.explanations.clone();
        let (mut all, _) = self.reach(|one| one.done.contains_key(&call));
        if self.has_given_up {
            return;
        }
        all.extend(without);
        self.pending.remove(&call);
        self.explanations = all.into_iter().map(|one| forget(one, call)).collect();
    }

    /// Removes the ephemeral znodes of an ended session. Every unanswered call may have been done before.
    pub(super) fn vanish(&mut self, session: SessionId) {
        let is_its_create = |pending: &Pending| {
            let creates = |op: &Op| matches!(op, Op::Create { mode, .. } if mode.is_ephemeral());
            pending.session == session
                && match &*pending.op {
                    Op::Multi(all) => all.iter().any(creates),
                    one => creates(one),
                }
        };
        let owns = |one: &Explanation| one.nodes.values().any(|node| node.owner == session);
        if !self.explanations.iter().any(owns) && !self.pending.values().any(is_its_create) {
            return;
        }
        let all = self.reach_all();
        let without = |mut one: Explanation| {
            one.nodes.retain(|_, node| node.owner != session);
            self.record_reads(&mut one);
            one
        };
        self.explanations = all.into_iter().map(without).collect();
    }

    /// Adds the current result of each unanswered read to the read's possible results.
    fn record_reads(&self, one: &mut Explanation) {
        let Explanation { nodes, reads, .. } = one;
        for (call, shown) in reads {
            if let Some(Op::Read { path, .. }) = self.pending.get(call).map(|pending| &*pending.op) {
                shown.insert(model::read(nodes, path));
            }
        }
    }

    /// Returns all explanations reachable by doing unanswered calls, up to the first that satisfies
    /// `is_over`, and all explanations on the way there.
    fn reach(
        &mut self,
        is_over: impl Fn(&Explanation) -> bool,
    ) -> (BTreeSet<Explanation>, BTreeSet<Explanation>) {
        let mut tried = BTreeSet::new();
        let mut over = BTreeSet::new();
        let mut todo: Vec<Explanation> = std::mem::take(&mut self.explanations).into_iter().collect();
        while let Some(one) = todo.pop() {
            if tried.len() > EXPLANATIONS_MAX {
                self.has_given_up = true;
                return Default::default();
            }
            if is_over(&one) {
                over.insert(one);
                continue;
            }
            let next: Vec<Explanation> = self.next(&one).collect();
            if tried.insert(one) {
                todo.extend(next);
            }
        }
        (over, tried)
    }

    /// Returns the same as [`Component::reach`] without a goal: every reachable explanation.
    fn reach_all(&mut self) -> BTreeSet<Explanation> {
        let mut all = BTreeSet::new();
        let mut todo: Vec<Explanation> = std::mem::take(&mut self.explanations).into_iter().collect();
        while let Some(one) = todo.pop() {
            if all.len() > EXPLANATIONS_MAX {
                self.has_given_up = true;
                return BTreeSet::new();
            }
            let next: Vec<Explanation> = self.next(&one).collect();
            if all.insert(one) {
                todo.extend(next);
            }
        }
        all
    }

    /// Returns the explanations after one more call, which takes effect or is refused for a reason that only
    /// its answer shows. Calls of a session are done in order; a call with unknown outcome may be left out.
    fn next<'a>(&'a self, one: &'a Explanation) -> impl Iterator<Item = Explanation> + 'a {
        let is_open = |call: &CallId, pending: &Pending| {
            !one.done.contains_key(call) && !matches!(*pending.op, Op::Read { .. })
        };
        let ahead = move |call: CallId, pending: &Pending| {
            let mut next = one.clone();
            for (other, before) in &self.pending {
                let is_before = before.session == pending.session && before.order < pending.order;
                if is_before && is_open(other, before) {
                    if !before.is_unknown {
                        return Vec::new();
                    }
                    next.done.insert(*other, Outcome::Never);
                }
            }
            let mut all = Vec::new();
            if model::may_be_refused_otherwise(&pending.op) {
                let mut refused = next.clone();
                refused.done.insert(call, Outcome::Never);
                all.push(refused);
            }
            let outcome = model::run(&mut next.nodes, &pending.op, pending.session);
            next.done.insert(call, outcome);
            self.record_reads(&mut next);
            all.push(next);
            all
        };
        let open = self.pending.iter().filter(move |(call, pending)| is_open(call, pending));
        open.flat_map(move |(call, pending)| ahead(*call, pending))
    }
}

fn forget(mut one: Explanation, call: CallId) -> Explanation {
    one.done.remove(&call);
    one.reads.remove(&call);
    one
}

fn could(one: &Explanation, call: CallId) -> String {
    match (one.done.get(&call), one.reads.get(&call)) {
        (Some(outcome), _) => format!("{outcome:?}"),
        (_, Some(shown)) => format!("{shown:?}"),
        _ => "nothing".to_owned(),
    }
}
