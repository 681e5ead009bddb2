//! All checkers together, on a long and correct history.

use std::collections::BTreeMap;

use rowlock_proto::{NodeId, SessionId};

use super::super::Invariants;
use super::testing::{
    appended, applied, client, data, delete, get, invoked, logged, node, returned, set, stat, znode,
};
use crate::history::Fact;
use crate::history::client::{Answer, ClientFact, ZnodeChange};
use crate::history::node::NodeFact;

/// Builds `calls` calls of clients that write and read a few znodes, and three nodes that apply the calls.
fn long_history(calls: u64) -> Vec<Fact> {
    let mut facts: Vec<Fact> = (1..=3).map(|who| node(who, NodeFact::Started)).collect();
    facts.push(node(1, NodeFact::Voted { term: 1, candidate: NodeId(1) }));
    facts.push(node(1, NodeFact::Leads { term: 1 }));
    for who in 1..=4 {
        let session = SessionId(who as i64);
        facts.push(client(who, ClientFact::Session { session, timeout_ms: 4_000, grace_ms: None }));
    }
    let mut znodes: BTreeMap<String, (i64, i64, i32, String)> = BTreeMap::new();
    for call in 1..=calls {
        let (who, zxid) = (1 + call as usize % 4, call as i64);
        let path = format!("/data/znode{}", call % 7);
        let text = call.to_string();
        if call % 3 == 0 {
            let Some((czxid, mzxid, version, text)) = znodes.get(&path) else { continue };
            facts.push(invoked(who, call, get(&path, call % 2 == 0)));
            facts.push(returned(who, call, Ok(Answer::Data(data(text), stat(*czxid, *mzxid, *version)))));
            continue;
        }
        let known = znodes.get(&path).cloned();
        let (op, answer, change, now) = match known {
            Some(_) if call % 31 == 0 => {
                znodes.remove(&path);
                (delete(&path), Answer::Deleted, ZnodeChange::Deleted, None)
            }
            Some((czxid, _, version, _)) => {
                let now = (czxid, zxid, version + 1, text.clone());
                znodes.insert(path.clone(), now);
                let stat = stat(czxid, zxid, version + 1);
                (set(&path, &text), Answer::Set(stat), ZnodeChange::Data, Some((text.as_str(), stat)))
            }
            None => {
                znodes.insert(path.clone(), (zxid, zxid, 0, "new".to_owned()));
                let stat = stat(zxid, zxid, 0);
                let answer = Answer::Created { path: path.clone(), stat };
                (super::testing::create(&path), answer, ZnodeChange::Created, Some(("new", stat)))
            }
        };
        facts.push(invoked(who, call, op.clone()));
        (1..=3).for_each(|node| facts.push(appended(node, (1, 1, call), call)));
        facts.push(applied(1, (1, 1, call), call));
        facts.push(logged(who, zxid, op, Ok(answer.clone())));
        facts.push(znode(zxid, &path, change, now));
        facts.push(returned(who, call, Ok(answer)));
        (2..=3).for_each(|node| facts.push(applied(node, (1, 1, call), call)));
    }
    facts.push(Fact::Settled);
    facts
}

/// Renumbers the entries so that they follow each other without gaps.
fn without_gaps(facts: Vec<Fact>) -> Vec<Fact> {
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    let renumber = |fact: Fact| match fact {
        Fact::Node { node, at, what } => {
            let mut number = |index: u64| {
                let next = numbers.len() as u64 + 1;
                *numbers.entry(index).or_insert(next)
            };
            let what = match what {
                NodeFact::Appended { mut entry, hash } => {
                    entry.index.0 = number(entry.index.0);
                    NodeFact::Appended { entry, hash }
                }
                NodeFact::Applied { mut entry, hash, digest } => {
                    entry.index.0 = number(entry.index.0);
                    NodeFact::Applied { entry, hash, digest }
                }
                what => what,
            };
            Fact::Node { node, at, what }
        }
        fact => fact,
    };
    facts.into_iter().map(renumber).collect()
}

#[test]
fn a_long_and_right_history_passes_all_checkers() {
    let facts = without_gaps(long_history(10_000));
    let mut all = Invariants::of_a_cluster();
    for fact in &facts {
        assert_eq!(all.observe(fact), Ok(()), "{fact:?}");
    }
}

#[test]
fn every_checker_of_a_cluster_is_named_in_the_guarantees() {
    let guarantees = include_str!("../../../../docs/guarantees.md");
    for name in Invariants::of_a_cluster().names() {
        let is_named = [format!("\n### {name}\n"), format!("**{name}**")];
        assert!(is_named.iter().any(|words| guarantees.contains(words)), "{name}");
    }
}
