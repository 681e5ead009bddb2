//! The commands as a shell sees them: stdout, stderr, exit codes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock, run};
use crate::support::{eventually, secs};

const REFUSED: i32 = 1;
const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
const LOST: i32 = 75;

/// Runs it beside the async tests.
async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    let (folder, arguments) =
        (cluster.folder.clone(), arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
    let job = move || run(&folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(job).await.unwrap()
}

async fn told(cluster: &Cluster, arguments: &[&str]) -> String {
    let said = ask(cluster, arguments).await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    said.out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn znode_commands_answer_on_stdout_and_refusals_have_code_one() {
    let cluster = Cluster::start(1, FAST).await;
    assert_eq!(told(&cluster, &["create", "/app", "one"]).await, "/app\n");
    assert_eq!(told(&cluster, &["get", "/app"]).await, "one");
    assert_eq!(told(&cluster, &["set", "--version", "0", "/app", "two"]).await, "");
    assert_eq!(told(&cluster, &["get", "/app"]).await, "two");
    assert_eq!(told(&cluster, &["create", "-s", "/app/n-"]).await, "/app/n-0000000000\n");
    assert_eq!(told(&cluster, &["create", "-s", "/app/n-"]).await, "/app/n-0000000001\n");
    assert_eq!(told(&cluster, &["ls", "/app"]).await, "n-0000000000\nn-0000000001\n");
    assert_eq!(told(&cluster, &["ls", "-R", "/app"]).await, "/app\n/app/n-0000000000\n/app/n-0000000001\n");
    assert!(told(&cluster, &["stat", "/app"]).await.contains("version = 1\n"));
    let stat: Value = serde_json::from_str(&told(&cluster, &["stat", "-o", "json", "/app"]).await).unwrap();
    assert_eq!((&stat["version"], &stat["num_children"]), (&1.into(), &2.into()));
    let got: Value = serde_json::from_str(&told(&cluster, &["get", "-o", "json", "/app"]).await).unwrap();
    assert_eq!(got["data"], "two");
    for (arguments, message) in [
        (&["get", "/absent"][..], "rowlock: /absent: no such znode\n"),
        (&["stat", "/absent"], "rowlock: /absent: no such znode\n"),
        (&["create", "/app"], "rowlock: /app: znode exists\n"),
        (&["set", "--version", "7", "/app", "x"], "rowlock: /app: version conflict: its version is 1\n"),
        (
            &["delete", "--version", "7", "/app/n-0000000000"],
            "rowlock: /app/n-0000000000: version conflict: its version is 0\n",
        ),
        (&["delete", "/app"], "rowlock: /app: there are znodes below it; -r removes them, too\n"),
    ] {
        let said = ask(&cluster, arguments).await;
        assert_eq!(
            (said.code, said.err.as_str(), said.out.as_str()),
            (REFUSED, message, ""),
            "{arguments:?}"
        );
    }
    for child in ["/app/n-0000000000", "/app/n-0000000001", "/app"] {
        assert_eq!(told(&cluster, &["delete", child]).await, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_parents_are_made_and_a_whole_tree_is_deleted_on_request_only() {
    let cluster = Cluster::start(1, FAST).await;
    let said = ask(&cluster, &["create", "/a/b/c"]).await;
    let message = "rowlock: /a/b/c: its parent /a/b does not exist; create it first, or use -p to create all missing parents\n";
    assert_eq!((said.code, said.err.as_str()), (REFUSED, message));
    assert_eq!(told(&cluster, &["create", "-p", "/a/b/c", "x"]).await, "/a/b/c\n");
    assert_eq!(
        told(&cluster, &["create", "-p", "/a/b/d"]).await,
        "/a/b/d\n",
        "parents that are there are left"
    );
    assert_eq!(told(&cluster, &["create", "-p", "-s", "/a/q/n-"]).await, "/a/q/n-0000000000\n");
    assert_eq!(ask(&cluster, &["create", "-p", "/a/b/c"]).await.err, "rowlock: /a/b/c: znode exists\n");
    assert_eq!(told(&cluster, &["get", "/a/b/c"]).await, "x");
    let refused = ask(&cluster, &["delete", "/a"]).await.err;
    assert_eq!(refused, "rowlock: /a: there are znodes below it; -r removes them, too\n");
    assert_eq!(told(&cluster, &["delete", "-r", "/a"]).await, "");
    assert_eq!(ask(&cluster, &["delete", "-r", "/a"]).await.err, "rowlock: /a: no such znode\n");
    for (arguments, message) in [
        (&["create", "x"][..], "rowlock: x: path does not start with /; did you mean /x?\n"),
        (&["get", "/x/"], "rowlock: /x/: path ends with /; did you mean /x?\n"),
        (&["delete", "-r", "/"], "rowlock: /: the root cannot be removed\n"),
    ] {
        let said = ask(&cluster, arguments).await;
        assert_eq!((said.code, said.err.as_str()), (USAGE, message), "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_no_server_takes_is_refused_at_once() {
    let cluster = Cluster::start(1, FAST).await;
    told(&cluster, &["create", "/x", "before"]).await;
    let file = cluster.folder.join("large");
    fs::write(&file, vec![b'x'; 1_500_000]).unwrap();
    for arguments in [["set", "/x", "-"], ["create", "/y", "-"]] {
        let begun = Instant::now();
        let stdin = fs::File::open(&file).unwrap();
        let child = rowlock(&cluster.folder, &arguments).stdin(stdin).spawn().unwrap();
        let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
        assert_eq!((said.code, said.out.as_str()), (REFUSED, ""), "{}", said.err);
        let (path, rest) = (arguments[1], "bytes, the server takes 1048575\n");
        assert!(said.err.starts_with(&format!("rowlock: {path}: the request has 15000")), "{}", said.err);
        assert!(said.err.ends_with(rest), "{}", said.err);
        assert!(begun.elapsed() < secs(8), "it waited for the end of its session: {:?}", begun.elapsed());
    }
    assert_eq!(told(&cluster, &["get", "/x"]).await, "before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_a_line_per_node_and_fails_when_one_is_silent() {
    let mut cluster = Cluster::start(3, FAST).await;
    let out = told(&cluster, &["status"]).await;
    assert_eq!(out.lines().count(), 4, "{out}");
    assert_eq!(out.matches("leader").count(), 1, "{out}");
    assert_eq!(out.matches("follower").count(), 2, "{out}");
    let json: Value = serde_json::from_str(&told(&cluster, &["status", "-o", "json"]).await).unwrap();
    assert_eq!(json.as_array().map(Vec::len), Some(3));
    // Without the file, by the client ports.
    let by_word = told(&cluster, &["status", "--endpoints", &cluster.endpoints()]).await;
    assert_eq!(by_word.matches("leader").count(), 1, "{by_word}");
    let down = cluster.follower().await;
    cluster.kill(down);
    let said = ask(&cluster, &["status"]).await;
    assert_eq!(said.code, UNAVAILABLE);
    assert!(said.out.contains("no answer"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_exits_with_the_code_of_its_command() {
    let cluster = Cluster::start(1, FAST).await;
    for (command, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)]
    {
        assert_eq!(ask(&cluster, &["lock", "l", "-c", command]).await.code, code, "{command}");
    }
    let said = ask(&cluster, &["lock", "l", "--", "no-such-command"]).await;
    assert_eq!((said.code, said.err.as_str()), (127, "rowlock: no-such-command: no such command\n"));
    let plain = cluster.config();
    assert_eq!(ask(&cluster, &["lock", "l", "--", plain.to_str().unwrap()]).await.code, 126);

    let out = told(&cluster, &["lock", "my lock", "--", "sh", "-c", "env | grep '^ROWLOCK_' | sort"]).await;
    let value = |name: &str| {
        let found = out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} in {out}")).to_owned()
    };
    assert_eq!(
        (value("ROWLOCK_LOCK_NAME").as_str(), value("ROWLOCK_LOCK_HELD").as_str()),
        ("my lock", "true")
    );
    assert!(value("ROWLOCK_LOCK_KEY").starts_with("/locks/my%20lock/"), "{out}");
    assert!(value("ROWLOCK_SESSION_ID").starts_with("0x"), "{out}");
    assert!(!out.contains("ROWLOCK_AUTH"), "{out}");
    let credentials =
        [("ROWLOCK_AUTH", "digest:u:p"), ("ROWLOCK_TOKEN", "rowlock_t"), ("ROWLOCK_FROM_AUTH", "digest:v:q")];
    for (flags, expected) in
        [(&[][..], "none none none\n"), (&["--pass-auth"], "digest:u:p rowlock_t digest:v:q\n")]
    {
        let show =
            ["l", "-c", "echo ${ROWLOCK_AUTH:-none} ${ROWLOCK_TOKEN:-none} ${ROWLOCK_FROM_AUTH:-none}"];
        let arguments: Vec<&str> = ["lock"].iter().chain(flags).chain(&show).copied().collect();
        let child = rowlock(&cluster.folder, &arguments).envs(credentials).spawn().unwrap();
        let said = tokio::task::spawn_blocking(move || finish(child)).await.unwrap();
        assert_eq!((said.code, said.out.as_str()), (0, expected), "{}", said.err);
    }
    let first: i64 = value("ROWLOCK_LOCK_TOKEN").parse().unwrap();
    let second = told(&cluster, &["lock", "my lock", "-c", "echo $ROWLOCK_LOCK_TOKEN"]).await;
    assert!(second.trim().parse::<i64>().unwrap() > first);
}

/// `rowlock lock NAME` without a command, which holds the lock and says so.
struct Holder {
    child: Child,
    _out: BufReader<ChildStdout>,
    key: String,
}

fn hold(folder: &Path, name: &str) -> Holder {
    let mut child = rowlock(folder, &["lock", name, "--session-timeout", "4"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let key = line.split_whitespace().next().expect("key and token").to_owned();
    Holder { child, _out: out, key }
}

impl Holder {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_lock_ends_with_the_conflict_code_and_a_signal_releases_it() {
    let cluster = Cluster::start(1, FAST).await;
    let folder = cluster.folder.clone();
    let mut holder = tokio::task::spawn_blocking(move || hold(&folder, "l")).await.unwrap();
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "--", "true"]).await.code, REFUSED);
    assert_eq!(ask(&cluster, &["lock", "-n", "-E", "9", "l", "--", "true"]).await.code, 9);
    let said = ask(&cluster, &["lock", "-v", "-w", "0.2", "l", "--", "true"]).await;
    assert_eq!(said.code, REFUSED);
    assert!(said.err.contains("timed out waiting for the lock"), "{}", said.err);
    // The client that gave up has left the queue.
    assert_eq!(told(&cluster, &["ls", "/locks/l"]).await.lines().count(), 1);
    // (SIGINT may be ignored where the tests were started in the background.)
    holder.signal(Signal::TERM);
    assert_eq!(holder.child.wait().unwrap().code(), Some(0));
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "--", "true"]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_whose_znode_is_deleted_ends_with_the_code_for_a_lost_lock() {
    let cluster = Cluster::start(1, FAST).await;
    let folder = cluster.folder.clone();
    let mut holder = tokio::task::spawn_blocking(move || hold(&folder, "l")).await.unwrap();
    told(&cluster, &["delete", &holder.key]).await;
    assert_eq!(holder.child.wait().unwrap().code(), Some(LOST));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_is_ended_before_the_lock_can_be_granted_to_another() {
    let mut cluster = Cluster::start(1, FAST).await;
    let mark = cluster.folder.join("started");
    let command = format!(
        "echo $$ > {}.tmp && mv {0}.tmp {0}; trap '' TERM; while :; do sleep 0.05; done",
        mark.display()
    );
    let arguments = ["lock", "l", "--session-timeout", "4", "-c", &command];
    let child = rowlock(&cluster.folder, &arguments).spawn().unwrap();
    let started = || async { fs::read_to_string(&mark).ok() };
    let pid: u32 = eventually("the command runs", secs(30), started).await.trim().parse().unwrap();
    // No node answers any more: the lock is lost at the local deadline, and SIGTERM is ignored.
    cluster.kill(1);
    let said = tokio::task::spawn_blocking(move || finish(child)).await.unwrap();
    assert_eq!(said.code, LOST, "{}", said.err);
    assert!(said.err.contains("the command must end"), "{}", said.err);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the command was killed");
}

#[test]
fn completions_know_the_commands_and_not_our_own_secrets() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let said = run(folder.path(), &["completions", shell]);
        assert_eq!(said.code, 0, "{shell}");
        assert!(said.out.contains("history") && !said.out.contains("__warden"), "{shell}");
    }
}

#[test]
fn wrong_usage_and_unreachable_clusters_have_their_own_codes() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run(folder.path(), arguments);
    assert_eq!(run(&["lock"]).code, USAGE);
    assert_eq!(run(&["nonsense"]).code, USAGE);
    assert_eq!(run(&["up", "--nodes", "2"]).code, USAGE);
    assert_eq!(run(&["--help"]).code, 0);
    let nobody = crate::support::ports::address();
    let said = run(&["get", "/x", "--endpoints", &nobody, "--connect-timeout", "0.3"]);
    assert_eq!(said.code, UNAVAILABLE);
    let remedy = "; start the cluster, name it with --endpoints, or ask `rowlock doctor`\n";
    assert!(said.err.ends_with(remedy), "{}", said.err);
    let said = run(&["get", "/x", "--endpoints", &nobody, "--connect-timeout", "3"]);
    let (first, last) = said.err.split_once('\n').unwrap();
    assert!(first.ends_with("no server has opened a session yet; still trying"), "{first}");
    assert!(last.ends_with(remedy), "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_of_auth_new_makes_a_superuser() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(folder.path(), &["auth", "new", "-o", "json"]);
    let made: Value = serde_json::from_str(&said.out).unwrap();
    let settings = format!("{FAST}[client]\nsuper_digest = {}\n", made["digest"]);
    let cluster = Cluster::start(1, &settings).await;
    for (credential, code) in [(made["auth"].as_str().unwrap(), 0), ("digest:super:other", REFUSED)] {
        let mut command = rowlock(&cluster.folder, &["rebalance", "--percent", "100"]);
        let child = command.env("ROWLOCK_AUTH", credential).spawn().unwrap();
        let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
        assert_eq!(said.code, code, "{}", said.err);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_beat_the_environment_and_that_beats_the_file_that_lies_here() {
    let cluster = Cluster::start(1, FAST).await;
    // A cluster.toml lies in this folder.
    let (nobody, endpoints) = (crate::support::ports::address(), cluster.endpoints());
    let elsewhere = tempfile::tempdir().unwrap();
    let file = cluster.config();
    let (here, away, file) = (cluster.folder.as_path(), elsewhere.path(), file.to_str().unwrap());
    for (folder, variables, flags, code) in [
        (here, &[("ROWLOCK_ENDPOINTS", nobody.as_str())][..], &["--config", file][..], 0),
        (here, &[("ROWLOCK_ENDPOINTS", &nobody)], &["--endpoints", &endpoints], 0),
        (here, &[("ROWLOCK_ENDPOINTS", &nobody)], &[], UNAVAILABLE),
        (here, &[("ROWLOCK_ENDPOINTS", "")], &[], 0),
        (away, &[("ROWLOCK_CONFIG", file)], &[], 0),
        (away, &[("ROWLOCK_CONFIG", "/no/such/file"), ("ROWLOCK_ENDPOINTS", &endpoints)], &[], 0),
        (away, &[("ROWLOCK_CONFIG", "/no/such/file")], &["--endpoints", &endpoints], 0),
        (here, &[], &["--endpoints", &nobody, "--config", file], UNAVAILABLE),
    ] {
        let mut command = rowlock(folder, &["ls", "/", "--connect-timeout", "2"]);
        let child = command.args(flags).envs(variables.iter().copied()).spawn().unwrap();
        let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
        assert_eq!(said.code, code, "{variables:?} {flags:?}: {}", said.err);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_requires_authentication_says_how_and_serves_who_authenticates() {
    let cluster = Cluster::start(1, &format!("{FAST}[client]\nrequire_auth = true\n")).await;
    let hint = "rowlock: the cluster requires authentication, and no credential was presented; set \
                ROWLOCK_AUTH=digest:USER:PASSWORD\n";
    for arguments in [&["create", "/a"][..], &["ls", "/"], &["lock", "l", "--", "true"], &["locks"]] {
        let said = ask(&cluster, arguments).await;
        assert_eq!((said.code, said.err.as_str()), (REFUSED, hint), "{arguments:?}");
    }
    for arguments in [&["create", "/a"][..], &["lock", "l", "--", "true"]] {
        let mut command = rowlock(&cluster.folder, arguments);
        command.env("ROWLOCK_AUTH", "digest:user:password");
        let said = tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap();
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    }
}

#[test]
fn the_simulator_is_started_from_beside_the_program_or_its_absence_is_told_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("rowlock");
    std::fs::copy(env!("CARGO_BIN_EXE_rowlock"), &program).unwrap();
    let sim = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.arg("sim").args(arguments).env("PATH", folder.path()).output().unwrap()
    };
    let absent = sim(&["run", "--seed", "1"]);
    assert_eq!(absent.status.code(), Some(69));
    let said = String::from_utf8(absent.stderr).unwrap();
    assert!(said.contains("cannot find rowlock-sim") && said.lines().count() == 1, "{said}");
    let simulator = folder.path().join("rowlock-sim");
    std::fs::write(&simulator, "#!/bin/sh\necho \"$@\"\nexit 3\n").unwrap();
    std::fs::set_permissions(&simulator, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for arguments in [&["run", "--seed", "1", "--help"][..], &["--help"]] {
        let started = sim(arguments);
        assert_eq!(started.status.code(), Some(3));
        assert_eq!(String::from_utf8(started.stdout).unwrap().trim(), arguments.join(" "));
    }
}

#[test]
fn a_fence_lets_in_no_smaller_token_and_holds_later_ones_back_until_the_write_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let fence = |arguments: &[&str]| run(folder.path(), &[&["fence", "check", "data"], arguments].concat());
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let write = |token: &str| fence(&["--token", token, "--", "sh", "-c", "echo $0 >data", token]);
    assert_eq!(write("9007199254740993").code, 0);
    let late = write("9007199254740992");
    assert_eq!((late.code, read("data").trim()), (REFUSED, "9007199254740993"), "{}", late.err);
    assert!(late.err.contains("stale token 9007199254740992"), "{}", late.err);
    assert_eq!(fence(&["--token", "9007199254740994"]).code, 0);
    assert_eq!(read("data.fence"), "00009007199254740994\n");
    assert_eq!(write("9007199254740993").code, REFUSED, "no one has written, and still it is late");
    assert_eq!(fence(&["--token", "9007199254740994", "--", "sh", "-c", "exit 7"]).code, 7);
    assert_eq!(fence(&[]).code, USAGE, "no token");

    // The command of an earlier holder goes on although its `rowlock` is killed.
    let slow = ["fence", "check", "data", "--token", "9007199254740995", "--", "sh", "-c"];
    let script = "echo in; read end <end; echo slow >data";
    assert!(std::process::Command::new("mkfifo").arg(folder.path().join("end")).status().unwrap().success());
    let mut earlier = rowlock(folder.path(), &[&slow[..], &[script]].concat()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(earlier.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    earlier.kill().unwrap();
    earlier.wait().unwrap();
    let later = rowlock(folder.path(), &["fence", "check", "data", "--token", "9007199254740996"]).spawn();
    // That it does not end cannot be waited for.
    std::thread::sleep(secs(1));
    let mut later = later.unwrap();
    assert!(later.try_wait().unwrap().is_none(), "it waits for the write that is under way");
    fs::write(folder.path().join("end"), "\n").unwrap();
    assert_eq!((finish(later).code, read("data").trim()), (0, "slow"));
    fs::write(folder.path().join("data.fence"), "nonsense").unwrap();
    assert_eq!(fence(&["--token", "9007199254740997"]).code, 73);
}

#[test]
fn a_fence_is_given_back_by_its_command_and_follows_no_link_and_takes_no_token_beyond_all() {
    let folder = tempfile::tempdir().unwrap();
    let fence = |arguments: &[&str]| run(folder.path(), &[&["fence", "check", "data"], arguments].concat());
    let script = "sleep 30 <&- >/dev/null 2>&1 &";
    assert_eq!(fence(&["--token", "1", "--", "sh", "-c", script]).code, 0);
    let begun = Instant::now();
    assert_eq!(fence(&["--token", "2"]).code, 0);
    assert!(begun.elapsed() < secs(10), "a process in the background holds the fence: {:?}", begun.elapsed());

    let largest = i64::MAX.to_string();
    for beyond in ["9223372036854775808", "18446744073709551615", "18446744073709551616"] {
        assert_eq!(fence(&["--token", beyond]).code, USAGE, "{beyond}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("data.fence")).unwrap(), "00000000000000000002\n");
    assert_eq!(fence(&["--token", &largest]).code, 0);

    let (fence_file, victim) = (folder.path().join("data.fence"), folder.path().join("victim"));
    fs::remove_file(&fence_file).unwrap();
    fs::write(&victim, "").unwrap();
    std::os::unix::fs::symlink(&victim, &fence_file).unwrap();
    for arguments in [&["--token", "3"][..], &["--token", "3", "--", "sh", "-c", "echo ran >data"]] {
        let said = fence(arguments);
        assert_eq!(said.code, 73, "{}", said.err);
        assert!(said.err.contains("data.fence is a link"), "{}", said.err);
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "");
    assert!(!folder.path().join("data").exists(), "the command must not run");
}
