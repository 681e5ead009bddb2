//! What a node tells the service manager that started it (systemd's sd_notify protocol): that it listens,
//! what it is, that it reads files again, that it lives, that it stops. Without `NOTIFY_SOCKET` nothing is
//! said.
//!
//! Must never hold the node up: messages that the socket does not take at once are dropped.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rowlock_coordinator::node::{Node, Vitals};
use rowlock_coordinator::{Role, Status};
use rowlock_env::time::{self, Instant};

/// How often the node is looked at, at least.
const LOOK: Duration = Duration::from_secs(1);

/// The way to the service manager.
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// `WatchdogSec`, if it is meant for this process.
    watchdog: Option<Watchdog>,
    said: String,
}

impl Manager {
    /// As the environment says it.
    pub fn from_env() -> Manager {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let socket = var("NOTIFY_SOCKET").and_then(|name| {
            // What cannot be reached at the start will not be later.
            let address = address(&name)?;
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        let number = |name: &str| var(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let timeout = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        let watchdog = timeout.filter(|_| socket.is_some()).map(Watchdog::new);
        Manager { socket, watchdog, said: String::new() }
    }

    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The node looks at files again; [`Manager::ready`] follows.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// The node stops in order.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stops");
    }

    /// Tells what the node is whenever that changes, and feeds the watchdog while the node makes progress.
    /// Runs until it is dropped.
    pub async fn accompany(&mut self, node: &Node) {
        if self.socket.is_none() {
            return std::future::pending().await;
        }
        let every = self.watchdog.as_ref().map_or(LOOK, |watchdog| LOOK.min(watchdog.timeout / 4));
        loop {
            let status = words(&node.status().borrow());
            if status != self.said {
                self.tell(&format!("STATUS={status}"));
                self.said = status;
            }
            let lives = self.watchdog.as_mut().map(|watchdog| watchdog.lives(time::now(), node.vitals()));
            if lives == Some(true) {
                self.tell("WATCHDOG=1");
            }
            time::sleep(every).await;
        }
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, message, "the service manager was not told");
        }
    }
}

/// A path, or an abstract name where it begins with `@`.
fn address(name: &OsStr) -> Option<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(name).ok(),
        _ => None,
    }
}

/// `leader, term 7`, as `systemctl status` shows it.
fn words(status: &Status) -> String {
    let role = match (status.role, status.leader) {
        (Role::Leader, _) => "leader".to_owned(),
        (Role::Learner, _) => "learner".to_owned(),
        (Role::Follower, Some(leader)) => format!("follower of node {leader}"),
        (Role::Follower | Role::Candidate, _) => "no leader".to_owned(),
    };
    let serves = if status.serving { "" } else { ", serves no clients" };
    format!("{role}, term {}{serves}", status.term)
}

/// Whether the node lives. A node without a quorum lives; one whose tasks stand still, or that applies
/// nothing of what is committed, does not.
struct Watchdog {
    timeout: Duration,
    seen: Option<Seen>,
}

struct Seen {
    vitals: Vitals,
    /// When the node's tasks last moved.
    moved: Instant,
    /// When it last applied something, or had nothing to apply.
    applied: Instant,
}

impl Watchdog {
    fn new(timeout: Duration) -> Watchdog {
        Watchdog { timeout, seen: None }
    }

    /// Half of the timeout without progress is the end: the other half passes unfed.
    fn lives(&mut self, now: Instant, vitals: Vitals) -> bool {
        let patience = self.timeout / 2;
        let seen = self.seen.get_or_insert(Seen { vitals, moved: now, applied: now });
        if vitals.rounds != seen.vitals.rounds {
            seen.moved = now;
        }
        if vitals.applied != seen.vitals.applied || vitals.applied >= vitals.committed {
            seen.applied = now;
        }
        seen.vitals = vitals;
        now.saturating_since(seen.moved) < patience && now.saturating_since(seen.applied) < patience
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::NodeId;

    use super::*;

    #[test]
    fn the_watchdog_starves_when_tasks_stand_still_or_nothing_committed_is_applied() {
        let begin = time::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(20));
        let mut lives = |s: u64, rounds, applied, committed| {
            watchdog.lives(begin + Duration::from_secs(s), Vitals { rounds, applied, committed })
        };
        assert!(lives(0, 1, 5, 5));
        assert!(lives(60, 2, 5, 5), "an idle node, or one without a quorum, lives");
        assert!(lives(69, 2, 5, 5), "a late round is none that never comes");
        assert!(!lives(70, 2, 5, 5), "no round for ten seconds");
        assert!(lives(71, 3, 5, 9));
        assert!(lives(79, 4, 5, 9));
        assert!(!lives(80, 5, 5, 9), "it applies nothing of what is committed");
        assert!(lives(81, 6, 6, 9));
        assert!(lives(90, 7, 7, 90), "slow is not stuck");
    }

    #[test]
    fn the_status_says_who_leads_and_whether_clients_are_served() {
        let leader = Status { role: Role::Leader, term: 7, serving: true, ..Status::default() };
        assert_eq!(words(&leader), "leader, term 7");
        let alone = Status { role: Role::Follower, leader: None, serving: false, ..leader.clone() };
        assert_eq!(words(&alone), "no leader, term 7, serves no clients");
        let follower = Status { role: Role::Follower, leader: Some(NodeId(2)), ..leader };
        assert_eq!(words(&follower), "follower of node 2, term 7");
    }

    #[test]
    fn sockets_are_paths_and_abstract_names() {
        assert!(address(OsStr::new("/run/systemd/notify")).is_some_and(|a| a.as_pathname().is_some()));
        let name = address(OsStr::new("@name")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"name"[..]));
        assert!(address(OsStr::new("vsock:2:1")).is_none());
    }
}
