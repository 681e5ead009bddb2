//! `rowlock lock`: its delay after the death of a holder, and wardens that are stopped.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cli_under_lock::{STUBBORN, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::Said;
use crate::support::secs;

const LOST: i32 = 75;

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    start(&cluster.folder, arguments).end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_delay_keeps_others_out_after_a_holder_s_death_and_not_after_its_end() {
    let cluster = Cluster::start(1, FAST).await;
    let flags = ["lock", "--lock-delay", "1.5", "--disconnect-grace", "0.2", "l"];
    let mut holder = start(&cluster.folder, &flags);
    holder.first_line().await;
    holder.end_with_signal().await;
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, 0, "a release leaves no delay");
    let mut holder = start(&cluster.folder, &[&flags[..], &["-c", "echo > started; sleep 600"]].concat());
    holder.wrote("started").await;
    let died = Instant::now();
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert_eq!(ask(&cluster, &["lock", "l", "true"]).await.code, 0);
    assert!(died.elapsed() >= Duration::from_millis(1_700), "{:?}", died.elapsed());
}

/// Prints "free" unless a process runs whose id is in the file `command` or `grandchild`: a command that did
/// not start has written none.
const LOOK_FOR_WRITTEN: &str = "for file in command grandchild; do \
     if [ -s $file ] && grep -qs '^State:.[^Z]' /proc/$(cat $file)/status; then exit; fi; done; echo free";

/// Waits for the warden of a `rowlock lock`.
async fn warden_of(process: u32) -> Pid {
    let is_warden = |pid: &&str| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("__warden"))
    };
    loop {
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
        if let Some(pid) = children.split(' ').find(is_warden) {
            return Pid::from_raw(pid.parse().unwrap()).unwrap();
        }
        tokio::task::yield_now().await;
    }
}

/// `killall -STOP rowlock`, while the command runs and while the warden starts. The kernel continues the
/// warden at the deadline; the command does not start before the warden has set that timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_process_and_its_warden_stopped_together_do_not_keep_the_command_alive() {
    let it = Cluster::start(1, FAST).await;
    for early in [false, true] {
        let running = start(&it.folder, &["lock", "--ttl", "2", "l", "-c", STUBBORN]);
        let warden = tokio::time::timeout(secs(60), warden_of(running.child.id())).await.unwrap();
        if early {
            kill_process(warden, Signal::STOP).unwrap();
            // A command that does not wait for its warden has started by then.
            tokio::time::sleep(Duration::from_millis(500)).await;
        } else {
            running.wrote("command").await;
            running.wrote("grandchild").await;
        }
        running.signal(Signal::STOP);
        let _ = kill_process(warden, Signal::STOP);
        let next = start(&it.folder, &["lock", "l", "-c", LOOK_FOR_WRITTEN]).end().await;
        assert_eq!(next.out, "free\n", "early {early}: the command outlives its lock: {}", next.err);
        running.signal(Signal::CONT);
        assert_eq!(running.end().await.code, LOST);
        for name in ["command", "grandchild"] {
            let _ = fs::remove_file(it.folder.join(name));
        }
    }
}
