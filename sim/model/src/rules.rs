//! What no event in a session's life may do, judged event by event. The state space and the simulator use
//! the same [`Judge`], one in ticks, the other in nanoseconds of true time.

use std::collections::BTreeMap;
use std::fmt;

/// A moment or a time of true time, in any unit.
pub type Time = u64;

/// An event at a moment that the judge is told beside it. Moments in it are not later than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log opened a session, or moved it to another connection.
    Opened { session: i64, timeout: Time },
    /// The log ended a session. Whatever lock it held is granted to the next from now on.
    Ended { session: i64, is_expired: bool },
    /// The session may end at once when its connection is gone: it is not judged by time.
    Graced { session: i64 },
    /// The node leads the term from now on.
    Leads { node: u64, term: u64 },
    /// The node leads no term any more.
    Stopped { node: u64 },
    /// The node's process continues after a stall that is long enough for it to notice.
    Resumed { node: u64 },
    /// A leader believes that a quorum has acknowledged a request that it sent at `since`.
    Contact { node: u64, term: u64, since: Time },
    /// A leader answers a heartbeat: it restarted the timer at `touched` or later, by `touched_by`, and a
    /// quorum has acknowledged a request that it sent at `since`.
    Confirms { session: i64, touched: Time, touched_by: Time, since: Time },
    /// A leader decides that the session's time has passed; its contact to a quorum is of `contact`.
    Expires { node: u64, term: u64, session: i64, contact: Time },
    /// The client is sure of its session until `until`, because of a request sent at `sent`.
    Assured { session: i64, sent: Time, until: Time },
    /// The client acts in the belief that its session lives.
    Believes { session: i64 },
}

/// What may not happen.
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
    /// The rule as a sentence.
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

/// A rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    pub rule: Rule,
    /// The moment by which the event was judged.
    pub by: Time,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())
    }
}

/// What the rules may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// What is left of a timeout on the fastest clock of a leader, in percent. `None`: clocks have no bound,
    /// and nothing is judged by time.
    pub timeout_percent: Option<u64>,
    /// A leader with older contact to its quorum expires no session.
    pub contact: Time,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Session {
    timeout: Time,
    /// When its timer was certainly restarted.
    touched: Time,
    /// By when it certainly was, the last time.
    noted: Time,
    /// Until when its client is sure of it, at least.
    until: Time,
    /// The leader that has decided on its end, and the term.
    decided: Option<(u64, u64)>,
    is_graced: bool,
    is_expired: bool,
}

/// Judges one cluster. A broken rule is reported once; judging may go on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Judge {
    bounds: Bounds,
    sessions: BTreeMap<i64, Session>,
    /// By node: the term that it leads, and since when no timer of it has been running.
    leads: BTreeMap<u64, (u64, Time)>,
    /// By term: when a leader of it was first seen.
    elected: BTreeMap<u64, Time>,
}

impl Judge {
    /// Of a cluster without sessions.
    pub fn new(bounds: Bounds) -> Self {
        let (sessions, leads, elected) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Judge { bounds, sessions, leads, elected }
    }

    /// Judges an event that happens `now`.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn observe(&mut self, now: Time, event: Event) -> Result<(), Broken> {
        match event {
            Event::Opened { session, timeout } => {
                let known = self.sessions.entry(session).or_default();
                (known.timeout, known.touched, known.noted, known.decided) = (timeout, now, now, None);
            }
            Event::Ended { session, is_expired } => return self.ended(now, session, is_expired),
            Event::Graced { session } => {
                self.sessions.entry(session).or_default().is_graced = true;
            }
            Event::Leads { node, term } => {
                // What an earlier leader decides does not count, whenever it is.
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
        // With a leader of a later term it cannot enter the log. If it did after all, no leader has decided.
        if self.elected.range(by.1 + 1..).next().is_some() {
            return Ok(());
        }
        let Some(known) = self.sessions.get_mut(&session).filter(|known| !known.is_expired) else {
            return Ok(());
        };
        // Decided before, and proposed again because the log does not say so yet.
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

    fn ended(&mut self, now: Time, session: i64, is_expired: bool) -> Result<(), Broken> {
        let known = self.sessions.remove(&session).unwrap_or_default();
        if !is_expired {
            return Ok(());
        }
        let Session { until, is_graced, .. } = known;
        self.sessions.insert(session, Session { is_graced, is_expired, ..Session::default() });
        if known.decided.is_none() {
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

    /// Moves everything known into the past by one tick, where `now` stays the present: what is further back
    /// than moments reach counts as equally long ago.
    pub fn pass(&mut self, now: Time) {
        for known in self.sessions.values_mut() {
            known.touched = known.touched.saturating_sub(1);
            known.noted = known.noted.saturating_sub(1);
            // What is over is over.
            known.until = if known.until > now + 1 { known.until - 1 } else { 0 };
        }
        let since = self.leads.values_mut().map(|(_, since)| since);
        since.chain(self.elected.values_mut()).for_each(|moment| *moment = moment.saturating_sub(1));
    }

    /// Only one node leads, by its own account too: when it was elected matters no more.
    pub fn forget_elections(&mut self) {
        self.elected.values_mut().for_each(|moment| *moment = 0);
    }
}

fn broken(rule: Rule, by: Time) -> Result<(), Broken> {
    Err(Broken { rule, by })
}
