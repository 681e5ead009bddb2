//! A model of a node: a replica of the machine, the watches of its connections, its snapshot.
//!
//! It stands for `coordinator` here: it must tell a connection of a change before any reply that reveals it,
//! and forget a session's watches when the session ends or moves.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Claim, Notice, NoticeEvent};
use rowlock_proto::{FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal};
use rowlock_state::outcome::{
    Applied, Change, ChangeKind, EventSink, LockEvent, LockEventKind, Outcome, SessionEnd, Why,
};
use rowlock_state::{ContenderView, Frozen, Machine};

use crate::history::{ConnectionId, Index};
use crate::state::message::{Down, Tag};
use crate::state::mutant::Mutant;
use crate::state::spoil;

/// A durable snapshot.
#[derive(Clone)]
pub struct Snapshot {
    /// After this entry.
    pub index: Index,
    /// The encoded state.
    pub bytes: Vec<u8>,
}

/// A message for a connection of this node.
pub type Push = (ConnectionId, Down);

/// One member of the cluster.
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Not crashed.
    pub up: bool,
    /// Cut off from the others.
    pub isolated: bool,
    /// Its replica.
    pub machine: Machine,
    /// Up to this entry.
    pub applied: Index,
    /// A snapshot that is being written: it must not see later changes.
    pub freezing: Option<(Index, Frozen)>,
    /// Survives crashes.
    pub snapshot: Option<Snapshot>,
    incarnation: u64,
    requests: u64,
    pending: BTreeMap<u64, (ConnectionId, Tag)>,
    watches: BTreeMap<String, BTreeSet<ConnectionId>>,
    attached: BTreeMap<SessionId, ConnectionId>,
    mutant: Option<Mutant>,
    /// Numbered writes that it has run since its last snapshot was installed; kept for a mistake only.
    ran: BTreeSet<(SessionId, u64)>,
}

impl Node {
    /// A fresh one.
    pub fn new(id: NodeId, mutant: Option<Mutant>) -> Self {
        Node {
            id,
            mutant,
            ran: BTreeSet::new(),
            up: true,
            isolated: false,
            machine: Machine::default(),
            applied: Index(0),
            freezing: None,
            snapshot: None,
            incarnation: 1,
            requests: 0,
            pending: BTreeMap::new(),
            watches: BTreeMap::new(),
            attached: BTreeMap::new(),
        }
    }

    /// Where a new proposal of `connection` comes from; its answer will carry `tag`.
    pub fn origin(&mut self, connection: ConnectionId, tag: Tag) -> Origin {
        self.requests += 1;
        self.pending.insert(self.requests, (connection, tag));
        Origin { node: self.id, incarnation: self.incarnation, request: self.requests }
    }

    /// Applies the next entry; the messages are in the order in which connections must get them.
    pub fn apply(&mut self, batch: &Batch) -> Vec<Push> {
        let mut pushes = Vec::new();
        for proposal in &batch.proposals {
            let forgotten = self.has_forgotten(batch.time_ms, proposal).then(|| spoil::untagged(proposal));
            let proposal = forgotten.as_ref().unwrap_or(proposal);
            let mut sink = Sink {
                watches: &mut self.watches,
                attached: &mut self.attached,
                events: Vec::new(),
                closes: Vec::new(),
                moved: Vec::new(),
            };
            let applied = spoil::apply(&mut self.machine, self.mutant, batch.time_ms, proposal, &mut sink);
            let Sink { mut events, closes, moved, .. } = sink;
            pushes.append(&mut events);
            pushes.extend(self.wrong_notices(applied.zxid, moved));
            pushes.extend(self.answer(proposal, applied));
            pushes.extend(closes.into_iter().map(|connection| (connection, Down::Closed)));
        }
        self.applied.0 += 1;
        pushes
    }

    /// The mistake of a node that has not taken the outcomes from its snapshot.
    fn has_forgotten(&mut self, time_ms: i64, proposal: &Proposal) -> bool {
        let Command::Tagged { id, .. } = proposal.command else { return false };
        if self.mutant != Some(Mutant::ForgetOutcomes) || self.snapshot.is_none() {
            return false;
        }
        let is_known = spoil::is_known(&self.machine, time_ms, proposal);
        self.ran.insert((proposal.session, id)) && is_known
    }

    /// The mistakes of a node that makes up grants of its own when a queue moves.
    fn wrong_notices(&self, zxid: Zxid, moved: Vec<Moved>) -> Vec<Push> {
        let mut pushes = Vec::new();
        for Moved { lock, token, is_granted } in moved {
            let waiters = self.machine.lock_queue(&lock).map(|lock| lock.waiters().collect::<Vec<_>>());
            let behind = waiters.unwrap_or_default().into_iter().filter(|waiter| waiter.token > token);
            let told: Vec<ContenderView> = match self.mutant {
                Some(Mutant::GrantToNext) if !is_granted => behind.take(1).collect(),
                Some(Mutant::PushToAll) if is_granted => behind.collect(),
                _ => Vec::new(),
            };
            for ContenderView { path, token, session, .. } in told.into_iter().filter(|one| one.is_acquired) {
                let notice = Notice { claim: Claim { path, token }, event: NoticeEvent::Granted };
                let connection = self.attached.get(&session);
                pushes.extend(connection.map(|connection| (*connection, Down::Notice { zxid, notice })));
            }
        }
        pushes
    }

    fn answer(&mut self, proposal: &Proposal, applied: Applied) -> Option<Push> {
        let Origin { node, incarnation, request } = proposal.origin;
        if node != self.id || incarnation != self.incarnation {
            return None;
        }
        let (connection, tag) = self.pending.remove(&request)?;
        if let Ok(Outcome::Session { session, .. }) = applied.result {
            self.attached.insert(session, connection);
        }
        Some((connection, Down::Answer { tag, zxid: applied.zxid, result: applied.result }))
    }

    /// getChildren with czxids.
    pub fn list(&self, tag: Tag, path: &str) -> Down {
        let names = self.machine.get_children(path, WORLD).map(|(names, _)| names).unwrap_or_default();
        let czxid = |name: &str| self.machine.stat(&format!("{path}/{name}")).expect("a child exists").czxid;
        let children = names
            .into_iter()
            .map(|name| {
                let zxid = czxid(&name);
                (name, zxid)
            })
            .collect();
        Down::Listed { tag, zxid: self.machine.last_zxid(), children }
    }

    /// getData with a watch.
    pub fn watch(&mut self, connection: ConnectionId, tag: Tag, path: &str) -> Down {
        let stat = self.machine.exists(path, WORLD).ok();
        if stat.is_some() {
            self.watches.entry(path.to_owned()).or_default().insert(connection);
        }
        Down::Seen { tag, zxid: self.machine.last_zxid(), stat }
    }

    /// A connection is gone: so are its watches.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.watches.values_mut().for_each(|watchers| _ = watchers.remove(&connection));
        self.watches.retain(|_, watchers| !watchers.is_empty());
        self.attached.retain(|_, attached| *attached != connection);
        self.pending.retain(|_, (waiting, _)| *waiting != connection);
    }

    /// Everything in memory is lost. The snapshot stays.
    pub fn crash(&mut self) {
        self.up = false;
        self.freezing = None;
        self.watches.clear();
        self.attached.clear();
        self.pending.clear();
    }

    /// Comes back with its last snapshot, or with nothing.
    pub fn restart(&mut self) -> Result<(), String> {
        self.incarnation += 1;
        self.up = true;
        match self.snapshot.take() {
            Some(snapshot) => {
                self.load(&snapshot)?;
                self.snapshot = Some(snapshot);
            }
            None => (self.machine, self.applied) = (Machine::default(), Index(0)),
        }
        Ok(())
    }

    /// Begins a snapshot.
    pub fn freeze(&mut self) {
        self.freezing = Some((self.applied, self.machine.freeze()));
    }

    /// Writes the snapshot that was begun.
    pub fn write_snapshot(&mut self) -> Result<bool, String> {
        let Some((index, frozen)) = self.freezing.take() else { return Ok(false) };
        let mut bytes = Vec::new();
        frozen.encode(&mut bytes).map_err(|error| error.to_string())?;
        self.snapshot = Some(Snapshot { index, bytes });
        Ok(true)
    }

    /// Takes the state of a snapshot. Its connections must have been closed: their watches cannot be served,
    /// because the changes in between are not known.
    pub fn install(&mut self, snapshot: Snapshot) -> Result<(), String> {
        assert!(self.watches.is_empty() && self.attached.is_empty(), "connections are closed before");
        assert!(snapshot.index > self.applied, "a snapshot never takes a replica back");
        self.load(&snapshot)?;
        self.ran.clear();
        self.freezing = None;
        self.snapshot = Some(snapshot);
        Ok(())
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        let mut input = &snapshot.bytes[..];
        self.machine = Machine::decode(&mut input).map_err(|error| error.to_string())?;
        if !input.is_empty() {
            return Err(format!("{} bytes are left behind the snapshot", input.len()));
        }
        self.machine.check()?;
        self.applied = snapshot.index;
        Ok(())
    }
}

/// No particular client.
const WORLD: &[Id] = &[];

/// Turns changes into messages for the watching connections.
struct Sink<'a> {
    watches: &'a mut BTreeMap<String, BTreeSet<ConnectionId>>,
    attached: &'a mut BTreeMap<SessionId, ConnectionId>,
    events: Vec<Push>,
    closes: Vec<ConnectionId>,
    moved: Vec<Moved>,
}

/// A place was granted its lock, or left its queue.
struct Moved {
    lock: String,
    token: FencingToken,
    is_granted: bool,
}

impl Sink<'_> {
    fn leave(&mut self, session: SessionId) {
        let Some(connection) = self.attached.remove(&session) else { return };
        self.watches.values_mut().for_each(|watchers| _ = watchers.remove(&connection));
        self.closes.push(connection);
    }
}

impl EventSink for Sink<'_> {
    fn changed(&mut self, change: &Change<'_>) {
        let (zxid, path, kind): (Zxid, _, ChangeKind) = (change.zxid, change.path, change.kind);
        for connection in self.watches.remove(path).unwrap_or_default() {
            self.events.push((connection, Down::Event { zxid, path: path.to_owned(), kind }));
        }
    }

    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_attached(&mut self, session: SessionId, _: Attachment, _: u32) {
        self.leave(session);
    }

    fn session_ended(&mut self, session: SessionId, _: SessionEnd) {
        self.leave(session);
    }

    fn lock(&mut self, event: &LockEvent<'_>) {
        if let LockEventKind::Granted { .. } | LockEventKind::Gone { .. } = event.kind {
            let is_granted = matches!(event.kind, LockEventKind::Granted { .. });
            self.moved.push(Moved { lock: event.lock.to_owned(), token: event.token, is_granted });
        }
        let Some(pushed) = pushed(event) else { return };
        let Some(connection) = self.attached.get(&event.session) else { return };
        let claim = Claim { path: event.path.to_owned(), token: event.token };
        let notice = Notice { claim, event: pushed };
        self.events.push((*connection, Down::Notice { zxid: event.zxid, notice }));
    }
}

/// What the place's session is told: nothing of what its own command did, because the answer says that.
fn pushed(event: &LockEvent<'_>) -> Option<NoticeEvent> {
    match event.kind {
        _ if !event.is_acquired => None,
        LockEventKind::Granted { .. } => (event.zxid.0 != event.token.0).then_some(NoticeEvent::Granted),
        LockEventKind::Gone { why: Why::Deleted, .. } => Some(NoticeEvent::Deleted),
        LockEventKind::Gone { why: Why::Forced, .. } => Some(NoticeEvent::Forced),
        LockEventKind::Gone { why: Why::Revoked, .. } => Some(NoticeEvent::Revoked),
        LockEventKind::Gone { .. } | LockEventKind::Requested { .. } | LockEventKind::Converted => None,
    }
}
