//! Locks whose queue the server keeps: a single request enters the queue, the server pushes the grant.
//!
//! Invariant: only the server grants, in a reply or a notice; never a wake-up, never the passing of time.
//!
//! The server finds a request again by the random prefix of the queue znode's name. After a reconnect a
//! waiter repeats the request to learn of a missed grant. Dropping a `Served`, at any moment, leaves the
//! queue.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::{Acquire, Claim, QueuePosition};
use rowlock_proto::{Acl, Request, Response, path};
use tokio::sync::OwnedSemaphorePermit;

use super::acquire::{LockSpec, Progress, Terms};
use super::guard::{Grant, Guard, Seat};
use super::names;
use crate::client::Client;
use crate::error::Error;
use crate::party::Party;
use crate::session::lock_states::{LockState, LockStateCell};
use crate::session::znode_removal::ZnodeRemoval;

const ODD: Error = Error::Protocol("an acquire was answered with something else");

/// Queue znode of a lock.
#[derive(Debug)]
pub(crate) struct Served {
    client: Client,
    /// Path of the lock's znode.
    lock: String,
    prefix: String,
    /// An acquire has been sent and the place is not known to be gone.
    ///
    /// Invariant: set before the request is handed over, hence a drop at any await leaves the queue.
    may_exist: bool,
    /// The hold that the drop releases. `None`: the drop leaves the queue, in whatever state the attempt is.
    held: Option<Claim>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Served {
    pub(crate) fn new(client: &Client, lock: String, prefix: String) -> Result<Self, Error> {
        let slot = Some(client.lock_slot()?);
        Ok(Served { client: client.clone(), lock, prefix, may_exist: false, held: None, slot })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// Marks the znode as possibly existing, before the request is sent.
    pub(crate) fn expect(&mut self) {
        self.may_exist = true;
    }

    /// Sets the hold that the drop releases.
    pub(crate) fn set_held(&mut self, claim: Claim) {
        self.held = Some(claim);
    }

    /// The place is gone, or was never taken.
    pub(crate) fn forget(&mut self) {
        self.may_exist = false;
    }

    /// Returns the removal of the place from the queue.
    pub(crate) fn removal(&self, slot: Option<OwnedSemaphorePermit>) -> ZnodeRemoval {
        ZnodeRemoval::abandon(self.lock.clone(), self.prefix.clone(), slot)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if decides!("waiter-may-exist", self.may_exist) {
            let slot = self.slot.take();
            let removal = match self.held.take() {
                Some(claim) => {
                    let attempt = (mem::take(&mut self.lock), mem::take(&mut self.prefix));
                    ZnodeRemoval::release(attempt, claim, slot)
                }
                None => self.removal(slot),
            };
            self.client.post(removal);
        }
    }
}

/// Attempt to take locks: the queue znodes, and the options.
struct Acquisition<'a> {
    client: &'a Client,
    wanted: &'a [LockSpec],
    terms: &'a Terms,
    wait: bool,
    places: Vec<Served>,
    /// States of the latest answer's queue znodes.
    cells: Vec<Arc<LockStateCell>>,
    /// For each queue znode a moment before the grant: the send time of the latest request with the answer
    /// "waiting", or else of the first request.
    ungranted_at: Vec<Instant>,
    /// Time after which a request with a maximum hold asks again: a later moment above leaves us more of the
    /// hold when the notice comes late.
    patience: Option<Duration>,
    claims: Vec<Claim>,
}

/// The result of an attempt as a whole.
enum AttemptResult {
    /// All locks are granted or queued; `cells` hold the states.
    Placed,
    Busy,
}

/// Releases claims in a single command. Returns for each claim the truth of the hold.
pub(crate) async fn release(client: &Client, claims: Vec<Claim>) -> Result<Vec<bool>, Error> {
    match client.call(Request::Release(claims.into())).await?.response {
        Response::Held(held) => Ok(held.into_vec()),
        _ => Err(Error::Protocol("a release was answered with something else")),
    }
}

/// Implements [`super::acquire::acquire`] in a single command for all locks.
pub(crate) async fn acquire(
    client: &Client,
    wanted: &[LockSpec],
    terms: &Terms,
    wait: bool,
    progress: &mut Progress,
) -> Result<Option<Vec<Guard>>, Error> {
    let mut attempt = Acquisition::new(client, wanted, terms, wait)?;
    loop {
        let attachments = client.vitals().attachments;
        if let AttemptResult::Busy = attempt.ask(progress).await? {
            return Ok(None);
        }
        if attempt.granted(attachments, progress).await? {
            return attempt.into_guards(progress).map(Some);
        }
    }
}

impl<'a> Acquisition<'a> {
    fn new(client: &'a Client, wanted: &'a [LockSpec], terms: &'a Terms, wait: bool) -> Result<Self, Error> {
        let mut places = Vec::with_capacity(wanted.len());
        for one in wanted {
            let prefix = names::queue_prefix(client.config().queue_names, one.kind, &names::random_id());
            places.push(Served::new(client, one.lock.clone(), prefix)?);
        }
        let ungranted_at = vec![time::now(); wanted.len()];
        let patience = terms.max_hold.map(|_| client.vitals().timeout / 2);
        let (cells, claims) = (Vec::new(), Vec::new());
        Ok(Acquisition { client, wanted, terms, wait, places, cells, ungranted_at, patience, claims })
    }

    /// Returns the requests, the same for each repetition.
    fn acquires(&self) -> Vec<Acquire> {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let acquire = |(place, wanted): (&Served, &LockSpec)| Acquire {
            lock: place.lock.as_str().into(),
            prefix: place.prefix.as_str().into(),
            data: Some(self.terms.data()),
            acl: Some(Acl::shared_open()),
            mode: wanted.kind.mode(),
            limit: wanted.limit,
            wait: self.wait,
            owner: self.terms.owner,
            // A part of a millisecond is a whole one: 0 would mean for ever.
            max_hold_ms: self.terms.max_hold.map_or(0, |time| millis(time).max(1)),
            lock_delay_ms: millis(self.terms.lock_delay),
            min_hold_ms: millis(self.terms.min_hold),
            min_hold_lapses: self.terms.min_hold_lapses,
        };
        self.places.iter().zip(self.wanted).map(acquire).collect()
    }

    /// Enters the queues, or finds the znodes again.
    async fn ask(&mut self, progress: &mut Progress) -> Result<AttemptResult, Error> {
        let is_first = self.cells.is_empty();
        if !is_first && mutant::is(Mutant::FreshNameOnRetry) {
            self.places.iter_mut().for_each(|place| place.prefix.insert(0, '_'));
        }
        let asked_at = time::now();
        self.places.iter_mut().for_each(Served::expect);
        self.cells = self.places.iter().map(|_| LockStateCell::new()).collect();
        let request = Request::Acquire(self.acquires().into());
        let answer = match self.client.submit_followed(request, None, self.cells.clone()).await {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        let positions = match answer {
            Ok(reply) => match reply.response {
                Response::QueuePositions(positions) if positions.len() == self.places.len() => {
                    positions.into_vec()
                }
                _ => return Err(ODD),
            },
            Err(error) => {
                if decides!("first-acquire-is-refused", is_first && is_refusal(&error)) {
                    self.forget();
                }
                return Err(error);
            }
        };
        for (position, ungranted_at) in positions.iter().zip(&mut self.ungranted_at) {
            if let QueuePosition::Waiting { .. } = position {
                *ungranted_at = asked_at;
            }
        }
        self.evaluate(positions, is_first, progress)
    }

    fn evaluate(
        &mut self,
        positions: Vec<QueuePosition>,
        is_first: bool,
        progress: &mut Progress,
    ) -> Result<AttemptResult, Error> {
        self.claims.clear();
        let mut refusal = None;
        let mut front: Option<(usize, Option<String>, String)> = None;
        for (position, place) in positions.into_iter().zip(&mut self.places) {
            match position {
                QueuePosition::Held(claim) => self.claims.push(claim),
                QueuePosition::Waiting { claim, ahead, holder } => {
                    self.claims.push(claim);
                    let holder = holder.map(|party| path::name(&party.path).to_owned());
                    let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
                    // Of several, the longest wait is what matters.
                    if front.as_ref().is_none_or(|(most, ..)| ahead > *most) {
                        front = Some((ahead, holder, place.lock.clone()));
                    }
                }
                QueuePosition::Busy { .. } => refusal = refusal.or(Some(Ok(AttemptResult::Busy))),
                QueuePosition::Deadlock(cycle) => {
                    let relative = |path| self.client.relative(path);
                    let cycle = cycle.into_iter().map(|party| Party::of(party, relative)).collect();
                    refusal = Some(Err(Error::Deadlock { cycle }));
                }
                QueuePosition::LimitIs(actual) => refusal = Some(Err(Error::LimitConflict { actual })),
                QueuePosition::Absent => place.forget(),
            }
        }
        if let Some(refusal) = refusal {
            // Of a first attempt nothing was left behind; what an earlier one took is left when this is
            // dropped.
            if decides!("acquire-is-first", is_first) {
                self.forget();
            }
            return refusal;
        }
        if self.claims.len() < self.places.len() {
            // The others are left when this attempt is dropped.
            return Err(Error::PlaceLost);
        }
        if let Some((position, holder, lock)) = front {
            progress.stand(&lock, position, holder);
        }
        Ok(AttemptResult::Placed)
    }

    /// Records that no znode of this attempt is in the queues.
    fn forget(&mut self) {
        self.places.iter_mut().for_each(Served::forget);
    }

    /// Waits until all places are granted. `false`: ask again, because we have been cut off since and may
    /// have missed the notice, or because a maximum hold is at stake.
    async fn granted(&mut self, attachments: u64, progress: &mut Progress) -> Result<bool, Error> {
        let is_anew = |now: u64| {
            decides!("waiter-has-reconnected", now != attachments) && !mutant::is(Mutant::TrustOldPush)
        };
        let ask_again_at = self.patience.map(|patience| time::now() + patience);
        for cell in &self.cells {
            if decides!("waiter-still-waits", cell.get() == LockState::Waiting) {
                let (mut state, mut vitals) = (cell.watch(), self.client.watch_vitals());
                tokio::select! {
                    biased;
                    _ = state.wait_for(|followed| followed.state != LockState::Waiting) => progress.wakeups += 1,
                    _ = vitals.wait_for(|now| is_anew(now.attachments) || now.ending.is_some()) => {
                        return match self.client.vitals().ending {
                            Some(_) => Err(self.client.shared().ended()),
                            None if mutant::is(Mutant::GrantOnWake) => {
                                let held = LockState::Held { since: time::now() };
                                self.cells.iter().for_each(|cell| cell.advance(held));
                                Ok(true)
                            }
                            None => {
                                rare::taken(Rare::ClientAsksAgain);
                                Ok(false)
                            }
                        };
                    }
                    () = at(ask_again_at) => return Ok(false),
                }
            }
            if let LockState::Lost(_) = cell.get() {
                rare::taken(Rare::ClientPlaceLost);
                return Err(Error::PlaceLost);
            }
        }
        Ok(true)
    }

    fn into_guards(self, progress: &Progress) -> Result<Vec<Guard>, Error> {
        let (stats, max_hold) = (progress.stats(), self.terms.max_hold);
        let cells = self.cells.into_iter().zip(self.ungranted_at);
        let places = self.places.into_iter().zip(self.claims).zip(cells).zip(self.wanted);
        places
            .map(|(((place, claim), (cell, ungranted_at)), one)| {
                let ungranted_at = Some(ungranted_at);
                let grant = Grant { claim, kind: one.kind, cell, stats, max_hold, ungranted_at };
                Guard::new(self.client, Seat::Served(place), grant)
            })
            .collect()
    }
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Rejected(_) | Error::Unsupported(_) | Error::TooLarge { .. })
}

/// Completes at `moment`; never without a moment.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
