//! [`DoubleBarrier`]: a fixed number of members begin together and end together.
//!
//! Members are ephemeral children of the barrier's znode, hence the barrier never waits for a dead member.
//! The rounds are in the data of the barrier's znode ([`Round`]): a single write opens a round and also
//! checks the znodes of all members; the last member closes the round, or the next client if all members have
//! died. Every write of the data comes with a check (or the removal) of the writer's own znode: the servers
//! cannot have removed the barrier's znode (a container) as empty and replaced the znode in the meantime, and
//! versions can be trusted.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{Acl, CreateMode, ErrorCode, Version, path};
use tokio::sync::OwnedSemaphorePermit;

use super::names;
use super::site::{Kind, Site, insist, pause_or_fail, within};
use crate::client::Client;
use crate::error::Error;
use crate::limits::DOUBLE_BARRIER_SIZE;
use crate::session::znode_removal::ZnodeRemoval;
use crate::transaction::Transaction;
use crate::znode::{OneshotWatch, Watched};

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

/// Znode of a member: from before the create is sent until the znode is gone. Dropping the member leaves the
/// barrier: the drop posts the removal to the session's task.
struct Member {
    client: Client,
    /// Path of the barrier's znode, without the chroot.
    parent: String,
    name: String,
    /// Invariant: set before the create is handed over, hence a drop at any await removes the znode.
    may_exist: bool,
    slot: Option<OwnedSemaphorePermit>,
}

impl Member {
    fn new(client: &Client, parent: &str) -> Result<Self, Error> {
        let slot = Some(client.lock_slot()?);
        let (client, parent) = (client.clone(), parent.to_owned());
        Ok(Member { client, parent, name: names::random_id(), may_exist: false, slot })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> String {
        path::join(&self.parent, &self.name)
    }

    /// Creates the znode: ephemeral, not sequential (a sequential znode would be a contender for a lock). The
    /// name is random: an existing znode comes from our own create whose reply was lost.
    ///
    /// # Errors
    /// NoNode: the barrier's znode is not there.
    async fn enter(&mut self) -> Result<(), Error> {
        self.may_exist = true;
        let (path, label) = (self.path(), self.client.config().label.clone());
        let data = Some(Bytes::from(label));
        match insist(|| self.client.create(&path, data.clone(), CreateMode::Ephemeral, Acl::open())).await {
            Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn withdraw(&mut self) -> Result<(), Error> {
        let path = self.path();
        match insist(|| self.client.delete(&path, None)).await {
            Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => {
                self.may_exist = false;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn expelled(&mut self) -> Error {
        self.forget();
        Error::PlaceLost
    }

    /// Records the end of the znode.
    fn forget(&mut self) {
        self.may_exist = false;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.may_exist {
            let (parent, path) = (self.client.absolute(&self.parent), self.client.absolute(&self.path()));
            self.client.post(ZnodeRemoval::new(parent, self.name.clone(), Some(path), self.slot.take()));
        }
    }
}

/// Content of the barrier's znode: rounds, and the next step of a member. Pure.
///
/// The data of the barrier's znode hold the size of a round (`size=3`) and the members of an open round, a
/// line for each name. The znode's version decides between concurrent changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Round {
    pub size: u32,
    /// Names of the members, ascending. Empty: no round is on.
    pub members: Vec<String>,
}

/// Next step of an entering member.
#[derive(Debug, PartialEq, Eq)]
enum Entering {
    /// Our round is open: we are inside.
    In,
    /// Our znode is gone.
    Expelled,
    /// Enough members are here: open a round with these.
    Open(Vec<String>),
    /// The round's members are all gone: close the round.
    Close,
    /// Wait for a change of the round or for the end of the given member.
    Wait(Option<String>),
}

/// Next step of a leaving member.
#[derive(Debug, PartialEq, Eq)]
enum Leaving {
    Out,
    /// Only we are left: remove our znode and close the round.
    Close,
    /// Remove our znode; then look again.
    Withdraw,
    /// Wait for the end of this member.
    Wait(String),
}

impl Round {
    fn none(size: u32) -> Self {
        Round { size, members: Vec::new() }
    }

    /// `None`: these are not the data of a double barrier.
    fn parse(data: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(data).ok()?.lines();
        let size = lines.next()?.strip_prefix("size=")?.parse().ok()?;
        Some(Round { size, members: lines.map(str::to_owned).collect() })
    }

    fn format(&self) -> String {
        let mut text = format!("size={}", self.size);
        for member in &self.members {
            text.push('\n');
            text.push_str(member);
        }
        text
    }

    fn includes(&self, name: &str) -> bool {
        self.members.iter().any(|member| member == name)
    }

    /// `here`: the members' znodes, ours included; listed after the round was read.
    fn entering(&self, own: &str, mut here: Vec<String>) -> Entering {
        if self.includes(own) {
            return Entering::In;
        }
        if !here.iter().any(|name| name == own) {
            return Entering::Expelled;
        }
        if !self.members.is_empty() {
            let rest = self.members.iter().find(|member| here.contains(member));
            return rest.map_or(Entering::Close, |member| Entering::Wait(Some(member.clone())));
        }
        if here.len() < self.size as usize {
            return Entering::Wait(None);
        }
        // Everybody chooses the same ones, whether or not we are among them: the last to come sees them all,
        // and may be the only one who does.
        here.sort_unstable();
        here.truncate(self.size as usize);
        Entering::Open(here)
    }

    /// `here` as above. The lowest member stays until all other members have left, and watches only the
    /// highest; the other members leave at once, and watch only the lowest: each departure wakes few members.
    fn leaving(&self, own: &str, here: &[String]) -> Leaving {
        if !self.includes(own) {
            return Leaving::Withdraw;
        }
        let mut left: Vec<&String> = self.members.iter().filter(|member| here.contains(member)).collect();
        left.sort_unstable();
        match (left.first(), left.last()) {
            (Some(&lowest), Some(&highest)) if lowest == own => {
                if highest == own {
                    Leaving::Close
                } else {
                    Leaving::Wait(highest.clone())
                }
            }
            (Some(_), _) if left.iter().any(|&member| member == own) => Leaving::Withdraw,
            (Some(&lowest), _) => Leaving::Wait(lowest.clone()),
            (None, _) => Leaving::Out,
        }
    }
}

#[cfg(test)]
mod tests;
