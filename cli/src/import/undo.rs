//! Undoes an import: deletes what its journal lists, children first, and nothing else.
//!
//! A znode is deleted only if the import created it and no other client has changed it since. What others
//! have created below it, or changed, stays and is reported.

use rowlock_client::{Client, Error, ErrorCode, Stat, Transaction};

use super::journal;
use super::limits::{LISTED, READS_IN_FLIGHT};
use super::retry::{all, insist};
use super::show::Progress;
use super::trouble::Trouble;
use super::window::Amount;

#[derive(Debug, Default)]
pub struct Undone {
    pub deleted: u64,
    /// Znodes of the import that stay because of what others did.
    pub kept: u64,
    pub first_kept: Vec<String>,
}

/// Deletes everything that the journal lists, then the journal. May be repeated after any failure.
pub async fn undo(client: &Client, progress: &mut Progress) -> Result<Undone, Trouble> {
    let mut undone = Undone::default();
    for entry in journal::entries(client).await.map_err(Trouble::at(journal::JOURNAL))? {
        undo_one(client, &entry, &mut undone, progress).await?;
    }
    journal::remove(client).await.map_err(Trouble::at(journal::JOURNAL))?;
    Ok(undone)
}

async fn undo_one(
    client: &Client,
    entry: &str,
    undone: &mut Undone,
    progress: &mut Progress,
) -> Result<(), Trouble> {
    let (paths, created_by) = match insist(|| client.get(entry)).await {
        Ok(znode) => (String::from_utf8_lossy(znode.bytes()).into_owned(), znode.stat),
        Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
        Err(e) => return Err(Trouble::at(entry)(e)),
    };
    // Children first: the reverse of the order of creation.
    let paths: Vec<&str> = paths.lines().rev().collect();
    for some in paths.chunks(READS_IN_FLIGHT) {
        let stats = all(some.iter().map(|path| insist(|| client.exists(path)))).await;
        let mut ours = Vec::new();
        for (path, stat) in some.iter().zip(stats) {
            match stat.map_err(Trouble::at(path))? {
                Some(stat) if stat.czxid != created_by.czxid => {}
                Some(stat) if stat.mzxid != stat.czxid => undone.keep(path, "was changed"),
                Some(stat) => ours.push((*path, stat)),
                None => {}
            }
        }
        delete(client, &ours, undone).await?;
        progress.show(Amount { znodes: undone.deleted, bytes: 0 });
    }
    match insist(|| client.delete(entry, None)).await {
        Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
        Err(e) => Err(Trouble::at(entry)(e)),
    }
}

/// Together if that works; if others interfered, one by one.
async fn delete(client: &Client, ours: &[(&str, Stat)], undone: &mut Undone) -> Result<(), Trouble> {
    let transaction = ours
        .iter()
        .fold(Transaction::new(), |transaction, (path, stat)| transaction.delete(*path, Some(stat.version)));
    if ours.is_empty() {
        return Ok(());
    }
    if client.commit(transaction).await.is_ok() {
        undone.deleted += ours.len() as u64;
        return Ok(());
    }
    for (path, stat) in ours {
        match insist(|| client.delete(path, Some(stat.version))).await {
            Ok(()) => undone.deleted += 1,
            Err(Error::Rejected(ErrorCode::NoNode)) => {}
            Err(Error::Rejected(ErrorCode::NotEmpty)) => undone.keep(path, "has children of others"),
            Err(Error::Rejected(ErrorCode::BadVersion)) => undone.keep(path, "was changed"),
            Err(e) => return Err(Trouble::at(path)(e)),
        }
    }
    Ok(())
}

impl Undone {
    fn keep(&mut self, path: &str, why: &str) {
        self.kept += 1;
        if self.first_kept.len() < LISTED {
            self.first_kept.push(format!("{path} {why}"));
        }
    }
}
