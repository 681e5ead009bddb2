//! [`DoubleBarrier`]: a fixed number of members begin together and end together.
//!
//! Members are ephemeral children of the barrier's znode, hence the barrier never waits for a dead member.
//! The rounds are in the data of the barrier's znode ([`round`]): a single write opens a round and also
//! checks the znodes of all members; the last member closes the round, or the next client if all members have
//! died. Every write of the data comes with a check (or the removal) of the writer's own znode: the servers
//! cannot have removed the barrier's znode (a container) as empty and replaced the znode in the meantime, and
//! versions can be trusted.

mod member;
mod round;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{CreateMode, ErrorCode, Version, path};

use self::member::Member;
use self::round::{Entering, Leaving, Round};
use super::plain::{insist, pause_or_fail, within};
use super::site::{Kind, Site};
use crate::client::Client;
use crate::error::Error;
use crate::limits::DOUBLE_BARRIER_SIZE;
use crate::transaction::Transaction;
use crate::watch::OneshotWatch;
use crate::znode::Watched;

/// Admits `size` clients to a section, all at the same time, and lets them out when all have finished.
///
/// A client that dies outside leaves the rest waiting for another client. A client that dies inside has left.
/// A client that arrives during a round waits for the next round. The layout is our own (Curator's and
/// kazoo's let latecomers slip in, and hang on a round whose members have all died): do not mix them on a
/// path.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), rowlock_client::Error> {
/// let step = client.double_barrier("simulation", 4);
/// let inside = step.enter().await?; // four of us are here
/// // ...
/// inside.leave().await?; // all four are done
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    site: Site,
    size: u32,
}

/// Client inside a [`DoubleBarrier`]. Dropping the membership leaves without waiting for the other members.
#[must_use = "dropping it leaves the double barrier"]
pub struct Membership {
    barrier: DoubleBarrier,
    member: Member,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Client {
    /// The double barrier of this name for `size` (1 to 1,000) clients. A handle only, no traffic; names as
    /// for [`Client::mutex`]. All clients must use the same size: the first client decides.
    pub fn double_barrier(&self, name: impl AsRef<str>, size: u32) -> DoubleBarrier {
        DoubleBarrier::new(Site::named(self, Kind::DoubleBarrier, name.as_ref()), size)
    }

    /// The double barrier at this very path.
    pub fn double_barrier_at(&self, path: impl AsRef<str>, size: u32) -> DoubleBarrier {
        DoubleBarrier::new(Site::at(self, path.as_ref()), size)
    }
}

impl DoubleBarrier {
    fn new(mut site: Site, size: u32) -> Self {
        if !(1..=DOUBLE_BARRIER_SIZE).contains(&size) {
            site = site.refused(Error::InvalidArgument("the size of a double barrier is 1 to 1,000"));
        }
        DoubleBarrier { site, size }
    }

    /// Path of the barrier's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Waits until enough clients want to enter.
    ///
    /// # Errors
    /// [`Error::CountIs`]: other clients use the barrier with another size. [`Error::UnexpectedData`]: the
    /// znode is no double barrier. [`Error::PlaceLost`]: another client deleted our znode during the wait.
    /// [`Error::SessionExpired`], [`Error::Closed`]; [`Error::InvalidName`], [`Error::InvalidArgument`],
    /// [`Error::TooManyLocks`], [`Error::Rejected`] (NoAuth).
    /// # Cancel safety
    /// Dropping the future at any point leaves; if the round opened at this moment, the other members count
    /// us as a member that left.
    pub async fn enter(&self) -> Result<Membership, Error> {
        let mut member = Member::new(self.site.client(), self.site.usable()?)?;
        self.come(&mut member).await?;
        loop {
            let (round, version, changed) = match self.read().await {
                Err(Error::Rejected(ErrorCode::NoNode)) => return Err(member.expelled()),
                read => read?,
            };
            match round.entering(member.name(), self.list().await?) {
                Entering::In => return Ok(Membership { barrier: self.clone(), member }),
                Entering::Expelled => return Err(member.expelled()),
                Entering::Open(members) => {
                    let mut write = Transaction::new();
                    for name in &members {
                        write = write.check(path::join(self.site.usable()?, name), None);
                    }
                    // Ours goes without saying if it is among them; the check is what keeps the version
                    // honest.
                    write = write.check(member.path(), None);
                    self.write(write, &Round { size: self.size, members }, version).await?;
                }
                Entering::Close => {
                    let write = Transaction::new().check(member.path(), None);
                    self.write(write, &Round::none(self.size), version).await?;
                }
                Entering::Wait(member) => self.wait(changed, member.as_deref()).await?,
            }
        }
    }

    /// [`DoubleBarrier::enter`] for at most `patience` altogether; `None`: too few clients came, and we have
    /// left.
    ///
    /// # Errors
    /// The errors of [`DoubleBarrier::enter`].
    /// # Cancel safety
    /// The cancel safety of [`DoubleBarrier::enter`].
    pub async fn enter_timeout(&self, patience: Duration) -> Result<Option<Membership>, Error> {
        match time::timeout(patience, self.enter()).await {
            Ok(entered) => entered.map(Some),
            Err(time::Elapsed) => Ok(None),
        }
    }

    /// Creates the barrier's znode if missing, then our own znode after a check of the size.
    async fn come(&self, member: &mut Member) -> Result<(), Error> {
        let (client, path) = (self.site.client(), self.site.usable()?);
        loop {
            match self.site.fresh(|| client.get(path)).await {
                Ok(znode) => drop(self.evaluate(znode.bytes())?),
                Err(Error::Rejected(ErrorCode::NoNode)) => {
                    let data = Bytes::from(Round::none(self.size).format());
                    self.site.make(data, CreateMode::Container).await?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            match member.enter().await {
                // Removed in between, as the empty container it was.
                Err(Error::Rejected(ErrorCode::NoNode)) => member.forget(),
                result => return result,
            }
        }
    }

    fn evaluate(&self, data: &[u8]) -> Result<Round, Error> {
        match Round::parse(data) {
            Some(round) if round.size == self.size => Ok(round),
            Some(other) => Err(Error::CountIs(other.size)),
            None => Err(Error::UnexpectedData(self.path().to_owned())),
        }
    }

    /// Reads the round and the version, and watches for a change.
    async fn read(&self) -> Result<(Round, Version, OneshotWatch), Error> {
        let path = self.site.usable()?;
        let Watched { value: znode, watch } = insist(|| self.site.client().get_watched(path)).await?;
        Ok((self.evaluate(znode.bytes())?, znode.stat.version, watch))
    }

    /// Lists the members' znodes. Empty if the servers removed the barrier's znode, an empty container.
    async fn list(&self) -> Result<Vec<String>, Error> {
        let path = self.site.usable()?;
        match insist(|| self.site.client().get_children(path)).await {
            Ok(children) => Ok(children.names),
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Writes the round if the version is unchanged and all `checks` hold. Otherwise, or with an unknown
    /// outcome, the caller reads again, since every name is used only once.
    async fn write(&self, checks: Transaction, round: &Round, version: Version) -> Result<(), Error> {
        let write = checks.set(self.site.usable()?, Some(Bytes::from(round.format())), Some(version));
        match self.site.client().commit(write).await {
            Ok(_) => Ok(()),
            Err(Error::TransactionRejected { code: ErrorCode::BadVersion | ErrorCode::NoNode, .. }) => Ok(()),
            Err(error) => pause_or_fail(error).await,
        }
    }

    /// Returns when the round changed or the given member's znode is gone.
    async fn wait(&self, mut changed: OneshotWatch, member: Option<&str>) -> Result<(), Error> {
        let Some(member) = member else { return changed.changed().await.map(drop) };
        let path = path::join(self.site.usable()?, member);
        match insist(|| self.site.client().get_watched(&path)).await {
            Ok(Watched { watch: mut gone, .. }) => {
                tokio::select! {
                    biased;
                    event = changed.changed() => event.map(drop),
                    event = gone.changed() => event.map(drop),
                }
            }
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Membership {
    /// The path of our znode.
    pub fn path(&self) -> String {
        self.member.path()
    }

    /// Waits until all members of our round have left or died.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, which counts as leaving.
    /// [`Error::Rejected`] (NoAuth).
    /// # Cancel safety
    /// Dropping the future leaves without waiting for the other members.
    pub async fn leave(mut self) -> Result<(), Error> {
        loop {
            let (round, version, changed) = match self.barrier.read().await {
                // Removed as an empty container, so that everybody has left.
                Err(Error::Rejected(ErrorCode::NoNode)) => {
                    self.member.forget();
                    return Ok(());
                }
                read => read?,
            };
            match round.leaving(self.member.name(), &self.barrier.list().await?) {
                Leaving::Out => return self.member.withdraw().await,
                Leaving::Close => {
                    let write = Transaction::new().delete(self.member.path(), None);
                    self.barrier.write(write, &Round::none(self.barrier.size), version).await?;
                }
                Leaving::Withdraw => {
                    self.member.withdraw().await?;
                    if !round.members.iter().any(|member| member == self.member.name()) {
                        return Ok(());
                    }
                }
                Leaving::Wait(member) => self.barrier.wait(changed, Some(&member)).await?,
            }
        }
    }

    /// [`Membership::leave`] that waits for the other members for at most `patience` altogether; `false`:
    /// some members are still inside, and we have left.
    ///
    /// # Errors
    /// The errors of [`Membership::leave`].
    /// # Cancel safety
    /// The cancel safety of [`Membership::leave`].
    pub async fn leave_timeout(self, patience: Duration) -> Result<bool, Error> {
        within(patience, self.leave()).await
    }
}
