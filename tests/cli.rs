//! The command line as a shell sees it: stories in `testdata/cli/*.txt`, each with a cluster of its own.
//!
//! ```text
//! cluster 1                        nodes; then `encrypted`, if TLS is wanted, and lines of settings
//! needs curl                       a program without which the story is left out
//!
//! == title of a part
//! $ rowlock create /app one        any command of sh(1); `> ` continues it
//! /app                             its stdout
//! ! rowlock: /app: znode exists    its stderr
//! ? 1                              its exit code, unless 0
//! ```
//!
//! One shell runs all commands of a file, so that variables, files and background jobs last; functions for
//! them are in `prelude.sh`. In expected lines `[..]` is any text, a line `...` any number of lines, a line
//! `! ...` any number of lines of stderr, `${name}` the value of a variable of the shell, and several spaces
//! count as one. Control characters are escaped. A file without the line `cluster` runs in an empty folder.
//! `ROWLOCK_UPDATE=1` rewrites what differs; review the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::cluster::{Cluster, FAST};
use crate::support::{command, ports, secs};

/// The longest that a story may take.
const LIMIT: Duration = secs(240);

fn testdata() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/testdata/cli")).to_owned()
}

pub fn path_with_rowlock() -> OsString {
    let binary = Path::new(env!("CARGO_BIN_EXE_rowlock")).parent().unwrap();
    let mut path = OsString::from(binary);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    path
}

/// A command of a story and its expected outcome.
#[derive(Default)]
struct Block {
    /// Number of its first line.
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// A file of a story.
#[derive(Default)]
struct Story {
    nodes: u64,
    needs: Option<String>,
    is_encrypted: bool,
    settings: String,
    blocks: Vec<Block>,
}

impl Story {
    fn parse(text: &str) -> Story {
        let mut story = Story::default();
        let (mut in_head, mut in_block) = (true, false);
        for (number, line) in text.lines().enumerate() {
            if let Some(command) = line.strip_prefix("$ ") {
                (in_head, in_block) = (false, true);
                let block = Block { line: number + 1, command: command.to_owned(), expected: Vec::new() };
                story.blocks.push(block);
            } else if line.is_empty() {
                in_block = false;
            } else if in_block {
                let block = story.blocks.last_mut().unwrap();
                match line.strip_prefix("> ") {
                    Some(more) if block.expected.is_empty() => {
                        block.command.push('\n');
                        block.command.push_str(more);
                    }
                    _ => block.expected.push(line.to_owned()),
                }
            } else if line.starts_with("== ") {
                in_head = false;
            } else if let Some(words) = line.strip_prefix("cluster ") {
                story.is_encrypted = words.ends_with(" encrypted");
                story.nodes = words.trim_end_matches(" encrypted").parse().unwrap();
            } else if let Some(program) = line.strip_prefix("needs ") {
                story.needs = Some(program.to_owned());
            } else if in_head && !line.starts_with('#') {
                story.settings.push_str(line);
                story.settings.push('\n');
            } else {
                assert!(line.starts_with('#'), "line {} is neither a comment nor output", number + 1);
            }
        }
        story
    }

    async fn start_cluster(&self) -> Option<Cluster> {
        let settings = match self.settings.contains("[raft]") {
            true => self.settings.clone(),
            false => format!("{FAST}{}", self.settings),
        };
        match self.nodes {
            0 => None,
            nodes if self.is_encrypted => Some(Cluster::start_encrypted(nodes).await),
            nodes => Some(Cluster::start(nodes, &settings).await),
        }
    }

    /// The commands as a script that leaves the outcome of each in `$T`. Its last line ends all processes
    /// that the story has started and not ended.
    fn script(&self) -> String {
        let mut script = format!(". '{}'\n", testdata().join("prelude.sh").display());
        for (number, block) in self.blocks.iter().enumerate() {
            writeln!(
                script,
                "{{ {}\n}} >\"$T/{number}.out\" 2>\"$T/{number}.err\" </dev/null",
                block.command
            )
            .unwrap();
            writeln!(script, "echo \"$?\" >\"$T/{number}.code\"").unwrap();
            for name in block.expected.iter().flat_map(|line| variables(line)) {
                writeln!(script, "echo \"{name}=${{{name}}}\" >>\"$T/{number}.variables\"").unwrap();
            }
        }
        script.push_str(": >\"$T/ended\"; kill -KILL 0\n");
        script
    }
}

/// The names of the variables in a line.
fn variables(line: &str) -> impl Iterator<Item = &str> {
    line.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

/// The addresses and processes of a cluster, as variables of the shell.
fn environment(cluster: &Cluster, story: &Story) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("ENDPOINTS".to_owned(), cluster.endpoints())]);
    for id in cluster.ids() {
        all.insert(format!("CLIENT_{id}"), cluster.endpoint(id).to_owned());
        all.insert(format!("PEER_{id}"), cluster.peer(id).to_owned());
        all.insert(format!("HTTP_{id}"), cluster.http(id).to_owned());
        all.insert(format!("NODE_{id}"), cluster.pid(id).to_string());
        if story.is_encrypted {
            all.insert(format!("SECURE_{id}"), cluster.secure(id).to_owned());
        }
    }
    all
}

/// Runs the script of a story in `folder`; outcomes are in `results`.
fn run_script(story: &Story, folder: &Path, results: &Path, environment: &BTreeMap<String, String>) {
    let script = results.join("story.sh");
    fs::write(&script, story.script()).unwrap();
    let mut shell: Command = command::clean("sh");
    shell
        .arg(&script)
        .current_dir(folder)
        .envs(environment)
        .env("T", results)
        .env("PATH", path_with_rowlock());
    for name in ["NOWHERE", "FREE_1", "FREE_2", "FREE_3"] {
        shell.env(name, ports::address());
    }
    // Into a file: processes that outlive the shell would keep a pipe open.
    let complaints = results.join("story.err");
    let stderr = fs::File::create(&complaints).unwrap();
    let shell = shell.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
    let (mut shell, begun) = (shell.unwrap(), Instant::now());
    while shell.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            kill_process_group(Pid::from_child(&shell), Signal::KILL).unwrap();
            shell.wait().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if !results.join("ended").exists() {
        println!("the story did not reach its end: {}", fs::read_to_string(complaints).unwrap());
    }
}

/// The outcome of a command in the form of expected lines; `None` if the story ended before it.
fn outcome(results: &Path, number: usize) -> Option<Vec<String>> {
    let read = |what: &str| fs::read(results.join(format!("{number}.{what}"))).ok();
    let code = String::from_utf8(read("code")?).unwrap();
    let mut all = lines(&read("out")?, "");
    all.extend(lines(&read("err")?, "! "));
    if code.trim() != "0" {
        all.push(format!("? {}", code.trim()));
    }
    Some(all)
}

fn lines(bytes: &[u8], mark: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let visible = |line: &str| {
        let mut shown = mark.to_owned();
        for character in line.trim_end_matches('\n').chars() {
            match character.is_control() {
                true => shown.extend(character.escape_default()),
                false => shown.push(character),
            }
        }
        if !line.ends_with('\n') {
            shown.push_str("(no newline)");
        } else if line == "\n" {
            shown.push_str("(blank)");
        }
        shown
    };
    text.split_inclusive('\n').map(visible).collect()
}

/// Expected lines with the values of their variables.
fn substituted(results: &Path, number: usize, expected: &[String]) -> Vec<String> {
    let values = fs::read_to_string(results.join(format!("{number}.variables"))).unwrap_or_default();
    let values: Vec<_> = values.lines().filter_map(|line| line.split_once('=')).collect();
    let line = |line: &String| {
        values.iter().fold(line.clone(), |line, (name, value)| line.replace(&format!("${{{name}}}"), value))
    };
    expected.iter().map(line).collect()
}

fn lines_match(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((first, rest)) if first == "..." || first == "! ..." => (0..=actual.len())
            .take_while(|skipped| {
                actual[..*skipped].iter().all(|line| first == "..." || line.starts_with('!'))
            })
            .any(|skipped| lines_match(rest, &actual[skipped..])),
        Some((first, rest)) => actual.split_first().is_some_and(|(line, others)| {
            line_matches(&squeezed(first), &squeezed(line)) && lines_match(rest, others)
        }),
    }
}

/// The line with one space in the place of several: the widths of columns differ from run to run.
fn squeezed(line: &str) -> String {
    line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((start, rest)) = pattern.split_once("[..]") else { return pattern == line };
    let Some(line) = line.strip_prefix(start) else { return false };
    (0..=line.len()).any(|at| line.is_char_boundary(at) && line_matches(rest, &line[at..]))
}

/// The differences between a story and its outcomes, and the text with the outcomes in their place.
fn compare(text: &str, story: &Story, results: &Path) -> (Vec<String>, String) {
    let mut differences = Vec::new();
    let mut updated: Vec<String> = text.lines().map(str::to_owned).collect();
    for (number, block) in story.blocks.iter().enumerate().rev() {
        let actual = outcome(results, number).unwrap_or_else(|| vec!["did not run to its end".to_owned()]);
        if lines_match(&substituted(results, number, &block.expected), &actual) {
            continue;
        }
        let of = |lines: &[String]| lines.iter().map(|line| format!("    {line}\n")).collect::<String>();
        differences.push(format!(
            "line {}: $ {}\n  expected:\n{}  actual:\n{}",
            block.line,
            block.command,
            of(&block.expected),
            of(&actual)
        ));
        let first = block.line - 1 + block.command.lines().count();
        updated.splice(first..first + block.expected.len(), actual);
    }
    differences.reverse();
    (differences, updated.join("\n") + "\n")
}

async fn play(text: &str) -> (Vec<String>, String) {
    let story = Story::parse(text);
    let cluster = story.start_cluster().await;
    let (empty, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = cluster.as_ref().map_or(empty.path(), |cluster| &cluster.folder);
    let environment = cluster.as_ref().map(|cluster| environment(cluster, &story)).unwrap_or_default();
    tokio::task::block_in_place(|| run_script(&story, folder, results.path(), &environment));
    compare(text, &story, results.path())
}

async fn play_file(name: &str) {
    let file = testdata().join(format!("{name}.txt"));
    if let Some(program) = Story::parse(&fs::read_to_string(&file).unwrap()).needs
        && Command::new(&program).arg("--version").stdout(Stdio::null()).status().is_err()
    {
        println!("{program} is not installed: {name} is LEFT OUT");
        return;
    }
    let (differences, updated) = play(&fs::read_to_string(&file).unwrap()).await;
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        fs::write(&file, updated).unwrap();
    } else {
        assert!(differences.is_empty(), "{}:\n{}", file.display(), differences.join("\n"));
    }
}

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { play_file(stringify!($name)).await; })*

        #[test]
        fn every_story_is_played() {
            let listed: BTreeSet<String> = [$(stringify!($name)),*].map(|name| format!("{name}.txt")).into();
            let files = fs::read_dir(testdata()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let present: BTreeSet<String> = files.filter(|name| name.ends_with(".txt")).collect();
            assert_eq!(listed, present);
        }
    };
}

stories! {
    znodes
    lock
    nested_locks
    asked
    elect
    sem
    once
    explain
    usage
    fence
    tls
    encrypted
    authentication
    addresses
    status
    machine
    startup
    terraform
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_story_that_differs_in_output_error_or_code_is_found_and_rewritten() {
    let right = "$ x=5; echo one; echo two\none\n...\n$ printf 'a\\tb'; echo e$x >&2; (exit 3)\na\\tb(no newline)\n! e${x}\n? 3\n\
                 $ cat <<END\n> $x[..]\n> END\n5[..]\n";
    assert_eq!(play(right).await, (Vec::new(), right.to_owned()));
    for (part, wrong) in [("one\n...", "two"), ("e${x}", "${x}"), ("? 3\n", ""), ("5[..]", "6[..]")] {
        let changed = right.replacen(&format!("\n{part}"), &format!("\n{wrong}"), 1).replacen(
            part,
            wrong,
            usize::from(part == "e${x}"),
        );
        let (differences, updated) = play(&changed).await;
        assert_eq!(differences.len(), 1, "{part}: {differences:?}");
        assert_eq!(play(&updated).await.0, Vec::<String>::new());
    }
}
