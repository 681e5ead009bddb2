//! Requests on several locks: one command queues for all of them or for none.

use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_proto::Request;
use rowlock_proto::SessionId;
use rowlock_proto::lock::{Mode, Notice};
use rowlock_proto::response::Response;
use rowlock_state::command::Command;
use rowlock_types::limits::API_LOCKS_MAX;

use super::call::{Call, MOVES_MAX};
use super::request_id::RequestId;
use super::{Api, Caller, For, Lease, LockName, Place, Refusal, Secret, Wanted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub lock: LockName,
    pub mode: Mode,
    pub limit: u32,
}

/// Result of an attempt at several locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standings {
    pub lease: SessionId,
    /// Id for a retry.
    pub request_id: String,
    /// Remaining validity of the lease in milliseconds, counted from the time of the client's request.
    pub valid_for_ms: u32,
    /// Results in the order of the requested locks.
    pub places: Vec<Place>,
}

impl Api {
    /// Queues for several locks, like [`Api::acquire`]. With a wait of 0 the lease gets all locks or none.
    /// The request needs a lease and ignores `wanted.mode` and `wanted.limit`.
    ///
    /// # Errors
    /// [`Refusal::Deadlock`], [`Refusal::Limit`]: at least one lock refused, no queue position was created.
    /// [`Refusal::Unknown`]: queue positions may exist; a retry with the same request id finds the positions.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn acquire_all(
        &self,
        caller: &Caller,
        parts: &[Part],
        wanted: Wanted,
    ) -> Result<Standings, Refusal> {
        self.check_serving()?;
        let (begun, id) = (time::now(), wanted.check()?);
        let For::Lease(secret) = &wanted.by else {
            return Err(Refusal::Bad("several locks need a lease: POST /v1/leases first".to_owned()));
        };
        if parts.is_empty() || parts.len() > API_LOCKS_MAX {
            return Err(Refusal::Bad(format!("a request is for 1 to {API_LOCKS_MAX} locks")));
        }
        let _waiting = match wanted.wait.is_zero() {
            true => None,
            false => Some(self.waiting(caller)?),
        };
        let mut moves_left = MOVES_MAX;
        let stood = loop {
            let mut attempt = Attempted { call: Call::new(self, caller), secret, begun, parts };
            let stood = attempt.run(&wanted, &id).await;
            if !attempt.call.has_moved() || moves_left == 0 {
                break stood;
            }
            moves_left -= 1;
        };
        let (lease, places) = stood?;
        assert!(lease.session == secret.session, "the places are the lease's that was shown");
        let (lease, valid_for_ms) = (lease.session, lease.ttl_ms);
        Ok(Standings { lease, request_id: id.as_str().to_owned(), valid_for_ms, places })
    }
}

struct Attempted<'a> {
    call: Call<'a>,
    secret: &'a Secret,
    begun: Instant,
    parts: &'a [Part],
}

impl Attempted<'_> {
    async fn run(&mut self, wanted: &Wanted, id: &RequestId) -> Result<(Lease, Vec<Place>), Refusal> {
        let lease = self.call.find(self.secret).await?;
        self.call.follow(&lease)?;
        self.call.touch(lease.session);
        let until = self.begun + wanted.wait.min(Duration::from_millis(u64::from(lease.ttl_ms) / 2));
        let mut places = self.ask(wanted, id).await?;
        while places.iter().any(|place| matches!(place, Place::Waiting { .. })) && time::now() < until {
            let heard = self.call.notice(until).await?;
            self.call.has_waited();
            match heard {
                Some(Notice { claim: of, event }) => {
                    let is_meant = |place: &&mut Place| match place {
                        Place::Waiting { claim, .. } | Place::Held(claim) => *claim == of,
                        Place::Busy { .. } | Place::Gone => false,
                    };
                    if let Some(place) = places.iter_mut().find(is_meant) {
                        *place = Place::after(of, event);
                    }
                }
                // The number of earlier positions has changed meanwhile.
                None => places = self.ask(wanted, id).await?,
            }
        }
        self.call.be_noted(lease.session).await?;
        Ok((lease, places))
    }

    async fn ask(&mut self, wanted: &Wanted, id: &RequestId) -> Result<Vec<Place>, Refusal> {
        let acquire = |part: &Part| {
            let Part { ref lock, mode, limit } = *part;
            Wanted { mode, limit, ..wanted.clone() }.acquire(lock, (self.secret.session, id))
        };
        let paths: Vec<&str> = self.parts.iter().map(|part| part.lock.path()).collect();
        // No path contains a zero byte, so another list of locks is another attempt.
        let attempt = id.attempt(&paths.join("\0"), !wanted.wait.is_zero());
        let command = Command::Client(Request::Acquire(self.parts.iter().map(acquire).collect()));
        let outcome = self.call.act_once(self.secret, attempt, &command).await?;
        let Response::PlaceStates(states) = outcome else {
            unreachable!("an acquire tells of its places: {outcome:?}");
        };
        assert!(states.len() == self.parts.len(), "it tells of each of them");
        states.into_iter().map(Place::of).collect()
    }
}
