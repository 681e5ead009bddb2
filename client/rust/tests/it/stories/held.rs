//! The guards of a story, and the steps on them:
//!
//! ```text
//! release, drop, check, lost, upgrade, downgrade, leave: GUARD
//! shares, count, paths: GUARD                 of a reentrant mutex, a semaphore, several locks
//! set-value, transfer: GUARD VALUE            of a lead
//! ```

use rowlock_client::{
    Client, FencingToken, Guard, Kept, Leadership, LostReason, Membership, MultiGuard, Permits, ReadGuard,
    ReentrantGuard, TransferError, WriteGuard,
};

use super::Done;
use super::steps::{done, text};

pub enum Held {
    Mutex(Guard),
    Reader(ReadGuard),
    Writer(WriteGuard),
    Permits(Permits),
    All(MultiGuard),
    Reentrant(ReentrantGuard),
    Lead(Leadership, Client),
    Member(Membership),
}

impl Held {
    fn guard(&self) -> Option<&Guard> {
        match self {
            Held::Mutex(guard) => Some(guard),
            Held::Reader(guard) => Some(guard),
            Held::Writer(guard) => Some(guard),
            Held::Permits(guard) => Some(guard),
            Held::All(guard) => guard.guards().last(),
            Held::Reentrant(guard) => Some(guard),
            Held::Lead(guard, _) => Some(guard),
            Held::Member(_) => None,
        }
    }

    /// Path and token of the place in the queue; none if tokens need not rise with this guard.
    pub fn place(&self) -> Option<(&str, FencingToken)> {
        let guard = self.guard().filter(|_| !matches!(self, Held::Reentrant(guard) if guard.shares() > 1))?;
        Some((guard.path(), guard.token()))
    }

    /// Takes the lock away by another client.
    pub async fn taken_away(&self, by: &Client, how: &str) -> String {
        let guard = self.guard().expect("a lock");
        let mut claim = guard.claim();
        match how {
            "delete" => text(by.delete(guard.path(), None).await),
            "force" => text(by.force_release(&claim).await),
            _ => {
                claim.token.0 += 1;
                text(by.force_release(&claim).await)
            }
        }
    }

    pub async fn step(self, words: Vec<String>) -> Done {
        let value = words.get(2).cloned().unwrap_or_default();
        match (words[0].as_str(), self) {
            ("release", held) => (held.release().await, None),
            ("drop", held) => {
                drop(held);
                ("ok".to_owned(), None)
            }
            ("leave", Held::Member(member)) => (text(member.leave().await), None),
            ("upgrade", Held::Reader(guard)) => {
                let loss = guard.loss();
                match guard.try_upgrade().await {
                    Ok(guard) => {
                        assert_eq!(loss.reason(), Some(LostReason::Released), "the reader");
                        done("granted", Held::Writer(guard))
                    }
                    Err(Kept { guard, error }) => done(&format!("{error:?}"), Held::Reader(guard)),
                }
            }
            ("downgrade", Held::Writer(guard)) => {
                let token = guard.token();
                match guard.downgrade().await {
                    Ok(guard) => {
                        assert!(guard.token() >= token, "a reader with an older token");
                        done("downgraded", Held::Reader(guard))
                    }
                    Err(Kept { guard, error }) => done(&format!("{error:?}"), Held::Writer(guard)),
                }
            }
            ("transfer", Held::Lead(lead, client)) => {
                let election = client.election_at(lead.path().rsplit_once('/').unwrap().0);
                let candidates = election.candidates().await.unwrap();
                let to = candidates.iter().find(|candidate| candidate.value == value).expect("a candidate");
                match lead.transfer_to(to).await {
                    Ok(()) => ("ok".to_owned(), None),
                    Err(TransferError::Kept(Kept { guard, error })) => {
                        done(&format!("{error:?}"), Held::Lead(guard, client))
                    }
                    Err(error) => (format!("{error:?}"), None),
                }
            }
            (verb, held) => {
                let outcome = held.state(verb, value).await;
                (outcome, Some(held))
            }
        }
    }

    async fn release(self) -> String {
        match self {
            Held::Mutex(guard) => text(guard.release().await),
            Held::Reader(guard) => text(guard.release().await),
            Held::Writer(guard) => text(guard.release().await),
            Held::Permits(guard) => text(guard.release().await),
            Held::All(guard) => text(guard.release().await),
            Held::Reentrant(guard) => text(guard.release().await),
            Held::Lead(guard, _) => text(guard.resign().await),
            Held::Member(_) => panic!("a member leaves"),
        }
    }

    async fn state(&self, verb: &str, value: String) -> String {
        match (verb, self) {
            ("lost", Held::All(guard)) => format!("{:?}", guard.lost().await),
            ("lost", _) => format!("{:?}", self.guard().unwrap().lost().await),
            ("check", _) => {
                let guard = self.guard().unwrap();
                let checked = guard.check().await;
                // A check that fails ends the hold, too.
                assert_eq!(checked, Ok(guard.is_held()));
                text(checked)
            }
            ("paths", Held::All(guard)) => {
                let lock = |guard: &Guard| guard.path().rsplit_once('/').unwrap().0.to_owned();
                guard.guards().iter().map(lock).collect::<Vec<_>>().join(",")
            }
            ("shares", Held::Reentrant(guard)) => guard.shares().to_string(),
            ("count", Held::Permits(guard)) => guard.count().to_string(),
            ("set-value", Held::Lead(lead, _)) => text(lead.set_value(value).await),
            _ => panic!("{verb} is not for this guard"),
        }
    }
}
