//! Selection of commands that may wait briefly, to share a log entry with later commands. Pure.
//!
//! Invariant: by the applied state, none of these commands alone grants a lock. The applied state lags behind
//! the log by the entries in flight, so an acquire may wait for milliseconds although its lock was just
//! released. The acquire is never lost, and keeps its position in the queue.

use rowlock_env::decides;
use rowlock_proto::Request;
use rowlock_state::Machine;
use rowlock_state::command::Proposal;

/// Returns whether all commands are acquires that will wait for the release of another session.
pub fn all_only_join_queues<'p>(mut commands: impl Iterator<Item = &'p Proposal>, state: &Machine) -> bool {
    commands.all(|proposal| joins_a_queue(proposal, state))
}

fn joins_a_queue(proposal: &Proposal, state: &Machine) -> bool {
    let Some(Request::Acquire(all)) = proposal.command.request() else { return false };
    all.iter().any(|acquire| {
        let lock = state.lock_queue(&acquire.lock);
        decides!(
            "acquire-may-coalesce",
            acquire.wait && lock.is_some_and(|lock| lock.makes_wait(proposal.session, acquire.mode))
        )
    })
}

#[cfg(test)]
mod tests {
    use rowlock_proto::SessionId;
    use rowlock_proto::lock::{Acquire, Mode};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Command, Origin};

    use super::*;

    fn by(session: SessionId, command: Command) -> Proposal {
        let (origin, attachment) = (Origin::default(), Attachment(1));
        Proposal { origin, session, attachment, identities: Default::default(), command }
    }

    fn open(machine: &mut Machine) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        machine.apply(0, &by(SessionId::NONE, command), &mut ()).attached.expect("a session opens").session
    }

    fn acquire(lock: &str, prefix: &str, mode: Mode) -> Acquire {
        Acquire { mode, ..Acquire::exclusive(lock, prefix) }
    }

    fn one(lock: &str, mode: Mode) -> Command {
        Command::Client(Request::Acquire([acquire(lock, "other-", mode)].into()))
    }

    #[test]
    fn only_acquires_that_wait_for_another_session_may_be_delayed() {
        let mut machine = Machine::default();
        let (holder, other) = (open(&mut machine), open(&mut machine));
        let held = Command::Client(Request::Acquire([acquire("/l", "a-", Mode::Shared)].into()));
        machine.apply(0, &by(holder, held), &mut ()).result.unwrap();
        let joins = |session, command| all_only_join_queues([by(session, command)].iter(), &machine);

        assert!(joins(other, one("/l", Mode::Exclusive)));
        assert!(!joins(other, one("/l", Mode::Shared)), "it is granted at once");
        assert!(!joins(other, one("/free", Mode::Exclusive)), "it is granted at once");
        assert!(!joins(holder, one("/l", Mode::Exclusive)), "its own release may be on its way");
        let tries = Acquire { wait: false, ..acquire("/l", "other-", Mode::Exclusive) };
        assert!(!joins(other, Command::Client(Request::Acquire([tries].into()))), "it is answered at once");
        assert!(!joins(other, Command::Noop));
        let tagged = Command::Tagged { id: 1, acked: 0, command: Box::new(one("/l", Mode::Exclusive)) };
        assert!(joins(other, tagged), "a repeatable one is no other");
        let several = vec![acquire("/free", "o-", Mode::Exclusive), acquire("/l", "o-", Mode::Exclusive)];
        assert!(
            joins(other, Command::Client(Request::Acquire(several.into()))),
            "of several one that waits makes all wait"
        );
    }

    #[test]
    fn one_command_of_another_kind_sends_all_at_once() {
        let mut machine = Machine::default();
        let (holder, other) = (open(&mut machine), open(&mut machine));
        machine.apply(0, &by(holder, one("/l", Mode::Exclusive)), &mut ()).result.unwrap();
        let waits = by(other, one("/l", Mode::Exclusive));
        let release = by(holder, Command::Client(Request::Release(Default::default())));
        assert!(all_only_join_queues([&waits, &waits].into_iter(), &machine));
        assert!(!all_only_join_queues([&waits, &release].into_iter(), &machine));
    }
}
