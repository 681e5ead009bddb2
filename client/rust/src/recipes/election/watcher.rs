//! [`LeaderWatcher`]: reports the leader of an election.
//!
//! The watcher watches the first znode in the queue and the election's own data. Only a change of the leader
//! changes these, hence a hundred observers cost nothing while candidates come and go. Without a candidate
//! the watcher watches the list of candidates for the first arrival.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use rowlock_proto::{ErrorCode, path};

use super::{Candidate, Election, Leader, view};
use crate::error::Error;
use crate::recipes::plain::insist;
use crate::recipes::queue::Queue;
use crate::watch::OneshotWatch;
use crate::znode::Watched;

/// Reports every change of the leader. Made by [`Election::observe`].
///
/// The watcher reports states, not events: a short lead may be left out, and a report is true of a past
/// moment. To act only during a lead, campaign: [`super::Leadership`].
#[derive(Debug)]
pub struct LeaderWatcher {
    election: Election,
    /// Leader of the last report.
    told: Option<Option<Leader>>,
}

/// [`LeaderWatcher`] as a stream; ends behind the first error.
pub struct LeaderStream {
    next: Option<Next>,
}

type Next = Pin<Box<dyn Future<Output = (LeaderWatcher, Result<Option<Leader>, Error>)> + Send>>;

/// Watches that may report a change.
struct Watches {
    /// Watch of the election's znode.
    election: OneshotWatch,
    /// Watch of the leader's znode, or of the list of candidates if there are none.
    queue: Option<OneshotWatch>,
}

impl LeaderWatcher {
    pub(super) fn new(election: Election) -> Self {
        LeaderWatcher { election, told: None }
    }

    /// Returns the leader (`None`: no leader, or a transfer is under way): the first call at once, later
    /// calls after a change of the leader or of the leader's value.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, and no event would arrive.
    /// [`Error::InvalidName`], [`Error::Rejected`] (NoAuth).
    /// # Cancel safety
    /// Cancel safe: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        if self.told.is_none() {
            // What the first answer says is not from before the call.
            let site = self.election.site();
            let path = site.usable()?;
            insist(|| site.client().sync(path)).await?;
        }
        loop {
            let (leader, watches) = self.read_leader().await?;
            if self.told.as_ref() != Some(&leader) {
                self.told = Some(leader.clone());
                return Ok(leader);
            }
            watches.changed().await?;
        }
    }

    /// Converts to a stream, for `while let Some(..) = stream.next().await` of the futures crates.
    pub fn into_stream(self) -> LeaderStream {
        LeaderStream { next: Some(step(self)) }
    }

    async fn read_leader(&self) -> Result<(Option<Leader>, Watches), Error> {
        let (client, parent) = (self.election.site().client(), self.election.site().usable()?);
        loop {
            let Watched { value: seen, watch: election } = match insist(|| client.get_watched(parent)).await {
                Err(Error::Rejected(ErrorCode::NoNode)) => {
                    let Watched { value: stat, watch: election } =
                        insist(|| client.exists_watched(parent)).await?;
                    if stat.is_some() {
                        continue;
                    }
                    return Ok((None, Watches { election, queue: None }));
                }
                read => read?,
            };
            let Some(queue) = existing(insist(|| client.get_children(parent)).await)? else { continue };
            let queue = Queue::new(queue.names).into_names();
            let Some(first) = queue.first() else {
                let arrivals = existing(insist(|| client.get_children_watched(parent)).await)?;
                let Some(Watched { value: children, watch: arrivals }) = arrivals else { continue };
                if !Queue::new(children.names).into_names().is_empty() {
                    continue;
                }
                return Ok((None, Watches { election, queue: Some(arrivals) }));
            };
            let path = path::join(parent, first);
            let read = existing(insist(|| client.get_watched(&path)).await)?;
            let Some(Watched { value: znode, watch: changed }) = read else { continue };
            let leader = view::leads(&queue, view::successor(seen.data.as_ref()).as_deref())
                .then(|| Candidate::new(path.clone(), &znode));
            return Ok((leader, Watches { election, queue: Some(changed) }));
        }
    }
}

/// Maps NoNode to `None`: the znode vanished in between, read again.
fn existing<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Watches {
    async fn changed(self) -> Result<(), Error> {
        let Watches { mut election, queue } = self;
        let Some(mut queue) = queue else { return election.changed().await.map(drop) };
        tokio::select! {
            biased;
            event = election.changed() => event.map(drop),
            event = queue.changed() => event.map(drop),
        }
    }
}

fn step(mut watcher: LeaderWatcher) -> Next {
    Box::pin(async move {
        let told = watcher.next().await;
        (watcher, told)
    })
}

impl Stream for LeaderStream {
    type Item = Result<Option<Leader>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (watcher, told) = ready!(next.as_mut().poll(cx));
        self.next = told.is_ok().then(|| step(watcher));
        Poll::Ready(Some(told))
    }
}

impl fmt::Debug for LeaderStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderStream").field("ended", &self.next.is_none()).finish()
    }
}
