//! When the leader proposes what is due, and when it sleeps.

use rowlock_env::task::{Task, spawn};
use rowlock_proto::lock::Acquire;
use rowlock_state::Proof;
use rowlock_state::outcome::Outcome;

use super::*;

const ME: NodeId = NodeId(1);
const TIMEOUT_MS: u32 = 10;
const LEADS: Leadership = Leadership { term: 2, leader: Some(ME), ready: true };

/// A replica with one session, and the alarm that its apply rings.
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
        let Outcome::Session { session, .. } = state.apply(0, open) else { panic!("a session opens") };
        state.session = session;
        (state, rings)
    }

    fn apply(&self, time_ms: i64, command: Command) -> Outcome {
        let proposal =
            Proposal { session: self.session, attachment: Attachment(1), command, ..lock_due(String::new()) };
        let mut machine = self.replica.state.write();
        let applied = machine.apply(time_ms, &proposal, &mut ());
        self.alarm.look(&machine);
        applied.result.expect("the command is right")
    }

    /// Revoked `max_hold_ms` and a session timeout after `time_ms`.
    fn hold(&self, time_ms: i64, lock: &str, max_hold_ms: u32) {
        let acquire = Acquire { max_hold_ms, ..Acquire::exclusive(lock, "x-lock-") };
        self.apply(time_ms, Command::Acquire([acquire].into()));
    }

    /// Does what was proposed.
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

struct Stage {
    state: State,
    leadership: watch::Sender<Leadership>,
    proposed: mpsc::Receiver<TermBatch>,
    shutdown: Shutdown,
    task: Task<()>,
}

impl Stage {
    fn new(leadership: Leadership) -> Stage {
        let (state, alarm) = State::new();
        let (publish, leadership) = watch::channel(leadership);
        let (batcher, proposed) = mpsc::channel(4);
        let clock = Arc::new(LogClock::starting_now());
        let sweep = LockSweep { me: ME, leadership, replica: state.replica.clone(), batcher, clock, alarm };
        let shutdown = Shutdown::new();
        let task = spawn("lock-sweep", sweep.run(shutdown.clone()));
        Stage { state, leadership: publish, proposed, shutdown, task }
    }

    async fn stop(self) {
        self.shutdown.trigger();
        drop(self.proposed);
        self.task.await.expect("the task ends");
    }
}

#[tokio::test]
async fn a_lock_that_is_due_later_is_proposed_when_its_time_has_come_and_not_before() {
    let mut stage = Stage::new(LEADS);
    let held_ms = time::wall_ms();
    stage.state.hold(held_ms, "/locks/later", 60_000);
    stage.state.hold(held_ms, "/locks/soon", 40);
    let batch = stage.proposed.recv().await.expect("a proposal");
    assert!(time::wall_ms() >= held_ms + 40 + i64::from(TIMEOUT_MS));
    assert_eq!((batch.term, stage.state.carry_out(batch)), (2, vec!["/locks/soon".to_owned()]));
    stage.stop().await;
}

#[tokio::test]
async fn a_new_leader_proposes_what_became_due_before_and_again_until_it_is_done() {
    let mut stage = Stage::new(Leadership { ready: false, ..LEADS });
    for lock in ["/locks/b", "/locks/a"] {
        stage.state.hold(1_000, lock, 1);
    }
    stage.leadership.send(Leadership { term: 3, ..LEADS });
    let due = ["/locks/a".to_owned(), "/locks/b".to_owned()];
    // The first is lost on its way.
    let first = stage.proposed.recv().await.expect("a proposal");
    assert_eq!((first.term, first.proposals.len()), (3, 2));
    let second = stage.proposed.recv().await.expect("a proposal");
    assert_eq!(stage.state.carry_out(second), due);
    assert_eq!(stage.state.replica.state.read().next_lock_due(), None);
    stage.stop().await;
}

#[tokio::test]
async fn who_does_not_lead_or_is_not_ready_proposes_nothing() {
    let mut stage = Stage::new(Leadership { leader: Some(NodeId(2)), ..LEADS });
    stage.state.hold(1_000, "/locks/a", 1);
    stage.leadership.send(Leadership { term: 4, ready: false, ..LEADS });
    stage.leadership.send(Leadership { term: 5, ..LEADS });
    assert_eq!(stage.proposed.recv().await.map(|batch| batch.term), Some(5));
    stage.stop().await;
}

#[test]
fn nothing_due_means_no_look_at_all_and_a_distant_moment_one_long_sleep() {
    let (state, mut rings) = State::new();
    assert_eq!(look(&state.replica.state.read(), i64::MAX), Found::Nothing);
    assert!(!rings.has_changed());
    state.hold(1_000, "/locks/far", 3_600_000);
    assert!(rings.has_changed());
    let _ = rings.borrow_and_update();
    let revoked_ms = 3_600_000 * 9 / 8 + u64::from(TIMEOUT_MS);
    assert_eq!(look(&state.replica.state.read(), 1_000), Found::Later(Duration::from_millis(revoked_ms)));
    state.hold(1_000, "/locks/farther", 7_200_000);
    assert!(!rings.has_changed(), "it sleeps long enough as it is");
    state.hold(1_000, "/locks/near", 800);
    assert!(rings.has_changed());
    let machine = state.replica.state.read();
    assert_eq!(look(&machine, 1_510), Found::Later(Duration::from_millis(400)));
    assert_eq!(look(&machine, 1_910), Found::Due(vec!["/locks/near".to_owned()]));
}

#[test]
fn one_round_proposes_a_bounded_number_of_locks() {
    let (state, _rings) = State::new();
    for i in 0..=LOCK_SWEEP_MAX {
        state.hold(1_000, &format!("/locks/{i}"), 1);
    }
    let found = look(&state.replica.state.read(), 2_000);
    assert!(matches!(found, Found::Due(due) if due.len() == LOCK_SWEEP_MAX));
}
