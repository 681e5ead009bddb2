//! Operator: a person (or a script) who adds and removes nodes as docs/operations.md describes, over the
//! client port, with the production client.
//!
//! The injector starts the process of a new node and queues the rest as a [`Job`]. The operator executes jobs
//! in order, since the second step of a replacement without the first may cost the majority, and records each
//! known result in the membership.
//!
//! Invariant: the operator bases each change on a membership that it has read. A request whose reply was lost
//! may still be pending and would otherwise undo a later change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_client::{Client, Error, ErrorCode, Reconfig};
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::version::FIRST;
use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;
use rowlock_world::trace::What;
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::membership::{Membership, Part};
use super::node::address;
use super::node_statuses::{NodeStatuses, Order, Process, node_id};
use super::record::Record;
use super::releases::Hold;
use crate::history::Fact;

/// Digest of the superuser `super:test` for the nodes' configuration.
pub const SUPER_DIGEST: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
pub const SECRET: &[u8] = b"super:test";
const CONFIG: &str = "/zookeeper/config";

/// Exceeds the time for which a node tries to carry a request out.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit of one request: the nodes give up after 40 s.
const REQUEST: Duration = Duration::from_secs(50);
const AGAIN: Duration = Duration::from_millis(500);
/// Time without a serving node after which the operator restarts the peers of a moved node.
const LEADERLESS: Duration = Duration::from_secs(6);
const NEXT_RESTART: Duration = Duration::from_secs(3);

/// A task for the operator. Machines are named by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// The new node becomes a learner.
    Learner(usize),
    /// The new node, or the learner, becomes a voter.
    Voter(usize),
    /// The node leaves the cluster, and its process stops.
    Remove(usize),
    /// The members learn the new address of the node.
    Address(usize),
    /// The new node becomes a voter and the lost node leaves, in one change, after the new node has caught
    /// up.
    Replace { old: usize, new: usize },
}

impl Job {
    fn place(self) -> usize {
        match self {
            Job::Learner(place)
            | Job::Voter(place)
            | Job::Remove(place)
            | Job::Address(place)
            | Job::Replace { new: place, .. } => place,
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = node_id(self.place());
        match self {
            Job::Learner(_) => write!(f, "add node {node} as a learner"),
            Job::Voter(_) => write!(f, "make node {node} a voter"),
            Job::Remove(_) => write!(f, "remove node {node}"),
            Job::Address(_) => write!(f, "report the new address of node {node}"),
            Job::Replace { old, .. } => write!(f, "replace node {} by node {node}", node_id(*old)),
        }
    }
}

/// Queue of the operator's jobs, with the reason why the current job is not done yet. Clones share the queue.
#[derive(Clone)]
pub struct OperatorQueue {
    jobs: UnboundedSender<Job>,
    trouble: Arc<Mutex<Option<String>>>,
    /// Number of jobs neither done nor given up.
    open: Arc<AtomicUsize>,
}

impl OperatorQueue {
    /// Creates a queue, and the operator's end of the queue.
    pub fn new() -> (OperatorQueue, UnboundedReceiver<Job>) {
        let (jobs, asked) = mpsc::unbounded_channel();
        (OperatorQueue { jobs, trouble: Arc::default(), open: Arc::default() }, asked)
    }

    /// Adds a job after the earlier jobs.
    pub fn enqueue(&self, job: Job) {
        // A failed send means that the operator has ended with the run.
        if self.jobs.send(job).is_ok() {
            self.open.fetch_add(1, Relaxed);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    /// Returns the current job, with the reason why the job is not done yet.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

#[derive(Clone)]
pub struct Operator {
    pub sim: Simulation,
    pub host: HostId,
    pub membership: Membership,
    pub statuses: NodeStatuses,
    pub queue: OperatorQueue,
}

/// Reason why a job is not done yet.
enum NotYet {
    Because(String),
    Never(&'static str),
}

impl From<Error> for NotYet {
    fn from(error: Error) -> Self {
        NotYet::Because(error.to_string())
    }
}

impl Operator {
    /// Executes jobs in order. Ends when `closing` is true and no job is left.
    pub async fn work(self, mut asked: UnboundedReceiver<Job>, mut closing: watch::Receiver<bool>) {
        loop {
            let job = tokio::select! {
                biased;
                Some(job) = asked.recv() => job,
                _ = closing.wait_for(|is_closing| *is_closing) => return,
            };
            self.trace(format!("to do: {job}"));
            let mut session = None;
            let outcome = self.carry_out(job, &mut session).await;
            *self.queue.trouble.lock() = None;
            self.queue.open.fetch_sub(1, Relaxed);
            self.trace(
                outcome.map_or_else(|why| format!("failed: {job}: {why}"), |()| format!("done: {job}")),
            );
            if let Some(client) = session {
                // A session that cannot be closed expires by itself.
                let _ = time::timeout(CONNECT, client.close()).await;
            }
        }
    }

    /// Holds the cluster's version for a while, and then asks for the new version until it is in force.
    pub(super) async fn hold(self, hold: Hold, record: Record, mut closing: watch::Receiver<bool>) {
        let mut session = None;
        tokio::select! {
            biased;
            _ = closing.wait_for(|is_closing| *is_closing) => {}
            () = self.hold_and_finalize(hold, &record, &mut session) => {}
        }
        if let Some(client) = session {
            let _ = time::timeout(CONNECT, client.close()).await;
        }
    }

    async fn hold_and_finalize(&self, hold: Hold, record: &Record, session: &mut Option<Client>) {
        time::sleep(hold.from - record.now()).await;
        let is_raised = |answer: &Value| answer["version"]["number"].as_u64() > Some(FIRST.into());
        loop {
            match self.hold_version(hold.is_late, session).await {
                Ok(answer) if is_raised(&answer) => return,
                Ok(_) => break,
                Err(_) => time::sleep(AGAIN).await,
            }
        }
        record.report(&Fact::Operated { at: record.now(), holds: true });
        self.trace("holds the version".to_owned());
        time::sleep(hold.lasts).await;
        record.report(&Fact::Operated { at: record.now(), holds: false });
        self.trace("asks for the new version".to_owned());
        while !self.upgrade("finalize", session).await.is_ok_and(|answer| is_raised(&answer)) {
            time::sleep(AGAIN).await;
        }
    }

    async fn hold_version(&self, is_late: bool, session: &mut Option<Client>) -> Result<Value, NotYet> {
        if is_late {
            let left = self.upgrade("look", session).await?["finalizes_in_ms"].as_u64();
            let left = left.ok_or_else(|| NotYet::Because("no leader will raise it".to_owned()))?;
            time::sleep(Duration::from_millis(left)).await;
        }
        self.upgrade("hold", session).await
    }

    async fn upgrade(&self, step: &str, session: &mut Option<Client>) -> Result<Value, NotYet> {
        let client = self.session(session).await?;
        let asked = format!("/v1/upgrade?do={step}");
        let answer = time::timeout(REQUEST, client.operate(&asked)).await;
        let text = answer.map_err(|_| NotYet::Because("no answer".to_owned()))??;
        Ok(serde_json::from_str(&text).expect("a document"))
    }

    async fn carry_out(&self, job: Job, session: &mut Option<Client>) -> Result<(), &'static str> {
        let mut restarts_at = time::now() + LEADERLESS;
        loop {
            let why = match self.attempt(job, session).await {
                Ok(part) => {
                    self.record_outcome(job, part);
                    return Ok(());
                }
                Err(NotYet::Never(why)) => return Err(why),
                Err(NotYet::Because(why)) => why,
            };
            *self.queue.trouble.lock() = Some(format!("could not {job}: {why}"));
            if let Some(why) = self.reason_to_give_up(job) {
                // The last request may have taken effect unseen.
                self.membership.set_part(job.place(), Part::Unknown);
                if let Job::Replace { old, .. } = job {
                    self.membership.set_part(old, Part::Unknown);
                }
                return Err(why);
            }
            if session.as_ref().is_some_and(|client| client.valid_until().is_some()) {
                restarts_at = time::now() + LEADERLESS;
            } else if let Job::Address(place) = job
                && time::now() >= restarts_at
            {
                self.restart_others(place).await;
                restarts_at = time::now() + LEADERLESS;
            }
            time::sleep(AGAIN).await;
        }
    }

    /// Restarts the peers of a moved node. Without a connected majority the cluster cannot commit the node's
    /// new address; but every `cluster.toml` has the address, and nodes read that file at their start.
    async fn restart_others(&self, moved: usize) {
        self.trace(format!(
            "restart the peers, so that they find node {} at its new address",
            node_id(moved)
        ));
        for place in self.membership.in_use().into_iter().filter(|place| *place != moved) {
            self.statuses.order(place, Order::Restart);
            time::sleep(NEXT_RESTART).await;
        }
    }

    /// Returns the reason why the node of a job will never join. Only a removal does not need the node.
    fn reason_to_give_up(&self, job: Job) -> Option<&'static str> {
        let place = job.place();
        if matches!(job, Job::Remove(_)) {
            return None;
        }
        if !self.membership.is_in_use(place) {
            return Some("its machine is lost");
        }
        if self.membership.has_forgotten(place) {
            return Some("its node has lost its data, and stays away");
        }
        let is_up = self.statuses.processes()[place] == Process::Up;
        (self.membership.is_damaged(place) && !is_up).then_some("its disk is damaged, and its node is down")
    }

    fn record_outcome(&self, job: Job, part: Part) {
        // A node being readmitted is a learner for a while; its final role is not part of the job.
        if !matches!(job, Job::Address(_)) {
            self.membership.set_part(job.place(), part);
        }
        if let Job::Replace { old, .. } = job {
            self.membership.set_part(old, Part::Stranger);
        }
        if part == Part::Stranger {
            self.membership.lose(job.place());
            self.statuses.order(job.place(), Order::Stop);
        }
    }

    /// Reads the membership and requests the change unless the membership already shows the change.
    async fn attempt(&self, job: Job, session: &mut Option<Client>) -> Result<Part, NotYet> {
        let client = self.session(session).await?;
        client.sync(CONFIG).await?;
        let data = client.get(CONFIG).await?.data;
        let members = Members::read(&String::from_utf8_lossy(&data.unwrap_or_default()))?;
        let part = members.part(node_id(job.place()));
        let line = |place| line(place, self.membership.peer_port(place), Part::Voter);
        let change = match (job, part) {
            (Job::Address(_), Part::Stranger | Part::Unknown) => {
                return Err(NotYet::Never("it is no member"));
            }
            (Job::Address(place), _) if members.is_at(node_id(place), &self.membership.peer_addr(place)) => {
                return Ok(part);
            }
            (Job::Address(place), _) => {
                Reconfig::new().join(self::line(place, self.membership.peer_port(place), part))
            }
            (Job::Replace { old, .. }, Part::Voter | Part::Learner) => match members.part(node_id(old)) {
                Part::Voter => Reconfig::new().join(line(job.place())).leave(node_id(old)),
                Part::Learner => Reconfig::new().leave(node_id(old)),
                _ => return Ok(part),
            },
            (Job::Learner(_), Part::Voter | Part::Learner)
            | (Job::Voter(_), Part::Voter)
            | (Job::Remove(_), Part::Stranger) => return Ok(part),
            (Job::Voter(place), Part::Learner) => Reconfig::new().join(line(place)),
            (Job::Remove(_), Part::Voter) if members.voters() == 1 => {
                return Err(NotYet::Never("no voter would be left"));
            }
            (Job::Remove(place), _) => Reconfig::new().leave(node_id(place)),
            (Job::Learner(_) | Job::Voter(_) | Job::Replace { .. }, _) => {
                return Err(NotYet::Because("it has not joined yet".to_owned()));
            }
        };
        let change = change.if_version(members.version);
        match time::timeout(REQUEST, client.reconfig(&change)).await {
            // The next attempt reads the result.
            Ok(Ok(_)) => Err(NotYet::Because("it does not show".to_owned())),
            Ok(Err(Error::Rejected(ErrorCode::NoAuth))) => Err(NotYet::Never("the superuser is not known")),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(NotYet::Because("no answer".to_owned())),
        }
    }

    async fn session(&self, session: &mut Option<Client>) -> Result<Client, NotYet> {
        if let Some(client) = session.as_ref().filter(|client| client.valid_until().is_some()) {
            return Ok(client.clone());
        }
        let config = Client::builder()
            .endpoints(&self.membership.endpoints())
            .session_timeout(SESSION_TIMEOUT)
            .connect_timeout(CONNECT)
            .label("operator")
            .auth("digest", SECRET)
            .allow_plaintext_passwords(true);
        let client = config.connect().await.map_err(|error| NotYet::Because(error.to_string()))?;
        Ok(session.insert(client).clone())
    }

    fn trace(&self, text: String) {
        let host = Some(self.host);
        self.sim.trace().record(self.sim.now(), || What::Note { host, text });
    }
}

/// Returns the node at a place in the syntax of reconfig.
fn line(place: usize, port: u16, part: Part) -> String {
    let (node, ip) = (node_id(place), address(place));
    let role = if part == Part::Voter { "participant" } else { "observer" };
    let election = port + 1;
    format!("server.{node}={ip}:{port}:{election}:{role};{ip}:2181")
}

struct Members {
    parts: BTreeMap<NodeId, Part>,
    specs: BTreeMap<NodeId, String>,
    version: i64,
}

impl Members {
    fn read(text: &str) -> Result<Members, NotYet> {
        let odd = || NotYet::Because(format!("{CONFIG} holds {text:?}"));
        let (mut parts, mut specs, mut version) = (BTreeMap::new(), BTreeMap::new(), None);
        for line in text.lines() {
            if let Some(number) = line.strip_prefix("version=") {
                version = Some(i64::from_str_radix(number, 16).map_err(|_| odd())?);
                continue;
            }
            let server = line.strip_prefix("server.").and_then(|rest| rest.split_once('='));
            let (number, spec) = server.ok_or_else(odd)?;
            let part = if spec.contains(":participant;") { Part::Voter } else { Part::Learner };
            let node = NodeId(number.parse().map_err(|_| odd())?);
            parts.insert(node, part);
            specs.insert(node, spec.to_owned());
        }
        Ok(Members { parts, specs, version: version.ok_or_else(odd)? })
    }

    fn part(&self, node: NodeId) -> Part {
        self.parts.get(&node).copied().unwrap_or(Part::Stranger)
    }

    /// Returns whether the configuration has the node at this address.
    fn is_at(&self, node: NodeId, peer_addr: &str) -> bool {
        self.specs.get(&node).is_some_and(|spec| spec.starts_with(&format!("{peer_addr}:")))
    }

    fn voters(&self) -> usize {
        self.parts.values().filter(|part| **part == Part::Voter).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_that_nodes_write_is_understood() {
        let text = "server.1=10.0.0.1:2281:2282:participant;10.0.0.1:2181\n\
                    server.4=10.0.0.4:2281:2282:observer;10.0.0.4:2181\nversion=1f";
        let Ok(members) = Members::read(text) else { panic!("not understood") };
        assert_eq!((members.version, members.voters()), (0x1f, 1));
        let parts = [1, 4, 2].map(|node| members.part(NodeId(node)));
        assert_eq!(parts, [Part::Voter, Part::Learner, Part::Stranger]);
        assert!(members.is_at(NodeId(4), "10.0.0.4:2281") && !members.is_at(NodeId(4), "10.0.0.4:2282"));
        assert!(Members::read("").is_err() && Members::read("server.1=x").is_err());
    }
}
