//! [`DoubleBarrier`]: a fixed number of members begin together and end together.
//!
//! Members are ephemeral children of the barrier's znode, so that a member that dies is not waited for. The
//! rounds are in the data of that znode ([`round`]): a round is opened by one write that also checks that all
//! its members are still there, and closed by its last member, or by the next client if all have died.
//! Every write of the data goes along with a check (or the removal) of the writer's own znode: so the
//! barrier's znode, a container that the servers remove when it has long been empty, cannot have been
//! replaced by another one meanwhile, and versions can be trusted.

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

/// Lets clients into a section when `size` of them have come, all at the same time, and out of it when all
/// have done with it.
///
/// A client that dies outside lets the others wait for another one to come. One that dies inside has left.
/// A client that comes during a round waits for the next one. The layout is our own (those of Curator and
/// kazoo let latecomers slip in, and are stuck with a round whose members have all died): do not mix them on
/// one path.
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

/// A client inside a [`DoubleBarrier`]. Dropping it leaves without waiting for the others.
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
    /// for [`Client::mutex`]. All clients must name the same size: the first one decides.
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

    /// The path of its znode. (Of a name that cannot be used, the one that it would have.)
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Waits until enough others want to enter too.
    ///
    /// # Errors
    /// [`Error::CountIs`]: others use it with another size. [`Error::UnexpectedData`]: the znode is no
    /// double barrier. [`Error::PlaceLost`]: another client deleted our znode while we waited.
    /// [`Error::SessionExpired`], [`Error::Closed`]; [`Error::InvalidName`], [`Error::InvalidArgument`],
    /// [`Error::TooManyLocks`], [`Error::Rejected`] (NoAuth).
    /// # Cancel safety
    /// Dropping the future at any point leaves; should the round have been opened in that moment, the others
    /// take us for one that has left already.
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

    /// [`DoubleBarrier::enter`] for at most `patience` altogether; `None`: not enough others came, and we
    /// have gone.
    ///
    /// # Errors
    /// As [`DoubleBarrier::enter`].
    /// # Cancel safety
    /// As [`DoubleBarrier::enter`].
    pub async fn enter_timeout(&self, patience: Duration) -> Result<Option<Membership>, Error> {
        match time::timeout(patience, self.enter()).await {
            Ok(entered) => entered.map(Some),
            Err(time::Elapsed) => Ok(None),
        }
    }

    /// Makes the barrier's znode, if need be, and our own, once the size is known to be the same.
    async fn come(&self, member: &mut Member) -> Result<(), Error> {
        let (client, path) = (self.site.client(), self.site.usable()?);
        loop {
            match self.site.fresh(|| client.get(path)).await {
                Ok(znode) => drop(self.judge(znode.bytes())?),
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

    fn judge(&self, data: &[u8]) -> Result<Round, Error> {
        match Round::parse(data) {
            Some(round) if round.size == self.size => Ok(round),
            Some(other) => Err(Error::CountIs(other.size)),
            None => Err(Error::UnexpectedData(self.path().to_owned())),
        }
    }

    /// The round, its version, and a watch for its change.
    async fn read(&self) -> Result<(Round, Version, OneshotWatch), Error> {
        let path = self.site.usable()?;
        let Watched { value: znode, watch } = insist(|| self.site.client().get_watched(path)).await?;
        Ok((self.judge(znode.bytes())?, znode.stat.version, watch))
    }

    /// The members' znodes. None if the barrier's znode was removed, which happens to empty ones only.
    async fn list(&self) -> Result<Vec<String>, Error> {
        let path = self.site.usable()?;
        match insist(|| self.site.client().get_children(path)).await {
            Ok(children) => Ok(children.names),
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Writes the round if its version is still this one and all that `checks` asks for is so. If not, or if
    /// that cannot be known: it is for the caller to look again, since names are used only once.
    async fn write(&self, checks: Transaction, round: &Round, version: Version) -> Result<(), Error> {
        let write = checks.set(self.site.usable()?, Some(Bytes::from(round.format())), Some(version));
        match self.site.client().commit(write).await {
            Ok(_) => Ok(()),
            Err(Error::TransactionRejected { code: ErrorCode::BadVersion | ErrorCode::NoNode, .. }) => Ok(()),
            Err(error) => pause_or_fail(error).await,
        }
    }

    /// Returns when it is worth looking again: the round changed or, if it is given, this member's znode is
    /// gone.
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

    /// Waits until all who entered with us leave too, or have died.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended; for the others we have left.
    /// [`Error::Rejected`] (NoAuth).
    /// # Cancel safety
    /// Dropping the future leaves without waiting for the others.
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

    /// [`Membership::leave`] that waits for the others for at most `patience` altogether; `false`: some are
    /// still inside, and we have left.
    ///
    /// # Errors
    /// As [`Membership::leave`].
    /// # Cancel safety
    /// As [`Membership::leave`].
    pub async fn leave_timeout(self, patience: Duration) -> Result<bool, Error> {
        within(patience, self.leave()).await
    }
}
