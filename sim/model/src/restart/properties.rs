//! Properties of every state, and properties of at least one state: a model without events proves nothing.

use stateright::Property;

use super::log::{Kind, Log};
use super::mistake::Promise;
use super::state::{Node, Rules, State};
use super::{Restarts, may_stop};

fn has(log: Log, kind: Kind) -> bool {
    log.count(|entry| entry.kind == kind) > 0
}

fn any_node(state: &State, is: impl Fn(&Node) -> bool) -> bool {
    state.nodes.iter().any(is)
}

pub(super) fn all(rules: Rules) -> Vec<Property<Restarts>> {
    type P = Property<Restarts>;
    let mut all = vec![
        P::always(Promise::OneHolder.name(), |_, it| it.broken != Some(Promise::OneHolder)),
        P::always(Promise::TokensGrow.name(), |_, it| it.broken != Some(Promise::TokensGrow)),
        P::always(Promise::ZnodesStay.name(), |_, it| it.broken != Some(Promise::ZnodesStay)),
        P::always(Promise::ForgottenByRestart.name(), |_, it| it.broken != Some(Promise::ForgottenByRestart)),
        P::always(Promise::Progress.name(), |space, it| !may_stop(space, it)),
        P::sometimes("a second restart follows the first", |_, it| {
            it.committed.count(|entry| entry.kind == Kind::Restart) == 2
        }),
        P::sometimes("two nodes lose power, and the remaining leader forgets nothing", |_, it| {
            let admitted = !any_node(it, |node| node.has_forgotten);
            it.losses == 2 && admitted && it.token > 0 && !any_node(it, |node| has(node.log, Kind::Restart))
        }),
        P::sometimes("a restart drops the longer log of a node that remembers", |_, it| {
            let term = it.committed.last_term();
            let is_cut_off =
                |node: &Node| node.log.length() > it.committed.length() && node.log.last_term() < term;
            has(it.committed, Kind::Restart) && any_node(it, |node| !node.has_forgotten && is_cut_off(node))
        }),
    ];
    if rules.has_clients {
        all.extend([
            P::sometimes("a restart forgets the grant of a client that believes in it", |_, it| {
                let is_gone = |node: &Node| it.holder.is_some_and(|by| node.log.get(by.at) != Some(by.entry));
                let restarts = |node: &Node| has(node.log, Kind::Restart) && node.leads.is_some();
                let believes = it.holder.is_some_and(|holder| holder.believes());
                believes && any_node(it, |node| restarts(node) && is_gone(node))
            }),
            P::sometimes("the lock is granted again after a restart", |_, it| {
                let last = |kind| it.committed.last(|entry| entry.kind == kind);
                has(it.committed, Kind::Restart) && last(Kind::Grant) > last(Kind::Restart)
            }),
            P::sometimes("a holder releases the lock, and the next waiter gets it", |_, it| {
                it.committed.count(|entry| entry.kind == Kind::Grant) == 2
                    && !has(it.committed, Kind::Restart)
            }),
        ]);
    }
    if rules.writes {
        all.push(P::sometimes("a znode is written after a restart", |_, it| {
            let last = |kind| it.committed.last(|entry| entry.kind == kind);
            has(it.committed, Kind::Restart) && last(Kind::Znode) > last(Kind::Restart)
        }));
    }
    if rules.changes_voters {
        all.push(P::sometimes("a third voter joins before a restart", |_, it| {
            let last = |kind| it.committed.last(|entry| entry.kind == kind);
            has(it.committed, Kind::Change) && last(Kind::Restart) > last(Kind::Change)
        }));
    }
    all
}
