//! [`LeaderWatcher`]: reports the leader of an election.
//!
//! The watcher watches the first znode in the queue and the election's own data. Only a change of the leader
//! changes these, hence a hundred observers cost nothing while candidates come and go. Without a candidate
//! the watcher watches the list of candidates for the first arrival.
//!
//! The state of an election is in its znodes: the candidates' queue is a lock's queue; the data of the
//! election's znode are empty or, during a transfer, `successor=` and the name of a candidate's queue znode.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, path};

use super::election::Election;
use super::queue::Queue;
use super::site::insist;
use crate::error::Error;
use crate::znode::{OneshotWatch, Watched, Znode};

/// Reports every change of the leader. Made by [`Election::observe`].
///
/// The watcher reports states, not events: a short lead may be left out, and a report is true of a past
/// moment. To act only during a lead, campaign: [`crate::Leadership`].
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
    pub(crate) fn new(election: Election) -> Self {
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
            let leader = leads(&queue, successor(seen.data.as_ref()).as_deref())
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

/// Candidate of an election: the first candidate is the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The candidate's value: [`Election::campaign`], [`crate::Leadership::set_value`].
    pub value: String,
    /// Fencing token for the candidate's writes as the leader.
    pub token: FencingToken,
    /// The session of the candidate.
    pub session: SessionId,
    /// The path of the candidate's queue znode.
    pub path: String,
}

/// The candidate that leads the election.
pub type Leader = Candidate;

impl Candidate {
    pub(crate) fn new(path: String, znode: &Znode) -> Self {
        let (value, stat) = (String::from_utf8_lossy(znode.bytes()).into_owned(), &znode.stat);
        Candidate { value, token: FencingToken(stat.czxid.0), session: stat.ephemeral_owner, path }
    }

    pub(crate) fn name(&self) -> &str {
        path::name(&self.path)
    }
}

/// Parses the successor in an election's data.
pub(crate) fn successor(data: Option<&Bytes>) -> Option<String> {
    let text = std::str::from_utf8(data?).ok()?;
    text.strip_prefix("successor=").filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Formats the election's data with this successor; `None` for no successor.
pub(crate) fn data(successor: Option<&str>) -> Bytes {
    successor.map(|name| Bytes::from(format!("successor={name}"))).unwrap_or_default()
}

/// Checks that the first candidate leads: false during a transfer to another waiting candidate.
pub(crate) fn leads(queue: &[String], successor: Option<&str>) -> bool {
    match (queue.first(), successor) {
        (None, _) => false,
        (Some(first), Some(successor)) => first == successor || !queue.iter().any(|name| name == successor),
        (Some(_), None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_is_named_in_text_and_other_data_name_nobody() {
        assert_eq!(successor(Some(&data(Some("x-1")))), Some("x-1".to_owned()));
        for nobody in [None, Some(data(None)), Some("permits=3".into()), Some("successor=".into())] {
            assert_eq!(successor(nobody.as_ref()), None);
        }
    }

    #[test]
    fn the_first_leads_unless_the_lead_is_on_its_way_to_another_who_waits() {
        let queue = ["a", "b", "c"].map(str::to_owned);
        assert!(leads(&queue, None) && leads(&queue, Some("a")) && leads(&queue, Some("gone")));
        assert!(!leads(&queue, Some("c")) && !leads(&[], None));
    }
}
