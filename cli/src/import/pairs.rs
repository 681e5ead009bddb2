//! Znodes of the source in order, each beside the znode that the target has at its path now.

use std::collections::VecDeque;

use futures_util::future::join_all;
use rowlock_client::{Client, Error, ErrorCode, Znode};

use super::limits::READS_IN_FLIGHT;
use super::record::{Found, Record, Selection, select};
use super::snapshot::{Records, Snapshot};
use super::target::Target;
use super::trouble::{ImportError, retry};

pub struct Pairs<'a> {
    client: &'a Client,
    target: &'a Target,
    records: Records<'a>,
    ready: VecDeque<(Record, Option<Found>)>,
    /// Path of the last znode that the target lacks; the target lacks all its descendants, too.
    missing: Option<String>,
}

impl<'a> Pairs<'a> {
    /// Starts at the first znode; later reads show all changes that were committed before.
    pub async fn new(
        client: &'a Client,
        target: &'a Target,
        source: &'a Snapshot,
    ) -> Result<Self, ImportError> {
        retry(|| client.sync("/")).await.map_err(ImportError::at("/"))?;
        let (records, ready) = (source.records(), VecDeque::new());
        Ok(Pairs { client, target, records, ready, missing: None })
    }

    /// Returns the next znode, or `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<(Record, Option<Found>)>, ImportError> {
        if self.ready.is_empty() {
            self.fill().await?;
        }
        Ok(self.ready.pop_front())
    }

    async fn fill(&mut self) -> Result<(), ImportError> {
        // The session must not starve while nothing needs to be read from the target.
        tokio::task::yield_now().await;
        let (mut chunk, mut paths) = (Vec::new(), Vec::new());
        while chunk.len() < READS_IN_FLIGHT
            && let Some(record) = self.records.next()?
        {
            let path = self.is_possible(&record).then(|| self.target.path(&record.path));
            chunk.push((record, path.is_some()));
            paths.extend(path);
        }
        let mut reads =
            join_all(paths.iter().map(|path| read(self.client, path))).await.into_iter().zip(&paths);
        for (record, is_read) in chunk {
            let mut found = None;
            if is_read && let Some((read, path)) = reads.next() {
                found = read.map_err(ImportError::at(path))?;
                if found.is_none() && !self.is_below_missing(&record) {
                    self.missing = Some(record.path.clone());
                }
            }
            self.ready.push_back((record, found));
        }
        Ok(())
    }

    /// Returns false if the target cannot have the znode.
    fn is_possible(&self, record: &Record) -> bool {
        select(record) == Selection::Taken
            && !self.is_below_missing(record)
            && self.target.obstacle(record).is_none()
    }

    fn is_below_missing(&self, record: &Record) -> bool {
        let rest = self.missing.as_deref().and_then(|missing| record.path.strip_prefix(missing));
        rest.is_some_and(|rest| rest.starts_with('/') || self.missing.as_deref() == Some("/"))
    }
}

/// Reads a znode; `None` if it does not exist.
pub async fn read(client: &Client, path: &str) -> Result<Option<Found>, Error> {
    let both = async {
        let Znode { data, stat } = retry(|| client.get(path)).await?;
        let acl = retry(|| client.get_acl(path)).await?.acl;
        Ok(Found { stat, content: Some((data, acl)) })
    };
    match both.await {
        Ok(found) => Ok(Some(found)),
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(None),
        Err(Error::Rejected(ErrorCode::NoAuth)) => {
            let stat = retry(|| client.exists(path)).await?;
            Ok(stat.map(|stat| Found { stat, content: None }))
        }
        Err(e) => Err(e),
    }
}
