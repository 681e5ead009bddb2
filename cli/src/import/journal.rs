//! Journal of a running import in the cluster, from which a later process can roll the import back.
//!
//! `/zookeeper/rowlock-import` exists from before the first create until all znodes are verified or removed:
//! only one import runs at a time. Its data identifies the import. Its child `marker` is ephemeral, and
//! exists while the import is alive. Its children `b-...` list, one per transaction, the paths created **by
//! the same transaction**.
//!
//! Invariant: a znode belongs to the import if and only if its czxid equals the czxid of the entry that lists
//! the znode.

use rowlock_client::{Acl, Children, Client, CreateMode, Error, ErrorCode, Stat, Transaction};
use serde_json::{Value, json};

use super::retry::retry;

pub const JOURNAL: &str = "/zookeeper/rowlock-import";
/// Ephemeral znode of a live import.
pub const MARKER: &str = "/zookeeper/rowlock-import/marker";
/// Path of znodes for trying ACLs.
pub const TRIAL: &str = "/zookeeper/rowlock-import/trial";

/// Returns the path of the entry of the transaction with this number.
pub fn entry(number: u64) -> String {
    format!("{JOURNAL}/b-{number:012}")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: String,
    pub by: String,
    pub source: String,
    /// Wall clock, milliseconds since 1970.
    pub started_ms: i64,
    /// Complete and verified: nothing to roll back.
    pub is_done: bool,
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let phase = if self.is_done { "done" } else { "importing" };
        let Header { id, by, source, started_ms, .. } = self;
        json!({"id": id, "by": by, "source": source, "started_ms": started_ms, "phase": phase})
            .to_string()
            .into_bytes()
    }

    /// Accepts any bytes: only the phase is more than text for people.
    fn parse(bytes: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let text = |key: &str| value[key].as_str().unwrap_or("?").to_owned();
        Header {
            id: text("id"),
            by: text("by"),
            source: text("source"),
            started_ms: value["started_ms"].as_i64().unwrap_or_default(),
            is_done: value["phase"] == "done",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalState {
    pub header: Header,
    pub marker: Option<Stat>,
}

/// Reads the journal of an import, if any.
pub async fn find(client: &Client) -> Result<Option<JournalState>, Error> {
    retry(|| client.sync("/")).await?;
    let header = match retry(|| client.get(JOURNAL)).await {
        Ok(header) => Header::parse(header.bytes()),
        Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(None),
        Err(e) => return Err(e),
    };
    let marker = retry(|| client.exists(MARKER)).await?;
    Ok(Some(JournalState { header, marker }))
}

/// Starts a journal. Returns false if another journal exists.
pub async fn begin(client: &Client, header: &Header) -> Result<bool, Error> {
    let data = header.bytes();
    let transaction = || {
        Transaction::new()
            .create(JOURNAL, Some(data.clone().into()), CreateMode::Persistent, Acl::open())
            .create(MARKER, Some(data.clone().into()), CreateMode::Ephemeral, Acl::open())
    };
    match retry(|| client.commit(transaction())).await {
        Ok(_) => Ok(true),
        // The journal may be our own: the reply to an earlier attempt may have been lost.
        Err(e) if e.code() == Some(ErrorCode::NodeExists) => {
            Ok(find(client).await?.is_some_and(|found| found.header.id == header.id))
        }
        Err(e) => Err(e),
    }
}

/// Marks the import as complete: nothing to roll back any more.
pub async fn complete(client: &Client, header: &Header) -> Result<(), Error> {
    let done = Header { is_done: true, ..header.clone() };
    retry(|| client.set(JOURNAL, Some(done.bytes().into()), None)).await.map(drop)
}

/// Returns the paths of all entries, the newest first.
pub async fn entries(client: &Client) -> Result<Vec<String>, Error> {
    let mut names = retry(|| client.get_children(JOURNAL)).await?.names;
    names.retain(|name| name.starts_with("b-"));
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names.into_iter().map(|name| format!("{JOURNAL}/{name}")).collect())
}

pub async fn remove(client: &Client) -> Result<(), Error> {
    loop {
        let Children { names, .. } = match retry(|| client.get_children(JOURNAL)).await {
            Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
            listed => listed?,
        };
        // The marker is deleted last, together with the journal.
        for some in names.iter().filter(|name| *name != "marker").collect::<Vec<_>>().chunks(500) {
            let transaction = || {
                some.iter()
                    .fold(Transaction::new(), |all, name| all.delete(format!("{JOURNAL}/{name}"), None))
            };
            tolerate_absence(retry(|| client.commit(transaction())).await.map(drop))?;
        }
        tolerate_absence(retry(|| client.delete(MARKER, None)).await)?;
        match retry(|| client.delete(JOURNAL, None)).await {
            Err(Error::Rejected(ErrorCode::NotEmpty)) => {}
            other => return tolerate_absence(other),
        }
    }
}

fn tolerate_absence(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(e) if e.code() == Some(ErrorCode::NoNode) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_a_round_trip_and_garbage_is_not_done() {
        let header = Header {
            id: "7f".to_owned(),
            by: "root@a, process 7".to_owned(),
            source: "snapshot.61".to_owned(),
            started_ms: 5,
            is_done: true,
        };
        assert_eq!(Header::parse(&header.bytes()), header);
        assert!(!Header::parse(b"garbage").is_done);
    }

    #[test]
    fn entries_sort_by_their_number() {
        assert!(entry(9) < entry(10) && entry(999_999) < entry(1_000_000));
    }
}
