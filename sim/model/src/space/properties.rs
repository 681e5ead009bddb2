//! Properties of every state, and properties of at least one state: a model without events proves nothing.

use stateright::Property;

use super::{CONTACT, Leader, Space, State, TERMS, TIMEOUT};
use crate::rules::Rule;

fn leads(state: &State, is: impl Fn(Leader) -> bool) -> bool {
    state.nodes.iter().any(|node| node.leads.is_some_and(&is))
}

fn keeps(state: &State, rule: Rule) -> bool {
    state.broken != Some(rule)
}

pub(super) fn all() -> Vec<Property<Space>> {
    type P = Property<Space>;
    vec![
        P::always("no two clients believe in the lock", |space, it| !(it.is_granted && space.believes(it))),
        P::always(Rule::LeadersExpire.name(), |_, it| keeps(it, Rule::LeadersExpire)),
        P::always(Rule::WholeTimeout.name(), |_, it| keeps(it, Rule::WholeTimeout)),
        P::always(Rule::AnswersCount.name(), |_, it| keeps(it, Rule::AnswersCount)),
        P::always(Rule::ContactFirst.name(), |_, it| keeps(it, Rule::ContactFirst)),
        P::always(Rule::ConfirmedByALeader.name(), |_, it| keeps(it, Rule::ConfirmedByALeader)),
        P::always(Rule::DecidedFirst.name(), |_, it| keeps(it, Rule::DecidedFirst)),
        P::always(Rule::AssuredIsKept.name(), |_, it| keeps(it, Rule::AssuredIsKept)),
        P::always(Rule::NoBeliefInTheExpired.name(), |_, it| keeps(it, Rule::NoBeliefInTheExpired)),
        P::sometimes("a session expires, and a successor gets the lock", |_, it| it.is_granted),
        P::sometimes("two nodes lead at once, by their own account", |_, it| {
            it.nodes.iter().filter(|node| node.leads.is_some()).count() == 2
        }),
        P::sometimes("a client is sure of its session while the last leader leads", |_, it| {
            it.acknowledged + 1 < TIMEOUT && leads(it, |by| by.term == TERMS && by.timer > 0)
        }),
        P::sometimes("the last leader expires the session", |_, it| {
            it.is_granted && leads(it, |by| by.term == TERMS && by.has_decided)
        }),
        P::sometimes("a leader has something to forgive", |_, it| {
            leads(it, |by| by.owes && by.contact <= CONTACT)
        }),
    ]
}
