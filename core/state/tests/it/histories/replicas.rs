//! The replicas of one history: each must answer, tell and be the same, whatever it was restored from.

use rowlock_proto::SessionId;
use rowlock_state::command::{Attachment, Proposal, Stamp};
use rowlock_state::outcome::{
    Applied, Change, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd,
};
use rowlock_state::{Machine, Question};

use crate::histories::numbered::Numbered;
use crate::histories::promises::{Place, Promises, Told};

/// Replicas beside the first one; the oldest makes room for a newer one.
const RESTORED_MAX: usize = 2;

pub struct Replicas {
    machines: Vec<Machine>,
    promises: Promises,
    numbered: Numbered,
}

/// Everything that a sink is told, written down, and what the promises are about.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    told: Vec<Told>,
}

impl EventSink for Log {
    fn changed(&mut self, change: &Change<'_>) {
        self.lines.push(format!("{change:?}"));
    }

    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.lines.push(format!("opened {session} {attachment:?} {timeout_ms}"));
        self.told.push(Told::Timeout(session, timeout_ms));
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.lines.push(format!("attached {session} {attachment:?} {timeout_ms}"));
        self.told.push(Told::Timeout(session, timeout_ms));
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        self.lines.push(format!("ended {session} {end:?}"));
    }

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        self.lines.push(format!("{event:?} {context:?}"));
        let place = Place {
            lock: event.lock.to_owned(),
            path: event.path.to_owned(),
            token: event.token,
            session: event.session,
        };
        match event.kind {
            LockEventKind::Requested { .. } => self.told.push(Told::Requested(place)),
            LockEventKind::Granted { .. } => self.told.push(Told::Granted(place, context.time_ms)),
            LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
                self.told.push(Told::Gone(place, end.reason, context.time_ms));
            }
            LockEventKind::Converted | LockEventKind::Asked { .. } => {}
        }
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        self.lines.push(format!("{event:?} {context:?} {question:?}"));
        self.told.push(Told::Asked(event.path.to_owned(), question.deadline));
    }
}

impl Replicas {
    pub fn new() -> Self {
        let (promises, numbered) = (Promises::default(), Numbered::default());
        Replicas { machines: vec![Machine::new()], promises, numbered }
    }

    pub fn first(&self) -> &Machine {
        &self.machines[0]
    }

    pub fn apply(&mut self, stamp: Stamp, proposal: &Proposal) -> Result<Applied, String> {
        let before = self.machines[0].clone();
        let mut seen: Option<(Applied, Log)> = None;
        for machine in &mut self.machines {
            let mut log = Log::default();
            let applied = machine.apply_stamped(stamp, proposal, &mut log);
            match &seen {
                None => seen = Some((applied, log)),
                Some((first, told)) if *first == applied && told.lines == log.lines => {}
                Some((first, told)) => {
                    return Err(format!(
                        "replicas differ: {first:?} {:?}\n{applied:?} {:?}",
                        told.lines, log.lines
                    ));
                }
            }
        }
        let (applied, log) = seen.expect("there is a first one");
        let first = &self.machines[0];
        first.check().map_err(|what| format!("an invariant is broken: {what}"))?;
        for other in &self.machines[1..] {
            alike(first, other)?;
        }
        self.numbered.check(&before, proposal, &applied)?;
        self.promises.check(&before, first, proposal, &applied, &log.told)?;
        Ok(applied)
    }

    /// Another replica begins with a snapshot of the first one.
    pub fn restore_one(&mut self) -> Result<(), String> {
        let mut bytes = Vec::new();
        let first = &self.machines[0];
        first.freeze().encode(&mut bytes).map_err(|error| format!("a state cannot be written: {error}"))?;
        let restored = Machine::decode(&mut bytes.as_slice())
            .map_err(|error| format!("a snapshot of a state that there is cannot be read: {error}"))?;
        restored.check().map_err(|what| format!("an invariant is broken in a snapshot: {what}"))?;
        alike(first, &restored)?;
        let mut again = Vec::new();
        restored.freeze().encode(&mut again).map_err(|error| error.to_string())?;
        if again != bytes {
            return Err("a restored state is written otherwise than the one before".to_owned());
        }
        if self.machines.len() > RESTORED_MAX {
            self.machines.remove(1);
        }
        self.machines.push(restored);
        Ok(())
    }
}

/// Whether two replicas are the same, as far as anybody can look.
fn alike(one: &Machine, other: &Machine) -> Result<(), String> {
    if (one.digest(), one.counts()) != (other.digest(), other.counts()) {
        return Err(format!("replicas have parted: {:?}\n{:?}", one.counts(), other.counts()));
    }
    let (queues, others) = (queues(one), queues(other));
    if queues != others || one.next_lock_due() != other.next_lock_due() {
        return Err(format!("the queues differ: {queues:?}\n{others:?}"));
    }
    let sessions = |machine: &Machine| -> Vec<_> {
        let of = |(id, session): (SessionId, &rowlock_state::Session)| {
            (
                id,
                session.timeout_ms,
                session.longest_timeout_ms(),
                session.attachment,
                session.outcome_bytes(),
            )
        };
        machine.sessions().map(of).collect()
    };
    if sessions(one) == sessions(other) { Ok(()) } else { Err("the sessions differ".to_owned()) }
}

fn queues(machine: &Machine) -> Vec<String> {
    let of = |lock: rowlock_state::LockView<'_>| {
        let (holders, waiters): (Vec<_>, Vec<_>) = (lock.holders().collect(), lock.waiters().collect());
        let (limit, delay) = (lock.limit(), lock.delayed_until_ms());
        format!("{} {limit:?} {delay:?} {holders:?} {waiters:?}", lock.path())
    };
    machine.locks().map(of).collect()
}
