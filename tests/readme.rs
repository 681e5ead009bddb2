//! The README and the pages about the command line and HTTP, as a reader would follow them: the lines of
//! their shell blocks are typed into a shell, one by one, beside a cluster. All other command lines are
//! parsed by a test of `cli/src/pages.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish};

const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";

/// What is not simply typed, by how the line begins.
enum How {
    /// It goes on until Ctrl-C.
    Stays,
    /// Another test does it.
    Elsewhere,
}

const SPECIAL: [(&str, How); 11] = [
    ("rowlock lock nightly  ", How::Stays),
    ("rowlock locks --watch", How::Stays),
    ("rowlock top  ", How::Stays),
    ("rowlock serve --config cluster.toml --node 2 ", How::Stays),
    // This binary; `.ci/packaged` and `up` in this folder; the simulator's own tests; the bench.
    ("cargo install", How::Elsewhere),
    ("cargo run -- up", How::Elsewhere),
    ("cargo test", How::Elsewhere),
    ("cargo run --release -p rowlock-sim", How::Elsewhere),
    ("just bench", How::Elsewhere),
    // Certificates and tokens: tests/http_access.rs.
    ("curl --cacert", How::Elsewhere),
    ("rowlock token new", How::Elsewhere),
];

/// A folder with all that the lines need: the program, scripts, and a `curl` that finds the nodes where they
/// are.
struct Shell {
    folder: PathBuf,
    /// What a request for a lock was answered last.
    answer: serde_json::Value,
}

impl Shell {
    fn beside(cluster: &Cluster) -> Shell {
        let folder = cluster.folder.clone();
        fs::create_dir_all(folder.join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_rowlock"), folder.join("bin/rowlock")).unwrap();
        for script in ["backup.sh", "report.sh", "upload.sh", "run.sh"] {
            let file = folder.join(script);
            fs::write(&file, "#!/bin/sh\ntest -n \"$ROWLOCK_LOCK_NAME\"\n").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut rules = String::from("fail-with-body\nsilent\nshow-error\n");
        for id in cluster.ids() {
            for host in ["127.0.0.1", "localhost"] {
                rules += &format!("connect-to = \"{host}:808{id}:{}\"\n", cluster.http(id));
                rules += &format!("connect-to = \"{host}:848{id}:{}\"\n", cluster.api(id));
            }
        }
        fs::write(folder.join(".curlrc"), rules).unwrap();
        Shell { folder, answer: serde_json::Value::Null }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROWLOCK_")) {
            command.env_remove(name);
        }
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("CURL_HOME", &self.folder).env("ROWLOCK_AUTH", "digest:super:test");
        // So that a signal reaches the program itself.
        command.arg("-c").arg(format!("exec {line}")).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The line with what only an earlier answer tells in the place of `SECRET` and `TOKEN`.
    fn filled(&self, line: &str) -> String {
        let told = |key: &str| self.answer[key].as_str().unwrap_or(key).to_owned();
        line.replace("SECRET", &told("secret")).replace("TOKEN", &told("token"))
    }

    async fn run(&mut self, line: &str) -> Said {
        let mut command = self.command(&self.filled(line));
        let child = command.spawn().unwrap();
        let said = tokio::task::spawn_blocking(move || finish(child)).await.unwrap();
        if let Ok(answer) = serde_json::from_str::<serde_json::Value>(&said.out)
            && answer.get("secret").is_some()
        {
            self.answer = answer;
        }
        said
    }

    /// Lets it run for a while, and sends what Ctrl-C sends.
    async fn interrupt(&self, line: &str) -> Said {
        let child = self.command(line).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let ended = tokio::task::spawn_blocking(move || finish(child));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(!ended.is_finished(), "it did not stay: {line}: {:?}", ended.await);
        kill_process(pid, Signal::INT).unwrap();
        ended.await.unwrap()
    }
}

/// The lines of a page's shell blocks, without their comments.
fn lines(page: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(page)).unwrap();
    let blocks = text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let shell = blocks.filter(|(language, _)| ["", "sh"].contains(language));
    let commands =
        |line: &&str| ["cargo ", "rowlock ", "curl ", "just "].iter().any(|word| line.starts_with(word));
    shell
        .flat_map(|(_, block)| {
            let block = block.replace("\\\n", " ");
            block.lines().filter(commands).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

async fn follow(page: &str, shell: &mut Shell, cluster: &mut Cluster) -> usize {
    let mut tried = 0;
    for line in lines(page) {
        let how = SPECIAL.iter().find(|(start, _)| line.starts_with(start)).map(|(_, how)| how);
        let said = match how {
            Some(How::Elsewhere) => continue,
            Some(How::Stays) if line.contains("serve") => {
                cluster.kill(2);
                let said = shell.interrupt(&line).await;
                cluster.start_node(2);
                cluster.wait_until_serves(2).await;
                said
            }
            Some(How::Stays) => shell.interrupt(&line).await,
            None if line.contains("release --force --token 42") => {
                let holder = cluster.client().await;
                let guard = holder.mutex("nightly").lock().await.unwrap();
                let token = format!("--token {}", guard.token());
                shell.run(&line.replace("--token 42", &token)).await
            }
            None => shell.run(&line).await,
        };
        assert_eq!(said.code, 0, "{page}: {line}\n{}{}", said.out, said.err);
        tried += 1;
    }
    tried
}

pub fn has_curl() -> bool {
    let found = Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("curl is not installed: the pages are NOT followed");
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_and_the_page_of_the_command_line_work_as_written() {
    if !has_curl() {
        return;
    }
    let mut cluster = Cluster::start_with_api(3, &format!("{FAST}{SUPER}")).await;
    let mut shell = Shell::beside(&cluster);
    let tried = follow("README.md", &mut shell, &mut cluster).await;
    assert!(tried > 10, "only {tried} lines of the README were typed");
    let tried = follow("docs/cli.md", &mut shell, &mut cluster).await;
    assert!(tried > 15, "only {tried} lines of the command line's page were typed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_about_locks_by_http_works_as_written() {
    if !has_curl() {
        return;
    }
    let mut cluster = Cluster::start_with_api(3, &format!("{FAST}{SUPER}")).await;
    let mut shell = Shell::beside(&cluster);
    let tried = follow("docs/rest.md", &mut shell, &mut cluster).await;
    assert!(tried >= 3, "only {tried} lines were typed");
}
