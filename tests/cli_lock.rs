//! `rowlock lock` as users of flock(1), consul lock and etcdctl lock know it: flags and exit codes.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cli_under_lock::{Running, STUBBORN, queue_of, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::Said;
use crate::support::secs;

const REFUSED: i32 = 1;
const USAGE: i32 = 64;
const LOST: i32 = 75;
const DEADLOCK: i32 = 79;

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    start(&cluster.folder, arguments).end().await
}

async fn hold(cluster: &Cluster, flags: &[&str]) -> Running {
    let mut arguments = vec!["lock"];
    arguments.extend(flags);
    let mut running = start(&cluster.folder, &arguments);
    running.first_line().await;
    running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_ends_at_once_or_in_time_with_the_code_that_was_asked_for() {
    let cluster = Cluster::start(1, FAST).await;
    let holder = hold(&cluster, &["l"]).await;
    for (flags, code) in [
        (&["-n"][..], REFUSED),
        (&["--nb"], REFUSED),
        (&["-n", "-E", "0"], 0),
        (&["-n", "-E", "255"], 255),
        (&["-E", "7", "-w", "0"], 7),
    ] {
        let mut arguments = vec!["lock", "l"];
        arguments.extend(flags);
        arguments.extend(["--", "echo", "ran"]);
        let said = ask(&cluster, &arguments).await;
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (code, "", ""), "{flags:?}");
    }
    let begun = Instant::now();
    assert_eq!(ask(&cluster, &["lock", "-w", "0.35", "l", "true"]).await.code, REFUSED);
    assert!(begun.elapsed() >= Duration::from_millis(350), "{:?}", begun.elapsed());
    assert_eq!(ask(&cluster, &["lock", "-n", "-E", "256", "l", "true"]).await.code, USAGE);
    assert_eq!(ask(&cluster, &["lock", "-w", "soon", "l", "true"]).await.code, USAGE);
    // Who gave up is not in the queue.
    queue_of(&cluster, "/locks/l", 1).await;
    let said = ask(&cluster, &["lock", "-v", "-w", "0.2", "l", "true"]).await;
    assert!(said.err.contains("timed out") && !said.err.contains("Some("), "{}", said.err);
    holder.end_with_signal().await;
    // No time to wait is enough for what is free.
    for arguments in [
        &["lock", "-w", "0", "l", "true"][..],
        &["sem", "-w", "0", "-n", "1", "s", "true"],
        &["elect", "-w", "0", "e", "me", "--", "true"],
    ] {
        assert_eq!(ask(&cluster, arguments).await.code, 0, "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_holders_hold_together_and_an_exclusive_one_alone() {
    let cluster = Cluster::start(1, FAST).await;
    let first = hold(&cluster, &["-s", "l"]).await;
    let second = hold(&cluster, &["--shared", "l"]).await;
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, REFUSED);
    assert_eq!(
        ask(&cluster, &["lock", "-n", "-s", "-x", "l", "true"]).await.code,
        REFUSED,
        "the last one counts"
    );
    assert_eq!(ask(&cluster, &["lock", "-n", "-x", "-s", "l", "true"]).await.code, 0);
    first.end_with_signal().await;
    second.end_with_signal().await;
    let alone = hold(&cluster, &["-x", "l"]).await;
    assert_eq!(ask(&cluster, &["lock", "-n", "-s", "l", "true"]).await.code, REFUSED);
    alone.end_with_signal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_and_path_mean_the_same_lock() {
    let cluster = Cluster::start(1, FAST).await;
    let holder = hold(&cluster, &["orders/42"]).await;
    assert_eq!(ask(&cluster, &["lock", "-n", "--path", "/locks/orders/42", "true"]).await.code, REFUSED);
    assert_eq!(ask(&cluster, &["lock", "-n", "/locks/orders/42", "true"]).await.code, REFUSED);
    assert_eq!(ask(&cluster, &["lock", "-n", "orders", "true"]).await.code, 0);
    assert_eq!(ask(&cluster, &["lock", "--path", "no/path", "true"]).await.code, USAGE);
    holder.end_with_signal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_is_ended_when_it_has_had_the_lock_for_its_maximum() {
    let cluster = Cluster::start(1, FAST).await;
    let begun = Instant::now();
    let said = ask(&cluster, &["lock", "--max-hold", "1", "l", "sleep", "600"]).await;
    assert_eq!(said.code, LOST, "{}", said.err);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, 0, "it was given back");
    let said = ask(&cluster, &["lock", "--max-hold", "0", "l", "true"]).await;
    assert_eq!((said.code, said.err.contains("more than 0")), (USAGE, true), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_delay_keeps_others_out_after_a_holder_s_death_and_not_after_its_end() {
    let cluster = Cluster::start(1, FAST).await;
    let flags = ["--lock-delay", "1.5", "--disconnect-grace", "0.2", "l"];
    let holder = hold(&cluster, &flags).await;
    holder.end_with_signal().await;
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, 0, "a release leaves no delay");
    let mut arguments = vec!["lock"];
    arguments.extend(flags);
    arguments.extend(["-c", "echo > started; sleep 600"]);
    let mut holder = start(&cluster.folder, &arguments);
    holder.wrote("started").await;
    let died = Instant::now();
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert_eq!(ask(&cluster, &["lock", "l", "true"]).await.code, 0);
    assert!(died.elapsed() >= Duration::from_millis(1_700), "{:?}", died.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_locks_in_opposite_orders_are_refused_rather_than_stuck() {
    let cluster = Cluster::start(1, FAST).await;
    // Its own lock again.
    let nested = "echo outer; exec \"$0\" lock a -- true";
    let binary = env!("CARGO_BIN_EXE_rowlock");
    let said = ask(&cluster, &["lock", "a", "sh", "-c", nested, binary]).await;
    assert_eq!((said.code, said.out.as_str()), (DEADLOCK, "outer\n"), "{}", said.err);

    let wait = |mine: &str, other: &str| {
        format!(
            "echo > has-{mine}; while [ ! -e has-{other} ]; do sleep 0.02; done; \
             exec \"$0\" lock --label second-{other} {other} -- true"
        )
    };
    let (ab, ba) = (wait("a", "b"), wait("b", "a"));
    let first = start(&cluster.folder, &["lock", "--label", "first-a", "a", "sh", "-c", &ab, binary]);
    let second = start(&cluster.folder, &["lock", "--label", "first-b", "b", "sh", "-c", &ba, binary]);
    let (first, second) = (first.end().await, second.end().await);
    let mut codes = [first.code, second.code];
    codes.sort_unstable();
    assert_eq!(codes, [0, DEADLOCK], "{} {}", first.err, second.err);
    let refused = if first.code == DEADLOCK { first } else { second };
    assert!(refused.err.contains("first-a") && refused.err.contains("first-b"), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_are_asked_for_side_by_side_below_one_lock_wait_for_each_other() {
    let cluster = Cluster::start(1, FAST).await;
    let binary = env!("CARGO_BIN_EXE_rowlock");
    // As `make -j` would: the second one waits until the first has given back, which holds until the second
    // waits.
    let script = "\"$0\" lock b -c 'echo > first; while [ ! -e go-on ]; do sleep 0.02; done; echo one >> order' & one=$!; \
                  while [ ! -e first ]; do sleep 0.02; done; \
                  \"$0\" lock b -c 'echo two >> order' & two=$!; \
                  wait $one && wait $two";
    let outer = start(&cluster.folder, &["lock", "a", "sh", "-c", script, binary]);
    outer.wrote("first").await;
    queue_of(&cluster, "/locks/b", 2).await;
    std::fs::write(cluster.folder.join("go-on"), "").unwrap();
    let said = outer.end().await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(std::fs::read_to_string(cluster.folder.join("order")).unwrap(), "one\ntwo\n");
    // Below one of them, what is held above is still a circle.
    let nested = "\"$0\" lock b \"$0\" lock a true; echo $? > code";
    assert_eq!(ask(&cluster, &["lock", "a", "sh", "-c", nested, binary]).await.code, 0);
    assert_eq!(std::fs::read_to_string(cluster.folder.join("code")).unwrap(), format!("{DEADLOCK}\n"));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_told_who_asks_and_its_command_ends_when_the_time_is_over() {
    let cluster = Cluster::start(1, FAST).await;
    let said = ask(&cluster, &["ask", "l", "--reason", "hotfix"]).await;
    assert_eq!((said.code, said.out.as_str()), (0, "l: no client holds it\n"), "{}", said.err);
    for wrong in [&["ask", "l"][..], &["ask", "l", "--reason", "r", "--within", "0.5s"]] {
        assert_eq!(ask(&cluster, wrong).await.code, USAGE, "{wrong:?}");
    }
    let running = start(&cluster.folder, &["lock", "l", "-c", "echo > started; sleep 600"]);
    running.wrote("started").await;
    let said = ask(&cluster, &["ask", "l", "--reason", "hotfix 42"]).await;
    assert_eq!((said.code, said.out.as_str()), (0, "l: asked its holder\n"), "{}", said.err);
    let queue = ask(&cluster, &["queue", "l"]).await.out;
    assert!(queue.contains("#1 was asked") && queue.contains("by ip:127.0.0.1: hotfix 42\n"), "{queue}");
    let begun = Instant::now();
    // Within a second of the first one, which the client waits for.
    let said = ask(&cluster, &["ask", "l", "--reason", "now", "--within", "1s"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    let said = running.end().await;
    assert_eq!(said.code, LOST, "{}", said.err);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let told = |what: &str| said.err.contains(what);
    assert!(told("l: ip:127.0.0.1 asks for the lock: hotfix 42\n"), "{}", said.err);
    assert!(told("asks for the lock: now; it is lost in "), "{}", said.err);
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, 0, "it was given back");
    let history = ask(&cluster, &["history", "l"]).await.out;
    assert!(history.contains("asked") && history.contains("ip:127.0.0.1: hotfix 42"), "{history}");
}
