//! Elections: locks below one folder. The holder of the lock leads, and the data of its queue znode are
//! what it says of itself. Names, and the note by which a leader hands over, are those of our client's
//! elections.
//!
//! Must never do: let a candidate lead while the lead is on its way to another one who waits for it.

use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_history::Entry;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::Party;
use rowlock_proto::{ErrorCode, Right, Zxid, path as paths};
use rowlock_state::{ContenderView, Machine};
use rowlock_types::limits::{API_WAIT_MAX, API_WATCH_BATCH};

use super::call::Call;
use super::{Api, Caller, For, LockName, Place, Refusal, Standing, Wanted, Which};
use crate::lock_feed::Reading;

/// Where the elections are that have names.
const FOLDER: &str = "/locks/@elections";
/// How the data of an election begin while its leader hands over; the name of a queue znode follows.
const SUCCESSOR: &[u8] = b"successor=";
/// A leader that changes what it says of itself is no lock event, and is looked for so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    /// Zxid of the leader's last change of its znode; 0: there is no leader. The same at all nodes.
    pub zxid: Zxid,
    /// The leader, and what it says of itself. `None`: there is none, or the lead is being handed over.
    pub leader: Option<(Party, String)>,
}

/// The lock of the election of this name, as our client calls it.
///
/// # Errors
/// [`Refusal::Bad`]: it is no name.
pub fn election(name: &str) -> Result<LockName, Refusal> {
    LockName::below(FOLDER, name)
}

impl Api {
    /// As [`Api::acquire`]. A candidate that is granted the lead while that is on its way to another one
    /// gives it back: [`Place::Gone`], and it may campaign again with another request id.
    ///
    /// # Errors
    /// As [`Api::acquire`].
    /// # Cancel safety
    /// As [`Api::acquire`].
    pub async fn campaign(
        &self,
        caller: &Caller,
        election: &LockName,
        wanted: Wanted,
    ) -> Result<Standing, Refusal> {
        let by = wanted.by.clone();
        let standing = self.acquire(caller, election, wanted).await?;
        let Place::Held(claim) = &standing.place else { return Ok(standing) };
        // The note was written before the lock was given back, so this node has it.
        if !is_for_another(&self.context.replica.state.read(), election, &claim.path) {
            return Ok(standing);
        }
        match (&standing.secret, by) {
            (Some(secret), _) => self.close(caller, secret).await?,
            (None, For::Lease(secret)) => {
                self.release(caller, election, (&secret, &Which::Token(claim.token))).await.map(drop)?;
            }
            (None, For::New(_)) => unreachable!("a new lease that has a place is told"),
        }
        Ok(Standing { place: Place::Gone, secret: None, ..standing })
    }

    /// Who leads, not from before the request. If that is what the caller knows (`after`, the zxid of an
    /// answer), it waits until it is another one, or says something else, or `wait` is over.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`]: the leader's ACL does not let the caller read.
    /// # Cancel safety
    /// It changes nothing.
    pub async fn leader(
        &self,
        caller: &Caller,
        election: &LockName,
        (after, wait): (Option<Zxid>, Duration),
    ) -> Result<Led, Refusal> {
        self.check_serving()?;
        if wait > API_WAIT_MAX {
            return Err(Refusal::Bad("wait_ms is more than 60000: ask again".to_owned()));
        }
        let (until, _waiting) = match wait.is_zero() || after.is_none() {
            true => (time::now(), None),
            false => (time::now() + wait, Some(self.waiting(caller)?)),
        };
        Call::new(self, caller).sync().await?;
        let (mut reading, mut led) = {
            let state = self.context.replica.state.read();
            (self.feed.read(), look(&state, caller, election)?)
        };
        while after == Some(led.zxid) && time::now() < until {
            news(&mut reading, election, until.min(time::now() + LOOK_EVERY)).await;
            self.check_serving()?;
            led = look(&self.context.replica.state.read(), caller, election)?;
        }
        Ok(led)
    }
}

/// Waits until something has happened to the lock, or until then.
async fn news(reading: &mut Reading, lock: &LockName, until: Instant) {
    loop {
        let piece = reading.take(API_WATCH_BATCH);
        let is_meant = |entry: &Entry<'_>| match entry {
            Entry::Lock(record) => record.lock == lock.path(),
            _ => true,
        };
        if piece.has_missed || piece.events.iter().any(|event| is_meant(&event.at.1)) {
            return;
        }
        if piece.is_last && time::timeout_at(until, reading.ready()).await.is_err() {
            return;
        }
    }
}

fn look(state: &Machine, caller: &Caller, election: &LockName) -> Result<Led, Refusal> {
    let nobody = Led { zxid: Zxid(0), leader: None };
    if !state.rules().allow(election.path(), Right::See, &caller.identities) {
        return Err(Refusal::NoRight(Right::See));
    }
    let holder = state.lock_queue(election.path()).and_then(|queue| queue.holders().next());
    let Some(holder) = holder.filter(|holder| !is_for_another(state, election, &holder.path)) else {
        return Ok(nobody);
    };
    match state.get_data(&holder.path, &caller.identities) {
        Ok((data, stat)) => {
            let value = String::from_utf8_lossy(&data.unwrap_or_default()).into_owned();
            let ContenderView { path, session, token, label, requested_ms, granted_ms, .. } = holder;
            let since_ms = granted_ms.unwrap_or(requested_ms);
            let party = Party { path: path.into(), session, token, label, since_ms };
            Ok(Led { zxid: stat.mzxid, leader: Some((party, value)) })
        }
        Err(ErrorCode::NoNode) => Ok(nobody),
        Err(code) => Err(Refusal::of(code)),
    }
}

/// The leader has left a note that names another candidate, which still waits.
fn is_for_another(state: &Machine, election: &LockName, place: &str) -> bool {
    // No caller is shown the note, so no ACL of a caller counts.
    let everybody = [Id { scheme: "super".to_owned(), id: String::new() }];
    let Ok((Some(data), _)) = state.get_data(election.path(), &everybody) else { return false };
    let Some(name) = data.strip_prefix(SUCCESSOR).and_then(|name| std::str::from_utf8(name).ok()) else {
        return false;
    };
    !name.is_empty()
        && name != paths::name(place)
        && state.stat(&paths::join(election.path(), name)).is_some()
}
