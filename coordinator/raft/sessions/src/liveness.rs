//! The task that carries signs of life to the leader and, on the leader, proposes expiry.
//!
//! On every node signs of life are collected and reported to the leader, which may be this node: one report
//! at a time, and heartbeats are answered when the leader has confirmed theirs ([`HeartbeatAcks`] says what
//! that means).
//!
//! Invariant: touches and hang-ups never enter the log; expiry happens through the log only.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::applied_state::AppliedState;
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::peer::{Lane, PeerPool, Request, Response};
use rowlock_consensus::raft::QuorumContact;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::choice::{self, Choice};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_types::client_disconnect::ClientDisconnect;
use rowlock_types::limits::{BATCH_MAX_COMMANDS, DISCONNECTS_WAITING_MAX, HEARTBEATS_WAITING_MAX};
use rowlock_types::node_hook::Hook;
use tokio::sync::mpsc;

use super::expiry_table::ExpiryTable;
use super::heartbeat_ack::HeartbeatAcks;
use super::last_contact::LastContact;
use super::{HeartbeatWaiter, Sign};

/// How often the leader looks for expired sessions and its own contact.
const TICK: Duration = Duration::from_millis(50);
/// A tick that comes so late means that this process did not run: touches may be waiting unread.
const TICK_MISSED: Duration = Duration::from_millis(1_000);
/// A follower reports at least so often, also with nothing to report: the answer is its contact to the
/// quorum.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// A report that is not answered by then has failed.
pub const REPORT_DEADLINE: Duration = Duration::from_millis(1_000);

/// Dependencies of the task.
pub struct Liveness {
    pub me: NodeId,
    /// Starts the timers of all sessions ([`ExpiryTable::take`]) for the term in which this node leads.
    pub start_timers: Box<dyn Fn(u64) + Send + Sync>,
    /// The timers of all sessions, while this node leads.
    pub expiry_table: Arc<ExpiryTable>,
    /// Published for the node's status.
    pub contact: Arc<LastContact>,
    /// With older contact to a quorum a leader expires no session.
    pub contact_max: Duration,
    /// The leader's side of a report, for when that is this node.
    pub heartbeat_acks: Arc<HeartbeatAcks>,
    pub leadership: watch::Receiver<Leadership>,
    /// From this node's connections.
    pub signs: mpsc::Receiver<Sign>,
    /// The leader's contact to its quorum.
    pub quorum: QuorumContact,
    pub proposals: mpsc::Sender<TermBatch>,
    /// The way to the leader.
    pub peers: PeerPool,
    /// Whether this node has room on its disk, which the leader is to know.
    pub replica: Arc<AppliedState>,
    pub hook: Hook,
}

/// A report on its way to the leader of a term.
struct Report {
    term: u64,
    of: Collected,
    answer: Pin<Box<dyn Future<Output = TouchAnswer> + Send>>,
}

/// The leader's answer to a report.
#[derive(Default)]
struct TouchAnswer {
    noted: Option<Noted>,
    disconnected: bool,
}

/// The leader has taken note.
struct Noted {
    /// When the report was sent: then there was contact.
    sent: Instant,
    /// Sessions whose timers do not run any more.
    refused: Vec<SessionId>,
    /// Sessions per second that may move from here to the leader.
    invites_per_second: u32,
}

/// Observations since the last report.
#[derive(Default)]
struct Collected {
    sessions: BTreeSet<SessionId>,
    waiting: Vec<(SessionId, Box<dyn HeartbeatWaiter>)>,
    /// The leader is told of them behind the touches, which came before them.
    disconnects: BTreeMap<SessionId, ClientDisconnect>,
}

impl Collected {
    fn add(&mut self, sign: Sign) {
        match sign {
            Sign::Touch { session, confirm } => {
                self.sessions.insert(session);
                if let Some(waiter) = confirm {
                    self.wait(session, waiter);
                }
            }
            Sign::ClientDisconnect(disconnect) => self.disconnect(disconnect),
        }
    }

    /// Of two connections of a session the newer one counts.
    fn disconnect(&mut self, disconnect: ClientDisconnect) {
        if let Some(known) = self.disconnects.get_mut(&disconnect.session) {
            if known.attachment <= disconnect.attachment {
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

    /// A heartbeat beyond the bound stays unanswered: its client turns to another node.
    fn wait(&mut self, session: SessionId, waiter: Box<dyn HeartbeatWaiter>) {
        if self.waiting.len() < HEARTBEATS_WAITING_MAX {
            self.waiting.push((session, waiter));
        }
    }

    /// Gives the heartbeats of sessions whose timers do not run back to their connections. Either they hear
    /// of the end soon, or the leader has not applied the opening of the session yet and says otherwise next
    /// time.
    fn refuse(&mut self, refused: &[SessionId]) {
        for (_, waiter) in self.waiting.extract_if(.., |(session, _)| refused.contains(session)) {
            rare::taken(Rare::HeartbeatRefused);
            waiter.answer(false);
        }
    }

    /// Answers the waiting heartbeats that may be answered.
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
            if view.leader == Some(self.me) {
                self.lead(view, &mut last_tick, &mut stalled);
            } else {
                self.expiry_table.give_up();
            }
            // Another leader is to have the report: this one may be silent until the deadline.
            if let Some(outdated) = report.take_if(|report| report.term != view.term) {
                rare::taken(Rare::ReportOutdated);
                self.answered(outdated.of, TouchAnswer::default(), &mut collected);
            }
            let urgent = collected.is_urgent() && !last_failed && !choice::taken(Choice::ReportLate, 4);
            // Looked at on beats: half of one early is as good, and later would be a whole one late.
            let due = urgent || last_report.elapsed() + TICK / 2 >= REPORT_EVERY;
            if let (Some(leader), None, true) = (view.leader, &report, due) {
                last_report = Instant::now();
                report = Some(self.report(leader, view.term, std::mem::take(&mut collected)));
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                answer = async { report.as_mut().expect("guarded").answer.as_mut().await }, if report.is_some() => {
                    last_failed = answer.noted.is_none();
                    self.answered(report.take().expect("guarded").of, answer, &mut collected);
                }
                sign = self.signs.recv() => match sign {
                    Some(sign) => {
                        collected.add(sign);
                        while let Ok(sign) = self.signs.try_recv() {
                            collected.add(sign);
                        }
                    }
                    None => return,
                },
                () = time::sleep_about(TICK) => {}
            }
        }
    }

    /// The leader's part: starts the timers in a new term, and expires sessions while there is contact.
    fn lead(&self, view: Leadership, last_tick: &mut Instant, stalled: &mut bool) {
        if !view.ready {
            return;
        }
        if self.expiry_table.term() != Some(view.term) {
            (self.start_timers)(view.term);
            *last_tick = Instant::now();
        }
        if let Some((_, at)) = self.quorum.last() {
            self.contact.mark(at);
        }
        let in_contact = self.contact.within(self.contact_max);
        let now = Instant::now();
        *stalled |= !in_contact || now.saturating_since(*last_tick) > TICK_MISSED;
        if *stalled && in_contact {
            tracing::info!("contact to the quorum is back: every session gets its full timeout again");
            rare::taken(Rare::SessionsForgiven);
            if !mutant::is(Mutant::NobodyForgiven) {
                self.expiry_table.forgive_all(now);
            }
            *stalled = false;
        }
        *last_tick = now;
        if !*stalled {
            self.expire(now);
        }
    }

    fn expire(&self, now: Instant) {
        let Some((term, due)) = self.expiry_table.due(now) else { return };
        self.hook.tell(|hook| {
            let contact = self.contact.age().unwrap_or(Duration::MAX);
            due.iter().for_each(|(session, _)| hook.expires(*session, term, contact));
        });
        for some in due.chunks(BATCH_MAX_COMMANDS) {
            let proposals = some.iter().map(|&(session, attachment)| expiry(session, attachment)).collect();
            // With a full queue they are due again in a second.
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
            // In this order: touches are noted at the first poll, and they came before the disconnects.
            let (answer, disconnected) = futures_util::join!(touching, disconnecting);
            let noted = |refused| Noted { sent, refused, invites_per_second: 0 };
            TouchAnswer { noted: answer.ok().map(noted), disconnected }
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
        let (peers, is_short) = (self.peers.clone(), self.replica.room.are_we_short());
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
            // Both are on their way at once; the lane keeps their order, and so does the leader.
            let (answer, disconnected) = futures_util::join!(touching, disconnecting);
            let noted = match answer {
                Ok(Response::TouchesNoted { refused, invites_per_second }) => {
                    Some(Noted { sent, refused, invites_per_second })
                }
                _ => None,
            };
            TouchAnswer { noted, disconnected }
        })
    }

    fn answered(&self, reported: Collected, answer: TouchAnswer, collected: &mut Collected) {
        if let Some(Noted { sent, invites_per_second, .. }) = &answer.noted {
            self.contact.mark(*sent);
            self.replica.invitations.allow(*invites_per_second, Instant::now());
        }
        collected.answered(reported, answer);
    }
}

impl Collected {
    /// The report of these is over. What the leader has not noted is for the next one.
    fn answered(&mut self, mut reported: Collected, answer: TouchAnswer) {
        let disconnects = std::mem::take(&mut reported.disconnects);
        if !answer.disconnected {
            disconnects.into_values().for_each(|disconnect| self.disconnect(disconnect));
        }
        match answer.noted {
            Some(Noted { refused, .. }) => {
                reported.refuse(&refused);
                reported.answer();
            }
            // The next report tries again with the same sessions, whose clients are not answered yet.
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
        fn answer(&self, is_noted: bool) {
            self.send(is_noted).expect("the test listens");
        }
    }

    #[test]
    fn a_heartbeat_that_the_leader_does_not_note_goes_back_to_its_connection() {
        let mut collected = Collected::default();
        let mut heard = Vec::new();
        for session in [SessionId(1), SessionId(2)] {
            let (waiter, answers) = channel();
            collected.add(Sign::Touch { session, confirm: Some(Box::new(waiter)) });
            heard.push(answers);
        }
        collected.refuse(&[SessionId(2)]);
        collected.answer();
        assert_eq!(heard[0].iter().collect::<Vec<_>>(), [true]);
        assert_eq!(heard[1].iter().collect::<Vec<_>>(), [false]);
    }

    /// The deliberate mistake `answer-unreported`, which the simulator seldom notices: the link to the leader
    /// has to break in the moment of a report, and the cut has to outlast the session.
    #[test]
    fn a_heartbeat_whose_report_failed_waits_for_the_next_one() {
        let (waiter, answers) = channel();
        let mut reported = Collected::default();
        reported.add(Sign::Touch { session: SessionId(1), confirm: Some(Box::new(waiter)) });
        let mut collected = Collected::default();
        collected.answered(reported, TouchAnswer::default());
        assert!(answers.try_recv().is_err(), "it was answered");
        assert_eq!(collected.sessions, BTreeSet::from([SessionId(1)]));
        let noted = Noted { sent: Instant::now(), refused: Vec::new(), invites_per_second: 0 };
        Collected::default().answered(collected, TouchAnswer { noted: Some(noted), disconnected: false });
        assert_eq!(answers.try_recv(), Ok(true));
    }

    #[test]
    fn of_two_hang_ups_of_a_session_the_newer_connections_is_reported() {
        let mut collected = Collected::default();
        let of = |attachment| ClientDisconnect {
            session: SessionId(1),
            attachment: Attachment(attachment),
            grace_ms: 500,
        };
        assert!(!collected.is_urgent());
        for attachment in [1, 3, 2] {
            collected.add(Sign::ClientDisconnect(of(attachment)));
        }
        assert_eq!(collected.disconnects(), [of(3)]);
        assert!(collected.is_urgent());
    }
}
