//! `rowlock-sim` from a shell; and one seed gives the same run in every process.
//!
//! A cluster is slow in a build without optimization, so there are few and short runs here;
//! `just deterministic` compares a hundred seeds in an optimized build.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const BROKEN: i32 = 1;
const USAGE: i32 = 64;

const LIMIT: Duration = Duration::from_secs(60);

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Output and exit code of a command.
struct Said {
    code: i32,
    out: String,
    err: String,
}

/// The program, in `folder`, without the environment of the tests.
fn simulator(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock-sim"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROWLOCK_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(child: Child) -> Said {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

fn run(folder: &Path, arguments: &[&str]) -> Said {
    finish(simulator(folder, arguments).spawn().unwrap())
}

/// Both at the same time, in two processes.
fn twice(folder: &Path, arguments: &[&str]) -> (Said, Said) {
    let [one, other] = [0, 1].map(|_| simulator(folder, arguments).spawn().unwrap());
    (finish(one), finish(other))
}

#[test]
fn seeds_are_the_same_runs_in_two_processes() {
    let folder = folder();
    let seeds = ["swarm", "--from", "4", "--seeds", "3", "--seconds", "8", "--fingerprints"];
    let (one, other) = twice(folder.path(), &seeds);
    assert_eq!(one.code, 0, "{}{}", one.out, one.err);
    assert_eq!(one.out, other.out);
    let seed = run(folder.path(), &["run", "--seed", "5", "--seconds", "8", "--fingerprint"]);
    let lines: Vec<&str> = one.out.lines().collect();
    assert!(lines[0].starts_with("4 ") && lines[2].starts_with("6 "), "{}", one.out);
    assert_eq!(lines[1], format!("5 {}", seed.out.trim()));
    let kinds: std::collections::BTreeSet<&str> =
        lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(kinds.len(), 3, "two seeds have the same fingerprint");
}

#[test]
fn a_run_with_a_script_of_its_own_is_told_and_drawn() {
    let folder = folder();
    let script = "# the leader cannot talk to the others\n2s isolate leader for 2s\n3s kill client1 for 1s\n";
    fs::write(folder.path().join("faults"), script).unwrap();
    let arguments = ["run", "--seed", "1", "--seconds", "8", "--script", "faults", "--html", "page.html"];
    let said = finish(simulator(folder.path(), &arguments).spawn().unwrap());
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for part in ["leads (term 1)", "Fault: isolate leader for 2s", "client1 is gone", "Every promise held."] {
        assert!(said.out.contains(part), "no {part} in {}", said.out);
    }
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("isolate leader for 2s") && page.ends_with("</html>\n"));
}

/// More than any cluster survives: all nodes lose their disks.
const HOPELESS: &str = "3s wipe nodes for 1s\n";

#[test]
fn a_broken_promise_is_told_and_leaves_a_file_that_repeats_it() {
    let folder = folder();
    fs::write(folder.path().join("faults"), HOPELESS).unwrap();
    let said = run(folder.path(), &["run", "--seed", "1", "--seconds", "8", "--script", "faults"]);
    assert_eq!(said.code, BROKEN, "{}{}", said.out, said.err);
    let line = said.out.lines().find_map(|line| line.strip_prefix("replay:    rowlock sim "));
    let again = run(folder.path(), &line.expect(&said.out).split(' ').collect::<Vec<_>>());
    assert_eq!(again.code, BROKEN, "{}{}", again.out, again.err);
    let violation = |said: &Said| {
        let line = said.out.lines().find(|line| line.starts_with("BROKEN")).map(str::to_owned);
        line.expect(&said.out)
    };
    assert_eq!(violation(&said), violation(&again));
}

/// `just mutants` runs it: another build has no mistakes to make.
#[cfg(feature = "mutants")]
#[test]
fn a_broken_promise_ends_the_swarm_with_a_line_that_reproduces_it() {
    let folder = folder();
    let mutant = ["--seconds", "8", "--scenario", "calm", "--mutant", "silently-differs"];
    let said = run(folder.path(), &[&["swarm", "--seeds", "50", "--jobs", "1"], &mutant[..]].concat());
    assert_eq!(said.code, BROKEN, "{}{}", said.out, said.err);
    let line =
        said.out.lines().find_map(|line| line.strip_prefix("reproduce: rowlock sim ")).expect(&said.out);
    let arguments: Vec<&str> = line.split(' ').collect();
    assert_eq!(arguments[arguments.len() - mutant.len()..], mutant);
    let again = run(folder.path(), &arguments);
    assert_eq!(again.code, BROKEN);
    assert!(again.out.contains("BROKEN"), "{}", again.out);
    let all = run(folder.path(), &[&["swarm", "--seeds", "10", "--keep-going"], &mutant[..]].concat());
    let broken = all.out.matches("BROKEN").count();
    assert!(all.code == BROKEN && broken > 1, "{}", all.out);
    assert!(all.out.contains(&format!(" broken  {broken}\n")), "{}", all.out);
}

/// Without contact to the leader, no node of this run serves clients.
#[cfg(feature = "mutants")]
#[test]
fn a_broken_promise_of_a_flipped_guard_names_its_checker() {
    let folder = folder();
    let flip = ["--seconds", "8", "--scenario", "calm", "--mutant", "leader-contact-is-recent"];
    let said = run(folder.path(), &[&["mutants", "--guards", "--seeds", "1"], &flip[..]].concat());
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.contains("\n1 noticed, 0 acted unseen"), "{}", said.out);
    let again = run(folder.path(), &[&["run", "--seed", "0"], &flip[..]].concat());
    assert_eq!(again.code, BROKEN, "{}", again.out);
}

/// The process has a handler for SIGINT, whose number is 2.
fn hears_interrupts(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 0b10 != 0
}

#[test]
fn ctrl_c_ends_a_swarm_with_its_figures() {
    let folder = folder();
    let arguments = ["swarm", "--seconds", "8", "--time", "10m"];
    let mut swarm = simulator(folder.path(), &arguments).spawn().unwrap();
    let pid = Pid::from_child(&swarm);
    let start = Instant::now();
    while !hears_interrupts(pid) {
        assert!(start.elapsed() < LIMIT, "the swarm does not listen for signals");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(pid, Signal::INT).unwrap();
    let mut out = String::new();
    swarm.stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(swarm.wait().unwrap().code(), Some(0), "{out}");
    assert!(out.contains("SIGINT: these are the figures so far") && out.contains("runs  "), "{out}");
}

#[test]
fn files_that_are_no_runs_are_refused_with_the_line_and_the_remedy() {
    let folder = folder();
    fs::write(folder.path().join("case"), "seed 5\nseconds 9\nfaults\n1s kill nobody for 2s\n").unwrap();
    let said = run(folder.path(), &["replay", "case"]);
    assert_eq!(said.code, USAGE);
    assert_eq!(
        said.err,
        "rowlock-sim: case: line 4: `nobody` is no target; write node1, leader, follower1, client1, nodes or clients; \
         for example: 3s kill leader for 2s\n"
    );
    let said = run(folder.path(), &["run", "--seed", "1", "--scenario", "doom"]);
    assert_eq!(said.code, USAGE);
    assert!(said.err.contains("there are all, wiped"), "{}", said.err);
}

#[test]
fn a_build_without_mutants_says_how_to_make_one_with_them() {
    if cfg!(feature = "mutants") {
        return;
    }
    let folder = folder();
    for arguments in [
        &["mutants"][..],
        &["mutants", "--guards"],
        &["run", "--seed", "1", "--mutant", "ignore-failed-flush"],
    ] {
        let said = run(folder.path(), arguments);
        assert_eq!(said.code, 69, "{}", said.out);
        assert!(said.err.contains("--features mutants"), "{}", said.err);
    }
    let list = run(folder.path(), &["mutants", "--list"]);
    assert_eq!(list.code, 0);
    assert!(list.out.lines().count() >= 25, "{}", list.out);
    let guards = run(folder.path(), &["mutants", "--guards", "--list"]);
    assert!(guards.code == 0 && guards.out.lines().count() >= 150, "{}", guards.out);
}
