//! Proposals of the sweep and their times.

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::elections::Leadership;
use rowlock_env::time;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Acquire;
use rowlock_proto::request::Create;
use rowlock_proto::response::Response;
use rowlock_proto::{Request, SessionId, Version};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Proposal};

use super::*;
use crate::node::leader_duties::tests::{LEADS, Stage};
use crate::node::proposer::of_the_cluster;

fn apply_at(time_ms: i64, replica: &Replica, session: SessionId, command: Command) -> Response {
    let proposal = Proposal { session, attachment: Attachment(1), ..of_the_cluster(command) };
    let applied = replica.state.write().apply(time_ms, &proposal, &mut ());
    applied.result.expect("the command is right")
}

fn apply(replica: &Replica, session: SessionId, command: Command) -> Response {
    apply_at(1, replica, session, command)
}

fn create(replica: &Replica, session: SessionId, path: &str, flags: i32, ttl_ms: Option<i64>) {
    let create = Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags };
    let request = match ttl_ms {
        None => Request::Create2(create),
        Some(ttl_ms) => Request::CreateTtl(create, ttl_ms),
    };
    apply(replica, session, Command::Client(request));
}

/// Returns a replica with a container without its former child, a container that never had a child, a TTL
/// znode expired long ago, and a TTL znode that never expires.
fn replica() -> Arc<Replica> {
    let replica = Arc::new(Replica::default());
    let open = Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 1 };
    let opened = replica.state.write().apply(1, &of_the_cluster(open), &mut ());
    let session = opened.attached.expect("a session opens").session;
    create(&replica, session, "/left", 4, None);
    create(&replica, session, "/left/child", 0, None);
    apply(
        &replica,
        session,
        Command::Client(Request::Delete { path: "/left/child".to_owned(), version: Version::ANY }),
    );
    create(&replica, session, "/new", 4, None);
    create(&replica, session, "/over", 5, Some(1));
    // Time never goes back: all later commands have the present time.
    apply_at(time::wall_ms(), &replica, SessionId::NONE, Command::Noop);
    create(&replica, session, "/stays", 5, Some(0xff_ffff_ffff));
    replica
}

fn paths(batch: &TermBatch) -> Vec<&str> {
    fn path(proposal: &Proposal) -> &str {
        match &proposal.command {
            Command::Reap { path } => path,
            other => panic!("{other:?}"),
        }
    }
    batch.proposals.iter().map(path).collect()
}

fn stage(replica: &Arc<Replica>, every: Duration) -> Stage {
    let sweep = Sweep::new(replica.clone(), Arc::new(LogClock::starting_now()), every);
    Stage::new(LEADS, None, sweep)
}

#[tokio::test]
async fn a_new_leader_sweeps_soon_and_again_in_its_next_term() {
    let mut stage = stage(&replica(), Duration::from_millis(500));
    for term in [2, 3] {
        stage.leadership.send(Leadership { term, ..LEADS });
        let batch = stage.next().await;
        assert_eq!((batch.term, paths(&batch)), (term, vec!["/left", "/over"]));
    }
    stage.stop().await;
}

/// Returns the proposals of the next sweep, their time and the next due time. Only the searching thread
/// takes real time.
async fn next_sweep(sweep: &mut Sweep, mut now: Instant) -> (Vec<Command>, Instant, Instant) {
    loop {
        let due = sweep.due(2, now);
        let next = due.next.expect("there is more, or the next sweep");
        if !due.commands.is_empty() {
            return (due.commands, now, next);
        }
        if sweep.search.is_some() {
            time::sleep(POLL_EVERY).await;
        }
        now = next;
    }
}

#[tokio::test]
async fn a_container_stays_until_it_has_been_empty_for_a_while() {
    let replica = replica();
    let session = replica.state.read().sessions().next().expect("a session").0;
    let every = Duration::from_secs(3_600);
    let mut sweep = Sweep::new(replica.clone(), Arc::new(LogClock::starting_now()), every);
    let start = Instant::now();
    assert_eq!(sweep.due(2, start).next, Some(start + EMPTY_FOR), "the search waits");
    create(&replica, session, "/left/again", 0, None);
    let delete = Request::Delete { path: "/left/again".to_owned(), version: Version::ANY };
    apply(&replica, session, Command::Client(delete));
    let (first, found, next) = next_sweep(&mut sweep, start + EMPTY_FOR).await;
    assert_eq!(first, [Command::Reap { path: "/over".to_owned() }], "it had a child after the wait began");
    apply(&replica, SessionId::NONE, first[0].clone());
    let (second, later, _) = next_sweep(&mut sweep, next).await;
    assert_eq!(second, [Command::Reap { path: "/left".to_owned() }]);
    assert!(later - found >= every - EMPTY_FOR, "one interval later");
}

#[tokio::test]
async fn the_leader_sweeps_again_after_the_interval_and_finds_what_has_become_due() {
    let replica = replica();
    let mut stage = stage(&replica, Duration::from_millis(1));
    let first = stage.next().await;
    for path in paths(&first) {
        apply(&replica, SessionId::NONE, Command::Reap { path: path.to_owned() });
    }
    let session = replica.state.read().sessions().next().expect("a session").0;
    create(&replica, session, "/later", 5, Some(1));
    // Earlier sweeps may still be queued.
    loop {
        let batch = stage.next().await;
        if paths(&batch) == ["/later"] {
            break;
        }
        assert_eq!(paths(&batch), ["/left", "/over"]);
    }
    stage.stop().await;
}

#[tokio::test]
async fn many_znodes_are_proposed_a_batch_at_a_time() {
    let replica = replica();
    let session = replica.state.read().sessions().next().expect("a session").0;
    for n in 0..BATCH_MAX_COMMANDS {
        create(&replica, session, &format!("/z{n}"), 5, Some(1));
    }
    // Waits until the last znode has expired.
    let created_ms = time::wall_ms();
    while time::wall_ms() < created_ms + 5 {
        rowlock_env::task::yield_now().await;
    }
    let clock = Arc::new(LogClock::starting_now());
    let mut sweep = Sweep::new(replica, clock, Duration::from_secs(3_600));
    let (first, _, then) = next_sweep(&mut sweep, Instant::now()).await;
    let (second, at, later) = next_sweep(&mut sweep, then).await;
    assert_eq!((first.len(), second.len()), (BATCH_MAX_COMMANDS, 2));
    assert!(at == then && later - then > Duration::from_secs(3_000), "the rest at once, then the interval");
}

#[test]
fn quotas_that_are_exceeded_are_found_and_others_are_not() {
    let replica = replica();
    let session = replica.state.read().sessions().next().expect("a session").0;
    let limits = |path: &str, text: &'static str| {
        create(&replica, session, &format!("/zookeeper/quota{path}"), 0, None);
        let create = Create {
            path: format!("/zookeeper/quota{path}/zookeeper_limits"),
            data: Some(text.into()),
            acl: Some(Acl::shared_open()),
            flags: 0,
        };
        apply(&replica, session, Command::Client(Request::Create2(create)));
    };
    create(&replica, session, "/new/a", 0, None);
    limits("/new", "count=1,bytes=-1");
    limits("/stays", "count=1,bytes=0");
    limits("/missing", "count=0,bytes=0");
    let found = search(&replica.state.read(), 2, Zxid(i64::MAX));
    let exceeded: Vec<&str> = found.exceeded.iter().map(|quota| quota.path.as_str()).collect();
    assert_eq!((exceeded, found.exceeded_count), (vec!["/new"], 1));
}

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

fn lock_stage(leadership: Leadership) -> (State, Stage) {
    let (state, alarm) = State::new();
    let sweep = LockSweep { replica: state.replica.clone(), clock: Arc::new(LogClock::starting_now()) };
    (state, Stage::new(leadership, Some(alarm), sweep))
}

#[tokio::test]
async fn a_lock_that_is_due_later_is_proposed_when_its_time_has_come_and_not_before() {
    let (state, mut stage) = lock_stage(LEADS);
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
    let (state, mut stage) = lock_stage(Leadership { ready: false, ..LEADS });
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
    assert_eq!(due_locks(&state.replica.state.read(), i64::MAX, now), Due::default());
    assert!(!rings.has_changed());
    state.hold(1_000, "/locks/far", 3_600_000);
    assert!(rings.has_changed());
    let _ = rings.borrow_and_update();
    let revoked_ms = 3_600_000 * 9 / 8 + u64::from(TIMEOUT_MS);
    assert_eq!(due_locks(&state.replica.state.read(), 1_000, now), later(revoked_ms));
    state.hold(1_000, "/locks/farther", 7_200_000);
    assert!(!rings.has_changed(), "it sleeps long enough as it is");
    state.hold(1_000, "/locks/near", 800);
    assert!(rings.has_changed());
    let machine = state.replica.state.read();
    assert_eq!(due_locks(&machine, 1_510, now), later(400));
    assert_eq!(
        due_locks(&machine, 1_910, now).commands,
        [Command::LockDue { lock: "/locks/near".to_owned() }]
    );
}

#[test]
fn one_round_proposes_a_bounded_number_of_locks() {
    let (state, _rings) = State::new();
    for i in 0..=LOCK_SWEEP_MAX {
        state.hold(1_000, &format!("/locks/{i}"), 1);
    }
    let found = due_locks(&state.replica.state.read(), 2_000, Instant::now());
    assert_eq!(found.commands.len(), LOCK_SWEEP_MAX);
}
