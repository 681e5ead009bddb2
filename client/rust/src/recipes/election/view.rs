//! State of an election by its znodes: candidates, leader, and a transfer under way.
//!
//! The candidates' queue is a lock's queue. The data of the election's znode are empty or, during a transfer,
//! `successor=` and the name of a candidate's queue znode.

use bytes::Bytes;
use rowlock_proto::{FencingToken, SessionId, path};

use crate::znode::Znode;

/// Candidate of an election: the first candidate is the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The candidate's value: [`super::Election::campaign`], [`super::Leadership::set_value`].
    pub value: String,
    /// Fencing token for the candidate's writes as the leader.
    pub token: FencingToken,
    /// The session of the candidate.
    pub session: SessionId,
    /// The path of the candidate's queue znode.
    pub path: String,
}

/// The candidate that leads the election.
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

/// Parses the successor in an election's data.
pub(super) fn successor(data: Option<&Bytes>) -> Option<String> {
    let text = std::str::from_utf8(data?).ok()?;
    text.strip_prefix("successor=").filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Formats the election's data with this successor; `None` for no successor.
pub(super) fn data(successor: Option<&str>) -> Bytes {
    successor.map(|name| Bytes::from(format!("successor={name}"))).unwrap_or_default()
}

/// Checks that the first candidate leads: false during a transfer to another waiting candidate.
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
