//! Notifications to the service manager (systemd's sd_notify protocol): the node listens, its status,
//! reloads, progress, stops. Without `NOTIFY_SOCKET` nothing is sent.
//!
//! Must never block the node: a message is dropped if the socket does not accept it at once.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rowlock_coordinator::node::{Node, Vitals};
use rowlock_coordinator::{Role, Status};
use rowlock_env::time::{self, Instant};

/// Longest interval between two checks of the node.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// `WatchdogSec`, if meant for this process.
    watchdog: Option<Watchdog>,
    last_status: String,
}

impl Manager {
    /// Reads socket and watchdog from the environment.
    pub fn from_env() -> Manager {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let socket = var("NOTIFY_SOCKET").and_then(|name| {
            // A socket that cannot be reached at the start stays unreachable.
            let address = address(&name)?;
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        let number = |name: &str| var(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let timeout = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        let watchdog = timeout.filter(|_| socket.is_some()).map(Watchdog::new);
        Manager { socket, watchdog, last_status: String::new() }
    }

    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that the node checks its files again; [`Manager::ready`] follows.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    pub fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=stops");
    }

    /// Sends the node's status on every change, and feeds the watchdog while the node makes progress. Runs
    /// until dropped.
    pub async fn keep_notified(&mut self, node: &Node) {
        if self.socket.is_none() {
            return std::future::pending().await;
        }
        let every = self
            .watchdog
            .as_ref()
            .map_or(CHECK_INTERVAL, |watchdog| CHECK_INTERVAL.min(watchdog.timeout / 4));
        loop {
            let status = status_line(&node.status().borrow());
            if status != self.last_status {
                self.notify(&format!("STATUS={status}"));
                self.last_status = status;
            }
            let alive = self.watchdog.as_mut().map(|watchdog| watchdog.is_alive(time::now(), node.vitals()));
            if alive == Some(true) {
                self.notify("WATCHDOG=1");
            }
            time::sleep(every).await;
        }
    }

    fn notify(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, message, "cannot notify the service manager");
        }
    }
}

/// Parses a path, or an abstract name after `@`.
fn address(name: &OsStr) -> Option<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(name).ok(),
        _ => None,
    }
}

/// Returns the status line of `systemctl status`, such as `leader, term 7`.
fn status_line(status: &Status) -> String {
    let role = match (status.role, status.leader) {
        (Role::Leader, _) => "leader".to_owned(),
        (Role::Learner, _) => "learner".to_owned(),
        (Role::Follower, Some(leader)) => format!("follower of node {leader}"),
        (Role::Follower | Role::Candidate, _) => "no leader".to_owned(),
    };
    let serves = if status.serving { "" } else { ", serves no clients" };
    format!("{role}, term {}{serves}", status.term)
}

/// Detector of a stuck node. A node without a quorum is alive; a node whose tasks stand still, or that
/// applies no committed entries, is stuck.
struct Watchdog {
    timeout: Duration,
    seen: Option<LastProgress>,
}

struct LastProgress {
    vitals: Vitals,
    /// Time of the last progress of the node's tasks.
    moved: Instant,
    /// Time of the last applied entry, or of the last check without entries to apply.
    applied: Instant,
}

impl Watchdog {
    fn new(timeout: Duration) -> Watchdog {
        Watchdog { timeout, seen: None }
    }

    /// Returns false after half of the timeout without progress: the manager acts after the other half.
    fn is_alive(&mut self, now: Instant, vitals: Vitals) -> bool {
        let patience = self.timeout / 2;
        let seen = self.seen.get_or_insert(LastProgress { vitals, moved: now, applied: now });
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
    fn the_watchdog_starves_if_tasks_stop_or_entries_stay_unapplied() {
        let begin = time::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(20));
        let mut lives = |s: u64, rounds, applied, committed| {
            watchdog.is_alive(begin + Duration::from_secs(s), Vitals { rounds, applied, committed })
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
    fn the_status_names_the_leader_and_the_serving_state() {
        let leader = Status { role: Role::Leader, term: 7, serving: true, ..Status::default() };
        assert_eq!(status_line(&leader), "leader, term 7");
        let alone = Status { role: Role::Follower, leader: None, serving: false, ..leader.clone() };
        assert_eq!(status_line(&alone), "no leader, term 7, serves no clients");
        let follower = Status { role: Role::Follower, leader: Some(NodeId(2)), ..leader };
        assert_eq!(status_line(&follower), "follower of node 2, term 7");
    }

    #[test]
    fn sockets_are_paths_and_abstract_names() {
        assert!(address(OsStr::new("/run/systemd/notify")).is_some_and(|a| a.as_pathname().is_some()));
        let name = address(OsStr::new("@name")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"name"[..]));
        assert!(address(OsStr::new("vsock:2:1")).is_none());
    }
}
