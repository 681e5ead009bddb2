//! Redis's data and the commands that locks use, pure: one command after another, as on Redis's one thread.
//!
//! Scripts of lock libraries are single commands here, as Redis runs a script atomically. Keys expire by the
//! server's wall clock, which the caller passes in (Redis stores expiry as Unix time, so a jump of the clock
//! moves the expiry). This module must never read a clock itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{LOCK, TTL};

const TTL_MS: i64 = TTL.as_millis() as i64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Data {
    Text(String),
    /// Hash of counters: Redisson's owner and reentrancy count.
    Hash(BTreeMap<String, i64>),
}

/// Value and expiry of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub data: Data,
    /// Unix time in milliseconds; `None` means never.
    pub expires_at_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// `SET key value NX PX ttl`.
    SetNxPx {
        key: String,
        /// Value for an absent key.
        value: String,
        ttl_ms: i64,
    },
    SetNx {
        key: String,
        /// Value for an absent key.
        value: String,
    },
    Expire {
        key: String,
        /// Time to live from now.
        ttl_ms: i64,
    },
    Get {
        key: String,
    },
    /// `GETSET key value`, which removes the expiry.
    GetSet {
        key: String,
        value: String,
    },
    Del {
        key: String,
    },
    /// The script `if get(key) == value then del(key)`.
    CompareAndDelete {
        key: String,
        value: String,
    },
    /// Redisson's lock script. Absent or own key: counts up, sets the expiry and returns [`Answer::Nil`];
    /// else returns the remaining time.
    RedissonLock {
        key: String,
        owner: String,
        ttl_ms: i64,
    },
    /// Redisson's renewal script: 1 and a new expiry for an own key, else 0.
    RedissonRenew {
        key: String,
        owner: String,
        ttl_ms: i64,
    },
    /// Redisson's unlock script, in the version of the notes (S3-12, S3-13). Missing key: publishes, 1.
    /// Another owner's key: nil. Own key: counts down, and returns 0 if a count is left, else deletes,
    /// publishes, 1.
    RedissonUnlock {
        key: String,
        owner: String,
        ttl_ms: i64,
    },
}

/// The commands of the recipes: all have the key [`LOCK`], and set the time to live [`TTL`].
impl Command {
    pub fn set_nx_px(value: &str) -> Command {
        Command::SetNxPx { key: LOCK.to_owned(), value: value.to_owned(), ttl_ms: TTL_MS }
    }

    pub fn set_nx(value: &str) -> Command {
        Command::SetNx { key: LOCK.to_owned(), value: value.to_owned() }
    }

    pub fn expire() -> Command {
        Command::Expire { key: LOCK.to_owned(), ttl_ms: TTL_MS }
    }

    pub fn get() -> Command {
        Command::Get { key: LOCK.to_owned() }
    }

    pub fn get_set(value: &str) -> Command {
        Command::GetSet { key: LOCK.to_owned(), value: value.to_owned() }
    }

    pub fn del() -> Command {
        Command::Del { key: LOCK.to_owned() }
    }

    pub fn compare_and_delete(value: &str) -> Command {
        Command::CompareAndDelete { key: LOCK.to_owned(), value: value.to_owned() }
    }

    pub fn redisson_lock(owner: &str) -> Command {
        Command::RedissonLock { key: LOCK.to_owned(), owner: owner.to_owned(), ttl_ms: TTL_MS }
    }

    pub fn redisson_renew(owner: &str) -> Command {
        Command::RedissonRenew { key: LOCK.to_owned(), owner: owner.to_owned(), ttl_ms: TTL_MS }
    }

    pub fn redisson_unlock(owner: &str) -> Command {
        Command::RedissonUnlock { key: LOCK.to_owned(), owner: owner.to_owned(), ttl_ms: TTL_MS }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Ok,
    /// The key is missing, or the command had no effect.
    Nil,
    Number(i64),
    Text(String),
    /// Error of the server: `READONLY`, `NOREPLICAS`.
    Refused(String),
}

/// Change of the data, as replicated and written to the append-only file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// New entry of the key. Expiry is absolute, as Redis replicates expiry since version 7.
    Put(String, Entry),
    /// Removal of the key.
    Remove(String),
}

/// Result of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub answer: Answer,
    /// Changes for replicas and the file.
    pub effects: Vec<Effect>,
    /// Channel to publish to.
    pub publish: Option<String>,
}

/// Returns the channel on which Redisson publishes the release of a lock.
pub fn channel_of(key: &str) -> String {
    format!("redisson_lock__channel:{{{key}}}")
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyspace {
    entries: BTreeMap<String, Entry>,
}

impl Keyspace {
    /// Applies a change of another server or of the file.
    pub fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Put(key, entry) => drop(self.entries.insert(key, entry)),
            Effect::Remove(key) => drop(self.entries.remove(&key)),
        }
    }

    /// Returns the entry of a key, if the key has not expired.
    pub fn get(&self, key: &str, now_ms: i64) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.expires_at_ms.is_none_or(|at| at > now_ms))
    }

    /// Runs a command. The changes are already applied, and returned for replicas and the file.
    pub fn run(&mut self, command: Command, now_ms: i64) -> Done {
        let mut run = Run { keys: self, now_ms, effects: Vec::new(), publish: None };
        let answer = run.command(command);
        Done { answer, effects: run.effects, publish: run.publish }
    }
}

/// Execution of one command.
struct Run<'a> {
    keys: &'a mut Keyspace,
    now_ms: i64,
    effects: Vec<Effect>,
    publish: Option<String>,
}

impl Run<'_> {
    fn command(&mut self, command: Command) -> Answer {
        match command {
            Command::SetNxPx { key, value, ttl_ms } => self.set_if_absent(key, value, Some(ttl_ms)),
            Command::SetNx { key, value } => self.set_if_absent(key, value, None),
            Command::Expire { key, ttl_ms } => Answer::Number(i64::from(self.expire(&key, ttl_ms))),
            Command::Get { key } => self.text(&key).map_or(Answer::Nil, Answer::Text),
            Command::GetSet { key, value } => {
                let before = self.text(&key);
                self.write(key, Data::Text(value), None);
                before.map_or(Answer::Nil, Answer::Text)
            }
            Command::Del { key } => self.del(key),
            Command::CompareAndDelete { key, value } => {
                if self.text(&key) == Some(value) {
                    self.del(key)
                } else {
                    Answer::Number(0)
                }
            }
            Command::RedissonLock { key, owner, ttl_ms } => self.redisson_lock(key, owner, ttl_ms),
            Command::RedissonRenew { key, owner, ttl_ms } => {
                let ours = self.hash(&key).is_some_and(|hash| hash.contains_key(&owner));
                Answer::Number(i64::from(ours && self.expire(&key, ttl_ms)))
            }
            Command::RedissonUnlock { key, owner, ttl_ms } => self.redisson_unlock(key, owner, ttl_ms),
        }
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key, self.now_ms)
    }

    fn text(&self, key: &str) -> Option<String> {
        match &self.entry(key)?.data {
            Data::Text(text) => Some(text.clone()),
            Data::Hash(_) => None,
        }
    }

    fn hash(&self, key: &str) -> Option<&BTreeMap<String, i64>> {
        match &self.entry(key)?.data {
            Data::Hash(hash) => Some(hash),
            Data::Text(_) => None,
        }
    }

    fn change(&mut self, effect: Effect) {
        self.keys.apply(effect.clone());
        self.effects.push(effect);
    }

    fn write(&mut self, key: String, data: Data, ttl_ms: Option<i64>) {
        let expires_at_ms = ttl_ms.map(|ttl| self.now_ms + ttl);
        self.change(Effect::Put(key, Entry { data, expires_at_ms }));
    }

    fn set_if_absent(&mut self, key: String, value: String, ttl_ms: Option<i64>) -> Answer {
        if self.entry(&key).is_some() {
            return if ttl_ms.is_some() { Answer::Nil } else { Answer::Number(0) };
        }
        self.write(key, Data::Text(value), ttl_ms);
        if ttl_ms.is_some() { Answer::Ok } else { Answer::Number(1) }
    }

    fn expire(&mut self, key: &str, ttl_ms: i64) -> bool {
        let Some(entry) = self.entry(key) else { return false };
        let data = entry.data.clone();
        self.write(key.to_owned(), data, Some(ttl_ms));
        true
    }

    fn del(&mut self, key: String) -> Answer {
        let was = self.entry(&key).is_some();
        if was {
            self.change(Effect::Remove(key));
        }
        Answer::Number(i64::from(was))
    }

    fn redisson_lock(&mut self, key: String, owner: String, ttl_ms: i64) -> Answer {
        let mut hash = match self.entry(&key) {
            None => BTreeMap::new(),
            Some(entry) => match self.hash(&key) {
                Some(hash) if hash.contains_key(&owner) => hash.clone(),
                _ => return Answer::Number(entry.expires_at_ms.map_or(-1, |at| at - self.now_ms)),
            },
        };
        *hash.entry(owner).or_insert(0) += 1;
        self.write(key, Data::Hash(hash), Some(ttl_ms));
        Answer::Nil
    }

    fn redisson_unlock(&mut self, key: String, owner: String, ttl_ms: i64) -> Answer {
        if self.entry(&key).is_none() {
            self.publish = Some(channel_of(&key));
            return Answer::Number(1);
        }
        let Some(mut hash) = self.hash(&key).filter(|hash| hash.contains_key(&owner)).cloned() else {
            return Answer::Nil;
        };
        let count = hash.entry(owner).or_insert(0);
        *count -= 1;
        if *count > 0 {
            self.write(key, Data::Hash(hash), Some(ttl_ms));
            return Answer::Number(0);
        }
        self.publish = Some(channel_of(&key));
        self.change(Effect::Remove(key));
        Answer::Number(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(keys: &mut Keyspace, command: Command, now_ms: i64) -> Answer {
        keys.run(command, now_ms).answer
    }

    #[test]
    fn set_nx_px_takes_a_free_key_and_frees_it_by_the_wall_clock() {
        let mut keys = Keyspace::default();
        assert_eq!(answer(&mut keys, Command::set_nx_px("a"), 0), Answer::Ok);
        assert_eq!(answer(&mut keys, Command::set_nx_px("b"), TTL_MS - 1), Answer::Nil);
        assert_eq!(answer(&mut keys, Command::set_nx_px("b"), TTL_MS), Answer::Ok);
    }

    #[test]
    fn setnx_without_expire_stays_for_ever() {
        let mut keys = Keyspace::default();
        assert_eq!(answer(&mut keys, Command::set_nx("a"), 0), Answer::Number(1));
        assert_eq!(answer(&mut keys, Command::set_nx("b"), i64::MAX), Answer::Number(0));
        assert_eq!(answer(&mut keys, Command::expire(), 0), Answer::Number(1));
        assert_eq!(answer(&mut keys, Command::set_nx("b"), TTL_MS), Answer::Number(1));
    }

    #[test]
    fn compare_and_delete_frees_only_an_own_key() {
        let mut keys = Keyspace::default();
        answer(&mut keys, Command::set_nx_px("a"), 0);
        assert_eq!(answer(&mut keys, Command::compare_and_delete("b"), 1), Answer::Number(0));
        assert_eq!(answer(&mut keys, Command::compare_and_delete("a"), 1), Answer::Number(1));
        answer(&mut keys, Command::set_nx_px("a"), 2);
        assert_eq!(answer(&mut keys, Command::del(), 3), Answer::Number(1));
    }

    #[test]
    fn getset_overwrites_the_timestamp_and_clears_the_expiry() {
        let mut keys = Keyspace::default();
        answer(&mut keys, Command::set_nx_px("100"), 0);
        assert_eq!(answer(&mut keys, Command::get_set("200"), 1), Answer::Text("100".to_owned()));
        assert_eq!(keys.get(LOCK, i64::MAX).map(|entry| entry.expires_at_ms), Some(None));
    }

    #[test]
    fn redissons_scripts_count_and_return_the_remaining_time() {
        let mut keys = Keyspace::default();
        assert_eq!(answer(&mut keys, Command::redisson_lock("a"), 0), Answer::Nil);
        assert_eq!(answer(&mut keys, Command::redisson_lock("a"), 10), Answer::Nil);
        assert_eq!(answer(&mut keys, Command::redisson_lock("b"), 20), Answer::Number(TTL_MS - 10));
        assert_eq!(answer(&mut keys, Command::redisson_unlock("b"), 20), Answer::Nil);
        assert_eq!(answer(&mut keys, Command::redisson_unlock("a"), 20), Answer::Number(0));
        let last = keys.run(Command::redisson_unlock("a"), 20);
        assert_eq!((last.answer, last.publish), (Answer::Number(1), Some(channel_of(LOCK))));
        assert_eq!(answer(&mut keys, Command::redisson_renew("a"), 21), Answer::Number(0));
    }

    /// S3-13, E10: a release of a vanished lock reports success.
    #[test]
    fn redissons_unlock_of_a_vanished_lock_reports_success() {
        let mut keys = Keyspace::default();
        assert_eq!(answer(&mut keys, Command::redisson_unlock("a"), 0), Answer::Number(1));
    }

    #[test]
    fn a_replica_that_applies_the_effects_has_the_same_keys() {
        let (mut keys, mut replica) = (Keyspace::default(), Keyspace::default());
        for command in
            [Command::set_nx_px("a"), Command::expire(), Command::del(), Command::redisson_lock("b")]
        {
            keys.run(command, 0).effects.into_iter().for_each(|effect| replica.apply(effect));
            assert_eq!(keys, replica);
        }
    }
}
