//! Facts of nodes, after `nN`: `started`, `ended stopped|failed|killed|powerlost`, `resumed MS`, `forgot`,
//! `opened [vote=TERM/NODE] [last=POSITION]`, `members POSITION VOTERS[+VOTERS] [learners=NODES]`, `appended
//! POSITION [HASH]`, `acknowledged POSITION`, `truncated
//! INDEX`, `applied POSITION [HASH]`, `installed POSITION [DIGEST]`, `voted TERM NODE`, `leads TERM`,
//! `confirms TERM SESSION since= touched=`, `expires TERM SESSION [contact=]` (the last contact is now
//! without the option).
//!
//! POSITION: term, leader and index, as `1.1.5`. HASH and DIGEST are 0 without a word.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowlock_proto::{NodeId, SessionId};
use rowlock_stories::{Words, parse};
use rowlock_world::time::Nanos;

use super::super::Index;
use super::super::node::{Down, Members, NodeFact, Position};
use super::{millis, named, numbers};

pub(super) fn fact(words: &Words<'_>, at: Nanos) -> Option<NodeFact> {
    let entry = || position(words.at(1));
    let hash = || words.find(2).map_or(0, parse);
    let time = |key| words.option(key).map_or(at, millis);
    Some(match words.at(0) {
        "started" => NodeFact::Started,
        "ended" => {
            let all = [Down::Stopped, Down::Failed, Down::Killed, Down::PowerLost];
            NodeFact::Ended { how: named(&all, words.at(1)) }
        }
        "resumed" => NodeFact::Resumed { after: std::time::Duration::from_millis(words.parse(1)) },
        "forgot" => NodeFact::Forgot,
        "opened" => {
            let vote = words.option("vote").map(|vote| {
                let vote: Vec<u64> = numbers(vote, '/');
                (vote[0], NodeId(vote[1]))
            });
            let (last, remembers) =
                (words.option("last").map(position), words.option("remembers") != Some("no"));
            NodeFact::Opened { vote, purged: None, last, remembers }
        }
        "members" => {
            let ids = |text: &str| numbers(text, ',').into_iter().map(NodeId).collect();
            let voters = words.at(2).split('+').map(ids).collect();
            let learners = words.option("learners").map_or_else(BTreeSet::new, ids);
            NodeFact::Members { entry: entry(), members: Arc::new(Members { voters, learners }) }
        }
        "appended" => NodeFact::Appended { entry: entry(), hash: hash() },
        "acknowledged" => NodeFact::Acknowledged { upto: entry() },
        "truncated" => NodeFact::Truncated { after: Index(words.parse(1)) },
        "applied" => NodeFact::Applied { entry: entry(), hash: hash(), digest: 0 },
        "installed" => NodeFact::Installed { entry: Some(entry()), digest: hash() },
        "voted" => NodeFact::Voted { term: words.parse(1), candidate: NodeId(words.parse(2)) },
        "leads" => NodeFact::Leads { term: words.parse(1) },
        "confirms" => NodeFact::Confirms {
            term: words.parse(1),
            since: time("since"),
            touched: time("touched"),
            sessions: vec![SessionId(words.parse(2))],
        },
        "expires" => NodeFact::Expires {
            session: SessionId(words.parse(2)),
            term: words.parse(1),
            contact: time("contact"),
        },
        _ => return None,
    })
}

fn position(word: &str) -> Position {
    let numbers: Vec<u64> = numbers(word, '.');
    Position { term: numbers[0], leader: NodeId(numbers[1]), index: Index(numbers[2]) }
}
