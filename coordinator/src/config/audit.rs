//! `[audit]`: who has done what.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

use crate::audit::{Event, Settings};

/// Section `[audit]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// The file, by a name in the node's data folder or an absolute path; `{id}` stands for the number of the
    /// node. `None`: nothing is recorded.
    pub file: Option<PathBuf>,
    /// Kinds of events that are recorded.
    pub events: BTreeSet<Event>,
    /// Bytes of a file. Beyond: a new one is begun.
    pub max_bytes: u64,
    /// Older files that are kept.
    pub keep: u32,
}

impl Default for AuditConfig {
    fn default() -> Self {
        let events = [Event::Auth, Event::Acl, Event::Admin, Event::Denied].into();
        AuditConfig { file: None, events, max_bytes: 64 << 20, keep: 8 }
    }
}

impl AuditConfig {
    /// Where this node writes, if it does.
    pub fn settings(&self, id: NodeId, data_dir: &Path) -> Option<Settings> {
        let file = data_dir.join(super::security::numbered(self.file.as_deref()?, id));
        Some(Settings { file, max_bytes: self.max_bytes, keep: self.keep })
    }
}
