//! Rollback of an import: deletes the znodes listed in the journal, children first, and nothing else.
//!
//! A znode is deleted only if the import created the znode and no other client has changed it since. Znodes
//! changed by other clients, or with children created by other clients, stay and are reported.

use rowlock_client::{Client, Error, ErrorCode, Stat, Transaction};

use super::journal;
use super::limits::{LISTED, READS_IN_FLIGHT};
use super::retry::{all, retry};
use super::show::Progress;
use super::trouble::ImportError;
use super::window::Amount;

#[derive(Debug, Default)]
pub struct Rollback {
    pub deleted: u64,
    /// Znodes of the import that stay because other clients changed them.
    pub kept: u64,
    pub first_kept: Vec<String>,
}

/// Deletes all znodes listed in the journal, then the journal. Repeatable after any failure.
pub async fn roll_back(client: &Client, progress: &mut Progress) -> Result<Rollback, ImportError> {
    let mut rollback = Rollback::default();
    for entry in journal::entries(client).await.map_err(ImportError::at(journal::JOURNAL))? {
        roll_back_entry(client, &entry, &mut rollback, progress).await?;
    }
    journal::remove(client).await.map_err(ImportError::at(journal::JOURNAL))?;
    Ok(rollback)
}

async fn roll_back_entry(
    client: &Client,
    entry: &str,
    rollback: &mut Rollback,
    progress: &mut Progress,
) -> Result<(), ImportError> {
    let (paths, created_by) = match retry(|| client.get(entry)).await {
        Ok(znode) => (String::from_utf8_lossy(znode.bytes()).into_owned(), znode.stat),
        Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
        Err(e) => return Err(ImportError::at(entry)(e)),
    };
    // Children first: reverses the order of creation.
    let paths: Vec<&str> = paths.lines().rev().collect();
    for some in paths.chunks(READS_IN_FLIGHT) {
        let stats = all(some.iter().map(|path| retry(|| client.exists(path)))).await;
        let mut ours = Vec::new();
        for (path, stat) in some.iter().zip(stats) {
            match stat.map_err(ImportError::at(path))? {
                Some(stat) if stat.czxid != created_by.czxid => {}
                Some(stat) if stat.mzxid != stat.czxid => rollback.keep(path, "was changed"),
                Some(stat) => ours.push((*path, stat)),
                None => {}
            }
        }
        delete(client, &ours, rollback).await?;
        progress.show(Amount { znodes: rollback.deleted, bytes: 0 });
    }
    match retry(|| client.delete(entry, None)).await {
        Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
        Err(e) => Err(ImportError::at(entry)(e)),
    }
}

/// Deletes all znodes in one transaction; on interference by other clients, one by one.
async fn delete(client: &Client, ours: &[(&str, Stat)], rollback: &mut Rollback) -> Result<(), ImportError> {
    let transaction = ours
        .iter()
        .fold(Transaction::new(), |transaction, (path, stat)| transaction.delete(*path, Some(stat.version)));
    if ours.is_empty() {
        return Ok(());
    }
    if client.commit(transaction).await.is_ok() {
        rollback.deleted += ours.len() as u64;
        return Ok(());
    }
    for (path, stat) in ours {
        match retry(|| client.delete(path, Some(stat.version))).await {
            Ok(()) => rollback.deleted += 1,
            Err(Error::Rejected(ErrorCode::NoNode)) => {}
            Err(Error::Rejected(ErrorCode::NotEmpty)) => rollback.keep(path, "has children of other clients"),
            Err(Error::Rejected(ErrorCode::BadVersion)) => rollback.keep(path, "was changed"),
            Err(e) => return Err(ImportError::at(path)(e)),
        }
    }
    Ok(())
}

impl Rollback {
    fn keep(&mut self, path: &str, why: &str) {
        self.kept += 1;
        if self.first_kept.len() < LISTED {
            self.first_kept.push(format!("{path} {why}"));
        }
    }
}
