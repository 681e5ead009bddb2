//! Calls of duties, and delivery of their commands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_env::task::{self, Shutdown, TaskGroup};
use rowlock_env::{duty, time};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::NewCluster;
use rowlock_state::command::{Attachment, Origin, Proposal};
use rowlock_wal::entry::Member;

use super::*;

pub(crate) const ME: NodeId = NodeId(1);
pub(crate) const LEADS: Leadership = Leadership { term: 2, leader: Some(ME), ready: true };

/// Task of the duties of node [`ME`] with its channels.
pub(crate) struct Stage {
    pub(crate) leadership: watch::Sender<Leadership>,
    /// Alarm of the task, unless the test supplied another alarm.
    pub(crate) alarm: watch::Sender<Option<i64>>,
    pub(crate) proposed: mpsc::Receiver<TermBatch>,
    tasks: TaskGroup,
}

impl Stage {
    pub(crate) fn new(
        leadership: Leadership,
        alarm: Option<watch::Receiver<Option<i64>>>,
        duty: impl LeaderDuty + 'static,
    ) -> Stage {
        let (publish, leadership) = watch::channel(leadership);
        let (proposals, proposed) = mpsc::channel(4);
        let (ring, own) = watch::channel(None);
        let (alarm, duties): (_, Vec<Box<dyn LeaderDuty>>) = (alarm.unwrap_or(own), vec![Box::new(duty)]);
        let tasks = TaskGroup::new(Shutdown::new());
        let duties = LeaderDuties::new(ME, leadership, proposals, alarm, duties);
        tasks.spawn_until_shutdown("leader-duties", duty::run(duties));
        Stage { leadership: publish, alarm: ring, proposed, tasks }
    }

    pub(crate) async fn next(&mut self) -> TermBatch {
        let proposal = time::timeout(Duration::from_secs(20), self.proposed.recv()).await;
        proposal.expect("in time").expect("the task runs")
    }

    /// Stops the task and returns the proposed batches not yet received.
    pub(crate) async fn stop(mut self) -> Vec<TermBatch> {
        self.tasks.stop().await;
        std::iter::from_fn(|| self.proposed.try_recv().ok()).collect()
    }
}

/// Duty that proposes `count` commands per call.
struct Counter {
    count: usize,
    every: Option<Duration>,
    wakes_on_alarm: bool,
}

impl LeaderDuty for Counter {
    fn due(&mut self, _: u64, now: Instant) -> Due {
        Due { commands: vec![Command::Noop; self.count], next: self.every.map(|every| now + every) }
    }

    fn wakes_on_alarm(&self) -> bool {
        self.wakes_on_alarm
    }
}

#[tokio::test]
async fn node_without_ready_leadership_proposes_nothing() {
    let duty = Counter { count: 1, every: Some(Duration::from_millis(1)), wakes_on_alarm: true };
    let mut stage = Stage::new(Leadership { leader: Some(NodeId(2)), ..LEADS }, None, duty);
    stage.alarm.send(Some(1));
    stage.leadership.send(Leadership { term: 3, ready: false, ..LEADS });
    stage.alarm.send(Some(2));
    stage.leadership.send(Leadership { term: 4, ..LEADS });
    assert_eq!([stage.next().await.term, stage.next().await.term], [4, 4], "and again at its interval");
    stage.leadership.send(Leadership { term: 5, leader: Some(NodeId(2)), ready: false });
    assert!(stage.stop().await.iter().all(|batch| batch.term == 4));
}

#[tokio::test]
async fn duty_is_called_in_each_term_and_by_its_alarm() {
    for wakes_on_alarm in [true, false] {
        let mut stage = Stage::new(LEADS, None, Counter { count: 1, every: None, wakes_on_alarm });
        assert_eq!(stage.next().await.term, 2);
        stage.alarm.send(Some(1));
        for _ in 0..10 {
            task::yield_now().await;
        }
        assert_eq!(stage.proposed.try_recv().is_ok(), wakes_on_alarm);
        stage.leadership.send(Leadership { term: 3, ..LEADS });
        assert_eq!(stage.next().await.term, 3, "{wakes_on_alarm}");
        assert!(stage.stop().await.is_empty(), "{wakes_on_alarm}");
    }
}

#[tokio::test]
async fn many_commands_become_several_batches() {
    let duty = Counter { count: 2 * BATCH_MAX_COMMANDS + 1, every: None, wakes_on_alarm: false };
    let mut stage = Stage::new(LEADS, None, duty);
    for size in [BATCH_MAX_COMMANDS, BATCH_MAX_COMMANDS, 1] {
        assert_eq!(stage.next().await.proposals.len(), size);
    }
    assert!(stage.stop().await.is_empty());
}

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

#[test]
fn each_change_of_the_members_is_written_once() {
    let (mut state, members) = (Machine::new(), |voters: &[u64]| {
        let member = |id: u64| Member { peer_addr: format!("p{id}:1"), client_addr: format!("c{id}:2") };
        let nodes = voters.iter().map(|id| (NodeId(*id), member(*id))).collect();
        Members { nodes, voters: voters.iter().map(|id| NodeId(*id)).collect() }
    });
    for (voters, version) in [(&[1][..], 5), (&[1, 2], 5), (&[1, 2], 6)] {
        let command = config_due(&state, &members(voters), version).expect("it has changed");
        state
            .apply(1_000, &crate::node::proposer::of_the_cluster(command), &mut ())
            .result
            .expect("is taken");
        assert_eq!(config_due(&state, &members(voters), version), None);
    }
}

#[test]
fn the_text_lists_client_addresses_as_zookeeper_does() {
    let member =
        |n: u64| Member { peer_addr: format!("10.0.0.{n}:2281"), client_addr: format!("10.0.0.{n}:2181") };
    let nodes: BTreeMap<NodeId, Member> = (1..=2).map(|n| (NodeId(n), member(n))).collect();
    let text = config_text(&Members { nodes, voters: BTreeSet::from([NodeId(1)]) }, 0);
    assert_eq!(
        text,
        "server.1=10.0.0.1:2281:2282:participant;10.0.0.1:2181\n\
         server.2=10.0.0.2:2281:2282:observer;10.0.0.2:2181\n\
         version=0"
    );
}
