//! What an import leaves in the cluster while it runs, so that a later process can undo it.
//!
//! `/zookeeper/rowlock-import` exists from before the first create until all is verified or undone, so only
//! one import runs at a time. Its data says whose import it is. Its child `marker` is ephemeral: while it
//! exists, the import is alive. Its children `b-...` list, one per transaction, the paths that were created
//! **by that very transaction**.
//!
//! Invariant: a znode is the import's if and only if it has the czxid of the entry that lists it.

use rowlock_client::{Acl, Children, Client, CreateMode, Error, ErrorCode, Stat, Transaction};
use serde_json::{Value, json};

use super::retry::insist;

pub const JOURNAL: &str = "/zookeeper/rowlock-import";
/// Is there while the import is alive.
pub const MARKER: &str = "/zookeeper/rowlock-import/marker";
/// Where ACLs are tried out.
pub const TRIAL: &str = "/zookeeper/rowlock-import/trial";

/// Path of the entry of the transaction with this number.
pub fn entry(number: u64) -> String {
    format!("{JOURNAL}/b-{number:012}")
}

/// Whose import it is, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tells it from all others.
    pub id: String,
    pub by: String,
    pub source: String,
    /// Wall clock, milliseconds since 1970.
    pub started_ms: i64,
    /// Everything is there and verified: there is nothing to take back any more.
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

    /// Lenient: it is only shown to people, but for the phase.
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

/// What stands in the journal's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalState {
    pub header: Header,
    /// The marker's Stat, if it is there.
    pub marker: Option<Stat>,
}

/// Looks for the journal of an import.
pub async fn find(client: &Client) -> Result<Option<JournalState>, Error> {
    insist(|| client.sync("/")).await?;
    let header = match insist(|| client.get(JOURNAL)).await {
        Ok(header) => Header::parse(header.bytes()),
        Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(None),
        Err(e) => return Err(e),
    };
    let marker = insist(|| client.exists(MARKER)).await?;
    Ok(Some(JournalState { header, marker }))
}

/// Begins a journal. `Ok(false)`: there is one.
pub async fn begin(client: &Client, header: &Header) -> Result<bool, Error> {
    let data = header.bytes();
    let transaction = || {
        Transaction::new()
            .create(JOURNAL, Some(data.clone().into()), CreateMode::Persistent, Acl::open())
            .create(MARKER, Some(data.clone().into()), CreateMode::Ephemeral, Acl::open())
    };
    match insist(|| client.commit(transaction())).await {
        Ok(_) => Ok(true),
        // Perhaps by ourselves: the reply of an earlier attempt may have been lost.
        Err(e) if e.code() == Some(ErrorCode::NodeExists) => {
            Ok(find(client).await?.is_some_and(|found| found.header.id == header.id))
        }
        Err(e) => Err(e),
    }
}

/// From now on there is nothing to take back.
pub async fn complete(client: &Client, header: &Header) -> Result<(), Error> {
    let done = Header { is_done: true, ..header.clone() };
    insist(|| client.set(JOURNAL, Some(done.bytes().into()), None)).await.map(drop)
}

/// The entries that are there, the newest first.
pub async fn entries(client: &Client) -> Result<Vec<String>, Error> {
    let mut names = insist(|| client.get_children(JOURNAL)).await?.names;
    names.retain(|name| name.starts_with("b-"));
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names.into_iter().map(|name| format!("{JOURNAL}/{name}")).collect())
}

/// Removes the journal with whatever it still has.
pub async fn remove(client: &Client) -> Result<(), Error> {
    loop {
        let Children { names, .. } = match insist(|| client.get_children(JOURNAL)).await {
            Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
            listed => listed?,
        };
        // The marker goes last, with the journal.
        for some in names.iter().filter(|name| *name != "marker").collect::<Vec<_>>().chunks(500) {
            let transaction = || {
                some.iter()
                    .fold(Transaction::new(), |all, name| all.delete(format!("{JOURNAL}/{name}"), None))
            };
            tolerate_absence(insist(|| client.commit(transaction())).await.map(drop))?;
        }
        tolerate_absence(insist(|| client.delete(MARKER, None)).await)?;
        match insist(|| client.delete(JOURNAL, None)).await {
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
    fn a_header_is_read_as_it_was_written_and_survives_garbage() {
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
