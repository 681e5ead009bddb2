//! A node under a service manager (systemd's sd_notify protocol), and `rowlock health`.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Child;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::support::command::{finish, rowlock, run};
use crate::support::{cluster, one_node, secs};

/// The manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    fn listen(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(secs(20))).unwrap();
        Manager(socket)
    }

    /// Waits for the first message with such a line.
    fn until(&self, what: &str) -> String {
        let begun = Instant::now();
        let mut message = [0; 4096];
        loop {
            let length = self.0.recv(&mut message).unwrap_or_else(|e| panic!("{what}: {e}"));
            let message = String::from_utf8_lossy(&message[..length]).into_owned();
            if message.lines().any(|line| line.starts_with(what)) {
                return message;
            }
            assert!(begun.elapsed() < secs(20), "{what} does not come, but {message}");
        }
    }
}

fn serve(folder: &Path, socket: &str, watchdog_pid: Option<u32>) -> Child {
    let mut command = rowlock(folder, &["serve", "--node", "1", "--data", "data"]);
    command.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", "2000000");
    if let Some(pid) = watchdog_pid {
        command.env("WATCHDOG_PID", pid.to_string());
    }
    command.spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_its_service_manager_what_it_is_and_that_it_lives() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let http = one_node(folder.path(), "");
    let socket = folder.path().join("notify");
    let manager = Manager::listen(&socket);
    tokio::task::block_in_place(|| {
        let child = serve(folder.path(), socket.to_str().unwrap(), None);
        manager.until("READY=1");
        manager.until("STATUS=leader, term 1");
        for _ in 0..3 {
            manager.until("WATCHDOG=1");
        }
        let healthy = run(folder.path(), &["health", "--node", "1"]);
        assert_eq!((healthy.code, healthy.out.as_str()), (0, "ready\n"), "{}", healthy.err);
        let alive = run(folder.path(), &["health", "--live", "--http", &http]);
        assert_eq!((alive.code, alive.out.as_str()), (0, "ok\n"), "{}", alive.err);

        let before = clock_gettime(ClockId::Monotonic).tv_sec;
        signal(&child, Signal::HUP);
        let reloading = manager.until("RELOADING=1");
        let usec = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
        let seconds = usec.parse::<i64>().unwrap() / 1_000_000;
        assert!(seconds >= before && seconds <= clock_gettime(ClockId::Monotonic).tv_sec, "{reloading}");
        manager.until("READY=1");

        signal(&child, Signal::TERM);
        manager.until("STOPPING=1");
        assert_eq!(finish(child).code, 0);
        let gone = run(folder.path(), &["health"]);
        assert_eq!(gone.code, 69, "{}", gone.err);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_is_not_healthy_and_still_alive_and_feeds_no_watchdog_of_others() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let http = one_node(folder.path(), "");
    // Another voter that never comes.
    let file = folder.path().join("cluster.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    for id in 2..=3 {
        let addresses = ["client", "peer", "http"].map(|of| (of, crate::support::ports::address()));
        text.push_str(&format!("[[node]]\nid = {id}\n"));
        addresses.iter().for_each(|(of, address)| text.push_str(&format!("{of} = \"{address}\"\n")));
    }
    std::fs::write(&file, text).unwrap();
    let socket = folder.path().join("notify");
    let manager = Manager::listen(&socket);
    tokio::task::block_in_place(|| {
        let child = serve(folder.path(), socket.to_str().unwrap(), Some(1));
        manager.until("READY=1");
        assert!(manager.until("STATUS=").contains("serves no clients"));
        let alive = run(folder.path(), &["health", "--live", "--node", "1"]);
        assert_eq!(alive.code, 0, "{}", alive.err);
        let unhealthy = run(folder.path(), &["health", "--http", &http]);
        assert_eq!(unhealthy.code, 1, "{}", unhealthy.err);
        assert!(unhealthy.err.contains("quorum") || unhealthy.err.contains("leader"), "{}", unhealthy.err);
        // Nothing else comes than a new status.
        manager.0.set_read_timeout(Some(secs(2))).unwrap();
        let mut message = [0; 4096];
        while let Ok(length) = manager.0.recv(&mut message) {
            let message = String::from_utf8_lossy(&message[..length]);
            assert!(message.starts_with("STATUS="), "{message}");
        }
        signal(&child, Signal::TERM);
        assert_eq!(finish(child).code, 0);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_stopped_feeds_no_watchdog_and_ends_by_the_managers_signal() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    one_node(folder.path(), "");
    let socket = folder.path().join("notify");
    let manager = Manager::listen(&socket);
    tokio::task::block_in_place(|| {
        let child = serve(folder.path(), socket.to_str().unwrap(), None);
        manager.until("READY=1");
        manager.until("WATCHDOG=1");
        signal(&child, Signal::STOP);
        // What was on its way; then nothing for as long as the manager waits (WATCHDOG_USEC).
        manager.0.set_read_timeout(Some(secs(2))).unwrap();
        let begun = Instant::now();
        let mut message = [0; 4096];
        while manager.0.recv(&mut message).is_ok() {
            assert!(begun.elapsed() < secs(20), "it is fed on");
        }
        // As systemd does it.
        signal(&child, Signal::ABORT);
        signal(&child, Signal::CONT);
        let status = { child }.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::ABORT.as_raw()));
    });
}
