//! The replicas of one history: each must answer, tell and be the same, whatever it was restored from.

use rowlock_oracle::{Event, Heard, Oracle};
use rowlock_proto::SessionId;
use rowlock_state::Machine;
use rowlock_state::command::{Proposal, Stamp};
use rowlock_state::outcome::Applied;

use crate::histories::bounds::Bounds;

/// Replicas beside the first one; the oldest makes room for a newer one.
const RESTORED_MAX: usize = 2;

pub struct Replicas {
    machines: Vec<Machine>,
    oracle: Oracle,
    bounds: Bounds,
}

impl Replicas {
    pub fn new() -> Self {
        Replicas { machines: vec![Machine::new()], oracle: Oracle::default(), bounds: Bounds::default() }
    }

    pub fn first(&self) -> &Machine {
        &self.machines[0]
    }

    pub fn apply(&mut self, stamp: Stamp, proposal: &Proposal) -> Result<Applied, String> {
        let before = self.machines[0].last_zxid();
        let mut seen: Option<(Applied, Vec<Event>)> = None;
        for machine in &mut self.machines {
            let mut heard = Heard::default();
            let found = (machine.apply_stamped(stamp, proposal, &mut heard), heard.0);
            let first = seen.get_or_insert_with(|| found.clone());
            if *first != found {
                return Err(format!("replicas differ: {first:?}\n{found:?}"));
            }
        }
        let (applied, events) = seen.expect("there is a first one");
        let first = &self.machines[0];
        first.check().map_err(|what| format!("an invariant is broken: {what}"))?;
        for other in &self.machines[1..] {
            alike(first, other)?;
        }
        let checked = self.oracle.check((stamp, proposal), first, (&applied, &events));
        checked.map_err(|breach| format!("{breach:?}"))?;
        self.bounds.check(applied.zxid != before, proposal, &applied)?;
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
        self.oracle.check_all(&restored).map_err(|breach| format!("{breach:?}"))?;
        // The oracle, too, begins with the state of a machine as well as with all commands.
        self.oracle = Oracle::of(&restored);
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
