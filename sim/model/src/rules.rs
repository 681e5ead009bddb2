//! Forbidden events in a session's life. The state space and the simulator use the same [`RuleChecker`], one
//! in ticks, the other in nanoseconds of true time.

use std::collections::BTreeMap;
use std::fmt;

/// Moment or duration of true time, in any unit.
pub type Time = u64;

/// Event of a cluster or a client. Moments in an event are not later than the event itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log opened a session, or moved the session to another connection.
    Opened { session: i64, timeout: Time },
    /// The log ended a session, by an entry of this term, if known. The log grants the session's locks to
    /// their next waiters from now on.
    Ended { session: i64, is_expired: bool, term: Option<u64> },
    /// The session may end at once after its connection is gone: the rules of time do not apply.
    Graced { session: i64 },
    /// The node leads the term from now on.
    Leads { node: u64, term: u64 },
    /// The node leads no term any more.
    Stopped { node: u64 },
    /// The node's process continues after a stall of noticeable length.
    Resumed { node: u64 },
    /// A leader believes that a quorum has acknowledged a request of the leader, sent at `since`.
    Contact { node: u64, term: u64, since: Time },
    /// A leader answers a keepalive: the leader restarted the timer at `touched` or later, by `touched_by`,
    /// and a quorum has acknowledged a request that the leader sent at `since`.
    Confirms { session: i64, touched: Time, touched_by: Time, since: Time },
    /// A leader decides that the session has timed out; the leader's contact to a quorum is of `contact`.
    Expires { node: u64, term: u64, session: i64, contact: Time },
    /// The client is sure of its session until `until`, because of a request sent at `sent`.
    Assured { session: i64, sent: Time, until: Time },
    /// The client acts in the belief of a live session.
    Believes { session: i64 },
}

impl Event {
    /// Names of the kinds, for counts.
    pub const KINDS: [&'static str; 11] = [
        "opened", "ended", "graced", "leads", "stopped", "resumed", "contact", "confirms", "expires",
        "assured", "believes",
    ];

    /// Returns the index of the event's kind in [`Event::KINDS`].
    pub const fn kind(&self) -> usize {
        match self {
            Event::Opened { .. } => 0,
            Event::Ended { .. } => 1,
            Event::Graced { .. } => 2,
            Event::Leads { .. } => 3,
            Event::Stopped { .. } => 4,
            Event::Resumed { .. } => 5,
            Event::Contact { .. } => 6,
            Event::Confirms { .. } => 7,
            Event::Expires { .. } => 8,
            Event::Assured { .. } => 9,
            Event::Believes { .. } => 10,
        }
    }
}

/// Rule for all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    LeadersExpire,
    WholeTimeout,
    AnswersCount,
    ContactFirst,
    ConfirmedByALeader,
    DecidedFirst,
    AssuredIsKept,
    NoBeliefInTheExpired,
}

impl Rule {
    /// Returns the rule as a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::LeadersExpire => "only a leader expires a session",
            Rule::WholeTimeout => "a session has its whole timeout after a touch, an election and a stall",
            Rule::AnswersCount => "no quorum acknowledges a leader after a later one was elected",
            Rule::ContactFirst => "a leader without contact to a quorum neither confirms nor expires",
            Rule::ConfirmedByALeader => {
                "a client is assured only by requests that a leader has noted after they were sent"
            }
            Rule::DecidedFirst => "a session expires only if a leader has decided so",
            Rule::AssuredIsKept => "no session expires while its client is assured of it",
            Rule::NoBeliefInTheExpired => "no client believes in a session that has expired",
        }
    }
}

/// Violation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    pub rule: Rule,
    /// Moment behind the verdict.
    pub by: Time,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())
    }
}

/// Assumptions of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Remainder of a timeout on the fastest clock of a leader, in percent. `None`: clocks have no bound, and
    /// the rules of time do not apply.
    pub timeout_percent: Option<u64>,
    /// A leader with older contact to its quorum expires no session.
    pub contact: Time,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Session {
    timeout: Time,
    /// Certain time of the timer's last restart.
    touched: Time,
    /// Time by which the leader had certainly restarted the timer.
    noted: Time,
    /// Least time until which the client is sure of the session.
    until: Time,
    /// Node and term of the leader with a decision on the session's end.
    decided: Option<(u64, u64)>,
    /// Term of a leader that decided on the end after the election of a later leader.
    decided_late: Option<u64>,
    is_graced: bool,
    is_expired: bool,
}

/// Checker of one cluster. The checker reports each violation once and can continue after a violation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleChecker {
    bounds: Bounds,
    sessions: BTreeMap<i64, Session>,
    /// Term of each leading node, and the time since when none of its timers has been running.
    leads: BTreeMap<u64, (u64, Time)>,
    /// Time of the first leader of each term.
    elected: BTreeMap<u64, Time>,
}

impl RuleChecker {
    /// Creates the checker of a cluster without sessions.
    pub fn new(bounds: Bounds) -> Self {
        let (sessions, leads, elected) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        RuleChecker { bounds, sessions, leads, elected }
    }

    /// Checks an event that happens `now`.
    ///
    /// # Errors
    /// The broken rule.
    pub fn observe(&mut self, now: Time, event: Event) -> Result<(), Broken> {
        match event {
            Event::Opened { session, timeout } => {
                let known = self.sessions.entry(session).or_default();
                (known.timeout, known.touched, known.noted) = (timeout, now, now);
                (known.decided, known.decided_late) = (None, None);
            }
            Event::Ended { session, is_expired, term } => return self.ended(now, session, is_expired, term),
            Event::Graced { session } => {
                self.sessions.entry(session).or_default().is_graced = true;
            }
            Event::Leads { node, term } => {
                // Decisions of an earlier leader have no effect, whenever the leader makes them.
                let earlier = self.leads.values_mut().filter(|(leads, _)| *leads < term);
                earlier.for_each(|(_, since)| *since = 0);
                self.leads.insert(node, (term, now));
                self.elected.entry(term).or_insert(now);
            }
            Event::Stopped { node } => {
                self.leads.remove(&node);
            }
            Event::Resumed { node } => {
                if let Some((_, since)) = self.leads.get_mut(&node) {
                    *since = now;
                }
            }
            Event::Contact { term, since, .. } => {
                let later = self.elected.range(term + 1..).find(|(_, elected)| **elected < since);
                if let Some((_, elected)) = later.filter(|_| self.bounds.timeout_percent.is_some()) {
                    return broken(Rule::AnswersCount, *elected);
                }
            }
            Event::Confirms { session, touched, touched_by, since } => {
                if let Some(known) = self.sessions.get_mut(&session) {
                    known.touched = known.touched.max(touched);
                    known.noted = known.noted.max(touched_by);
                }
                if since < touched {
                    return broken(Rule::ContactFirst, since);
                }
            }
            Event::Expires { node, term, session, contact } => {
                return self.expires(now, (node, term), session, contact);
            }
            Event::Assured { session, sent, until } => return self.assured(session, sent, until),
            Event::Believes { session } => return self.believes(session),
        }
        Ok(())
    }

    fn expires(&mut self, now: Time, by: (u64, u64), session: i64, contact: Time) -> Result<(), Broken> {
        let Some((_, leads)) = self.leads.get(&by.0).filter(|(term, _)| *term == by.1) else {
            return broken(Rule::LeadersExpire, now);
        };
        let Some(known) = self.sessions.get_mut(&session).filter(|known| !known.is_expired) else {
            return Ok(());
        };
        // A later leader keeps the decision out of the log, unless that leader fails before its first commit:
        // then the entry of the earlier leader may still end the session.
        if self.elected.range(by.1 + 1..).next().is_some() {
            known.decided_late = Some(by.1);
            return Ok(());
        }
        // The leader proposes its decision again, because the log does not have the end yet.
        if known.decided.replace(by) == Some(by) {
            return Ok(());
        }
        let Some(percent) = self.bounds.timeout_percent else { return Ok(()) };
        if contact + self.bounds.contact < now {
            return broken(Rule::ContactFirst, contact);
        }
        let since = known.touched.max(*leads);
        if !known.is_graced && now < since + known.timeout * percent / 100 {
            return broken(Rule::WholeTimeout, since);
        }
        Ok(())
    }

    fn ended(&mut self, now: Time, session: i64, is_expired: bool, term: Option<u64>) -> Result<(), Broken> {
        let known = self.sessions.remove(&session).unwrap_or_default();
        if !is_expired {
            return Ok(());
        }
        let Session { until, is_graced, .. } = known;
        self.sessions.insert(session, Session { is_graced, is_expired, ..Session::default() });
        if known.decided.is_none() && (term.is_none() || known.decided_late != term) {
            return broken(Rule::DecidedFirst, now);
        }
        if now < until && !is_graced && self.bounds.timeout_percent.is_some() {
            return broken(Rule::AssuredIsKept, until);
        }
        Ok(())
    }

    fn assured(&mut self, session: i64, sent: Time, until: Time) -> Result<(), Broken> {
        self.believes(session)?;
        let Some(known) = self.sessions.get_mut(&session).filter(|known| !known.is_expired) else {
            return Ok(());
        };
        known.until = until;
        if sent > known.noted && self.bounds.timeout_percent.is_some() {
            return broken(Rule::ConfirmedByALeader, known.noted);
        }
        Ok(())
    }

    fn believes(&self, session: i64) -> Result<(), Broken> {
        let known = self.sessions.get(&session).filter(|known| known.is_expired && !known.is_graced);
        match known.filter(|_| self.bounds.timeout_percent.is_some()) {
            Some(known) => broken(Rule::NoBeliefInTheExpired, known.noted),
            None => Ok(()),
        }
    }

    /// Ages everything known by one tick, while `now` stays the present: moments beyond the range count as
    /// equally long ago.
    pub fn pass(&mut self, now: Time) {
        for known in self.sessions.values_mut() {
            known.touched = known.touched.saturating_sub(1);
            known.noted = known.noted.saturating_sub(1);
            // A past deadline stays past.
            known.until = if known.until > now + 1 { known.until - 1 } else { 0 };
        }
        let since = self.leads.values_mut().map(|(_, since)| since);
        since.chain(self.elected.values_mut()).for_each(|moment| *moment = moment.saturating_sub(1));
    }

    /// Forgets the elections' times: with a single leader the times matter no more.
    pub fn forget_elections(&mut self) {
        self.elected.values_mut().for_each(|moment| *moment = 0);
    }
}

fn broken(rule: Rule, by: Time) -> Result<(), Broken> {
    Err(Broken { rule, by })
}
