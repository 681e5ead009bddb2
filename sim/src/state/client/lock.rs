//! The sequential recipe: create an ephemeral sequential znode and list; hold if it is the first, else watch
//! the one before it and list again after every wake-up.

use bytes::Bytes;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Mode;
use rowlock_proto::request::Create;
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Version, Zxid};
use rowlock_state::command::Command;
use rowlock_state::outcome::{ChangeKind, Outcome};

use crate::history::{Fact, Lock, Millis};
use crate::state::message::{Down, Tag, Up};
use crate::state::mutant::Mutant;

use super::{Act, Client, Moment};

/// How many locks there are: few, so that they are contended.
pub const LOCKS: usize = 3;

/// The znode of a lock.
pub fn lock_path(lock: Lock) -> String {
    format!("/locks/{}", lock.0)
}

/// Which lock's queue a znode belongs to.
pub fn lock_of(path: &str) -> Option<Lock> {
    let (lock, member) = path.strip_prefix("/locks/")?.split_once('/')?;
    (!member.contains('/')).then_some(Lock(lock.parse().ok()?))
}

/// One attempt to get a lock. Its name is new with every attempt, so that the queue member of a former one,
/// which the cluster may be about to delete, is never taken for ours.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    lock: Lock,
    guid: String,
}

impl Attempt {
    pub(super) fn member_path(&self, name: &str) -> String {
        format!("{}/{name}", lock_path(self.lock))
    }
}

/// A member of a queue.
#[derive(Clone, Debug)]
pub(super) struct Member {
    name: String,
    token: FencingToken,
}

/// Where a client stands.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Nowhere.
    Idle,
    /// Sent the create.
    Creating(Attempt, Tag),
    /// Sent the list.
    Listing(Attempt, Tag),
    /// Sent the watch for that predecessor; `own` is our place.
    Watching { attempt: Attempt, own: FencingToken, before: Member, tag: Tag },
    /// In the queue, waiting for the predecessor's event.
    Waiting { attempt: Attempt, own: FencingToken, before: Member },
    /// Granted, as far as the queue says.
    Holding { attempt: Attempt, token: FencingToken, own: String },
    /// Sent the delete, after release or after giving up.
    Leaving { attempt: Attempt, own: Option<String>, tag: Tag },
}

impl Place {
    fn attempt(&self) -> Option<&Attempt> {
        match self {
            Place::Idle => None,
            Place::Creating(attempt, _) | Place::Listing(attempt, _) => Some(attempt),
            Place::Watching { attempt, .. } | Place::Waiting { attempt, .. } => Some(attempt),
            Place::Holding { attempt, .. } | Place::Leaving { attempt, .. } => Some(attempt),
        }
    }
}

impl Client {
    /// Its turn, connected and with nothing more urgent.
    pub(super) fn act_on_lock(&mut self, moment: &mut Moment<'_>) -> Vec<Act> {
        match self.place.clone() {
            Place::Idle if !moment.settling && moment.rng.chance(moment.eager) => {
                let lock = Lock(moment.rng.below(LOCKS));
                self.attempts += 1;
                let attempt = Attempt { lock, guid: format!("c{}-{}", self.number, self.attempts) };
                let session = self.session_id();
                moment.facts.push(Fact::Wanted { lock, session });
                self.create(attempt)
            }
            Place::Waiting { attempt, .. } if !moment.settling && moment.rng.chance(3) => {
                self.list_to_leave(attempt)
            }
            Place::Holding { attempt, token, own } if self.belief.is_some() => match moment.rng.below(3) {
                0 => self.delete(attempt, own, moment.facts),
                _ => vec![Act::Write(attempt.lock, token)],
            },
            // Its belief ended at its deadline, but its session lived on: only the queue can say who holds
            // now.
            Place::Holding { attempt, .. } => self.list(attempt),
            _ => Vec::new(),
        }
    }

    /// A message that is not about the session.
    pub(super) fn receive_on_lock(&mut self, down: Down, moment: &mut Moment<'_>) -> Vec<Act> {
        match (self.place.clone(), down) {
            // Another client has deleted the lock's znode, whose queue was empty.
            (Place::Creating(attempt, sent), Down::Answer { tag, result: Err(ErrorCode::NoNode), .. })
                if tag == sent =>
            {
                self.left(attempt, moment.facts)
            }
            (Place::Creating(attempt, sent), Down::Answer { tag, result, .. }) if tag == sent => {
                assert!(
                    matches!(result, Ok(Outcome::Created { .. })),
                    "a queue member can be created: {result:?}"
                );
                self.list(attempt)
            }
            (Place::Listing(attempt, sent), Down::Listed { tag, zxid, children }) if tag == sent => {
                self.decide(attempt, zxid, children, moment)
            }
            (Place::Leaving { attempt, own: None, tag: sent }, Down::Listed { tag, children, .. })
                if tag == sent =>
            {
                match children.into_iter().find(|(name, _)| name.starts_with(&member_prefix(&attempt))) {
                    Some((name, _)) => self.delete(attempt, name, moment.facts),
                    None => self.left(attempt, moment.facts),
                }
            }
            (Place::Watching { attempt, own, before, tag: sent }, Down::Seen { tag, stat, .. })
                if tag == sent =>
            {
                match stat {
                    Some(_) => {
                        self.place = Place::Waiting { attempt, own, before };
                        Vec::new()
                    }
                    // It left between the list and the watch.
                    None => self.list(attempt),
                }
            }
            (
                Place::Waiting { attempt, own, before },
                Down::Event { zxid, path, kind: ChangeKind::Deleted },
            ) if path == format!("{}/{}", lock_path(attempt.lock), before.name) => {
                self.woken(attempt, own, before.token, zxid, moment)
            }
            (Place::Leaving { attempt, own: Some(_), tag: sent }, Down::Answer { tag, result, .. })
                if tag == sent =>
            {
                assert!(
                    matches!(result, Ok(_) | Err(ErrorCode::NoNode)),
                    "only the member itself goes: {result:?}"
                );
                self.left(attempt, moment.facts)
            }
            _ => Vec::new(),
        }
    }

    /// After the session was attached to a new connection: whatever the old one was about to say is unknown.
    pub(super) fn resume(&mut self) -> Vec<Act> {
        match self.place.clone() {
            Place::Idle => Vec::new(),
            Place::Leaving { attempt, .. } => self.list_to_leave(attempt),
            Place::Creating(attempt, _) if self.mutant == Some(Mutant::BlindRetry) => self.create(attempt),
            Place::Waiting { .. } if self.mutant == Some(Mutant::TrustOldWatch) => Vec::new(),
            place => self.list(place.attempt().expect("not idle").clone()),
        }
    }

    /// Its session or its process is gone, and so is its place.
    pub(super) fn leave_lock(&mut self, facts: &mut Vec<Fact>) {
        if let Some(attempt) = self.place.attempt() {
            facts.push(Fact::Unwanted { lock: attempt.lock, session: self.session_id() });
        }
        self.place = Place::Idle;
    }

    /// What the queue says: hold, or watch whom.
    fn decide(
        &mut self,
        attempt: Attempt,
        seen: Zxid,
        children: Vec<(String, Zxid)>,
        moment: &mut Moment<'_>,
    ) -> Vec<Act> {
        let mut queue: Vec<_> =
            children.into_iter().map(|(name, zxid)| (number(&name), name, zxid)).collect();
        queue.sort();
        let Some(own) = queue.iter().position(|(_, name, _)| name.starts_with(&member_prefix(&attempt)))
        else {
            return self.create(attempt);
        };
        let token = FencingToken(queue[own].2.0);
        if own == 0 {
            let own = queue.swap_remove(0).1;
            return self.granted(attempt, token, own, seen, moment);
        }
        let before = if self.mutant == Some(Mutant::WatchTheHolder) { 0 } else { own - 1 };
        let (_, name, zxid) = queue.swap_remove(before);
        let tag = self.tag();
        let path = format!("{}/{name}", lock_path(attempt.lock));
        let before = Member { name, token: FencingToken(zxid.0) };
        self.place = Place::Watching { attempt, own: token, before, tag };
        vec![Act::Send(Up::Watch { tag, path })]
    }

    fn woken(
        &mut self,
        attempt: Attempt,
        own: FencingToken,
        gone: FencingToken,
        zxid: Zxid,
        moment: &mut Moment<'_>,
    ) -> Vec<Act> {
        let (lock, session) = (attempt.lock, self.session_id());
        moment.facts.push(Fact::Woken { lock, gone, own, session, zxid });
        if self.mutant == Some(Mutant::GrantOnWake) {
            let path = format!("{}-lock-", attempt.guid);
            return self.granted(attempt, own, path, zxid, moment);
        }
        self.list(attempt)
    }

    fn granted(
        &mut self,
        attempt: Attempt,
        token: FencingToken,
        own: String,
        seen: Zxid,
        moment: &mut Moment<'_>,
    ) -> Vec<Act> {
        let lock = attempt.lock;
        self.place = Place::Holding { attempt, token, own };
        // A place at the head of the queue is worth nothing to a client that cannot vouch for its session.
        if self.past_deadline(moment.now) {
            return vec![Act::Disconnect];
        }
        let session = self.session.as_ref().expect("who waits has a session");
        let (session, until) = (session.id, session.deadline());
        self.belief = Some(lock);
        moment.facts.push(Fact::Granted {
            lock,
            token,
            session,
            mode: Mode::Exclusive,
            by_queue: true,
            seen,
            now: moment.now,
            until,
            cap: Millis(i64::MAX),
        });
        Vec::new()
    }

    fn create(&mut self, attempt: Attempt) -> Vec<Act> {
        let tag = self.tag();
        let path = format!("{}/{}", lock_path(attempt.lock), member_prefix(&attempt));
        let flags = CreateMode::EphemeralSequential.flags();
        let create = Create { path, data: Some(Bytes::new()), acl: Some(Acl::shared_open()), flags };
        self.place = Place::Creating(attempt, tag);
        vec![Act::Send(Up::Write { tag, command: Command::Create { create, ttl_ms: None } })]
    }

    fn list(&mut self, attempt: Attempt) -> Vec<Act> {
        let (tag, path) = (self.tag(), lock_path(attempt.lock));
        self.place = Place::Listing(attempt, tag);
        vec![Act::Send(Up::List { tag, path })]
    }

    fn list_to_leave(&mut self, attempt: Attempt) -> Vec<Act> {
        let (tag, path) = (self.tag(), lock_path(attempt.lock));
        self.place = Place::Leaving { attempt, own: None, tag };
        vec![Act::Send(Up::List { tag, path })]
    }

    /// Lets go: the belief ends before the delete is sent.
    fn delete(&mut self, attempt: Attempt, own: String, facts: &mut Vec<Fact>) -> Vec<Act> {
        self.end_belief(facts);
        let tag = self.tag();
        let path = format!("{}/{own}", lock_path(attempt.lock));
        self.place = Place::Leaving { attempt, own: Some(own), tag };
        vec![Act::Send(Up::Write { tag, command: Command::Delete { path, version: Version::ANY } })]
    }

    fn left(&mut self, attempt: Attempt, facts: &mut Vec<Fact>) -> Vec<Act> {
        facts.push(Fact::Unwanted { lock: attempt.lock, session: self.session_id() });
        self.place = Place::Idle;
        Vec::new()
    }

    fn session_id(&self) -> rowlock_proto::SessionId {
        self.session.as_ref().expect("who has a place has a session").id
    }
}

fn member_prefix(attempt: &Attempt) -> String {
    format!("{}-lock-", attempt.guid)
}

/// The sequence number at the end of any client's name.
fn number(name: &str) -> i64 {
    let begin = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[begin..].parse().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_members_are_told_from_everything_else() {
        assert_eq!(lock_of("/locks/2/c1-1-lock-0000000003"), Some(Lock(2)));
        assert_eq!(lock_of("/locks/2"), None);
        assert_eq!(lock_of("/data/2/x"), None);
        assert_eq!(lock_of("/locks/2/x/y"), None);
    }

    #[test]
    fn members_are_ordered_by_number_whatever_their_prefix() {
        assert!(number("c9-1-lock-0000000002") < number("c1-1-lock-0000000010"));
        assert!(number("c9-1-__READ__0000000011") > number("c1-1-lock-0000000010"));
    }
}
