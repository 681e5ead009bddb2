//! What the leader proposes, and when.

use rowlock_env::task::{Task, spawn};
use rowlock_proto::Version;
use rowlock_proto::acl::Acl;
use rowlock_proto::request::Create;
use rowlock_state::Proof;
use rowlock_state::outcome::Outcome;

use super::*;

const ME: NodeId = NodeId(1);

fn apply_at(time_ms: i64, replica: &Replica, session: SessionId, command: Command) -> Outcome {
    let proposal = Proposal { session, attachment: Attachment(1), command, ..removal(String::new()) };
    let applied = replica.state.write().apply(time_ms, &proposal, &mut ());
    applied.result.expect("the command is right")
}

fn apply(replica: &Replica, session: SessionId, command: Command) -> Outcome {
    apply_at(1, replica, session, command)
}

fn create(replica: &Replica, session: SessionId, path: &str, flags: i32, ttl_ms: Option<i64>) {
    let create = Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags };
    apply(replica, session, Command::Create { create, ttl_ms });
}

/// A container that has lost its child, one that never had any, a TTL znode whose time is over since long ago
/// and one whose time never is.
fn replica() -> Arc<Replica> {
    let replica = Arc::new(Replica::default());
    let opened =
        apply(&replica, SessionId::NONE, Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 1 });
    let Outcome::Session { session, .. } = opened else { panic!("{opened:?}") };
    create(&replica, session, "/left", 4, None);
    create(&replica, session, "/left/child", 0, None);
    apply(&replica, session, Command::Delete { path: "/left/child".to_owned(), version: Version::ANY });
    create(&replica, session, "/new", 4, None);
    create(&replica, session, "/over", 5, Some(1));
    // Time never goes back: what comes from here on is of the present.
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

struct Stage {
    leadership: watch::Sender<Leadership>,
    proposed: mpsc::Receiver<TermBatch>,
    shutdown: Shutdown,
    task: Task<()>,
    replica: Arc<Replica>,
}

fn stage(every: Duration) -> Stage {
    let (publish, leadership) = watch::channel(Leadership::default());
    let (batcher, proposed) = mpsc::channel(4);
    let replica = replica();
    let clock = Arc::new(LogClock::starting_now());
    let sweep = Sweep { me: ME, leadership, replica: replica.clone(), batcher, clock, every };
    let shutdown = Shutdown::new();
    let task = spawn("sweep", sweep.run(shutdown.clone()));
    Stage { leadership: publish, proposed, shutdown, task, replica }
}

#[tokio::test]
async fn a_new_leader_sweeps_at_once_and_again_in_its_next_term() {
    let mut stage = stage(Duration::from_secs(3_600));
    for term in [2, 3] {
        stage.leadership.send(Leadership { term, leader: Some(ME), ready: true });
        let batch = stage.proposed.recv().await.expect("a sweep");
        assert_eq!((batch.term, paths(&batch)), (term, vec!["/left", "/over"]));
    }
    stage.shutdown.trigger();
    stage.task.await.expect("the task ends");
    assert!(stage.proposed.recv().await.is_none(), "nothing but one sweep per term");
}

#[tokio::test]
async fn the_leader_sweeps_again_after_the_interval_and_finds_what_has_become_due() {
    let mut stage = stage(Duration::from_millis(1));
    stage.leadership.send(Leadership { term: 2, leader: Some(ME), ready: true });
    let first = stage.proposed.recv().await.expect("a sweep");
    for path in paths(&first) {
        apply(&stage.replica, SessionId::NONE, Command::Reap { path: path.to_owned() });
    }
    let session = stage.replica.state.read().sessions().next().expect("a session").0;
    create(&stage.replica, session, "/later", 5, Some(1));
    // Sweeps from before may still be queued.
    loop {
        let batch = stage.proposed.recv().await.expect("a sweep");
        if paths(&batch) == ["/later"] {
            break;
        }
        assert_eq!(paths(&batch), ["/left", "/over"]);
    }
    stage.shutdown.trigger();
    drop(stage.proposed);
    stage.task.await.expect("the task ends");
}

#[tokio::test]
async fn who_does_not_lead_or_is_not_ready_proposes_nothing() {
    let mut stage = stage(Duration::from_millis(1));
    stage.leadership.send(Leadership { term: 2, leader: Some(NodeId(2)), ready: true });
    stage.leadership.send(Leadership { term: 3, leader: Some(ME), ready: false });
    stage.leadership.send(Leadership { term: 4, leader: Some(ME), ready: true });
    assert_eq!(stage.proposed.recv().await.map(|batch| batch.term), Some(4));
    stage.shutdown.trigger();
    drop(stage.proposed);
    stage.task.await.expect("the task ends");
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
        apply(&replica, session, Command::Create { create, ttl_ms: None });
    };
    create(&replica, session, "/new/a", 0, None);
    limits("/new", "count=1,bytes=-1");
    limits("/stays", "count=1,bytes=0");
    limits("/missing", "count=0,bytes=0");
    let found = look_at(&replica.state.read(), 2);
    let exceeded: Vec<&str> = found.exceeded.iter().map(|quota| quota.path.as_str()).collect();
    assert_eq!((exceeded, found.exceeded_count), (vec!["/new"], 1));
}
