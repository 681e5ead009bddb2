//! The cluster's id, and the grace period of a restored cluster. Decides; reads no clock.
//!
//! Invariant: one leader measures the whole grace with a monotonic clock, from the beginning of its own term.
//! A later leader begins again, because it did not see the time before.

use std::time::Duration;

use rowlock_env::rng;
use rowlock_env::time::Instant;
use rowlock_proto::ClusterId;
use rowlock_state::Machine;
use rowlock_state::command::Command;

/// State of one leader.
#[derive(Default)]
pub(super) struct Founding {
    /// Term and time at which the wait began.
    waiting: Option<(u64, Instant)>,
}

impl Founding {
    /// Returns the command that the leader of this term must propose now.
    pub(super) fn due(&mut self, state: &Machine, term: u64, now: Instant) -> Option<Command> {
        if state.cluster().is_none() {
            let id = u128::from(rng::u64()) << 64 | u128::from(rng::u64());
            return Some(Command::Found { cluster: ClusterId(id) });
        }
        if state.grace_ms() == 0 {
            self.waiting = None;
            return None;
        }
        let grace = Duration::from_millis(u64::from(state.grace_ms()));
        let since = match self.waiting {
            Some((of, since)) if of == term => since,
            _ => {
                tracing::info!(
                    grace_seconds = grace.as_secs(),
                    "grace after restore begins: this leader opens sessions when it is over"
                );
                self.waiting = Some((term, now));
                now
            }
        };
        (now.saturating_since(since) >= grace).then_some(Command::EndGrace)
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;
    use rowlock_proto::{NodeId, SessionId};
    use rowlock_state::NewCluster;
    use rowlock_state::command::{Attachment, Origin, Proposal};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_leader_draws_an_id_once() {
        let (mut state, mut founding) = (Machine::new(), Founding::default());
        let Some(command) = founding.due(&state, 1, time::now()) else { panic!("there is no id yet") };
        let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
        let (session, attachment) = (SessionId::NONE, Attachment::default());
        let proposal = Proposal { origin, session, attachment, identities: Default::default(), command };
        state.apply(1_000, &proposal, &mut ()).result.expect("is taken");
        assert_eq!(founding.due(&state, 1, time::now()), None);
    }

    #[test]
    fn each_leader_waits_for_the_whole_grace() {
        let (mut state, mut founding) = (Machine::new(), Founding::default());
        state.restore(NewCluster { id: ClusterId(1), grace_ms: 2_000 }, 1_000).expect("there are zxids");
        let begun = time::now();
        assert_eq!(founding.due(&state, 1, begun), None);
        assert_eq!(founding.due(&state, 1, begun + SECOND), None);
        assert_eq!(founding.due(&state, 2, begun + 2 * SECOND), None, "another leader");
        assert_eq!(founding.due(&state, 2, begun + 3 * SECOND), None);
        assert_eq!(founding.due(&state, 2, begun + 4 * SECOND), Some(Command::EndGrace));
    }
}
