//! Section `[audit]`: the audit log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

use crate::audit::{Event, Settings};

/// Section `[audit]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Name in the data folder, or absolute path; `{id}` stands for the node's number. Not set: no audit log.
    pub file: Option<PathBuf>,
    /// Recorded kinds of events: `auth`, `acl`, `admin`, `denied`, `locks`, `writes`.
    pub events: BTreeSet<Event>,
    /// Bytes of a file, which then becomes `audit.log.1`.
    pub max_bytes: u64,
    /// Number of older files to keep.
    pub keep: u32,
}

impl Default for AuditConfig {
    fn default() -> Self {
        let events = [Event::Auth, Event::Acl, Event::Admin, Event::Denied].into();
        AuditConfig { file: None, events, max_bytes: 64 << 20, keep: 8 }
    }
}

impl AuditConfig {
    /// Returns the settings of this node's audit log, if it has one.
    pub fn settings(&self, id: NodeId, data_dir: &Path) -> Option<Settings> {
        let file = data_dir.join(super::security::numbered(self.file.as_deref()?, id));
        Some(Settings { file, max_bytes: self.max_bytes, keep: self.keep })
    }
}
