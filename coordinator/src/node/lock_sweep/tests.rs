//! Times of proposals and of sleep.

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::elections::Leadership;
use rowlock_env::time;
use rowlock_proto::Request;
use rowlock_proto::SessionId;
use rowlock_proto::lock::Acquire;
use rowlock_proto::response::Response;
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Proposal};

use super::*;
use crate::node::leader_duties::tests::{LEADS, Stage};
use crate::node::proposer::of_the_cluster;

const TIMEOUT_MS: u32 = 10;

/// Replica with one session, and the alarm signaled by apply.
struct State {
    replica: Arc<Replica>,
    alarm: LockAlarm,
    session: SessionId,
}

impl State {
    fn new() -> (State, watch::Receiver<Option<i64>>) {
        let (alarm, rings) = LockAlarm::new();
        let mut state = State { replica: Arc::default(), alarm, session: SessionId::NONE };
        let open = Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: TIMEOUT_MS };
        let opened = state.replica.state.write().apply(0, &of_the_cluster(open), &mut ());
        state.session = opened.attached.expect("a session opens").session;
        (state, rings)
    }

    fn apply(&self, time_ms: i64, command: Command) -> Response {
        let attachment = Attachment(1);
        let proposal = Proposal { session: self.session, attachment, ..of_the_cluster(command) };
        let mut machine = self.replica.state.write();
        let applied = machine.apply(time_ms, &proposal, &mut ());
        self.alarm.update(&machine);
        applied.result.expect("the command is right")
    }

    /// Holds a lock; the revocation is due `max_hold_ms` and a session timeout after `time_ms`.
    fn hold(&self, time_ms: i64, lock: &str, max_hold_ms: u32) {
        let acquire = Acquire { max_hold_ms, ..Acquire::exclusive(lock, "x-lock-") };
        self.apply(time_ms, Command::Client(Request::Acquire([acquire].into())));
    }

    /// Applies the proposed commands.
    fn carry_out(&self, batch: TermBatch) -> Vec<String> {
        let lock = |proposal: Proposal| match proposal.command {
            Command::LockDue { lock } => lock,
            other => panic!("{other:?}"),
        };
        let locks: Vec<String> = batch.proposals.into_iter().map(lock).collect();
        for lock in &locks {
            self.apply(time::wall_ms(), Command::LockDue { lock: lock.clone() });
        }
        locks
    }
}

fn stage(leadership: Leadership) -> (State, Stage) {
    let (state, alarm) = State::new();
    let sweep = LockSweep { replica: state.replica.clone(), clock: Arc::new(LogClock::starting_now()) };
    (state, Stage::new(leadership, Some(alarm), sweep))
}

#[tokio::test]
async fn a_lock_that_is_due_later_is_proposed_when_its_time_has_come_and_not_before() {
    let (state, mut stage) = stage(LEADS);
    let held_ms = time::wall_ms();
    state.hold(held_ms, "/locks/later", 60_000);
    state.hold(held_ms, "/locks/soon", 40);
    let batch = stage.next().await;
    assert!(time::wall_ms() >= held_ms + 40 + i64::from(TIMEOUT_MS));
    assert_eq!((batch.term, state.carry_out(batch)), (2, vec!["/locks/soon".to_owned()]));
    stage.stop().await;
}

#[tokio::test]
async fn a_new_leader_proposes_what_became_due_before_and_again_until_it_is_done() {
    let (state, mut stage) = stage(Leadership { ready: false, ..LEADS });
    for lock in ["/locks/b", "/locks/a"] {
        state.hold(1_000, lock, 1);
    }
    stage.leadership.send(Leadership { term: 3, ..LEADS });
    // Drops the first batch, as if lost.
    let first = stage.next().await;
    assert_eq!((first.term, first.proposals.len()), (3, 2));
    let second = stage.next().await;
    assert_eq!(state.carry_out(second), ["/locks/a".to_owned(), "/locks/b".to_owned()]);
    assert_eq!(state.replica.state.read().next_lock_due(), None);
    stage.stop().await;
}

#[test]
fn nothing_due_means_no_look_at_all_and_a_distant_moment_one_long_sleep() {
    let (state, mut rings) = State::new();
    let now = Instant::now();
    let later = |ms| Due { next: Some(now + Duration::from_millis(ms)), ..Due::default() };
    assert_eq!(due(&state.replica.state.read(), i64::MAX, now), Due::default());
    assert!(!rings.has_changed());
    state.hold(1_000, "/locks/far", 3_600_000);
    assert!(rings.has_changed());
    let _ = rings.borrow_and_update();
    let revoked_ms = 3_600_000 * 9 / 8 + u64::from(TIMEOUT_MS);
    assert_eq!(due(&state.replica.state.read(), 1_000, now), later(revoked_ms));
    state.hold(1_000, "/locks/farther", 7_200_000);
    assert!(!rings.has_changed(), "it sleeps long enough as it is");
    state.hold(1_000, "/locks/near", 800);
    assert!(rings.has_changed());
    let machine = state.replica.state.read();
    assert_eq!(due(&machine, 1_510, now), later(400));
    assert_eq!(due(&machine, 1_910, now).commands, [Command::LockDue { lock: "/locks/near".to_owned() }]);
}

#[test]
fn one_round_proposes_a_bounded_number_of_locks() {
    let (state, _rings) = State::new();
    for i in 0..=LOCK_SWEEP_MAX {
        state.hold(1_000, &format!("/locks/{i}"), 1);
    }
    let found = due(&state.replica.state.read(), 2_000, Instant::now());
    assert_eq!(found.commands.len(), LOCK_SWEEP_MAX);
}
