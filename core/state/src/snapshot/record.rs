//! Records of a snapshot. The order of records belongs to the format: see [`super::Frozen::encode`].

use std::borrow::Cow;

use bytes::Bytes;
use rowlock_proto::acl::Acl;
use rowlock_proto::{SessionId, Zxid};
use serde::{Deserialize, Serialize};

use crate::command::{Attachment, Ordinal};
use crate::dedup::OutcomeRecord;
use crate::locks::{Contender, Question};
use crate::new_cluster::NewCluster;
use crate::proof::Proof;
use crate::sessions::Host;
use crate::version::ClusterVersion;
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
    /// Has the next number, from 0; precedes the first znode with this ACL.
    Acl(Cow<'a, [Acl]>),
    /// Follows its parent, whose depth is one less; siblings in order of their names. The root has depth 0.
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
    /// Numbers of writes that the session's client may repeat; follows the znodes.
    Acked {
        session: SessionId,
        acked: u64,
    },
    /// Follows `Acked` of its session, in order of ids.
    Outcome(OutcomeRecord),
    /// A position in the queue of the lock at `lock`; follows the znodes, in the order of the queue.
    Contender {
        lock: Cow<'a, str>,
        czxid: Zxid,
        name: Cow<'a, str>,
        contender: Contender,
    },
    /// Time before which no position gets the lock; follows the znodes.
    Delay {
        lock: Cow<'a, str>,
        until_ms: i64,
    },
    /// Follows the counters. Absent before the first numbered entry.
    LastEntry(Ordinal),
    /// Follows its session, which has a shorter timeout now.
    LongestTimeout {
        session: SessionId,
        longest_ms: u32,
    },
    /// Follows the counters. Absent before the cluster has an id.
    Cluster(NewCluster),
    /// Follows the counters, in front of all records that earlier versions do not know. Absent in the first
    /// version.
    Version {
        version: ClusterVersion,
        held: bool,
    },
    /// Follows `Version`, since the version of rehearsals.
    Rehearsed(u64),
    /// Follows its session. Absent if unknown.
    OpenedFrom {
        session: SessionId,
        host: Host,
    },
    /// The question to the position of the `Contender` right before.
    Asked(Cow<'a, Question>),
}

#[cfg(test)]
mod tests {
    use rowlock_world::samples::missing;

    use super::super::block::BlockReader;
    use super::Row;

    /// A record without a sample could change without a change of the fingerprint.
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
