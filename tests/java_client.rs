//! The client of `client/java`, as the others of `tests/thin_clients.rs`, and what only a JVM can show: a
//! guard is lost before the next grant when the JVM was stopped, and a thousand threads take turns. Without a
//! JDK all of it is named and skipped. `ROWLOCK_TEST_JAVA` is the home of another JDK.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, finish_within};
use crate::support::secs;
use crate::support::tools::{self, Tool};
use crate::thin_clients::{clients, conforms, run};

const THREADS: &str = "1000";
const STOPS: usize = 3;

/// A JDK, and the folder with what it has compiled.
struct Jdk {
    home: Option<PathBuf>,
    folder: PathBuf,
}

impl Jdk {
    /// Compiles once in this process.
    fn get() -> Option<&'static Jdk> {
        static JDK: OnceLock<Option<Jdk>> = OnceLock::new();
        JDK.get_or_init(|| {
            let home = std::env::var_os("ROWLOCK_TEST_JAVA").map(PathBuf::from);
            let jdk = Jdk { home, folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join("java") };
            let (javac, skipped) = (jdk.program("javac"), "the client for Java");
            let tool =
                Tool { name: "the JDK", programs: &[&javac], probe: &["-version"], least: &[17], skipped };
            tool.find()?;
            let _ = std::fs::remove_dir_all(&jdk.folder);
            jdk.compile("main", "src/main/java", "");
            jdk.compile("tests", "src/test/java", &jdk.out("main"));
            Some(jdk)
        })
        .as_ref()
    }

    fn program(&self, name: &str) -> PathBuf {
        self.home.as_ref().map_or(PathBuf::from(name), |home| home.join("bin").join(name))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = tools::command(self.program(program));
        command.current_dir(clients().join("java"));
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Said {
        let said = finish(self.command(program).args(arguments).spawn().unwrap());
        assert_eq!(said.code, 0, "{program} {arguments:?}: {}{}", said.out, said.err);
        said
    }

    fn out(&self, of: &str) -> String {
        self.folder.join(of).display().to_string()
    }

    fn compile(&self, to: &str, from: &str, path: &str) {
        let out = self.out(to);
        let lints = ["-Xlint:all,-try", "-Werror", "--release", "17", "-d", &out];
        let path = if path.is_empty() { vec![] } else { vec!["-cp", path] };
        let sources = sources(&clients().join("java").join(from));
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        self.run("javac", &[&lints[..], &path, &sources].concat());
    }

    fn java(&self, program: &str) -> Command {
        let mut java = self.command("java");
        java.arg("-cp").arg(format!("{}:{}", self.out("main"), self.out("tests")));
        java.arg(format!("io.github.rowlock.{program}"));
        java
    }
}

fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "java") {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_for_java_does_what_all_clients_must_do() {
    let Some(jdk) = Jdk::get() else { return };
    conforms(jdk.java("Conformance"), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_for_java_passes_its_own_tests_and_is_documented() {
    let Some(jdk) = Jdk::get() else { return };
    let said = run(jdk.java("ClientTest")).await;
    assert!(said.code == 0 && said.out.ends_with(" tests\n"), "{}{}", said.out, said.err);
    let docs = jdk.out("docs");
    let sources = sources(&clients().join("java/src/main"));
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let lints = ["-quiet", "-Xdoclint:all", "-protected", "-Werror", "-d", &docs];
    jdk.run("javadoc", &[&lints[..], &sources].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jars_need_only_the_jdk_and_the_adapters_behave_as_their_libraries_expect() {
    let Some(jdk) = Jdk::get() else { return };
    let mut build = tools::command(clients().join("../.ci/java"));
    build.arg(jdk.out("jars"));
    if let Some(home) = &jdk.home {
        build.env("JAVA_HOME", home);
    }
    let built = run(build).await;
    assert_eq!(built.code, 0, "{}{}", built.out, built.err);
    let (client, adapters) = built.out.trim().split_once('\n').unwrap();
    assert_eq!(jdk.run("jdeps", &["--print-module-deps", client]).out, "java.base,java.net.http\n");
    let inside = jdk.run("jar", &["--list", "--file", adapters]).out;
    let classes = || inside.lines().filter(|name| name.ends_with(".class"));
    assert!(classes().count() >= 4 && classes().all(|name| name.starts_with("io/github/rowlock/adapters/")));
    jdk.compile("stubs", "adapters/stubs", "");
    let path = format!("{client}:{adapters}:{}", jdk.out("stubs"));
    jdk.compile("adapters", "adapters/tests", &path);
    let it = Cluster::start_with_api(1, FAST).await;
    let mut test = jdk.command("java");
    test.args(["-cp", &format!("{path}:{}", jdk.out("adapters")), "io.github.rowlock.adapters.AdaptersTest"]);
    test.arg(format!("http://{}", it.api(1)));
    let said = run(test).await;
    assert!(said.code == 0 && said.out.ends_with(" checks\n"), "{}{}", said.out, said.err);
}

fn wall_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_of_a_jvm_that_was_stopped_is_lost_before_the_next_grant() {
    let Some(jdk) = Jdk::get() else { return };
    let it = Cluster::start_with_api(1, FAST).await;
    let client = it.client().await;
    for stop in 0..STOPS {
        let lock = format!("jvm-{stop}");
        let mut holder = jdk.java("Drills");
        let mut holder = holder.args(["hold", &format!("http://{}", it.api(1)), &lock]).spawn().unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut first = Vec::new();
        let works = tokio::task::spawn_blocking(move || {
            first.extend(lines.by_ref().take(2 + 20 * stop));
            (first, lines)
        });
        let (mut said, lines) = works.await.unwrap();
        assert!(said[0].starts_with("held "), "{said:?}");
        kill_process(Pid::from_child(&holder), Signal::STOP).unwrap();
        let next = client.mutex(&lock).lock().await.unwrap();
        let granted_ms = wall_ms();
        kill_process(Pid::from_child(&holder), Signal::CONT).unwrap();
        let rest = tokio::task::spawn_blocking(move || lines.collect::<Vec<String>>());
        said.extend(rest.await.unwrap());
        holder.wait().unwrap();
        let at = |line: &str| line.split(' ').nth(1).unwrap().parse::<u128>().unwrap();
        let works: Vec<u128> =
            said.iter().filter(|line| line.starts_with("works")).map(|line| at(line)).collect();
        assert!(!works.is_empty() && works.iter().all(|at| *at < granted_ms), "{granted_ms}: {said:?}");
        for word in ["lost ", "told "] {
            assert_eq!(said.iter().filter(|line| line.starts_with(word)).count(), 1, "{said:?}");
        }
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_threads_of_a_jvm_take_one_lock_in_order() {
    let Some(jdk) = Jdk::get() else { return };
    let it = Cluster::start_with_api(1, "").await;
    let mut threads = jdk.java("Drills");
    threads.args(["threads", &format!("http://{}", it.api(1)), "one", THREADS]);
    let said = tokio::task::spawn_blocking(move || finish_within(threads.spawn().unwrap(), secs(300)));
    let said = said.await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    println!("{}", said.out);
}
