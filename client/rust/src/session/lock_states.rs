//! The states of the places in queues that a server keeps for this session.
//!
//! The session follows a queue znode from the reply that names the znode until the owner drops the
//! [`LockStateCell`]. Servers push grants and losses ([`Notice`]). After a reconnect the session makes up for
//! missed notices: held locks are verified ([`LockStates::unverified`]), waiters ask again by themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rowlock_env::decides;
use rowlock_env::sync::watch;
use rowlock_env::time::Instant;
use rowlock_proto::FencingToken;
use rowlock_proto::lock::{self, Claim, Notice, NoticeEvent};

use crate::error::LostReason;
use crate::limits::{CLAIMS_BEFORE_SWEEP, CLAIMS_PER_VERIFY, CLAIMS_TO_MOVE_MAX, VERIFY_BYTES};

/// The state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    /// Not known to be held.
    Waiting,
    /// We learned then that it is held.
    Held {
        /// On our clock; not before the grant.
        since: Instant,
    },
    /// The lock is no longer ours. Final.
    Lost(LostReason),
}

/// State of a followed queue znode.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    pub(crate) state: LockState,
    /// The newest question to its holder.
    pub(crate) asked: Option<Arc<Question>>,
}

/// The state of one place, shared by the session machine and the owner of the place.
pub(crate) struct LockStateCell {
    state: watch::Sender<Followed>,
}

impl std::fmt::Debug for LockStateCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl LockStateCell {
    pub(crate) fn new() -> Arc<Self> {
        let followed = Followed { state: LockState::Waiting, asked: None };
        Arc::new(LockStateCell { state: watch::channel(followed).0 })
    }

    pub(crate) fn get(&self) -> LockState {
        self.state.borrow().state
    }

    /// The newest question to the holder.
    pub(crate) fn asked(&self) -> Option<Arc<Question>> {
        self.state.borrow().asked.clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Followed> {
        self.state.subscribe()
    }

    /// Takes what the machine says.
    pub(crate) fn hear(&self, news: News) {
        match news {
            News::State(state) => self.advance(state),
            News::Asked(question) => self.ask(question),
        }
    }

    /// Records a question unless known: servers may repeat the newest question.
    pub(crate) fn ask(&self, question: Arc<Question>) {
        self.state.send_if_modified(|followed| {
            let is_new = decides!(
                "question-is-newer",
                followed.asked.as_ref().is_none_or(|known| known.asked_ms < question.asked_ms)
            );
            if is_new {
                followed.asked = Some(question);
            }
            is_new
        });
    }

    /// Moves on. What is held stays held from when it was, what is lost stays lost.
    pub(crate) fn advance(&self, new: LockState) {
        self.state.send_if_modified(|followed| {
            let moves = match (followed.state, new) {
                (LockState::Waiting, LockState::Held { .. } | LockState::Lost(_))
                | (LockState::Held { .. }, LockState::Lost(_)) => true,
                (_, LockState::Waiting)
                | (LockState::Held { .. }, LockState::Held { .. })
                | (LockState::Lost(_), _) => false,
            };
            if moves {
                followed.state = new;
            }
            moves
        });
    }
}

/// News for a cell.
#[derive(Clone, Debug)]
pub(crate) enum News {
    State(LockState),
    Asked(Arc<Question>),
}

/// A cell and its news: the machine says it, its caller sets it.
pub(crate) type StateChange = (Arc<LockStateCell>, News);

struct Entry {
    token: FencingToken,
    held: bool,
    /// Newest question of the latest cell; kept for the next cell.
    asked: Option<Arc<Question>>,
    cell: Weak<LockStateCell>,
}

/// All places of one session that are followed, by the paths of their znodes.
#[derive(Default)]
pub(crate) struct LockStates {
    followed: BTreeMap<Arc<str>, Entry>,
    /// Number of followed znodes at the next sweep.
    sweep_at: usize,
}

impl LockStates {
    /// A reply named a place: held already, or waiting.
    pub(crate) fn follow(
        &mut self,
        claim: &Claim,
        held: Option<Instant>,
        cell: &Arc<LockStateCell>,
    ) -> impl Iterator<Item = StateChange> + use<> {
        if self.followed.len() >= self.sweep_at.max(CLAIMS_BEFORE_SWEEP) {
            self.followed.retain(|_, followed| followed.cell.strong_count() > 0);
            self.sweep_at = 2 * self.followed.len();
        }
        let before = self
            .followed
            .get(&claim.path)
            .filter(|before| decides!("followed-claim-is-same", before.token == claim.token));
        let asked = before.and_then(|before| before.asked.clone());
        let news = [
            asked.clone().map(|question| (cell.clone(), News::Asked(question))),
            held.map(|since| (cell.clone(), News::State(LockState::Held { since }))),
        ];
        let (token, held, cell) = (claim.token, held.is_some(), Arc::downgrade(cell));
        self.followed.insert(claim.path.clone(), Entry { token, held, asked, cell });
        news.into_iter().flatten()
    }

    /// Few places are followed, and none of them is held. (Of a session with many: no.)
    pub(crate) fn hold_nothing(&self) -> bool {
        let are_few = self.followed.len() <= CLAIMS_TO_MOVE_MAX;
        are_few && self.followed.values().all(|followed| !followed.held)
    }

    /// A release was answered: whatever the answer, there is no more to hear of these places.
    pub(crate) fn given_back(&mut self, claims: &[Claim]) {
        for claim in claims {
            if self.followed.get(&claim.path).is_some_and(|followed| followed.token == claim.token) {
                self.followed.remove(&claim.path);
            }
        }
    }

    /// Records what a server says of a place. `None`: no handle follows it any more.
    pub(crate) fn notice(&mut self, notice: &Notice, now: Instant) -> Option<StateChange> {
        let reason = match &notice.event {
            NoticeEvent::Granted => {
                let followed = self.followed.get_mut(&notice.claim.path)?;
                if decides!("notice-is-of-other-hold", followed.token != notice.claim.token) {
                    return None;
                }
                followed.held = true;
                let held = News::State(LockState::Held { since: now });
                return followed.cell.upgrade().map(|cell| (cell, held));
            }
            NoticeEvent::Asked(question) => return self.asked(&notice.claim, question, now),
            NoticeEvent::Deleted => LostReason::Deleted,
            NoticeEvent::Forced => LostReason::ForceReleased,
            NoticeEvent::Revoked => LostReason::Revoked,
        };
        self.lose(&notice.claim, reason)
    }

    fn asked(&mut self, claim: &Claim, question: &lock::QuestionNotice, now: Instant) -> Option<StateChange> {
        let followed = self.followed.get_mut(&claim.path).filter(|it| it.token == claim.token)?;
        if followed.asked.as_ref().is_some_and(|known| known.asked_ms >= question.asked_ms) {
            return None;
        }
        let question = Arc::new(Question::told(question, followed.asked.as_deref(), now));
        followed.asked = Some(question.clone());
        followed.cell.upgrade().map(|cell| (cell, News::Asked(question)))
    }

    fn lose(&mut self, claim: &Claim, reason: LostReason) -> Option<StateChange> {
        self.followed.get(&claim.path).filter(|followed| followed.token == claim.token)?;
        let followed = self.followed.remove(&claim.path)?;
        followed.cell.upgrade().map(|cell| (cell, News::State(LockState::Lost(reason))))
    }

    /// Returns the held claims to verify, in portions for one request each.
    pub(crate) fn unverified(&mut self) -> Vec<Vec<Claim>> {
        self.followed.retain(|_, followed| {
            // The owner that gave the place back has said so in the cell.
            followed.cell.upgrade().is_some_and(|cell| {
                decides!("followed-lock-is-alive", !matches!(cell.get(), LockState::Lost(_)))
            })
        });
        let held = self.followed.iter().filter(|(_, followed)| followed.held);
        let claims = held.map(|(path, followed)| Claim { path: path.clone(), token: followed.token });
        let mut portions: Vec<Vec<Claim>> = Vec::new();
        let mut bytes = 0;
        for claim in claims {
            let is_full = bytes + claim.path.len() > VERIFY_BYTES;
            match portions.last_mut().filter(|portion| !is_full && portion.len() < CLAIMS_PER_VERIFY) {
                Some(portion) => {
                    bytes += claim.path.len();
                    portion.push(claim);
                }
                None => {
                    bytes = claim.path.len();
                    portions.push(vec![claim]);
                }
            }
        }
        portions
    }

    /// The answer to a verification: who has lost his place while we were cut off. By whom is not known.
    pub(crate) fn verified(&mut self, claims: &[Claim], held: &[bool]) -> Vec<StateChange> {
        let gone = claims.iter().zip(held).filter(|(_, held)| decides!("verified-claim-is-gone", !**held));
        gone.filter_map(|(claim, _)| self.lose(claim, LostReason::Deleted)).collect()
    }
}

/// Request of another client for a held lock. Both texts come from the other client: print them as untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// Reason of the request.
    pub reason: String,
    /// Identity of the requester by the server's authentication, followed by the requester's own label.
    pub by: String,
    /// Time of the request: the leader's clock, milliseconds since 1970.
    pub asked_ms: i64,
    /// Time of the loss ([`crate::LostReason::Asked`]), unless the holder releases the lock before. `None`: a
    /// mere notice.
    pub deadline: Option<Instant>,
}

impl Question {
    /// Converts a notice received at `now`. A later question never moves an earlier deadline.
    pub(crate) fn told(question: &lock::QuestionNotice, before: Option<&Question>, now: Instant) -> Question {
        let left = question.left_ms.map(|left_ms| now + std::time::Duration::from_millis(left_ms.into()));
        let deadline = left.into_iter().chain(before.and_then(|before| before.deadline)).min();
        let lock::QuestionNotice { reason, by, asked_ms, .. } = question.clone();
        Question { reason, by, asked_ms, deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(path: &str, token: i64) -> Claim {
        Claim { path: path.into(), token: FencingToken(token) }
    }

    fn told(changes: impl IntoIterator<Item = StateChange>) -> Option<LockState> {
        let tell = |(cell, news): StateChange| {
            cell.hear(news);
            cell.get()
        };
        changes.into_iter().map(tell).last()
    }

    #[test]
    fn a_notice_reaches_the_place_with_its_very_token_and_no_other() {
        let (mut it, cell, now) = (LockStates::default(), LockStateCell::new(), Instant::now());
        assert!(it.follow(&claim("/l/a", 5), None, &cell).next().is_none());
        let notice = |path, token| Notice { claim: claim(path, token), event: NoticeEvent::Granted };
        assert!(it.notice(&notice("/l/a", 4), now).is_none() && it.notice(&notice("/l/b", 5), now).is_none());
        assert_eq!(told(it.notice(&notice("/l/a", 5), now)), Some(LockState::Held { since: now }));
        drop(cell);
        assert!(it.notice(&notice("/l/a", 5), now).is_none(), "nobody wants to know");
    }

    #[test]
    fn a_question_is_heard_once_and_goes_on_with_its_place_and_no_later_one_moves_its_deadline() {
        let (mut it, cell, now) = (LockStates::default(), LockStateCell::new(), Instant::now());
        told(it.follow(&claim("/l/a", 5), Some(now), &cell));
        let after = |seconds| now + std::time::Duration::from_secs(seconds);
        let ask = |it: &mut LockStates, token, asked_ms, left_ms, at| {
            let (reason, by) = (format!("at {asked_ms}"), String::new());
            let event = NoticeEvent::Asked(lock::QuestionNotice { reason, by, asked_ms, left_ms });
            it.notice(&Notice { claim: claim("/l/a", token), event }, at)
        };
        assert!(ask(&mut it, 4, 1, None, now).is_none(), "of another token");
        told(ask(&mut it, 5, 1, Some(3_000), now));
        assert!(ask(&mut it, 5, 1, Some(2_500), after(1)).is_none(), "the same once more");
        assert_eq!(cell.asked().unwrap().deadline, Some(after(3)));
        told(ask(&mut it, 5, 2, None, after(1)));
        told(ask(&mut it, 5, 3, Some(9_000), after(1)));
        let question = cell.asked().unwrap();
        assert_eq!((question.reason.as_str(), question.deadline), ("at 3", Some(after(3))));
        // Asked for again after a reconnect, the place has another cell.
        let next = LockStateCell::new();
        told(it.follow(&claim("/l/a", 5), Some(now), &next));
        assert_eq!(next.asked(), cell.asked());
        let other = LockStateCell::new();
        told(it.follow(&claim("/l/a", 6), Some(now), &other));
        assert_eq!(other.asked(), None, "another place");
    }

    #[test]
    fn what_is_lost_stays_lost_and_a_grant_keeps_its_first_time() {
        let (cell, now) = (LockStateCell::new(), Instant::now());
        cell.advance(LockState::Held { since: now });
        cell.advance(LockState::Held { since: now + std::time::Duration::from_secs(1) });
        assert_eq!(cell.get(), LockState::Held { since: now });
        cell.advance(LockState::Lost(LostReason::Deleted));
        cell.advance(LockState::Held { since: now });
        assert_eq!(cell.get(), LockState::Lost(LostReason::Deleted));
    }

    #[test]
    fn only_held_places_that_somebody_keeps_are_verified_and_the_missing_ones_are_lost() {
        let (mut it, now) = (LockStates::default(), Instant::now());
        let cells: Vec<_> = (0..4).map(|_| LockStateCell::new()).collect();
        for (number, cell) in cells.iter().enumerate() {
            let change = it.follow(&claim(&format!("/l/{number}"), 1), (number != 1).then_some(now), cell);
            told(change);
        }
        cells[2].advance(LockState::Lost(LostReason::Released));
        let portions = it.unverified();
        assert_eq!(portions, [vec![claim("/l/0", 1), claim("/l/3", 1)]]);
        let changes = it.verified(&portions[0], &[true, false]);
        assert_eq!(changes.len(), 1);
        assert!(Arc::ptr_eq(&changes[0].0, &cells[3]));
        assert_eq!(told(changes), Some(LockState::Lost(LostReason::Deleted)));
    }

    #[test]
    fn a_place_given_back_is_followed_no_more_but_a_later_one_at_its_path_is() {
        let (mut it, now, cell) = (LockStates::default(), Instant::now(), LockStateCell::new());
        told(it.follow(&claim("/l/a", 6), Some(now), &cell));
        it.given_back(&[claim("/l/a", 5), claim("/l/b", 6)]);
        assert_eq!(it.followed.len(), 1, "of another token");
        it.given_back(&[claim("/l/a", 6)]);
        assert!(it.followed.is_empty());
    }

    #[test]
    fn no_verification_is_longer_than_a_server_takes() {
        let (mut it, now, cell) = (LockStates::default(), Instant::now(), LockStateCell::new());
        let name = "x".repeat(VERIFY_BYTES / 3);
        for number in 0..7 {
            told(it.follow(&claim(&format!("/{name}{number}"), 1), Some(now), &cell));
        }
        assert_eq!(it.unverified().iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2, 1]);
    }

    #[test]
    fn places_nobody_keeps_do_not_pile_up() {
        let mut it = LockStates::default();
        for number in 0..10 * CLAIMS_BEFORE_SWEEP {
            let _ = it.follow(&claim(&format!("/l/{number}"), 1), None, &LockStateCell::new());
            assert!(it.followed.len() <= CLAIMS_BEFORE_SWEEP);
        }
    }
}
