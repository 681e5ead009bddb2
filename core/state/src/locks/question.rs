//! Questions to holders, with askers and deadlines. `ask` makes questions, each holder keeps the newest one.
//!
//! Invariant: no question cancels the deadline of an earlier one.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_proto::ErrorCode;
use rowlock_proto::lock::{self, Ask};
use serde::{Deserialize, Serialize};

use crate::digest::Hasher;
use crate::guard::decides;

/// Milliseconds (of the log's clock) between two questions of one asker about one lock. Earlier questions get
/// `ThrottledOp`, since all holders receive every question. The pause applies per asker: other askers may ask
/// meanwhile. A question with a deadline needs no pause.
pub const ASK_PAUSE_MS: i64 = 1_000;

/// Limit of recent askers kept in a question. Beyond the limit the oldest asker drops out and may ask again
/// early: a crowd of askers achieves at most one question per millisecond.
pub const ASKERS_MAX: usize = 8;

/// Client that asked about a lock within the last [`ASK_PAUSE_MS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Number of the asker's user, or of the asker's address.
    pub who: u64,
    pub at_ms: i64,
}

/// The newest question to a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub reason: String,
    pub by: String,
    /// Time of the question, milliseconds since 1970. Later than every earlier question to this holder: after
    /// several questions within a millisecond, ahead of the clock by at most [`ASK_PAUSE_MS`].
    pub asked_ms: i64,
    /// The earliest deadline of this and earlier questions: no question cancels a deadline.
    pub deadline: Option<Deadline>,
    /// Recent askers about the lock, the newest at the end.
    pub askers: Arc<[Asker]>,
}

/// Time of a permitted question, and the recent askers including its author.
pub(super) struct NextQuestion {
    asked_ms: i64,
    askers: Arc<[Asker]>,
}

impl NextQuestion {
    /// Checks whether `who` may ask the holders with these questions. `needs_pause` is false for questions
    /// with a deadline.
    pub(super) fn next<'a>(
        before: impl Iterator<Item = &'a Question>,
        (who, needs_pause): (u64, bool),
        now_ms: i64,
    ) -> Result<NextQuestion, ErrorCode> {
        let (mut last_ms, mut askers) = (i64::MIN, BTreeMap::new());
        let mut seen: Option<&Arc<[Asker]>> = None;
        for question in before {
            last_ms = last_ms.max(question.asked_ms);
            // All holders usually share one list.
            if seen.replace(&question.askers).is_some_and(|seen| Arc::ptr_eq(seen, &question.askers)) {
                continue;
            }
            for known in question.askers.iter().filter(|it| now_ms.saturating_sub(it.at_ms) < ASK_PAUSE_MS) {
                let at_ms = askers.entry(known.who).or_insert(known.at_ms);
                *at_ms = known.at_ms.max(*at_ms);
            }
        }
        let is_early =
            decides!("question-is-early", needs_pause && (askers.contains_key(&who) || last_ms >= now_ms));
        if is_early || last_ms >= now_ms.saturating_add(ASK_PAUSE_MS) {
            return Err(ErrorCode::ThrottledOp);
        }
        askers.insert(who, now_ms);
        let mut askers: Vec<Asker> = askers.into_iter().map(|(who, at_ms)| Asker { who, at_ms }).collect();
        askers.sort_by_key(|it| (it.at_ms, it.who == who, it.who));
        askers.drain(..askers.len().saturating_sub(ASKERS_MAX));
        assert!(askers.iter().any(|asker| asker.who == who), "the newest asker is remembered");
        assert!(askers.len() <= ASKERS_MAX, "{} askers are remembered", askers.len());
        let asked_ms = now_ms.max(last_ms.saturating_add(1));
        assert!(
            (now_ms..=now_ms.saturating_add(ASK_PAUSE_MS)).contains(&asked_ms),
            "a question is ahead of its bound"
        );
        Ok(NextQuestion { asked_ms, askers: askers.into() })
    }
}

/// Time limit for a holder to release its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// Start of the limit, milliseconds since 1970.
    pub since_ms: i64,
    /// Milliseconds after the start.
    pub within_ms: u32,
}

impl Deadline {
    pub fn at_ms(self) -> i64 {
        self.since_ms.saturating_add(self.within_ms.into())
    }
}

impl Question {
    pub(super) fn of(ask: &Ask, before: Option<&Question>, turn: &NextQuestion, now_ms: i64) -> Question {
        let new = (ask.within_ms != 0).then_some(Deadline { since_ms: now_ms, within_ms: ask.within_ms });
        let old = before.and_then(|before| before.deadline);
        let deadline = old.into_iter().chain(new).min_by_key(|deadline| deadline.at_ms());
        let (asked_ms, askers) = (turn.asked_ms, turn.askers.clone());
        assert!(before.is_none_or(|before| before.asked_ms < asked_ms), "a later question has a later time");
        assert!(deadline.is_none_or(|it| it.since_ms <= now_ms), "a deadline counts from what was");
        let is_kept = |old: Deadline| deadline.is_some_and(|it| it.at_ms() <= old.at_ms());
        assert!(old.is_none_or(is_kept), "a question moves no deadline to later");
        Question { reason: ask.reason.clone(), by: ask.by.clone(), asked_ms, deadline, askers }
    }

    /// Returns the notice to the holder at this time.
    pub fn told_at(&self, now_ms: i64) -> lock::QuestionNotice {
        debug_assert!(
            self.asked_ms <= now_ms.saturating_add(ASK_PAUSE_MS),
            "a question is told before it was asked"
        );
        let left_ms = |deadline: Deadline| deadline.at_ms().saturating_sub(now_ms).max(0);
        lock::QuestionNotice {
            reason: self.reason.clone(),
            by: self.by.clone(),
            asked_ms: self.asked_ms,
            left_ms: self.deadline.map(|deadline| u32::try_from(left_ms(deadline)).unwrap_or(u32::MAX)),
        }
    }

    /// Formats the question as one line of text.
    pub(super) fn text(&self) -> String {
        format!("{}: {}", self.by, self.reason)
    }

    pub(super) fn hash(&self, hasher: Hasher) -> Hasher {
        let hasher = hasher.bytes(self.reason.as_bytes()).bytes(self.by.as_bytes()).int(self.asked_ms);
        let deadline = self.deadline.iter();
        let hasher = deadline.fold(hasher, |hasher, it| hasher.int(it.since_ms).word(it.within_ms.into()));
        self.askers.iter().fold(hasher, |hasher, it| hasher.word(it.who).int(it.at_ms))
    }

    /// Returns whether a state at this time may contain the question.
    pub(crate) fn is_good(&self, now_ms: i64) -> bool {
        let may_be = |deadline: Deadline| {
            deadline.since_ms <= self.asked_ms && lock::ASK_WITHIN_MS.contains(&deadline.within_ms)
        };
        self.asked_ms <= now_ms.saturating_add(ASK_PAUSE_MS)
            && self.askers.len() <= ASKERS_MAX
            && self.reason.len() <= lock::ASK_REASON_MAX_BYTES
            && self.by.len() <= lock::ASK_BY_MAX_BYTES
            && self.deadline.is_none_or(may_be)
    }
}
