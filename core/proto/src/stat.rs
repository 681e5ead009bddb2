//! `Stat`: the metadata of a znode (68 bytes on the wire).

use serde::{Deserialize, Serialize};

use crate::ids::{SessionId, Version, Zxid};

record! {
    /// Metadata of a znode, with ZooKeeper's order of fields.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Stat {
        /// Zxid of the creation.
        pub czxid: Zxid,
        /// Zxid of the last change of the data.
        pub mzxid: Zxid,
        /// Wall clock of the creation, milliseconds since 1970.
        pub ctime_ms: i64,
        /// Wall clock of the last change of the data, milliseconds since 1970.
        pub mtime_ms: i64,
        /// Number of changes of the data.
        pub version: Version,
        /// Number of changes of the list of children.
        pub cversion: Version,
        /// Number of changes of the ACL.
        pub aversion: Version,
        /// Session that owns an ephemeral znode, else 0 (also for containers and TTL znodes).
        pub ephemeral_owner: SessionId,
        /// Length of the data, in bytes.
        pub data_length: i32,
        /// Number of direct children.
        pub num_children: i32,
        /// Zxid of the last change of the list of children (or of the creation).
        pub pzxid: Zxid,
    }
}
