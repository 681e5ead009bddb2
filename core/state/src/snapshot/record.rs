//! What a snapshot is made of. The order of records is part of the format: see [`super::Frozen::encode`].

use std::borrow::Cow;

use bytes::Bytes;
use rowlock_proto::acl::Acl;
use rowlock_proto::{SessionId, Zxid};
use serde::{Deserialize, Serialize};

use crate::command::{Attachment, Ordinal};
use crate::dedup::OutcomeRecord;
use crate::locks::{Contender, Question};
use crate::proof::Proof;
use crate::restore::NewCluster;
use crate::sessions::Host;
use crate::upgrade::ClusterVersion;
use crate::znode::Meta;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Row<'a> {
    Counters {
        last_zxid: Zxid,
        time_ms: i64,
    },
    /// Rising ids. The ephemerals follow from the znodes.
    Session {
        id: SessionId,
        proof: Proof,
        timeout_ms: u32,
        attachment: Attachment,
    },
    /// Gets the next number, from 0; comes before the first znode that has it.
    Acl(Cow<'a, [Acl]>),
    /// Behind its parent, whose depth is one less; siblings in order of their names. The root has depth 0.
    Znode {
        depth: u32,
        name: Cow<'a, str>,
        data: Option<Bytes>,
        acl: u32,
        meta: Meta,
    },
    End {
        digest: u64,
    },
    /// What a session's client may still ask about: behind the znodes.
    Acked {
        session: SessionId,
        acked: u64,
    },
    /// Behind `Acked` of its session, rising ids.
    Outcome(OutcomeRecord),
    /// A place in the queue of the lock at `lock`: behind the znodes, in the order of the queue.
    Contender {
        lock: Cow<'a, str>,
        czxid: Zxid,
        name: Cow<'a, str>,
        contender: Contender,
    },
    /// No place is granted the lock before this time: behind the znodes.
    Delay {
        lock: Cow<'a, str>,
        until_ms: i64,
    },
    /// Behind the counters. Not there before the first entry with a number.
    LastEntry(Ordinal),
    /// Behind its session, which has a shorter timeout now.
    LongestTimeout {
        session: SessionId,
        longest_ms: u32,
    },
    /// Behind the counters. Not there before the cluster has an id.
    Cluster(NewCluster),
    /// Behind the counters, and before all that earlier versions do not know. Not there in the first version.
    Version {
        version: ClusterVersion,
        held: bool,
    },
    /// Behind `Version`, since the version of rehearsals.
    Rehearsed(u64),
    /// Behind its session. Not there if it is not known.
    OpenedFrom {
        session: SessionId,
        host: Host,
    },
    /// The question to the place of the `Contender` right before.
    Asked(Cow<'a, Question>),
}

#[cfg(test)]
mod tests {
    use rowlock_world::samples::missing;

    use super::super::block::BlockReader;
    use super::Row;

    /// A record without a sample could change, and the fingerprint would stay.
    #[test]
    fn the_golden_snapshots_have_a_record_of_each_kind() {
        let mut found = Vec::new();
        for text in [
            include_str!("../../testdata/snapshot.golden"),
            include_str!("../../testdata/snapshot_locks.golden"),
        ] {
            let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
            let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            let mut input = bytes.as_slice();
            let mut rows = BlockReader::new(&mut input).expect("a snapshot of this build");
            loop {
                found.push(rows.next().expect("a record"));
                if let Some(Row::End { .. }) = found.last() {
                    break;
                }
            }
        }
        assert_eq!(missing(&found), ["Rehearsed"], "a snapshot of the rehearsed version alone has it");
    }
}
