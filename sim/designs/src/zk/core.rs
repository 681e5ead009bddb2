//! ZooKeeper's service as lock recipes see it, pure: one linear order of changes, ephemeral znodes that end
//! with their session, sequence numbers per parent, one-shot watches.
//!
//! A simple model: one state that never loses an answered change. A real ensemble also has elections, and
//! answers no client meanwhile; here the [server](super::server) can be down for that time. Watches belong to
//! sessions, and events wait for an absent client; ZooKeeper's clients reach the same effect by setting
//! watches again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Open,
    /// Attaches the session to this connection.
    Attach(SessionId),
    /// Keepalive without any other effect.
    Ping,
    Create {
        /// Path, or prefix of the number.
        path: String,
        /// The server appends a number.
        is_sequential: bool,
    },
    /// Removes a znode. Every client may (E5): ZooKeeper's `delete(path, -1)`.
    Delete {
        path: String,
    },
    Exists {
        path: String,
        /// Requests an event of the next change.
        watch: bool,
    },
    /// Requests the names below a path.
    Children {
        parent: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Session(SessionId),
    Done,
    /// Path of a new znode, and its position among all changes (czxid).
    Created(String, u64),
    NodeExists,
    NoNode,
    Exists,
    Children(Vec<String>),
    /// The session is over.
    Expired,
}

/// Change of a watched znode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub path: String,
}

#[derive(Debug, Default)]
struct Session {
    last_seen_ms: u64,
    unsent: Vec<Event>,
}

#[derive(Debug, Default)]
pub struct Core {
    next_session: u64,
    zxid: u64,
    sessions: BTreeMap<SessionId, Session>,
    /// Owner of every znode.
    znodes: BTreeMap<String, SessionId>,
    next_number: BTreeMap<String, u64>,
    watches: BTreeMap<String, BTreeSet<SessionId>>,
}

impl Core {
    pub fn open(&mut self, now_ms: u64) -> SessionId {
        self.next_session += 1;
        let id = SessionId(self.next_session);
        self.sessions.insert(id, Session { last_seen_ms: now_ms, unsent: Vec::new() });
        id
    }

    /// Renews the session's timeout. `false`: the session is over.
    pub fn touch(&mut self, session: SessionId, now_ms: u64) -> bool {
        self.sessions.get_mut(&session).is_some_and(|s| {
            s.last_seen_ms = now_ms;
            true
        })
    }

    /// Takes the session's undelivered events.
    pub fn take_events(&mut self, session: SessionId) -> Vec<Event> {
        self.sessions.get_mut(&session).map(|s| std::mem::take(&mut s.unsent)).unwrap_or_default()
    }

    /// Returns the sessions with undelivered events.
    pub fn sessions_with_events(&self) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, s)| !s.unsent.is_empty()).map(|(id, _)| *id).collect()
    }

    /// Renews all sessions after a time in which no client could send.
    pub fn forgive(&mut self, now_ms: u64) {
        self.sessions.values_mut().for_each(|s| s.last_seen_ms = now_ms);
    }

    /// Ends the sessions that have been silent for `timeout_ms`, with their znodes. Returns the ended
    /// sessions.
    pub fn expire(&mut self, now_ms: u64, timeout_ms: u64) -> Vec<SessionId> {
        let over: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| now_ms.saturating_sub(s.last_seen_ms) >= timeout_ms)
            .map(|(id, _)| *id)
            .collect();
        for id in &over {
            self.sessions.remove(id);
            let owned: Vec<String> =
                self.znodes.iter().filter(|(_, owner)| *owner == id).map(|(path, _)| path.clone()).collect();
            for path in &owned {
                self.remove(path);
            }
            for watchers in self.watches.values_mut() {
                watchers.remove(id);
            }
        }
        over
    }

    /// Answers a request of a live session; the server handles [`Request::Open`] and [`Request::Attach`].
    pub fn run(&mut self, session: SessionId, request: Request) -> Reply {
        if !self.sessions.contains_key(&session) {
            return Reply::Expired;
        }
        match request {
            Request::Open | Request::Attach(_) | Request::Ping => Reply::Done,
            Request::Create { path, is_sequential } => self.create(session, path, is_sequential),
            Request::Delete { path } => {
                if self.remove(&path) {
                    Reply::Done
                } else {
                    Reply::NoNode
                }
            }
            Request::Exists { path, watch } => {
                let there = self.znodes.contains_key(&path);
                if watch {
                    self.watches.entry(path).or_default().insert(session);
                }
                if there { Reply::Exists } else { Reply::NoNode }
            }
            Request::Children { parent } => {
                let under = format!("{parent}/");
                let names =
                    self.znodes.range(under.clone()..).map_while(|(path, _)| path.strip_prefix(&under));
                Reply::Children(names.map(str::to_owned).collect())
            }
        }
    }

    fn create(&mut self, session: SessionId, path: String, is_sequential: bool) -> Reply {
        let path = if is_sequential {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
            let number = self.next_number.entry(parent).or_insert(0);
            let numbered = format!("{path}{number:010}");
            *number += 1;
            numbered
        } else {
            path
        };
        if self.znodes.contains_key(&path) {
            return Reply::NodeExists;
        }
        self.zxid += 1;
        self.znodes.insert(path.clone(), session);
        self.fire(&path);
        Reply::Created(path, self.zxid)
    }

    fn remove(&mut self, path: &str) -> bool {
        let was = self.znodes.remove(path).is_some();
        if was {
            self.zxid += 1;
            self.fire(path);
        }
        was
    }

    fn fire(&mut self, path: &str) {
        for watcher in self.watches.remove(path).unwrap_or_default() {
            if let Some(session) = self.sessions.get_mut(&watcher) {
                session.unsent.push(Event { path: path.to_owned() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(core: &mut Core, session: SessionId, path: &str) -> Reply {
        core.run(session, Request::Create { path: path.to_owned(), is_sequential: true })
    }

    #[test]
    fn numbers_only_rise_also_after_a_znode_is_gone() {
        let mut core = Core::default();
        let s = core.open(0);
        assert_eq!(create(&mut core, s, "/l/n-"), Reply::Created("/l/n-0000000000".to_owned(), 1));
        core.run(s, Request::Delete { path: "/l/n-0000000000".to_owned() });
        assert_eq!(create(&mut core, s, "/l/n-"), Reply::Created("/l/n-0000000001".to_owned(), 3));
    }

    #[test]
    fn an_expired_session_deletes_its_znodes_and_fires_watches() {
        let mut core = Core::default();
        let (a, b) = (core.open(0), core.open(0));
        create(&mut core, a, "/l/n-");
        let path = "/l/n-0000000000".to_owned();
        assert_eq!(core.run(b, Request::Exists { path: path.clone(), watch: true }), Reply::Exists);
        assert!(core.touch(b, 9_000));
        assert_eq!(core.expire(9_999, 10_000), []);
        assert_eq!(core.expire(10_000, 10_000), [a]);
        assert_eq!(core.take_events(b), [Event { path }]);
        assert_eq!(core.take_events(b), []);
        assert!(!core.touch(a, 10_001));
        assert_eq!(core.run(a, Request::Ping), Reply::Expired);
    }

    /// E5: every client may delete any znode unconditionally.
    #[test]
    fn any_client_may_delete_a_holders_znode() {
        let mut core = Core::default();
        let (a, b) = (core.open(0), core.open(0));
        create(&mut core, a, "/l/n-");
        assert_eq!(core.run(b, Request::Delete { path: "/l/n-0000000000".to_owned() }), Reply::Done);
    }

    /// E4: a number glued to the product's name, and one parent for all products.
    #[test]
    fn glued_numbers_mix_the_queues_of_products_1_and_10() {
        let mut core = Core::default();
        let s = core.open(0);
        for product in ["1", "10", "1"] {
            create(&mut core, s, &format!("/locks/{product}"));
        }
        let Reply::Children(names) = core.run(s, Request::Children { parent: "/locks".to_owned() }) else {
            panic!("children are listed");
        };
        // The second client of product 1 finds a client of product 10 as its predecessor.
        assert_eq!(names, ["10000000000", "100000000001", "10000000002"]);
    }
}
