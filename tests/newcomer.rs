//! A newcomer's way by the pages alone, from an empty folder to a lock with TLS and a token: the shell lines
//! of a page are typed, and its first program stands in the file that the page names. A language that is not
//! installed is named and skipped.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::readme::has_curl;
use crate::support::cluster::{self, SERVING};
use crate::support::command::{Said, clean, finish_within};
use crate::support::tools::{self, Tool};
use crate::support::{ports, secs};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Lines that would ask a registry, and what is typed in their place.
const OFFLINE: [(&str, &str); 2] = [
    ("python3 -m venv venv", "python3 -m venv --without-pip venv"),
    (
        "venv/bin/pip install ",
        "sh -c 'test -e $0/pyproject.toml && echo $PWD/$0 > $(echo venv/lib/python*/site-packages)/it.pth' ",
    ),
];

/// A block of a page, and the name of a file in the text above it.
struct Block {
    language: String,
    file: Option<String>,
    text: String,
}

fn page(path: &str) -> String {
    fs::read_to_string(Path::new(REPOSITORY).join(path)).unwrap()
}

fn blocks(text: &str) -> Vec<Block> {
    let parts: Vec<&str> = text.split("\n```").collect();
    let of = |pair: &[&str]| {
        let (language, text) = pair[1].split_once('\n').unwrap();
        let above = pair[0].rsplit("\n\n").find(|part| !part.trim().is_empty()).unwrap_or_default();
        let file = above.trim().strip_prefix('`').and_then(|rest| Some(rest.split_once('`')?.0.to_owned()));
        Block { language: language.to_owned(), file, text: format!("{text}\n") }
    };
    parts.chunks_exact(2).map(of).collect()
}

/// A folder with `bin/rowlock`, the checkout `rowlock`, and `empty`.
struct Desk {
    folder: TempDir,
    /// The lines with `export` that were typed.
    exports: String,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        for name in ["bin", "empty", "cluster"] {
            fs::create_dir(here.join(name)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_rowlock"), here.join("bin/rowlock")).unwrap();
        symlink(Path::new(REPOSITORY).canonicalize().unwrap(), here.join("rowlock")).unwrap();
        Desk { folder, exports: String::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shell(&self, folder: &str, line: &str) -> Command {
        let mut shell = clean("sh");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        shell.env("PATH", path).env("CARGO_NET_OFFLINE", "true").env("CARGO_PROFILE_DEV_DEBUG", "none");
        shell.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("newcomer"));
        shell.env("npm_config_offline", "true").env("npm_config_cache", self.path("npm"));
        shell.envs([
            ("GOFLAGS", "-mod=mod"),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
            ("GOWORK", "off"),
        ]);
        shell.arg("-c").arg(format!("{}\n{line}", self.exports)).current_dir(self.path(folder));
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }

    fn run(&self, folder: &str, line: &str) -> Said {
        finish_within(self.shell(folder, line).spawn().unwrap(), secs(580))
    }

    fn type_in(&self, folder: &str, line: &str) -> Said {
        let said = self.run(folder, line);
        assert_eq!(said.code, 0, "{line}\n{}{}", said.out, said.err);
        said
    }
}

/// The process `rowlock up`, which ends when this is dropped.
struct Up(Child, BufReader<ChildStdout>);

impl Up {
    /// Types the page's line, for free ports and without its demonstration, and the lines that it prints.
    fn start(desk: &mut Desk) -> Up {
        let shown = blocks(&page("docs/get-started.md"));
        let line = shown[0].text.split(" #").next().unwrap().trim();
        let mut file = String::new();
        for id in 1..=3 {
            let [client, peer, http, api] = [(); 4].map(|()| ports::address());
            file += &format!("[[node]]\nid = {id}\nclient = \"{client}\"\npeer = \"{peer}\"\n");
            file += &format!("http = \"{http}\"\napi = \"{api}\"\n");
        }
        fs::write(desk.path("cluster/cluster.toml"), file).unwrap();
        let mut up = desk.shell("cluster", &format!("exec {line} --no-demo")).spawn().unwrap();
        let mut out = BufReader::new(up.stdout.take().unwrap());
        let mut seen = String::new();
        while !seen.contains("rowlock is ") {
            assert_ne!(out.read_line(&mut seen).unwrap(), 0, "{seen}");
        }
        let exports = seen.lines().map(str::trim).filter(|line| line.starts_with("export "));
        desk.exports = exports.collect::<Vec<_>>().join("\n");
        let up = Up(up, out);
        desk.type_in("empty", &shown[1].text);
        up
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).ok();
        std::io::copy(&mut self.1, &mut std::io::sink()).ok();
        self.0.wait().ok();
    }
}

/// Follows the page of a client to the lines that run its first program. Without `credential` the program is
/// refused.
fn follow(path: &str, credential: &str) {
    let mut desk = Desk::new();
    let _up = Up::start(&mut desk);
    let mut has_program = false;
    for block in blocks(&page(path)) {
        if block.language != "sh" {
            let file = block.file.unwrap_or_else(|| panic!("{path} names no file for its program"));
            let folder = if block.language.starts_with("rust") { "empty/src" } else { "empty" };
            fs::write(desk.path(folder).join(file), block.text).unwrap();
            has_program = true;
            continue;
        }
        let mut said = None;
        for line in block.text.lines() {
            let found = OFFLINE.iter().find(|(shown, _)| line.starts_with(shown));
            let line = found.map_or(line.to_owned(), |(shown, typed)| line.replacen(shown, typed, 1));
            said = Some((desk.type_in("empty", &line), line));
        }
        if has_program {
            let (said, line) = said.unwrap();
            let token = said.out.lines().next().and_then(|line| line.strip_prefix("token "));
            assert!(token.is_some_and(|token| token.parse::<u64>().is_ok()), "{}", said.out);
            let said =
                desk.run("empty", &format!("unset {credential}\nexport ROWLOCK_CONNECT_TIMEOUT=2\n{line}"));
            assert!(
                said.code != 0 && !said.out.contains("token "),
                "let in without {credential}: {}",
                said.out
            );
            return;
        }
    }
    panic!("{path} does not run its program");
}

/// Follows the page of a client if its language's program is there in this version or a later one.
async fn newcomer(client: &str, (name, probe): (&str, &str), least: &[u32], credential: &'static str) {
    let skipped = format!("the page of the client in client/{client}");
    let tool = Tool { name, programs: &[Path::new(name)], probe: &[probe], least, skipped: &skipped };
    if tool.find().is_some() {
        let _turn = cluster::turn().await;
        tokio::task::block_in_place(|| follow(&format!("client/{client}/README.md"), credential));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_a_lock_with_tls_and_token_in_python() {
    if tools::python("the page of Python's client").is_some() {
        let _turn = cluster::turn().await;
        tokio::task::block_in_place(|| follow("client/python/README.md", "ROWLOCK_TOKEN"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_a_lock_with_tls_and_token_in_typescript() {
    newcomer("typescript", ("npm", "version"), &[7], "ROWLOCK_TOKEN").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_a_lock_with_tls_and_token_in_go() {
    newcomer("go", ("go", "version"), &[1, 19], "ROWLOCK_TOKEN").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_a_lock_with_tls_and_token_in_java() {
    newcomer("java", ("javac", "-version"), &[17], "ROWLOCK_TOKEN").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_a_lock_with_tls_and_a_certificate_in_rust() {
    newcomer("rust", ("cargo", "--version"), &[1, 90], "ROWLOCK_TLS_CERT ROWLOCK_TLS_KEY").await;
}

/// Returns the text with free addresses in place of the machines' names, the same one for each address.
fn at_free_addresses(text: &str, known: &mut BTreeMap<String, String>) -> String {
    let mut parts = text.split("db");
    let mut all = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_at(part.find(['"', ',', '/', ' ', '\n']).unwrap_or(part.len()));
        assert!(name[1..].starts_with(".example:"), "no machine of the page: db{name}");
        all += known.entry(name.to_owned()).or_insert_with(ports::address);
        all += rest;
    }
    all
}

/// Processes of nodes, which are killed when this is dropped.
struct Nodes(Vec<Child>);

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.0 {
            node.kill().ok();
            node.wait().ok();
        }
    }
}

fn three_machines() {
    let mut desk = Desk::new();
    let text = page("docs/get-started.md");
    let section = text.split("\n## On three machines\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut known = BTreeMap::new();
    let section = at_free_addresses(section, &mut known).replace("\"/var/lib/rowlock\"", "\"data\"");
    let mut blocks = blocks(&section.replace("\"/backup\"", "\"backup\"")).into_iter();
    fs::write(desk.path("cluster/cluster.toml"), blocks.next().unwrap().text).unwrap();
    let mut token = String::new();
    for line in blocks.next().unwrap().text.lines() {
        token = desk.type_in("cluster", line).out;
    }
    let mut nodes = Nodes(Vec::new());
    let serve = section.split("`rowlock serve ").nth(1).unwrap().split('`').next().unwrap();
    for node in ["1", "2", "3"] {
        let line = format!(
            "exec rowlock serve {} > node-{node}.log 2>&1",
            serve.replace("--node N", &format!("--node {node}"))
        );
        nodes.0.push(desk.shell("cluster", &line).spawn().unwrap());
    }
    let script = desk.path("cluster/backup.sh");
    fs::File::create(&script).unwrap().write_all(b"#!/bin/sh\necho $ROWLOCK_LOCK_TOKEN\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let begun = Instant::now();
    for line in blocks.flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>()) {
        if line.starts_with("export ") {
            desk.exports += &format!("\n{}", line.replace("=TOKEN", &format!("={}", token.trim())));
        } else if line.starts_with("rowlock doctor") {
            while desk.run("cluster", &line).code != 0 {
                assert!(begun.elapsed() < SERVING, "{}", desk.type_in("cluster", &line).out);
            }
        } else if line.starts_with("curl ") {
            if !has_curl() {
                continue;
            }
            let said = desk.type_in("cluster", &line);
            assert!(said.out.contains(r#""state":"held""#), "{}{}", said.out, said.err);
            let said = desk.run("cluster", &format!("ROWLOCK_TOKEN=\n{line}"));
            assert!(said.out.contains("401"), "let in without a token: {}", said.out);
        } else {
            desk.type_in("cluster", &line);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_of_the_page_to_get_started_serves_locks_by_certificate_and_by_token() {
    let _turn = cluster::turn().await;
    tokio::task::spawn_blocking(three_machines).await.unwrap();
}
