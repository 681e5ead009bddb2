//! mutual-exclusion: at no point of the log, and at no time in the clients' beliefs, do two clients hold one
//! lock in modes that exclude each other. A belief ends at the client's own deadline, or after its longest
//! hold, at the latest; so a client that loses a lock has stopped before its successor is granted it.

use std::collections::BTreeMap;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId};

use super::Invariant;
use crate::history::{CLOCK_SPREAD_MS, Fact, Lock, Millis};

/// A place that holds a lock, in the log or in its client's mind.
#[derive(Clone, Copy)]
struct Holder {
    token: FencingToken,
    session: SessionId,
    mode: Mode,
}

#[derive(Clone, Copy)]
struct Belief {
    holder: Holder,
    until: Millis,
    cap: Millis,
}

/// Who holds and who believes what, until when.
#[derive(Default)]
pub struct MutualExclusion {
    modes: BTreeMap<(Lock, FencingToken), Mode>,
    entitled: BTreeMap<(Lock, FencingToken), Holder>,
    /// How many permits there were at each grant.
    limits: BTreeMap<(Lock, FencingToken), Option<u32>>,
    delayed: BTreeMap<Lock, Millis>,
    beliefs: BTreeMap<(Lock, SessionId), Belief>,
}

impl MutualExclusion {
    /// An objection to these holding the lock together, the last of them since the last grant.
    fn check(&self, lock: Lock, mut holders: Vec<Holder>, what: &str) -> Result<(), String> {
        holders.sort_by_key(|holder| holder.token);
        let [.., last] = holders[..] else { return Ok(()) };
        let permits = |holder: &Holder| if let Mode::Permits(n) = holder.mode { u64::from(n) } else { 0 };
        let taken: u64 = holders.iter().map(permits).sum();
        let limit = self.limits.get(&(lock, last.token)).copied().flatten();
        let go_together = holders.len() == 1
            || holders.iter().all(|holder| holder.mode == Mode::Shared)
            || holders.iter().all(|holder| matches!(holder.mode, Mode::Permits(_)))
                && limit.is_none_or(|limit| taken <= u64::from(limit));
        if go_together {
            return Ok(());
        }
        let all =
            holders.iter().map(|one| format!("{} ({:?} of session {})", one.token, one.mode, one.session));
        let all = all.collect::<Vec<_>>().join(", ");
        Err(format!("{lock:?} is {what} by {all} at once, with limit {limit:?}"))
    }

    fn check_log(&self, lock: Lock) -> Result<(), String> {
        let of_lock = self.entitled.iter().filter(|((of, _), _)| *of == lock);
        self.check(lock, of_lock.map(|(_, holder)| *holder).collect(), "held")
    }

    fn check_beliefs(&self, lock: Lock, session: SessionId, now: Millis) -> Result<(), String> {
        let all = self.beliefs.range((lock, SessionId(i64::MIN))..=(lock, SessionId(i64::MAX)));
        let believers = all.filter(|((_, other), belief)| *other == session || belief.until > now);
        self.check(lock, believers.map(|(_, belief)| belief.holder).collect(), "believed to be held")
    }

    fn entitle(&mut self, lock: Lock, holder: Holder, limit: Option<u32>, at: Millis) -> Result<(), String> {
        if let Some(until) = self.delayed.get(&lock)
            && at.0 < until.0 - CLOCK_SPREAD_MS
        {
            return Err(format!(
                "{lock:?} was granted to {} before its delay is over at {until:?}",
                holder.token
            ));
        }
        self.limits.insert((lock, holder.token), limit);
        self.entitled.insert((lock, holder.token), holder);
        self.check_log(lock)
    }

    fn renew(&mut self, session: SessionId, now: Millis, until: Millis) -> Result<(), String> {
        let of_session = self.beliefs.keys().filter(|(_, s)| *s == session);
        for lock in of_session.map(|(lock, _)| *lock).collect::<Vec<_>>() {
            let belief = self.beliefs.get_mut(&(lock, session)).expect("just found");
            belief.until = until.min(belief.cap);
            if belief.until > now {
                self.check_beliefs(lock, session, now)?;
            }
        }
        Ok(())
    }
}

impl Invariant for MutualExclusion {
    fn name(&self) -> &'static str {
        "mutual-exclusion"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Queued { lock, token, mode, .. } => {
                self.modes.insert((lock, token), mode);
            }
            Fact::Entitled { lock, token, session, limit, at, .. } => {
                let mode = self.modes.get(&(lock, token)).copied();
                let mode =
                    mode.ok_or_else(|| format!("{lock:?} was granted to {token}, which is nowhere"))?;
                self.entitle(lock, Holder { token, session, mode }, limit, at)?;
            }
            Fact::Converted { lock, token, mode } => {
                self.modes.insert((lock, token), mode);
                if let Some(holder) = self.entitled.get_mut(&(lock, token)) {
                    holder.mode = mode;
                }
                self.check_log(lock)?;
            }
            Fact::Left { lock, token, .. } => {
                self.entitled.remove(&(lock, token));
                self.modes.remove(&(lock, token));
            }
            Fact::Delayed { lock, until } => {
                let known = self.delayed.entry(lock).or_insert(until);
                *known = until.max(*known);
            }
            Fact::Undelayed { lock } => drop(self.delayed.remove(&lock)),
            Fact::Revoked { lock, token, session, at } => {
                if let Some(belief) = self.beliefs.get(&(lock, session))
                    && belief.until > at
                    && belief.holder.token == token
                {
                    return Err(format!(
                        "{lock:?} was taken from {token} at {at:?}, and session {session} believes until {:?}",
                        belief.until
                    ));
                }
            }
            Fact::Granted { lock, token, session, mode, now, until, cap, .. } => {
                let holder = Holder { token, session, mode };
                self.beliefs.insert((lock, session), Belief { holder, until: until.min(cap), cap });
                self.check_beliefs(lock, session, now)?;
            }
            Fact::Renewed { session, now, until } => self.renew(session, now, until)?,
            Fact::BeliefEnded { lock, session } => {
                self.beliefs.remove(&(lock, session));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{granted, judge, left, queued};
    use super::*;

    fn belief(session: i64, now: i64, until: i64) -> Fact {
        granted(session, now, Mode::Exclusive, (now, until))
    }

    fn entitled(token: i64, limit: Option<u32>, at: i64) -> Fact {
        super::super::entitled(token, limit, Millis(at))
    }

    fn renewed(until: i64) -> Fact {
        Fact::Renewed { session: SessionId(1), now: Millis(until - 30), until: Millis(until) }
    }

    #[test]
    fn a_second_belief_while_the_first_lasts_is_caught() {
        let objection = judge(MutualExclusion::default(), &[belief(1, 0, 100), belief(2, 99, 200)]);
        assert!(objection.unwrap_err().contains("at once"));
    }

    #[test]
    fn a_renewed_belief_still_excludes_after_its_first_end() {
        let facts = [belief(1, 0, 100), renewed(150), belief(2, 120, 200)];
        assert!(judge(MutualExclusion::default(), &facts).is_err());
    }

    #[test]
    fn a_renewal_after_the_lock_went_to_another_is_caught() {
        let facts = [belief(1, 0, 100), belief(2, 110, 200), renewed(150)];
        assert!(judge(MutualExclusion::default(), &facts).is_err());
    }

    #[test]
    fn beliefs_one_after_another_are_fine() {
        let ended = Fact::BeliefEnded { lock: Lock(0), session: SessionId(2) };
        let facts = [belief(1, 0, 100), belief(2, 100, 300), ended, belief(3, 120, 200)];
        assert_eq!(judge(MutualExclusion::default(), &facts), Ok(()));
    }

    #[test]
    fn readers_go_together_and_writers_with_nobody() {
        let reader = |n: i64| granted(n, n, Mode::Shared, (n, 200));
        assert_eq!(judge(MutualExclusion::default(), &[reader(1), reader(2), reader(3)]), Ok(()));
        assert!(judge(MutualExclusion::default(), &[reader(1), reader(2), belief(3, 3, 200)]).is_err());
    }

    #[test]
    fn a_writer_that_has_become_a_reader_lets_readers_in() {
        let place = |token, mode| queued(token, token, mode, None);
        let to = |mode| Fact::Converted { lock: Lock(0), token: FencingToken(1), mode };
        let facts = |mode| {
            [
                place(1, Mode::Exclusive),
                entitled(1, None, 0),
                to(mode),
                place(2, Mode::Shared),
                entitled(2, None, 0),
            ]
        };
        assert_eq!(judge(MutualExclusion::default(), &facts(Mode::Shared)), Ok(()));
        assert!(judge(MutualExclusion::default(), &facts(Mode::Exclusive)).is_err());
    }

    #[test]
    fn more_permits_than_there_are_are_caught() {
        let taken = |session: i64, permits| granted(session, session, Mode::Permits(permits), (session, 200));
        let place = |token| queued(token, token, Mode::Permits(2), None);
        let log = [place(1), entitled(1, Some(4), 0), place(2), entitled(2, Some(4), 0)];
        let with = |limit| [place(1), entitled(1, Some(4), 0), place(2), entitled(2, Some(limit), 0)];
        assert_eq!(judge(MutualExclusion::default(), &log), Ok(()));
        assert!(judge(MutualExclusion::default(), &with(3)).is_err(), "in the log");
        let believed = [&log[..], &[taken(1, 2), taken(2, 3)]].concat();
        assert!(judge(MutualExclusion::default(), &believed).is_err(), "in the clients' minds");
    }

    #[test]
    fn two_exclusive_holders_in_the_log_are_caught() {
        let place = |token| queued(token, token, Mode::Exclusive, None);
        let facts = [place(1), place(2), entitled(1, None, 0), entitled(2, None, 0)];
        assert!(judge(MutualExclusion::default(), &facts).unwrap_err().contains("held by"));
        let facts = [place(1), place(2), entitled(1, None, 0), left(1, 3), entitled(2, None, 0)];
        assert_eq!(judge(MutualExclusion::default(), &facts), Ok(()));
    }

    #[test]
    fn a_grant_before_the_delay_is_over_is_caught_unless_the_lock_was_deleted() {
        let delayed = Fact::Delayed { lock: Lock(0), until: Millis(500) };
        let place = queued(1, 1, Mode::Exclusive, None);
        let early = [place.clone(), delayed.clone(), entitled(1, None, 449)];
        assert!(judge(MutualExclusion::default(), &early).unwrap_err().contains("before its delay"));
        let late = [place.clone(), delayed.clone(), entitled(1, None, 450)];
        assert_eq!(judge(MutualExclusion::default(), &late), Ok(()));
        let ended = [delayed, Fact::Undelayed { lock: Lock(0) }, place, entitled(1, None, 449)];
        assert_eq!(judge(MutualExclusion::default(), &ended), Ok(()));
    }

    #[test]
    fn taking_a_lock_from_somebody_who_believes_in_it_is_caught() {
        let revoked = |at| Fact::Revoked {
            lock: Lock(0),
            token: FencingToken(5),
            session: SessionId(1),
            at: Millis(at),
        };
        assert!(judge(MutualExclusion::default(), &[belief(1, 5, 100), revoked(99)]).is_err());
        assert_eq!(judge(MutualExclusion::default(), &[belief(1, 5, 100), revoked(100)]), Ok(()));
    }

    #[test]
    fn a_belief_is_not_renewed_beyond_its_longest_hold() {
        let Fact::Granted { lock, token, session, mode, by_queue, seen, now, until, .. } = belief(1, 0, 100)
        else {
            unreachable!()
        };
        let cap = Millis(110);
        let capped = Fact::Granted { lock, token, session, mode, by_queue, seen, now, until, cap };
        assert_eq!(judge(MutualExclusion::default(), &[capped, renewed(150), belief(2, 110, 200)]), Ok(()));
    }
}
