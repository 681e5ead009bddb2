//! A client: a session, kept alive and re-attached, and locks: one at a time by the sequential recipe
//! (`lock`), or several by the cluster's own requests (`acquirer`).
//!
//! It does what any well-made ZooKeeper client does: it ends its belief at its own deadline (send time of the
//! last confirmed sign of life + session timeout), and looks for its own queue member by name when it does
//! not know whether its create took effect.

mod acquirer;
mod lock;
mod plain;

use rowlock_proto::{ErrorCode, FencingToken, SessionId, Zxid};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::Outcome;

use crate::history::{ConnectionId, Fact, Lock, Millis};
use crate::state::message::{Down, Tag, Up};
use crate::state::mutant::Mutant;
use rowlock_world::rng::Rng;

pub use acquirer::Style;
pub use lock::{LOCKS, lock_of, lock_path};
pub use plain::path as plain_path;

use acquirer::{Acquirer, Turn};
use lock::Place;

/// Without an answer to its handshake for this long, a client tries another node.
const HANDSHAKE_TIMEOUT_MS: i64 = 500;

/// What a client wants done.
#[derive(Debug)]
pub enum Act {
    /// Connect to some node and send this handshake.
    Connect(Up),
    /// Send this.
    Send(Up),
    /// Close the connection.
    Disconnect,
    /// Write to the resource that the lock protects.
    Write(Lock, FencingToken),
}

/// What a client may do now.
pub struct Moment<'a> {
    /// The client's clock.
    pub now: Millis,
    /// The run comes to its end: finish, begin nothing.
    pub settling: bool,
    /// In how many of a hundred turns it asks for a lock if it has none.
    pub eager: usize,
    /// A place that another client holds: maybe this one works under it.
    pub above: Option<String>,
    /// For decisions.
    pub rng: &'a mut Rng,
    /// Where facts are told.
    pub facts: &'a mut Vec<Fact>,
}

/// A session as its client knows it.
#[derive(Clone, Debug)]
struct Session {
    id: SessionId,
    timeout_ms: u32,
    /// Send time of the last sign of life that was confirmed.
    base: Millis,
}

impl Session {
    fn deadline(&self) -> Millis {
        Millis(self.base.0 + i64::from(self.timeout_ms))
    }
}

/// How a client takes locks.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// By creating, listing and watching znodes.
    Recipe,
    /// By acquire and its like.
    Acquirer(Style),
}

/// A client process.
pub struct Client {
    number: usize,
    kind: Kind,
    mutant: Option<Mutant>,
    /// Does nothing until then.
    pub paused_until: Millis,
    /// Its connection, if it has one.
    pub connection: Option<ConnectionId>,
    session: Option<Session>,
    /// The handshake that is not answered: its tag and when it was sent.
    opening: Option<(Tag, Millis)>,
    closing: bool,
    last_zxid: Zxid,
    last_ping: Millis,
    tags: u64,
    attempts: u64,
    place: Place,
    /// The lock that it believes to hold.
    belief: Option<Lock>,
    /// The locks of one that acquires.
    acquirer: Option<Acquirer>,
    /// Of the session that it has or asks for.
    password: [u8; 16],
}

impl Client {
    /// A client without a session.
    pub fn new(number: usize, kind: Kind, mutant: Option<Mutant>) -> Self {
        let acquirer = match kind {
            Kind::Recipe => None,
            Kind::Acquirer(style) => Some(Acquirer::new(number, style)),
        };
        Client {
            number,
            kind,
            mutant,
            paused_until: Millis(0),
            connection: None,
            session: None,
            opening: None,
            closing: false,
            last_zxid: Zxid(0),
            last_ping: Millis(0),
            tags: 0,
            attempts: 0,
            place: Place::Idle,
            belief: None,
            acquirer,
            password: [0; 16],
        }
    }

    /// Its session, if it knows one.
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|session| session.id)
    }

    /// The last zxid that it has seen: a node that lags behind it must not serve the client.
    pub fn last_zxid(&self) -> Zxid {
        self.last_zxid
    }

    /// It neither waits for a lock nor holds one.
    pub fn is_idle(&self) -> bool {
        matches!(self.place, Place::Idle) && self.acquirer.as_ref().is_none_or(Acquirer::is_idle)
    }

    /// The path of a place that it believes to hold.
    pub fn held_place(&self) -> Option<String> {
        let own = match &self.place {
            Place::Holding { attempt, own, .. } if self.belief.is_some() => Some(attempt.member_path(own)),
            _ => None,
        };
        own.or_else(|| self.acquirer.as_ref()?.held_place())
    }

    /// The process dies, and another takes its place.
    pub fn crash(&mut self, facts: &mut Vec<Fact>) {
        self.lose_session(facts);
        let (tags, attempts) = (self.tags, self.attempts);
        let acquirer = self.acquirer.take();
        *self = Client { tags, attempts, acquirer, ..Client::new(self.number, self.kind, self.mutant) };
    }

    /// Its turn without a message.
    pub fn act(&mut self, moment: &mut Moment<'_>) -> Vec<Act> {
        if self.past_deadline(moment.now) {
            self.end_belief(moment.facts);
            // Only the cluster can say whether the session still lives.
            if self.connection.is_some() && self.opening.is_none() {
                return vec![Act::Disconnect];
            }
        }
        if self.connection.is_none() {
            return vec![Act::Connect(self.handshake(moment))];
        }
        if self.opening.is_some_and(|(_, sent)| moment.now.0 >= sent.0 + HANDSHAKE_TIMEOUT_MS) {
            return vec![Act::Disconnect];
        }
        let Some(session) = self.session.as_ref().filter(|_| self.opening.is_none() && !self.closing) else {
            return Vec::new();
        };
        if moment.now.0 >= self.last_ping.0 + i64::from(session.timeout_ms / 3) {
            self.last_ping = moment.now;
            return vec![Act::Send(Up::Ping { sent: moment.now })];
        }
        if !moment.settling && self.is_idle() && moment.rng.chance(2) {
            self.closing = true;
            let tag = self.tag();
            return vec![Act::Send(Up::Write { tag, command: Command::CloseSession })];
        }
        if !moment.settling && moment.rng.chance(20) {
            let command = plain::command(moment.rng);
            if let Some((acquirer, mut turn)) = self.turn(moment) {
                return vec![acquirer.write(command, &mut turn)];
            }
            let tag = self.tag();
            return vec![Act::Send(Up::Write { tag, command })];
        }
        if let Some((acquirer, mut turn)) = self.turn(moment) {
            return acquirer.act(&mut turn);
        }
        self.act_on_lock(moment)
    }

    /// A message has come.
    pub fn receive(&mut self, down: Down, moment: &mut Moment<'_>) -> Vec<Act> {
        self.note_receipt(&down, moment);
        if self.past_deadline(moment.now) {
            self.end_belief(moment.facts);
        }
        match down {
            Down::Closed => {
                self.disconnected();
                Vec::new()
            }
            Down::Pong { sent } => {
                if let Some(session) = &mut self.session {
                    session.base = sent.max(session.base);
                    let (session, until) = (session.id, session.deadline());
                    moment.facts.push(Fact::Renewed { session, now: moment.now, until });
                }
                Vec::new()
            }
            Down::Answer { tag, result, .. } if self.opening.is_some_and(|(opening, _)| opening == tag) => {
                self.opened(result, moment)
            }
            Down::Answer { result: Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired), .. } => {
                vec![Act::Disconnect]
            }
            other => {
                if let Some((acquirer, mut turn)) = self.turn(moment) {
                    return acquirer.receive(other, &mut turn);
                }
                self.receive_on_lock(other, moment)
            }
        }
    }

    /// For a client that acquires and has a session.
    fn turn<'a, 'b>(&'a mut self, moment: &'a mut Moment<'b>) -> Option<(&'a mut Acquirer, Turn<'a, 'b>)> {
        let past_deadline = self.past_deadline(moment.now);
        let (session, acquirer) = (self.session.as_ref()?, self.acquirer.as_mut()?);
        let turn = Turn {
            moment,
            session: session.id,
            timeout_ms: session.timeout_ms,
            deadline: session.deadline(),
            past_deadline,
            tags: &mut self.tags,
            mutant: self.mutant,
        };
        Some((acquirer, turn))
    }

    /// The connection is gone; what was sent over it may or may not take effect.
    pub fn disconnected(&mut self) {
        self.connection = None;
        self.opening = None;
        self.closing = false;
        if let Some(acquirer) = &mut self.acquirer {
            acquirer.disconnected();
        }
    }

    fn note_receipt(&mut self, down: &Down, moment: &mut Moment<'_>) {
        let Some(connection) = self.connection else { return };
        match down {
            Down::Answer { zxid, .. } | Down::Listed { zxid, .. } | Down::Seen { zxid, .. } => {
                self.last_zxid = self.last_zxid.max(*zxid);
                if let Some(session) = &self.session {
                    moment.facts.push(Fact::ReplyReceived { connection, session: session.id, zxid: *zxid });
                }
            }
            Down::Event { zxid, .. } | Down::Notice { zxid, .. } => {
                moment.facts.push(Fact::EventReceived { connection, zxid: *zxid })
            }
            Down::Pong { .. } | Down::Closed => {}
        }
    }

    fn handshake(&mut self, moment: &mut Moment<'_>) -> Up {
        let tag = self.tag();
        self.opening = Some((tag, moment.now));
        self.last_ping = moment.now;
        let timeout_ms = self.timeout_ms(moment.rng);
        let command = match &self.session {
            Some(session) => {
                let (session, proof) = (session.id, Proof::of(&self.password));
                Command::Reattach { from: None, session, proof, timeout_ms }
            }
            None => {
                self.password[..8].copy_from_slice(&moment.rng.u64().to_le_bytes());
                Command::OpenSession { proof: Proof::of(&self.password), timeout_ms }
            }
        };
        Up::Write { tag, command }
    }

    fn opened(&mut self, result: Result<Outcome, ErrorCode>, moment: &mut Moment<'_>) -> Vec<Act> {
        let (_, sent) = self.opening.take().expect("an answer to the handshake");
        let Ok(Outcome::Session { session, timeout_ms, attachment }) = result else {
            self.lose_session(moment.facts);
            return vec![Act::Disconnect];
        };
        assert!(attachment >= Attachment(1), "attachments count from 1");
        let known = self.session.replace(Session { id: session, timeout_ms, base: sent });
        assert!(known.is_none_or(|known| known.id == session), "an attached session keeps its id");
        let until = Millis(sent.0 + i64::from(timeout_ms));
        if self.past_deadline(moment.now) {
            self.end_belief(moment.facts);
        } else {
            moment.facts.push(Fact::Renewed { session, now: moment.now, until });
        }
        if let Some((acquirer, mut turn)) = self.turn(moment) {
            return acquirer.resume(&mut turn);
        }
        self.resume()
    }

    fn lose_session(&mut self, facts: &mut Vec<Fact>) {
        self.end_belief(facts);
        self.leave_lock(facts);
        let session = self.session();
        if let Some(acquirer) = &mut self.acquirer {
            acquirer.lose_all(session, facts);
        }
        self.session = None;
    }

    fn past_deadline(&self, now: Millis) -> bool {
        let ignored = self.mutant == Some(Mutant::IgnoreDeadline);
        self.session.as_ref().is_some_and(|session| now >= session.deadline()) && !ignored
    }

    fn end_belief(&mut self, facts: &mut Vec<Fact>) {
        if let (Some(lock), Some(session)) = (self.belief.take(), &self.session) {
            facts.push(Fact::BeliefEnded { lock, session: session.id });
        }
        if let (Some(acquirer), Some(session)) = (&mut self.acquirer, &self.session) {
            acquirer.end_beliefs(session.id, facts);
        }
    }

    /// One for the whole life of the client: were it to ask for less when it re-attaches, the shorter timeout
    /// would hold in the cluster before the client knows, and a delayed handshake could bring it in at any
    /// time.
    fn timeout_ms(&self, rng: &mut Rng) -> u32 {
        const TIMEOUTS_MS: [u32; 3] = [300, 600, 1_200];
        match self.mutant {
            Some(Mutant::VaryTimeout) => rng.pick(&[150, 3_000]),
            _ => TIMEOUTS_MS[self.number % TIMEOUTS_MS.len()],
        }
    }

    fn tag(&mut self) -> Tag {
        self.tags += 1;
        Tag(self.tags)
    }
}
