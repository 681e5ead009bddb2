//! Elections: locks below one folder. The holder of the lock is the leader, and the leader's value is the
//! data of its queue znode. Names and the successor note of a handover have the format of the Rowlock
//! client's elections.
//!
//! Must never do: let a candidate lead while the lead is being handed over to another waiting candidate.

use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Party, QueuePosition};
use rowlock_proto::{ErrorCode, Right, Zxid, path as paths};
use rowlock_state::{ContenderView, Machine};

use super::call::Call;
use super::{AcquireOptions, Acquired, Api, Caller, For, LockName, Part, Refusal, Which};
use crate::access::lock_feed::{FeedEntry, Reading};
use crate::limits::{API_WAIT_MAX, API_WATCH_BATCH};

/// Folder of named elections.
const FOLDER: &str = "/locks/@elections";
/// Prefix of an election's data during a handover, followed by the name of the successor's queue znode.
const SUCCESSOR: &[u8] = b"successor=";
/// Interval between reads of the leader's value: a new value is not a lock event.
const READ_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    /// Zxid of the last change of the leader's znode, equal on all nodes; 0: no leader.
    pub zxid: Zxid,
    /// Leader and its value. `None`: there is no leader, or a handover is in progress.
    pub leader: Option<(Party, String)>,
}

/// Returns the lock of the election `name`, as the Rowlock client names the lock.
///
/// # Errors
/// [`Refusal::Bad`]: not a name.
pub fn election(name: &str) -> Result<LockName, Refusal> {
    LockName::below(FOLDER, name)
}

impl Api {
    /// Campaigns like [`Api::acquire`]. A candidate with a grant during a handover to another candidate
    /// releases the grant and gets [`QueuePosition::Absent`]; the candidate may campaign again with another
    /// request id.
    ///
    /// # Errors
    /// Same as [`Api::acquire`].
    /// # Cancel safety
    /// Same as [`Api::acquire`].
    pub async fn campaign(
        &self,
        caller: &Caller,
        election: &LockName,
        options: AcquireOptions,
    ) -> Result<Acquired, Refusal> {
        let by = options.by.clone();
        let acquired = self.acquire(caller, &[Part::exclusive(election)], options).await?;
        let [QueuePosition::Held(claim)] = &acquired.positions[..] else { return Ok(acquired) };
        // The old leader wrote the note before its release, so this node has applied the note.
        if !is_for_another(&self.context.replica.state.read(), election, &claim.path) {
            return Ok(acquired);
        }
        match (&acquired.secret, by) {
            (Some(secret), _) => self.close(caller, secret).await?,
            (None, For::Lease(secret)) => {
                self.release(caller, election, (&secret, &Which::Token(claim.token))).await.map(drop)?;
            }
            (None, For::New(_)) => {
                unreachable!("a new lease with a queue position has a secret in the result")
            }
        }
        Ok(Acquired { positions: vec![QueuePosition::Absent], secret: None, ..acquired })
    }

    /// Returns the leader, not older than the request. If the caller already knows the leader (`after` is the
    /// zxid of a reply), the call waits for another leader or another value, for at most `wait`.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`]: the ACL of the leader's znode does not permit reading.
    /// # Cancel safety
    /// Cancel safe: the call changes nothing.
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
            (self.feed.read(), read_leader(&state, caller, election)?)
        };
        while after == Some(led.zxid) && time::now() < until {
            wait_for_event(&mut reading, election, until.min(time::now() + READ_EVERY)).await;
            self.check_serving()?;
            led = read_leader(&self.context.replica.state.read(), caller, election)?;
        }
        Ok(led)
    }
}

/// Waits until `until` for an event of the lock.
async fn wait_for_event(reading: &mut Reading, lock: &LockName, until: Instant) {
    loop {
        let piece = reading.take(API_WATCH_BATCH);
        let is_meant = |entry: &FeedEntry| entry.event.lock().is_none_or(|event| event.lock == lock.path());
        if piece.has_missed || piece.events.iter().any(|event| is_meant(&event.line)) {
            return;
        }
        if piece.is_last && time::timeout_at(until, reading.ready()).await.is_err() {
            return;
        }
    }
}

fn read_leader(state: &Machine, caller: &Caller, election: &LockName) -> Result<Led, Refusal> {
    let none = Led { zxid: Zxid(0), leader: None };
    if decides!("election-is-hidden", !state.rules().allow(election.path(), Right::See, &caller.identities)) {
        return Err(Refusal::NoRight(Right::See));
    }
    let holder = state.lock_queue(election.path()).and_then(|queue| queue.holders().next());
    let Some(holder) = holder.filter(|holder| !is_for_another(state, election, &holder.path)) else {
        return Ok(none);
    };
    match state.get_data(&holder.path, &caller.identities) {
        Ok((data, stat)) => {
            let value = String::from_utf8_lossy(&data.unwrap_or_default()).into_owned();
            let ContenderView { path, session, token, label, requested_ms, granted_ms, .. } = holder;
            let since_ms = granted_ms.unwrap_or(requested_ms);
            let party = Party { path: path.into(), session, token, label, since_ms };
            Ok(Led { zxid: stat.mzxid, leader: Some((party, value)) })
        }
        Err(ErrorCode::NoNode) => Ok(none),
        Err(code) => Err(Refusal::of(code)),
    }
}

/// Returns whether the leader left a note for another candidate that is still waiting.
fn is_for_another(state: &Machine, election: &LockName, place: &str) -> bool {
    // The caller does not get the note, so the caller's identities are not relevant.
    let superuser = [Id { scheme: "super".to_owned(), id: String::new() }];
    let Ok((Some(data), _)) = state.get_data(election.path(), &superuser) else { return false };
    let Some(name) = data.strip_prefix(SUCCESSOR).and_then(|name| std::str::from_utf8(name).ok()) else {
        return false;
    };
    !name.is_empty()
        && name != paths::name(place)
        && state.stat(&paths::join(election.path(), name)).is_some()
}
