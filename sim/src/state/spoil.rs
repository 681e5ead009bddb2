//! The machine under test: unchanged, or with a mistake around it. The mistakes that the state itself could
//! make are made here, by changing its inputs; its code has no switches.

use rowlock_proto::lock::{Claim, Mode, Owner, PlaceState};
use rowlock_proto::{ErrorCode, SessionId};
use rowlock_state::Machine;
use rowlock_state::command::{Command, Proposal};
use rowlock_state::outcome::{Applied, EventSink, Outcome};

use crate::state::mutant::Mutant;

/// Applies a proposal. Every replica makes the same mistake.
pub fn apply<S: EventSink>(
    machine: &mut Machine,
    mutant: Option<Mutant>,
    time_ms: i64,
    proposal: &Proposal,
    sink: &mut S,
) -> Applied {
    let Some(mutant) = mutant else { return machine.apply(time_ms, proposal, sink) };
    if mutant == Mutant::ReadersBlockReaders
        && let Some(applied) = refuse_reader(machine, time_ms, proposal)
    {
        return applied;
    }
    let mut spoilt = proposal.clone();
    match mutant {
        Mutant::RunAgain => spoilt = untagged(proposal),
        Mutant::ForgetEarly => {
            if let Command::Tagged { id, acked, .. } = &mut spoilt.command {
                *acked = *id - 1;
            }
        }
        Mutant::KeepForEver if is_throttled(machine, time_ms, proposal) => spoilt = untagged(proposal),
        _ => spoil(machine, mutant, proposal.session, inner(&mut spoilt.command)),
    }
    machine.apply(time_ms, &spoilt, sink)
}

/// The write itself, as if it had no number.
pub fn untagged(proposal: &Proposal) -> Proposal {
    let mut plain = proposal.clone();
    if let Command::Tagged { command, .. } = &proposal.command {
        plain.command = (**command).clone();
    }
    plain
}

/// Whether the machine knows the outcome of this write already.
pub fn is_known(machine: &Machine, time_ms: i64, proposal: &Proposal) -> bool {
    let mut copy = machine.clone();
    let applied = copy.apply(time_ms, proposal, &mut ());
    let is_refused = matches!(
        applied.result,
        Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired | ErrorCode::ThrottledOp)
    );
    !is_refused && applied.zxid == machine.last_zxid()
}

fn is_throttled(machine: &Machine, time_ms: i64, proposal: &Proposal) -> bool {
    matches!(proposal.command, Command::Tagged { .. })
        && machine.clone().apply(time_ms, proposal, &mut ()).result == Err(ErrorCode::ThrottledOp)
}

fn inner(command: &mut Command) -> &mut Command {
    match command {
        Command::Tagged { command, .. } => command,
        other => other,
    }
}

fn spoil(machine: &Machine, mutant: Mutant, session: SessionId, command: &mut Command) {
    match (mutant, command) {
        (Mutant::ForgetLockDelay, Command::Acquire(all)) => {
            all.iter_mut().for_each(|acquire| acquire.lock_delay_ms = 0);
        }
        (Mutant::DeadlockSkipsShared, Command::Acquire(all)) => {
            let shared = all.iter_mut().filter(|acquire| acquire.mode == Mode::Shared);
            shared.for_each(|acquire| acquire.owner = Owner::Unnamed);
        }
        (Mutant::DeadlockSkipsWorkers, Command::Acquire(all)) => {
            let workers = all.iter_mut().filter(|acquire| matches!(acquire.owner, Owner::Under(_)));
            workers.for_each(|acquire| acquire.owner = Owner::Session);
        }
        (Mutant::PlaceNotFound, Command::Acquire(all)) => {
            let zxid = machine.last_zxid().0;
            all.iter_mut().for_each(|acquire| acquire.prefix = format!("{}{zxid}-", acquire.prefix).into());
        }
        (Mutant::ReleaseByName, Command::Release(claims)) => {
            claims.iter_mut().for_each(|claim| *claim = held_there(machine, session, claim));
        }
        _ => {}
    }
}

/// What the session holds of the claim's lock.
fn held_there(machine: &Machine, session: SessionId, claim: &Claim) -> Claim {
    let lock = claim.path.rsplit_once('/').and_then(|(lock, _)| machine.lock_queue(lock));
    let held = lock.and_then(|lock| lock.holders().find(|holder| holder.session == session));
    held.map_or_else(|| claim.clone(), |held| Claim { path: held.path, token: held.token })
}

/// Refuses a reader for whom there would be a deadlock if it were a writer.
fn refuse_reader(machine: &mut Machine, time_ms: i64, proposal: &Proposal) -> Option<Applied> {
    let mut strict = proposal.clone();
    let Command::Acquire(all) = inner(&mut strict.command) else { return None };
    all.iter_mut().filter(|acquire| acquire.mode == Mode::Shared).for_each(|acquire| {
        acquire.mode = Mode::Exclusive;
    });
    let mut copy = machine.clone();
    let applied = copy.apply(time_ms, &strict, &mut ());
    let is_refused = match &applied.result {
        Ok(Outcome::PlaceStates(all)) => all.iter().any(|one| matches!(one, PlaceState::Deadlock(_))),
        _ => false,
    };
    // A refusal changes nothing but the position.
    is_refused.then(|| {
        *machine = copy;
        applied
    })
}
