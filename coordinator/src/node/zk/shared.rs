//! State that all connections of a node share: their context, counts, and the bounds of logs and passwords.
//!
//! Admission of new sessions, shared by all listeners of a node: ZooKeeper's protocol and locks by HTTP.
//!
//! Each host has a share: it may open a session while it has fewer than `limits.sessions_share` times the
//! number of free sessions. So a single host gets most of the sessions, and among many greedy hosts some
//! sessions are always left for the next host. The same rule divides the rate of new sessions.
//!
//! Rate limit for wrong passwords per host (superuser and SASL users), against guessing.
//!
//! A right password is always accepted from a host with an earlier success of the same user: otherwise a
//! guessing client would lock out all users behind the same proxy. So guesses are unlimited for a client that
//! shares an address with the attacked user.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{self, HOSTS_COUNTED_MAX, STATE_LOCKS_MAX, WRONG_PASSWORDS_PER_SECOND};
use parking_lot::Mutex;
use rowlock_consensus::status::Status;
use rowlock_env::decides;
use rowlock_env::rate::{self, Bucket, HandshakePace, LogLimiter, PerHost};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_sessions::SessionTouch;
use rowlock_state::{Host, Opened};

use super::end_reason::EndReason;
use super::identity::Neighbours;
use super::read_only::Isolation;
use crate::config::NodeConfig;
use crate::node::admin::{Admin, ReportSource};
use crate::node::audit::Audit;
use crate::node::context::Replica;
use crate::node::delivery::registry::{ClientConnection, Registry};
use crate::node::delivery::stats::ListenerStats;
use crate::node::proposer::Proposer;
use crate::node::slow::SlowRequests;

/// Identity that a password claims.
pub(super) enum PasswordUser<'a> {
    Superuser,
    /// User name; empty if the password is wrong.
    Sasl(&'a str),
}

impl fmt::Display for PasswordUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PasswordUser::Superuser => f.write_str("super"),
            PasswordUser::Sasl(user) => write!(f, "sasl:{user}"),
        }
    }
}

/// State that all connections share.
pub(super) struct Shared {
    pub(super) context: ClientContext,
    pub(super) stats: ListenerStats,
    pub(super) client_port: u16,
    pub(super) secure_port: u16,
    pub(super) pace: HandshakePace,
    pub(super) started_ms: i64,
    pub(super) handshake_max: Duration,
    pub(super) neighbours: Neighbours,
    pub(super) connections_log: LogLimiter,
    password_throttle: PasswordThrottle,
    passwords_log: LogLimiter,
}

impl Shared {
    pub(super) fn new(context: ClientContext) -> Self {
        Shared {
            context,
            stats: ListenerStats::default(),
            client_port: 0,
            secure_port: 0,
            pace: HandshakePace::new(limits::TLS_HANDSHAKES_PER_SECOND, limits::HOSTS_COUNTED_MAX),
            started_ms: time::wall_ms(),
            handshake_max: limits::HANDSHAKE_MAX,
            neighbours: Neighbours::default(),
            connections_log: LogLimiter::default(),
            password_throttle: PasswordThrottle::default(),
            passwords_log: LogLimiter::default(),
        }
    }

    /// Logs the end of a connection: at info, rate limited, if the client broke a rule; else at debug.
    pub(super) fn report(&self, peer: &ClientConnection, end: &EndReason) {
        let (addr, session) = (peer.addr, peer.stats.session());
        if end.is_overflow() {
            self.context.metrics.connections_overflowed_total.inc();
        }
        if end.is_fault_of_client()
            && let Some(suppressed) = self.connections_log.admit()
        {
            tracing::info!(peer = %addr, %session, reason = %end, suppressed, "client connection closed");
        } else {
            tracing::debug!(peer = %addr, %session, reason = %end, "client connection closed");
        }
    }

    /// Returns whether the attempt may be evaluated: false while its host has too many wrong passwords.
    /// Counts and logs a wrong password.
    pub(super) fn admits_password(
        &self,
        peer: &ClientConnection,
        user: &PasswordUser<'_>,
        is_right: bool,
    ) -> bool {
        let addr = peer.addr;
        let verdict = self.password_throttle.check(addr.ip(), &user.to_string(), is_right, time::now());
        if verdict == Verdict::Right {
            return true;
        }
        let metrics = &self.context.metrics;
        match user {
            PasswordUser::Superuser => metrics.super_passwords_wrong_total.inc(),
            PasswordUser::Sasl(_) => metrics.sasl_passwords_wrong_total.inc(),
        }
        if let Some(suppressed) = self.passwords_log.admit() {
            let of = if matches!(user, PasswordUser::Superuser) { "the superuser" } else { "a SASL user" };
            let often =
                if verdict == Verdict::TooMany { "too many wrong passwords" } else { "wrong password" };
            tracing::warn!(peer = %addr, session = %peer.stats.session(), suppressed, "{often} of {of}");
        }
        verdict == Verdict::Wrong
    }
}

/// Dependencies of the listener and its connections.
#[derive(Clone)]
pub struct ClientContext {
    /// The local state and its watches.
    pub replica: Arc<Replica>,
    pub proposer: Proposer,
    /// Accepts superusers' changes of the membership and operations.
    pub admin: Arc<dyn Admin>,
    pub reports: Arc<dyn ReportSource>,
    /// Admission of new sessions.
    pub new_sessions: Arc<NewSessions>,
    /// Accepts keepalives for the leader.
    pub touch: SessionTouch,
    /// Status of the node, for the decision to serve and for the four-letter words.
    pub status: watch::Receiver<Status>,
    /// Decision to serve reads without a quorum.
    pub isolation: Arc<Isolation>,
    /// Connections to notify when sessions end or move; shared with apply.
    pub registry: Arc<Registry>,
    /// Bounds of session timeouts, number of connections, words, superDigest.
    pub config: Arc<NodeConfig>,
    /// The node's audit log.
    pub audit: Audit,
    /// Reports requests above the slow limit.
    pub slow: Arc<SlowRequests>,
    pub metrics: Arc<Metrics>,
}

/// Burst in seconds of the rate: all clients of an application that restarts.
const BURST_SECONDS: u32 = 5;
/// Divisor of `limits.sessions` for the additional reserve of operators.
const RESERVE_PART: u64 = 16;
/// Minimum of that reserve.
const RESERVE_MIN: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    Client,
    /// A superuser, or a request that only operators make. Operators have a reserve beyond `limits.sessions`,
    /// and need no share.
    Operator,
    /// A client that locks the state of a program, with long silences of its session.
    StateLock,
}

pub struct NewSessions {
    rate: Mutex<Bucket>,
    of_hosts: PerHost,
}

impl NewSessions {
    /// Creates the admission with a rate of `per_second`; 0: no limit.
    pub fn new(per_second: u32) -> Self {
        let burst = per_second.saturating_mul(BURST_SECONDS).max(1);
        let of_hosts = PerHost::new(Bucket::new(per_second, u32::MAX), HOSTS_COUNTED_MAX);
        NewSessions { rate: Mutex::new(Bucket::new(per_second, burst)), of_hosts }
    }

    /// Admits one more session of a client at `addr`. Decides by this node's applied state, so that a refusal
    /// costs the cluster nothing; sessions that open at the same moment are not counted.
    ///
    /// # Errors
    /// Names the limit that is reached.
    pub(crate) fn make_room(
        &self,
        context: &ClientContext,
        addr: IpAddr,
        opener: Opener,
    ) -> Result<(), &'static str> {
        let (all, own, is_in_grace) = {
            let state = context.replica.state.read();
            (state.opened(), state.opened_by(Host::of(addr)), state.grace_ms() > 0)
        };
        let limits = &context.config.limits;
        let share = Share(limits.sessions_share);
        let verdict = room(share, limits.sessions, (all, own), opener).and_then(|()| {
            if decides!("new-session-is-in-grace", is_in_grace) {
                Err("the cluster was restored or lost power a moment ago: former clients may still believe that they hold locks")
            } else if opener == Opener::Operator {
                // A forced release frees memory.
                Ok(())
            } else if decides!("memory-refuses-sessions", context.replica.memory.is_full()) {
                Err("limits.memory_bytes is reached")
            } else if !self.is_slow_enough(share, addr, time::now()) {
                Err("client.new_sessions_per_second is reached")
            } else {
                Ok(())
            }
        });
        if verdict.is_err() {
            context.metrics.sessions_refused_total.inc();
        }
        verdict
    }

    fn is_slow_enough(&self, share: Share, addr: IpAddr, now: Instant) -> bool {
        let mut rate = self.rate.lock();
        self.of_hosts.with(addr, now, |own| {
            let has_share = share.allows(own.missing(now).into(), rate.left(now).into());
            has_share && rate.take(now) && own.take(now)
        })
    }
}

/// Ratio of a host's sessions to the free ones, at most; 0: no limit.
#[derive(Clone, Copy)]
struct Share(u64);

impl Share {
    fn allows(self, own: u64, left: u64) -> bool {
        left > 0 && (self.0 == 0 || own < left.saturating_mul(self.0))
    }
}

/// Decides whether the number of open sessions permits another session. `most` 0: no limit but that of state
/// locks.
fn room(share: Share, most: u64, (all, own): (Opened, Opened), opener: Opener) -> Result<(), &'static str> {
    let lasting_most = if most == 0 { STATE_LOCKS_MAX } else { (most / 4).clamp(1, STATE_LOCKS_MAX) };
    let lasting_left = lasting_most.saturating_sub(all.lasting);
    if opener == Opener::StateLock && !share.allows(own.lasting, lasting_left) {
        return Err("as many state locks are held as may be, or this address has its share of them");
    }
    let left = most.saturating_sub(all.sessions);
    match opener {
        _ if most == 0 => Ok(()),
        Opener::Operator => {
            let reserve = (most / RESERVE_PART).max(RESERVE_MIN);
            let has_room = all.sessions < most.saturating_add(reserve);
            if has_room { Ok(()) } else { Err("limits.sessions is reached") }
        }
        _ if left == 0 => Err("limits.sessions is reached"),
        _ if share.allows(own.sessions, left) => Ok(()),
        _ => Err("this address has its share of limits.sessions (limits.sessions_share)"),
    }
}

/// Result of a password check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong,
    /// Too many wrong passwords from this host; the result does not reveal whether the password was right.
    TooMany,
}

/// Hosts with recent wrong passwords, and users with a success.
#[derive(Debug)]
pub(crate) struct PasswordThrottle {
    wrong: PerHost,
    /// Host and user of each success.
    proven: Mutex<BTreeSet<(IpAddr, String)>>,
}

impl Default for PasswordThrottle {
    fn default() -> Self {
        let bucket = Bucket::new(WRONG_PASSWORDS_PER_SECOND, WRONG_PASSWORDS_PER_SECOND);
        PasswordThrottle { wrong: PerHost::new(bucket, HOSTS_COUNTED_MAX), proven: Mutex::default() }
    }
}

impl PasswordThrottle {
    /// Returns the result of an attempt for the client. A wrong password counts against the host.
    pub(crate) fn check(&self, addr: IpAddr, user: &str, is_right: bool, now: Instant) -> Verdict {
        let key = (rate::host(addr), user.to_owned());
        if is_right && self.proven.lock().contains(&key) {
            return Verdict::Right;
        }
        let counts = self
            .wrong
            .with(addr, now, |bucket| if is_right { bucket.left(now) > 0 } else { bucket.take(now) });
        match (counts, is_right) {
            (false, _) => Verdict::TooMany,
            (true, false) => Verdict::Wrong,
            (true, true) => {
                let mut proven = self.proven.lock();
                if proven.len() >= HOSTS_COUNTED_MAX {
                    proven.pop_first();
                }
                proven.insert(key);
                Verdict::Right
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns how many sessions each host gets if all hosts take as many as they can, in turns.
    fn taken(share: u64, most: u64, opener: Opener, hosts: usize) -> Vec<u64> {
        let (mut all, mut own) = (Opened::default(), vec![Opened::default(); hosts]);
        let lasting = u64::from(opener == Opener::StateLock);
        loop {
            let before = all;
            for of_host in &mut own {
                if room(Share(share), most, (all, *of_host), opener).is_ok() {
                    for counts in [&mut all, of_host] {
                        counts.sessions += 1;
                        counts.lasting += lasting;
                    }
                }
            }
            if all == before {
                return own.into_iter().map(|counts| counts.sessions).collect();
            }
        }
    }

    #[test]
    fn greedy_hosts_leave_a_session_for_the_next_one() {
        assert_eq!(taken(4, 100_000, Opener::Client, 1), [80_000]);
        assert_eq!(taken(4, 100_000, Opener::Client, 2), [44_445, 44_444]);
        for hosts in [1, 2, 10, 1_000] {
            let all: u64 = taken(4, 100_000, Opener::Client, hosts).iter().sum();
            assert!(all < 100_000, "{hosts} hosts have {all}");
        }
        assert_eq!(taken(0, 100, Opener::Client, 1), [100], "without shares");
    }

    #[test]
    fn state_locks_leave_most_sessions_and_are_shared_by_hosts() {
        assert_eq!(taken(4, 100_000, Opener::StateLock, 1), [20_000]);
        assert_eq!(taken(0, 100_000, Opener::StateLock, 1), [25_000]);
        assert_eq!(taken(0, 0, Opener::StateLock, 1), [STATE_LOCKS_MAX]);
    }

    #[test]
    fn operators_have_a_reserve_when_all_sessions_are_taken() {
        let full = Opened { sessions: 100, lasting: 0 };
        assert!(room(Share(0), 100, (full, full), Opener::Client).is_err());
        assert!(room(Share(4), 100, (full, full), Opener::Operator).is_ok());
        let no_reserve = Opened { sessions: 116, lasting: 0 };
        assert!(room(Share(4), 100, (no_reserve, full), Opener::Operator).is_err());
    }

    #[test]
    fn a_greedy_host_leaves_some_of_the_rate_to_others() {
        let (sessions, begin) = (NewSessions::new(100), Instant::now());
        let [greedy, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut opened = 0;
        for ms in 0..20_000 {
            let now = begin + std::time::Duration::from_millis(ms);
            opened += (0..5).filter(|_| sessions.is_slow_enough(Share(4), greedy, now)).count();
            if ms % 100 == 99 {
                assert!(sessions.is_slow_enough(Share(4), other, now), "after {ms} ms");
            }
        }
        assert!((2_000..2_400).contains(&opened), "{opened}: a burst of 400, and the rest of the rate");
    }

    #[test]
    fn guessing_host_locks_out_itself_but_no_proven_user() {
        let (throttle, now) = (PasswordThrottle::default(), Instant::now());
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!(throttle.check(here, "super", true, now), Verdict::Right);
        for _ in 0..WRONG_PASSWORDS_PER_SECOND {
            assert_eq!(throttle.check(here, "super", false, now), Verdict::Wrong);
        }
        assert_eq!(throttle.check(here, "super", false, now), Verdict::TooMany);
        assert_eq!(throttle.check(here, "super", true, now), Verdict::Right, "as before");
        assert_eq!(throttle.check(here, "bob", true, now), Verdict::TooMany, "it may be a guess");
        assert_eq!(throttle.check(there, "bob", true, now), Verdict::Right);
        assert_eq!(throttle.check(here, "bob", true, now + Duration::from_secs(1)), Verdict::Right);
    }

    #[test]
    fn proven_users_are_bounded() {
        let (throttle, now) = (PasswordThrottle::default(), Instant::now());
        for n in 0..2 * HOSTS_COUNTED_MAX as u32 {
            assert_eq!(throttle.check(IpAddr::from(n.to_be_bytes()), "super", true, now), Verdict::Right);
        }
        assert_eq!(throttle.proven.lock().len(), HOSTS_COUNTED_MAX);
    }
}
