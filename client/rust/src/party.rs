//! [`Party`]: a holder or waiter in a lock's queue, as other clients see the queue.

use rowlock_proto::{FencingToken, SessionId, lock};

/// A holder of a lock, or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Party {
    /// The path of the queue znode.
    pub path: String,
    /// The session of the queue znode.
    pub session: SessionId,
    /// The fencing token of the party's grant, present or future.
    pub token: FencingToken,
    /// The client's label ([`crate::ClientBuilder::label`]).
    pub label: String,
    /// The request's meta text ([`crate::LockRequest::meta`]).
    pub meta: String,
    /// Time of the grant, or of entering the queue for a waiter: the leader's clock, milliseconds since 1970.
    pub since_ms: i64,
}

impl Party {
    /// Makes the party with its path relative to the client's chroot.
    pub(crate) fn of(party: lock::Party, relative: impl FnOnce(String) -> String) -> Party {
        let (label, meta) = parse(&party.label);
        let (session, token, since_ms) = (party.session, party.token, party.since_ms);
        Party { path: relative(party.path.to_string()), session, token, label, meta, since_ms }
    }
}

/// Data of a queue znode: the label, then a line break and the meta text if any.
pub(crate) fn data(label: &str, meta: &str) -> String {
    if meta.is_empty() { label.to_owned() } else { format!("{label}\n{meta}") }
}

fn parse(data: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(data);
    let (label, meta) = text.split_once('\n').unwrap_or((&text, ""));
    (label.to_owned(), meta.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_and_metadata_come_back_as_they_were_given() {
        for (label, meta) in [("worker-7", "job=1\nstep=2"), ("worker-7", ""), ("", "job=1")] {
            assert_eq!(parse(data(label, meta).as_bytes()), (label.to_owned(), meta.to_owned()));
        }
    }
}
