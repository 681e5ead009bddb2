//! Task that carries keepalives to the leader and, on the leader, proposes expiry.
//!
//! Every node collects keepalives and reports them to the leader, possibly to itself, one report at a time.
//! Heartbeats are answered when the leader has confirmed the report (see [`HeartbeatAcks`]).
//!
//! Invariant: touches and disconnects never enter the log; expiry happens only through the log.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::applied_state::AppliedState;
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::limits::{BATCH_MAX_COMMANDS, DISCONNECTS_WAITING_MAX, KEEPALIVES_WAITING_MAX};
use rowlock_consensus::node_hook::Hook;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_consensus::peer::{Lane, PeerPool, Request, Response};
use rowlock_consensus::raft::QuorumContact;
use rowlock_consensus::raft::elections::Leadership;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use tokio::sync::mpsc;

use super::expiry_table::{ExpiryTable, HeartbeatAcks, LastContact};
use super::{HeartbeatWaiter, Keepalive};

/// Shortest pause between two checks for expired sessions: the checks of many sessions follow each other
/// closely, and most find that their session was touched.
const CHECK_PAUSE: Duration = Duration::from_millis(20);
/// Delay of a tick from which on the process counts as paused: unread touches may be queued.
const TICK_MISSED: Duration = Duration::from_millis(1_000);
/// Number of empty reports in `contact_max`, while there is contact: the leader's answer is the follower's
/// contact to the quorum. Other reports leave on the next beat.
const EMPTY_REPORTS: u32 = 4;
/// Deadline of a report.
pub const REPORT_DEADLINE: Duration = Duration::from_millis(1_000);

pub struct Liveness {
    pub me: NodeId,
    /// Starts the timers of all sessions ([`ExpiryTable::take`]) for the term in which this node leads.
    pub start_timers: Box<dyn Fn(u64) + Send + Sync>,
    pub expiry_table: Arc<ExpiryTable>,
    /// Last quorum contact, published in the node's status.
    pub contact: Arc<LastContact>,
    /// Greatest age of the quorum contact with which a leader expires sessions.
    pub contact_max: Duration,
    /// The leader's side of a report, used while this node leads.
    pub heartbeat_acks: Arc<HeartbeatAcks>,
    pub leadership: watch::Receiver<Leadership>,
    /// Keepalives from this node's connections.
    pub keepalives: mpsc::Receiver<Keepalive>,
    pub quorum: QuorumContact,
    pub proposals: mpsc::Sender<TermBatch>,
    /// Connections to the leader.
    pub peers: PeerPool,
    /// Source of this node's disk shortage, which reports carry to the leader.
    pub replica: Arc<AppliedState>,
    pub hook: Hook,
}

/// Report in flight to the leader of a term.
struct Report {
    term: u64,
    of: Collected,
    answer: Pin<Box<dyn Future<Output = TouchAnswer> + Send>>,
}

#[derive(Default)]
struct TouchAnswer {
    recorded: Option<Recorded>,
    disconnected: bool,
}

/// Successful answer of the leader.
struct Recorded {
    /// Send time of the report; the node had quorum contact then.
    sent: Instant,
    refused: Vec<SessionId>,
    /// Sessions per second that may move from this node to the leader.
    invites_per_second: u32,
}

/// Observations since the last report.
#[derive(Default)]
struct Collected {
    sessions: BTreeSet<SessionId>,
    waiting: Vec<(SessionId, Box<dyn HeartbeatWaiter>)>,
    /// Disconnects, reported to the leader behind the touches, which happened before.
    disconnects: BTreeMap<SessionId, ClientDisconnect>,
}

impl Collected {
    fn add(&mut self, keepalive: Keepalive) {
        match keepalive {
            Keepalive::Touch { session, confirm } => {
                self.sessions.insert(session);
                if let Some(waiter) = confirm {
                    self.wait(session, waiter);
                }
            }
            Keepalive::ClientDisconnect(disconnect) => self.disconnect(disconnect),
        }
    }

    /// Records a disconnect; the newer of two connections of one session wins.
    fn disconnect(&mut self, disconnect: ClientDisconnect) {
        if let Some(known) = self.disconnects.get_mut(&disconnect.session) {
            if decides!("disconnect-is-newer", known.attachment <= disconnect.attachment) {
                *known = disconnect;
            }
        } else if self.disconnects.len() < DISCONNECTS_WAITING_MAX {
            self.disconnects.insert(disconnect.session, disconnect);
        }
    }

    fn is_urgent(&self) -> bool {
        !self.waiting.is_empty() || !self.disconnects.is_empty()
    }

    fn disconnects(&self) -> Vec<ClientDisconnect> {
        self.disconnects.values().copied().collect()
    }

    /// Queues a heartbeat. Beyond the bound the heartbeat stays unanswered and its client connects to another
    /// node.
    fn wait(&mut self, session: SessionId, waiter: Box<dyn HeartbeatWaiter>) {
        if self.waiting.len() < KEEPALIVES_WAITING_MAX {
            self.waiting.push((session, waiter));
        }
    }

    /// Returns the heartbeats of sessions without a running timer to their connections. The connection learns
    /// of the session's end soon; or the leader had not applied the opening yet, and accepts the next
    /// heartbeat.
    fn refuse(&mut self, refused: &[SessionId]) {
        for (_, waiter) in self.waiting.extract_if(.., |(session, _)| refused.contains(session)) {
            rare::taken(Rare::HeartbeatRefused);
            waiter.answer(false);
        }
    }

    /// Confirms all waiting heartbeats.
    fn answer(&mut self) {
        for (_, waiter) in self.waiting.drain(..) {
            waiter.answer(true);
        }
    }
}

impl Liveness {
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut collected = Collected::default();
        let mut report: Option<Report> = None;
        let (mut last_report, mut last_failed) = (Instant::now(), false);
        let mut last_tick = Instant::now();
        let mut stalled = false;
        loop {
            let view = *self.leadership.borrow_and_update();
            let leads = decides!("keepalives-stay-here", view.leader == Some(self.me));
            if leads {
                self.lead(view, &mut last_tick, &mut stalled);
            } else {
                self.expiry_table.give_up();
            }
            // Drop a report to an earlier leader, which may be silent until the deadline, and report to the
            // new one.
            if let Some(outdated) =
                report.take_if(|report| decides!("keepalive-report-is-outdated", report.term != view.term))
            {
                rare::taken(Rare::ReportOutdated);
                self.answered(outdated.of, TouchAnswer::default(), &mut collected);
            }
            let urgent = collected.is_urgent() && !last_failed && !choice::taken(Choice::ReportLate, 4);
            let due = urgent || time::now() >= self.report_due_at(&collected, last_report);
            if let (Some(leader), None, true) = (view.leader, &report, due) {
                last_report = Instant::now();
                report = Some(self.report(leader, view.term, std::mem::take(&mut collected)));
            }
            let beat = time::next_beat();
            let wake_at = match leads {
                true => self.next_check(stalled, beat),
                false => self.report_due_at(&collected, last_report).max(beat),
            };
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                answer = async { report.as_mut().expect("guarded").answer.as_mut().await }, if report.is_some() => {
                    last_failed = answer.recorded.is_none();
                    self.answered(report.take().expect("guarded").of, answer, &mut collected);
                }
                keepalive = self.keepalives.recv() => match keepalive {
                    Some(keepalive) => {
                        collected.add(keepalive);
                        while let Ok(keepalive) = self.keepalives.try_recv() {
                            collected.add(keepalive);
                        }
                    }
                    None => return,
                },
                () = self.expiry_table.due_earlier(), if leads => {}
                () = time::sleep_until(wake_at) => {}
            }
        }
    }

    /// Returns the time of the next report, if nothing urgent happens. Empty reports are rare while there is
    /// contact.
    fn report_due_at(&self, collected: &Collected, last_report: Instant) -> Instant {
        let is_empty = collected.sessions.is_empty() && !collected.is_urgent();
        let is_idle = is_empty && self.contact.within(self.contact_max / 2);
        let pause = if is_idle { self.contact_max / EMPTY_REPORTS } else { time::BEAT };
        time::about_after(last_report, pause)
    }

    /// Returns the time of the leader's next check for expired sessions, or `beat`.
    fn next_check(&self, stalled: bool, beat: Instant) -> Instant {
        let expiry = self.expiry_table.next_check().filter(|_| !stalled);
        expiry.map_or(beat, |at| at.max(time::now() + CHECK_PAUSE).min(beat))
    }

    /// Runs the leader's part: starts the timers in a new term, and expires sessions while in contact.
    fn lead(&self, view: Leadership, last_tick: &mut Instant, stalled: &mut bool) {
        if decides!("expiring-leader-is-not-ready", !view.ready) {
            return;
        }
        if decides!("expiry-term-begins", self.expiry_table.term() != Some(view.term)) {
            (self.start_timers)(view.term);
            *last_tick = Instant::now();
        }
        if let Some((_, at)) = self.quorum.last() {
            self.contact.mark(at);
        }
        let in_contact = self.contact.within(self.contact_max);
        let now = Instant::now();
        *stalled |=
            decides!("leader-has-stalled", !in_contact || now.saturating_since(*last_tick) > TICK_MISSED);
        if decides!("stalled-leader-goes-on", *stalled && in_contact) {
            tracing::info!("quorum contact restored; every session restarts its full timeout");
            rare::taken(Rare::SessionsForgiven);
            if !mutant::is(Mutant::NobodyForgiven) {
                self.expiry_table.forgive_all(now);
            }
            *stalled = false;
        }
        *last_tick = now;
        if decides!("leader-may-expire", !*stalled) {
            self.expire(now);
        }
    }

    fn expire(&self, now: Instant) {
        let Some((term, due)) = self.expiry_table.due(now) else { return };
        self.hook.notify(|hook| {
            let contact = self.contact.age().unwrap_or(Duration::MAX);
            due.iter().for_each(|(session, _)| hook.expires(*session, term, contact));
        });
        for some in due.chunks(BATCH_MAX_COMMANDS) {
            let proposals = some.iter().map(|&(session, attachment)| expiry(session, attachment)).collect();
            // With a full queue the sessions are due again in a second.
            if !choice::taken(Choice::ExpiryLost, 4) {
                let _ = self.proposals.try_send(TermBatch { term, proposals });
            }
        }
    }

    fn report(&self, leader: NodeId, term: u64, of: Collected) -> Report {
        let sessions = of.sessions.iter().copied().collect();
        let disconnects = of.disconnects();
        let answer = if leader == self.me {
            self.report_here(term, sessions, disconnects)
        } else {
            self.report_to(leader, term, sessions, disconnects)
        };
        Report { term, of, answer }
    }

    fn report_here(
        &self,
        term: u64,
        sessions: Vec<SessionId>,
        disconnects: Vec<ClientDisconnect>,
    ) -> Pin<Box<dyn Future<Output = TouchAnswer> + Send>> {
        let sent = Instant::now();
        let heartbeat_acks = self.heartbeat_acks.clone();
        Box::pin(async move {
            let touching = heartbeat_acks.touch(term, sessions, REPORT_DEADLINE);
            let disconnecting = async { heartbeat_acks.client_disconnected(term, &disconnects) };
            // The order matters: the first poll records the touches, which happened before the disconnects.
            let (answer, disconnected) = futures_util::join!(touching, disconnecting);
            let recorded = |refused| Recorded { sent, refused, invites_per_second: 0 };
            TouchAnswer { recorded: answer.ok().map(recorded), disconnected }
        })
    }

    fn report_to(
        &self,
        leader: NodeId,
        term: u64,
        sessions: Vec<SessionId>,
        disconnects: Vec<ClientDisconnect>,
    ) -> Pin<Box<dyn Future<Output = TouchAnswer> + Send>> {
        let sent = Instant::now();
        let (peers, is_short) = (self.peers.clone(), self.replica.room.is_short());
        Box::pin(async move {
            let deadline = sent + REPORT_DEADLINE;
            let touches = Request::Touches { sessions, term, is_short };
            let has_disconnects = !disconnects.is_empty();
            let disconnects = Request::ClientDisconnects { disconnects, term };
            let touching = peers.call(leader, Lane::Control, &touches, deadline);
            let disconnecting = async {
                let disconnecting = peers.call(leader, Lane::Control, &disconnects, deadline);
                has_disconnects && disconnecting.await == Ok(Response::ClientDisconnectsNoted)
            };
            // Both requests are in flight at once; the lane and the leader keep their order.
            let (answer, disconnected) = futures_util::join!(touching, disconnecting);
            let recorded = match answer {
                Ok(Response::TouchesNoted { refused, invites_per_second }) => {
                    Some(Recorded { sent, refused, invites_per_second })
                }
                _ => None,
            };
            TouchAnswer { recorded, disconnected }
        })
    }

    fn answered(&self, reported: Collected, answer: TouchAnswer, collected: &mut Collected) {
        if let Some(Recorded { sent, invites_per_second, .. }) = &answer.recorded {
            self.contact.mark(*sent);
            self.replica.invitations.allow(*invites_per_second, Instant::now());
        }
        collected.answered(reported, answer);
    }
}

impl Collected {
    /// Handles the end of a report: keepalives that the leader did not record join the next report.
    fn answered(&mut self, mut reported: Collected, answer: TouchAnswer) {
        let disconnects = std::mem::take(&mut reported.disconnects);
        if decides!("disconnects-are-not-recorded", !answer.disconnected) {
            disconnects.into_values().for_each(|disconnect| self.disconnect(disconnect));
        }
        match answer.recorded {
            Some(Recorded { refused, .. }) => {
                reported.refuse(&refused);
                reported.answer();
            }
            // The next report repeats the same sessions, whose clients have no answer yet.
            None => {
                rare::taken(Rare::ReportFailed);
                if mutant::is(Mutant::AnswerUnreported) {
                    reported.answer();
                }
                self.sessions.extend(reported.sessions);
                reported.waiting.into_iter().for_each(|(session, waiter)| self.wait(session, waiter));
            }
        }
    }
}

fn expiry(session: SessionId, attachment: Attachment) -> Proposal {
    Proposal {
        origin: Origin::default(),
        session: SessionId::NONE,
        attachment: Attachment::default(),
        identities: Default::default(),
        command: Command::ExpireSession { session, attachment },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    impl HeartbeatWaiter for Sender<bool> {
        fn answer(&self, is_recorded: bool) {
            self.send(is_recorded).expect("the test listens");
        }
    }

    #[test]
    fn an_unrecorded_heartbeat_returns_to_its_connection() {
        let mut collected = Collected::default();
        let mut heard = Vec::new();
        for session in [SessionId(1), SessionId(2)] {
            let (waiter, answers) = channel();
            collected.add(Keepalive::Touch { session, confirm: Some(Box::new(waiter)) });
            heard.push(answers);
        }
        collected.refuse(&[SessionId(2)]);
        collected.answer();
        assert_eq!(heard[0].iter().collect::<Vec<_>>(), [true]);
        assert_eq!(heard[1].iter().collect::<Vec<_>>(), [false]);
    }

    /// Covers the mutant `answer-unreported`, which the simulator seldom detects: the link to the leader has
    /// to break at the moment of a report, and the cut has to outlast the session.
    #[test]
    fn a_heartbeat_whose_report_failed_waits_for_the_next_one() {
        let (waiter, answers) = channel();
        let mut reported = Collected::default();
        reported.add(Keepalive::Touch { session: SessionId(1), confirm: Some(Box::new(waiter)) });
        let mut collected = Collected::default();
        collected.answered(reported, TouchAnswer::default());
        assert!(answers.try_recv().is_err(), "it was answered");
        assert_eq!(collected.sessions, BTreeSet::from([SessionId(1)]));
        let recorded = Recorded { sent: Instant::now(), refused: Vec::new(), invites_per_second: 0 };
        Collected::default()
            .answered(collected, TouchAnswer { recorded: Some(recorded), disconnected: false });
        assert_eq!(answers.try_recv(), Ok(true));
    }

    #[test]
    fn the_disconnect_of_the_newer_connection_is_reported() {
        let mut collected = Collected::default();
        let of = |attachment| ClientDisconnect {
            session: SessionId(1),
            attachment: Attachment(attachment),
            grace_ms: 500,
        };
        assert!(!collected.is_urgent());
        for attachment in [1, 3, 2] {
            collected.add(Keepalive::ClientDisconnect(of(attachment)));
        }
        assert_eq!(collected.disconnects(), [of(3)]);
        assert!(collected.is_urgent());
    }
}
