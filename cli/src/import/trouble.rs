//! The reasons why an import stops.

use rowlock_client::{Error, ErrorCode};

use super::lineage::Orphan;
use super::snapshot::SnapshotError;
use super::window::Refused;
use crate::cluster::failed;
use crate::exit::{Failure, IO, REFUSED};

/// EX_DATAERR: the snapshot is no snapshot, or damaged.
pub const DATA: u8 = 65;

/// What happened; what was done about it is the caller's to say.
#[derive(Debug)]
pub enum Trouble {
    /// The source cannot be read.
    Source(SnapshotError),
    Order(Orphan),
    Refused(Refused),
    /// A request about a path failed.
    Request(String, Error),
    /// A request about a path of the source failed.
    SourceRequest(String, Error),
    /// The source lists a child that no cluster can have.
    BadName {
        path: String,
        name: String,
        why: String,
    },
    /// What was read back is not what was written: the first differences.
    Different(Vec<String>),
    Interrupted(&'static str),
}

impl From<SnapshotError> for Trouble {
    fn from(e: SnapshotError) -> Self {
        Trouble::Source(e)
    }
}

impl From<Orphan> for Trouble {
    fn from(e: Orphan) -> Self {
        Trouble::Order(e)
    }
}

impl From<Refused> for Trouble {
    fn from(e: Refused) -> Self {
        Trouble::Refused(e)
    }
}

impl Trouble {
    pub fn at(path: &str) -> impl FnOnce(Error) -> Trouble {
        let path = path.to_owned();
        move |e| Trouble::Request(path, e)
    }

    /// As the command reports it.
    pub fn failure(&self) -> Failure {
        match self {
            Trouble::Source(e) => Failure::new(exit_code(e), format!("the source {e}")),
            Trouble::Order(e) => Failure::new(DATA, e),
            Trouble::Refused(Refused { about, error }) if error.code() == Some(ErrorCode::NodeExists) => {
                Failure::new(REFUSED, format!("{about}: somebody else created it meanwhile"))
            }
            Trouble::Refused(Refused { about, error }) => failed(about, error),
            Trouble::Request(path, e) => failed(path, e),
            Trouble::SourceRequest(path, Error::Rejected(ErrorCode::NoAuth)) => Failure::new(
                REFUSED,
                format!(
                    "{path}: the source does not show all of it; present a credential that may read data and ACLs of \
                     everything (super) with --from-auth digest:USER:PASSWORD"
                ),
            ),
            Trouble::SourceRequest(path, Error::Rejected(ErrorCode::MarshallingError)) => Failure::new(
                DATA,
                format!(
                    "the source, {path}: its answer is not in ZooKeeper's protocol, or has names that are not UTF-8; \
                     rename these znodes, or import a snapshot with --from-snapshot"
                ),
            ),
            Trouble::BadName { path, name, why } => Failure::new(
                DATA,
                format!("the source, {path}: it lists a child {name:?}, which cannot be imported: {why}"),
            ),
            Trouble::SourceRequest(path, e) => failed(&format!("the source, {path}"), e),
            Trouble::Different(first) => {
                Failure::new(REFUSED, format!("what was read back differs: {}", first.join("; ")))
            }
            Trouble::Interrupted(signal) => {
                let number = if *signal == "SIGINT" { 2 } else { 15 };
                Failure::new(128 + number, format!("interrupted by {signal}"))
            }
        }
    }
}

/// For a source that cannot be read.
pub fn exit_code(e: &SnapshotError) -> u8 {
    if matches!(e, SnapshotError::Io(_)) { IO } else { DATA }
}
