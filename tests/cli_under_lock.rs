//! A command under `rowlock lock`: its process group, signals and terminal, and its end when the lock is
//! lost.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cli::path_with_rowlock;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::{eventually, http, one_node, secs};

const LOST: i32 = 75;
/// The shortest that FAST allows, twice: the tests wait for it to pass.
const SHORT: [&str; 2] = ["--ttl", "2"];

/// A process that was started and not waited for.
pub struct Running {
    pub child: Child,
    folder: PathBuf,
    out: Option<BufReader<ChildStdout>>,
}

pub fn start(folder: &Path, arguments: &[&str]) -> Running {
    let child = rowlock(folder, arguments).stdin(Stdio::piped()).spawn().unwrap();
    Running::of(child, folder)
}

/// The same for one that is to be sent what a runner of tests in the background ignores, and hands on to all
/// it starts.
fn start_with_all_signals(folder: &Path, arguments: &[&str]) -> Running {
    let mut all = vec!["--default-signal=INT,QUIT,HUP", env!("CARGO_BIN_EXE_rowlock")];
    all.extend(arguments);
    let mut command = Command::new("env");
    command.args(&all).current_dir(folder).env_remove("ROWLOCK_ENDPOINTS").stdin(Stdio::piped());
    Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), folder)
}

impl Running {
    /// One that was started in another way, in this folder.
    pub fn of(child: Child, folder: &Path) -> Running {
        Running { child, folder: folder.to_owned(), out: None }
    }

    pub fn signal(&self, signal: Signal) {
        signal_to(self.child.id(), signal);
    }

    fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// What a script wrote to this file in the folder, once it is complete (ends with a line end).
    pub async fn wrote(&self, file: &str) -> String {
        wrote(&self.folder, file).await
    }

    pub async fn pid(&self, file: &str) -> u32 {
        self.wrote(file).await.trim().parse().unwrap()
    }

    /// The first line on stdout, without its end.
    pub async fn first_line(&mut self) -> String {
        let mut out = BufReader::new(self.child.stdout.take().unwrap());
        let read = move || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            (line, out)
        };
        let (line, out) = tokio::task::spawn_blocking(read).await.unwrap();
        // Nothing more is expected; closing it would be noticed.
        self.out = Some(out);
        line.trim_end().to_owned()
    }

    /// SIGTERM, for one that just holds; it must end well.
    pub async fn end_with_signal(self) {
        self.signal(Signal::TERM);
        assert_eq!(self.code().await, Some(0));
    }

    pub async fn code(mut self) -> Option<i32> {
        tokio::task::spawn_blocking(move || self.child.wait()).await.unwrap().unwrap().code()
    }

    pub async fn end(self) -> Said {
        tokio::task::spawn_blocking(move || finish(self.child)).await.unwrap()
    }
}

async fn wrote(folder: &Path, file: &str) -> String {
    let path = folder.join(file);
    let written = || async { fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n')) };
    eventually(&format!("{file} is written"), secs(30), written).await
}

fn signal_to(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Runs, and is not merely waiting to be counted as ended.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z'))
}

async fn gone(pid: u32) {
    let gone = || async { (!is_alive(pid)).then_some(()) };
    eventually(&format!("process {pid} ends"), secs(20), gone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_reach_the_command_and_all_that_it_started() {
    let cluster = Cluster::start(1, FAST).await;
    let cases = [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ];
    let mut all = Vec::new();
    for (signal, name) in cases {
        // Parent and child each write the signal down; the child is not known to us.
        let script = format!(
            "trap 'echo {name} > parent-{name}; exit 3' {name}; \
             sh -c 'trap \"echo {name} > child-{name}; exit\" {name}; echo > ready-{name}; \
             while :; do sleep 0.02; done'; exit 1"
        );
        all.push((signal, name, start_with_all_signals(&cluster.folder, &["lock", name, "-c", &script])));
    }
    for (signal, name, running) in &all {
        running.wrote(&format!("ready-{name}")).await;
        running.signal(*signal);
    }
    for (_, name, running) in all {
        assert_eq!(running.end().await.code, 3, "{name}");
        for who in ["parent", "child"] {
            assert_eq!(wrote(&cluster.folder, &format!("{who}-{name}")).await, format!("{name}\n"));
        }
    }
}

/// A command whose child outlives what is sent to the command alone: both write their numbers and ignore
/// SIGTERM.
pub const STUBBORN: &str = "trap '' TERM; sh -c 'echo $$ > grandchild; while :; do sleep 0.05; done' & \
                        echo $$ > command; while :; do sleep 0.05; done";

/// Prints `free` if neither process runs any more. (A killed process without a waiting parent is in the list
/// of processes as a zombie.)
pub fn look_for(command: u32, grandchild: u32) -> String {
    format!(
        "runs() {{ grep -qs '^State:.[^Z]' /proc/$1/status; }}; runs {command} || runs {grandchild} || echo free"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_lock_process_takes_all_it_started_with_it_before_the_next_holder_starts() {
    let cluster = Cluster::start(1, FAST).await;
    let mut running = start(&cluster.folder, &["lock", "l", "-c", STUBBORN]);
    let (command, grandchild) = (running.pid("command").await, running.pid("grandchild").await);
    let next = start(&cluster.folder, &["lock", "l", "-c", &look_for(command, grandchild)]);
    queue_of(&cluster, "/locks/l", 2).await;
    let killed_ms = wall_ms();
    running.child.kill().unwrap();
    assert_eq!(next.end().await.out, "free\n", "the command ran on under the next holder's lock");
    let waited_ms = last_grant_ms(&cluster).await - killed_ms;
    assert!(waited_ms < 1_000, "the next one waited {waited_ms} ms");
    running.child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_killed_as_a_whole_frees_its_lock_after_the_disconnect_grace() {
    let cluster = Cluster::start(1, FAST).await;
    let arguments = ["lock", "--disconnect-grace", "0.5", "l", "-c", "echo $$ > command; exec sleep 600"];
    let mut running = start(&cluster.folder, &arguments);
    let command = running.pid("command").await;
    let next = start(&cluster.folder, &["lock", "l", "-c", &look_for(command, command)]);
    queue_of(&cluster, "/locks/l", 2).await;
    let children = format!("/proc/{0}/task/{0}/children", running.child.id());
    let children = fs::read_to_string(children).unwrap();
    let warden = children.split_whitespace().map(|pid| pid.parse().unwrap()).find(|pid| *pid != command);
    let killed_ms = wall_ms();
    signal_to(warden.unwrap(), Signal::KILL);
    running.child.kill().unwrap();
    assert_eq!(next.end().await.out, "free\n", "the command ran on under the next holder's lock");
    let waited_ms = last_grant_ms(&cluster).await - killed_ms;
    assert!((400..1_000).contains(&waited_ms), "the next one waited {waited_ms} ms");
    running.child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_outlive_the_leader_of_the_cluster() {
    let mut cluster = Cluster::start(3, FAST).await;
    let leader = cluster.leader().await;
    let mut all = Vec::new();
    // One at each node, the leader's among them.
    for id in cluster.ids() {
        let others = cluster.ids().into_iter().filter(|other| *other != id);
        let endpoints: Vec<&str> = [id].into_iter().chain(others).map(|id| cluster.endpoint(id)).collect();
        let script = format!("echo > started-{id}; while [ ! -e finish ]; do sleep 0.02; done; exit {id}");
        let name = format!("l{id}");
        // More than the default grace: a busy machine elects slowly.
        let mut arguments = vec!["lock", "--ttl", "40", "--disconnect-grace", "20"];
        let endpoints = endpoints.join(",");
        arguments.extend(["--endpoints", &endpoints, &name, "-c", &script]);
        let running = start(&cluster.folder, &arguments);
        running.wrote(&format!("started-{id}")).await;
        all.push((id, running));
    }
    cluster.kill(leader);
    let next = cluster.leader().await;
    let client = cluster.client_of(cluster.endpoint(next)).await;
    for id in cluster.ids() {
        let queue = client.get_children(&format!("/locks/l{id}")).await.unwrap().names;
        assert_eq!(queue.len(), 1, "lock {id} went with the leader");
    }
    client.close().await.unwrap();
    fs::write(cluster.folder.join("finish"), "").unwrap();
    for (id, running) in all {
        let said = running.end().await;
        assert_eq!(said.code, id as i32, "{}", said.err);
    }
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// When the cluster last granted a lock. (What the new holder says itself comes later on a busy machine.)
async fn last_grant_ms(cluster: &Cluster) -> i64 {
    let client = cluster.client().await;
    let last = || async {
        let history: Value = serde_json::from_str(&client.report("/v1/history").await.unwrap()).unwrap();
        let entries = history["entries"].as_array().unwrap();
        // It is noted after the release of the lock, which is the end of it.
        (entries.last()?["event"] == "released").then_some(())?;
        entries.iter().rfind(|entry| entry["event"] == "granted")?["time_ms"].as_i64()
    };
    let last = eventually("the history of the lock is complete", secs(20), last).await;
    client.close().await.unwrap();
    last
}

/// Waits until the queue of a lock has this length.
pub async fn queue_of(cluster: &Cluster, lock: &str, count: usize) {
    let client = cluster.client().await;
    let full = || async {
        let listed = client.get_children(lock).await;
        listed.is_ok_and(|queue| queue.names.len() == count).then_some(())
    };
    eventually(&format!("{count} in the queue of {lock}"), secs(20), full).await;
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_lock_process_does_not_keep_its_command_alive_past_the_deadline() {
    let cluster = Cluster::start(1, FAST).await;
    let arguments = ["lock", SHORT[0], SHORT[1], "l", "-c", STUBBORN];
    let running = start(&cluster.folder, &arguments);
    let (command, grandchild) = (running.pid("command").await, running.pid("grandchild").await);
    // It stands still, beyond its session. The next holder writes down who runs when it starts.
    running.signal(Signal::STOP);
    let next = start(&cluster.folder, &["lock", "l", "-c", &look_for(command, grandchild)]).end().await;
    assert_eq!(next.out, "free\n", "the command ran on under the next holder's lock: {}", next.err);
    running.signal(Signal::CONT);
    let said = running.end().await;
    assert_eq!(said.code, LOST, "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlives_its_command_is_ended_too_when_the_lock_is_lost() {
    let mut cluster = Cluster::start(1, FAST).await;
    // The command itself ends at SIGTERM, what it started does not.
    let script = "sh -c \"trap '' TERM; echo \\$\\$ > grandchild; while :; do sleep 0.05; done\" & \
                  echo $$ > command; wait";
    let running = start(&cluster.folder, &["lock", SHORT[0], SHORT[1], "l", "-c", script]);
    let grandchild = running.pid("grandchild").await;
    running.pid("command").await;
    cluster.kill(1);
    let said = running.end().await;
    assert_eq!(said.code, LOST, "{}", said.err);
    assert!(!is_alive(grandchild), "it was still there when the lock's process had ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_is_asked_to_end_when_a_broken_connection_brings_the_deadline_near() {
    let mut cluster = Cluster::start(1, FAST).await;
    let script = "trap 'echo bye > goodbye; exit 0' TERM; echo > started; while :; do sleep 0.02; done";
    let running =
        start(&cluster.folder, &["lock", "--ttl", "30", "--disconnect-grace", "1", "l", "-c", script]);
    running.wrote("started").await;
    let folder = cluster.folder.clone();
    let cut = Instant::now();
    cluster.kill(1);
    assert_eq!(running.end().await.code, LOST);
    assert_eq!(wrote(&folder, "goodbye").await, "bye\n");
    assert!(cut.elapsed() < secs(10), "not at the session's own deadline: {:?}", cut.elapsed());
}

/// The command at a terminal of its own, as util-linux's `script` makes one; its stdin is the keyboard. None,
/// and a word about it, where one of the tools is missing.
fn at_a_terminal(folder: &Path, line: &str) -> Option<Running> {
    // A runner that was started in the background hands on that it ignores Ctrl-C, which no shell can take
    // back.
    let plain = ["--default-signal=INT,QUIT"];
    for tool in ["bash", "script"] {
        let tried = Command::new("env").args(plain).args([tool, "--version"]).stdout(Stdio::null()).status();
        if !tried.is_ok_and(|status| status.success()) {
            eprintln!("not tried: {tool}, or an env that knows --default-signal, is not installed");
            return None;
        }
    }
    let mut command = Command::new("env");
    command.args(plain).args(["script", "-qefc", line, "/dev/null"]).current_dir(folder);
    command.env("PATH", path_with_rowlock()).env("SHELL", "/bin/sh").env_remove("ROWLOCK_ENDPOINTS");
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Some(Running { child: spawned.unwrap(), folder: folder.to_owned(), out: None })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_at_a_terminal_can_read_from_it_and_hears_the_keyboard() {
    let cluster = Cluster::start(1, FAST).await;
    let script = "rowlock lock l -c \"read line; echo got \\$line > read; trap 'echo int > heard; exit 9' INT; \
                  echo > ready; while :; do sleep 0.02; done\"";
    let Some(mut terminal) = at_a_terminal(&cluster.folder, script) else { return };
    let mut keyboard = terminal.stdin();
    keyboard.write_all(b"hello\n").unwrap();
    assert_eq!(terminal.wrote("read").await, "got hello\n");
    terminal.wrote("ready").await;
    keyboard.write_all(b"\x03").unwrap();
    assert_eq!(terminal.wrote("heard").await, "int\n");
    let said = terminal.end().await;
    assert_eq!(said.code, 9, "{}{}", said.out, said.err);
    drop(keyboard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_at_a_terminal_logs_in_colour_unless_it_is_told_not_to() {
    let _turn = crate::support::cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let http = one_node(folder.path(), "");
    let mut has_colours = Vec::new();
    for setting in ["unset NO_COLOR", "export NO_COLOR=", "export NO_COLOR=1"] {
        let line = format!("{setting}; exec rowlock serve --node 1");
        let Some(mut terminal) = at_a_terminal(folder.path(), &line) else { return };
        let mut keyboard = terminal.stdin();
        let serves =
            || async { http::status(&http).await.filter(|status| status["serving"] == true).map(drop) };
        eventually("the node serves", secs(60), serves).await;
        keyboard.write_all(b"\x03").unwrap();
        let said = terminal.end().await;
        assert!(said.code == 0 && said.out.contains("INFO"), "{}{}", said.out, said.err);
        has_colours.push(said.out.contains("\x1b["));
    }
    assert_eq!(has_colours, [true, true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyboard_interrupt_ends_the_script_that_holds_the_lock_as_well() {
    let cluster = Cluster::start(1, FAST).await;
    fs::write(
        cluster.folder.join("job.sh"),
        "rowlock lock l -c 'echo > ready; while :; do sleep 0.02; done'\necho on > went-on\n",
    )
    .unwrap();
    let Some(mut terminal) = at_a_terminal(&cluster.folder, "bash job.sh") else { return };
    let mut keyboard = terminal.stdin();
    terminal.wrote("ready").await;
    keyboard.write_all(b"\x03").unwrap();
    let said = terminal.end().await;
    assert_eq!(said.code, 128 + 2, "{}{}", said.out, said.err);
    assert!(!cluster.folder.join("went-on").exists(), "the script went on after Ctrl-C");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_in_a_pipeline_gets_the_terminal_when_it_asks() {
    let cluster = Cluster::start(1, FAST).await;
    let script = "echo piped | rowlock lock l -c 'cat > in; read line < /dev/tty; echo $line > read' | cat";
    let Some(mut terminal) = at_a_terminal(&cluster.folder, script) else { return };
    let mut keyboard = terminal.stdin();
    keyboard.write_all(b"typed\n").unwrap();
    assert_eq!(terminal.wrote("read").await, "typed\n");
    assert_eq!(terminal.wrote("in").await, "piped\n");
    drop(keyboard);
    assert_eq!(terminal.end().await.code, 0);
}

/// Adds a line to a file every now and then, without starting a process: a shell that is just starting one
/// (by vfork) when Ctrl-Z comes may hang, with or without `rowlock`.
const COUNT: &str = "echo >> count; read -t 0.02 <> never";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_control_stops_and_continues_the_command_with_its_lock() {
    let cluster = Cluster::start(1, FAST).await;
    let Some(mut terminal) = at_a_terminal(&cluster.folder, "bash --norc -i") else { return };
    let mut keyboard = terminal.stdin();
    let line =
        format!("mkfifo never; rowlock lock l bash -c 'while [ ! -e finish ]; do {COUNT}; done; exit 4'\n");
    keyboard.write_all(line.as_bytes()).unwrap();
    terminal.wrote("count").await;
    keyboard.write_all(b"\x1a").unwrap();
    // The shell is back, so all of it is stopped.
    keyboard
        .write_all(
            b"jobs -s > stopped; echo code $? > back; wc -l < count > then; sleep 0.3; wc -l < count > now\n",
        )
        .unwrap();
    terminal.wrote("back").await;
    assert!(terminal.wrote("stopped").await.contains("Stopped"));
    assert_eq!(terminal.wrote("then").await, terminal.wrote("now").await, "the command ran on");
    keyboard.write_all(b"fg\n").unwrap();
    let count: usize = terminal.wrote("now").await.trim().parse().unwrap();
    let counts_on = || async {
        let lines = fs::read_to_string(cluster.folder.join("count")).ok()?.len();
        (lines > count).then_some(())
    };
    eventually("the command goes on", secs(20), counts_on).await;
    fs::write(cluster.folder.join("finish"), "").unwrap();
    keyboard.write_all(b"echo code $? > code; exit\n").unwrap();
    assert_eq!(terminal.wrote("code").await, "code 4\n");
    drop(keyboard);
    terminal.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_was_stopped_too_long_does_not_go_on_without_its_lock() {
    let cluster = Cluster::start(1, FAST).await;
    let Some(mut terminal) = at_a_terminal(&cluster.folder, "bash --norc -i") else { return };
    let mut keyboard = terminal.stdin();
    let line = format!(
        "mkfifo never; rowlock lock --ttl 4 l bash -c 'echo $$ > command; while :; do {COUNT}; done'\n"
    );
    keyboard.write_all(line.as_bytes()).unwrap();
    terminal.wrote("count").await;
    let command = terminal.pid("command").await;
    keyboard.write_all(b"\x1aecho > back\n").unwrap();
    terminal.wrote("back").await;
    gone(command).await;
    let count = terminal.wrote("count").await;
    keyboard.write_all(b"fg\necho code $? > code; exit\n").unwrap();
    assert_eq!(terminal.wrote("code").await, format!("code {LOST}\n"));
    assert_eq!(terminal.wrote("count").await, count);
    drop(keyboard);
    terminal.end().await;
}
