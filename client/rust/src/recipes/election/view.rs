//! What an election's znodes say: who campaigns, who leads, and whether the lead is being handed over.
//!
//! The queue of the candidates is that of a lock. The data of the election's znode are empty or, while a
//! leader hands over, `successor=` and the name of a candidate's queue znode.

use bytes::Bytes;
use rowlock_proto::{FencingToken, SessionId, path};

use crate::znode::Znode;

/// A candidate: the leader is the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The leader's value: [`super::Election::campaign`], [`super::Leadership::set_value`].
    pub value: String,
    /// Its fencing token: what it writes as the leader carries this one.
    pub token: FencingToken,
    /// The session of the candidate.
    pub session: SessionId,
    /// The path of its queue znode.
    pub path: String,
}

/// The candidate that leads.
pub type Leader = Candidate;

impl Candidate {
    pub(super) fn new(path: String, znode: &Znode) -> Self {
        let (value, stat) = (String::from_utf8_lossy(znode.bytes()).into_owned(), &znode.stat);
        Candidate { value, token: FencingToken(stat.czxid.0), session: stat.ephemeral_owner, path }
    }

    pub(super) fn name(&self) -> &str {
        path::name(&self.path)
    }
}

/// The successor that an election's data name.
pub(super) fn successor(data: Option<&Bytes>) -> Option<String> {
    let text = std::str::from_utf8(data?).ok()?;
    text.strip_prefix("successor=").filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The election's data that name this successor; `None` names none.
pub(super) fn data(successor: Option<&str>) -> Bytes {
    successor.map(|name| Bytes::from(format!("successor={name}"))).unwrap_or_default()
}

/// Whether the first in the queue leads: not while the lead is on its way to another candidate that still
/// waits for it.
pub(super) fn leads(queue: &[String], successor: Option<&str>) -> bool {
    match (queue.first(), successor) {
        (None, _) => false,
        (Some(first), Some(successor)) => first == successor || !queue.iter().any(|name| name == successor),
        (Some(_), None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_is_named_in_text_and_other_data_name_nobody() {
        assert_eq!(successor(Some(&data(Some("x-1")))), Some("x-1".to_owned()));
        for nobody in [None, Some(data(None)), Some("permits=3".into()), Some("successor=".into())] {
            assert_eq!(successor(nobody.as_ref()), None);
        }
    }

    #[test]
    fn the_first_leads_unless_the_lead_is_on_its_way_to_another_who_waits() {
        let queue = ["a", "b", "c"].map(str::to_owned);
        assert!(leads(&queue, None) && leads(&queue, Some("a")) && leads(&queue, Some("gone")));
        assert!(!leads(&queue, Some("c")) && !leads(&[], None));
    }
}
