//! `rowlock acquire` and `rowlock release --lease`: locks of commands that come and go, while no process
//! stays.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cli::path_with_rowlock;
use crate::cli_under_lock::{queue_of, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish};
use crate::support::{eventually, secs};

const REFUSED: i32 = 1;
const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
const FILE: i32 = 73;
const LOST: i32 = 75;

async fn run(cluster: &Cluster, line: &str) -> Said {
    let arguments: Vec<&str> = line.split(' ').collect();
    start(&cluster.folder, &arguments).end().await
}

/// Runs a command that must succeed, and returns its output.
async fn done(cluster: &Cluster, line: &str) -> String {
    let said = run(cluster, line).await;
    assert_eq!(said.code, 0, "{line}: {}", said.err);
    said.out
}

/// Runs a command that must fail with this code and a line that contains these texts.
async fn fails(cluster: &Cluster, line: &str, code: i32, texts: &[&str]) {
    let said = run(cluster, line).await;
    assert_eq!(said.code, code, "{line}: {} {}", said.out, said.err);
    for text in texts {
        assert!(said.err.contains(text), "{line}: {}", said.err);
    }
    assert!(code == USAGE || said.err.lines().count() == 1, "{line}: {}", said.err);
}

async fn is_free(cluster: &Cluster, lock: &str) -> bool {
    run(cluster, &format!("lock -n {lock} true")).await.code == 0
}

fn file(cluster: &Cluster, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(cluster.folder.join(name)).unwrap()).unwrap()
}

fn exists(cluster: &Cluster, name: &str) -> bool {
    cluster.folder.join(name).exists()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_takes_a_lock_and_a_later_one_releases_it() {
    let cluster = Cluster::start(1, FAST).await;
    let told: Value =
        serde_json::from_str(&done(&cluster, "acquire --ttl 30s -o json ci/deploy").await).unwrap();
    let lease = file(&cluster, "ci-deploy.lease");
    let mode = fs::metadata(cluster.folder.join("ci-deploy.lease")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!((&told["token"], &told["expires_ms"]), (&lease["token"], &lease["expires_ms"]));
    assert!(told.get("secret").is_none() && lease["secret"].is_string(), "{told}");
    assert!(lease["expires_ms"].as_i64().unwrap() - lease["acquired_ms"].as_i64().unwrap() >= 30_000);
    fails(&cluster, "acquire --ttl 30s -n --lease other ci/deploy", REFUSED, &["busy (held by"]).await;
    assert!(!exists(&cluster, "other"), "a lock that was not taken leaves no file");
    fails(&cluster, "acquire --ttl 30s ci/deploy", FILE, &["rowlock release --lease ci-deploy.lease"]).await;
    // The next one waits, and its token is larger.
    let next =
        start(&cluster.folder, &["acquire", "--ttl", "30s", "-o", "env", "--lease", "next", "ci/deploy"]);
    queue_of(&cluster, "/locks/ci/deploy", 2).await;
    let said = done(&cluster, "release --lease ci-deploy.lease").await;
    assert!(said.starts_with("ci/deploy: released after"), "{said}");
    let next = next.end().await;
    let line = next.out.lines().find_map(|line| line.strip_prefix("ROWLOCK_LOCK_TOKEN=")).unwrap();
    let token = |value: &Value| value["token"].as_str().unwrap().parse::<i64>().unwrap();
    assert_eq!(line.parse(), Ok(token(&file(&cluster, "next"))));
    assert!(token(&file(&cluster, "next")) > token(&lease));
    fails(&cluster, "release --lease ci-deploy.lease", REFUSED, &["no such lease file", "released before"])
        .await;
    done(&cluster, "release --lease next").await;
    assert!(is_free(&cluster, "ci/deploy").await);
    // Holders in shared mode, and a path as name.
    done(&cluster, "acquire --ttl 30s -s --lease a /locks/ci/deploy").await;
    done(&cluster, "acquire --ttl 30s -s -w 5s --lease b ci/deploy").await;
    for lease in ["a", "b"] {
        assert!(!is_free(&cluster, "ci/deploy").await);
        done(&cluster, &format!("release --lease {lease}")).await;
    }
    assert!(is_free(&cluster, "ci/deploy").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_by_itself_and_its_release_reports_the_loss() {
    let cluster = Cluster::start(1, FAST).await;
    done(&cluster, "acquire --ttl 2s nightly").await;
    let taken = Instant::now();
    done(&cluster, "lock -w 30s nightly true").await;
    let waited = taken.elapsed();
    assert!(waited > Duration::from_millis(1_500) && waited < secs(15), "{waited:?}");
    fails(
        &cluster,
        "release --lease nightly.lease",
        LOST,
        &["nightly: the lock was lost", "its time was over"],
    )
    .await;
    assert!(!exists(&cluster, "nightly.lease"));
    // Taken away before its time.
    done(&cluster, "acquire --ttl 30s nightly").await;
    let token = file(&cluster, "nightly.lease")["token"].as_str().unwrap().to_owned();
    done(&cluster, &format!("release --force --token {token} nightly")).await;
    fails(&cluster, "acquire --ttl 30s --renew nightly.lease", LOST, &["was lost"]).await;
    fails(&cluster, "release --lease nightly.lease", LOST, &["was lost"]).await;
    assert!(is_free(&cluster, "nightly").await);
    // A lease whose time is over makes room for the next one in its file.
    done(&cluster, "acquire --ttl 2s nightly").await;
    done(&cluster, "lock -w 30s nightly true").await;
    done(&cluster, "acquire --ttl 30s nightly").await;
    done(&cluster, "release --lease nightly.lease").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_longer_than_the_cluster_allows_is_refused_before_anything_is_taken() {
    let cluster = Cluster::start(1, FAST).await;
    let texts = [
        "at most 10 min",
        "raise max_timeout_ms in [session] of cluster.toml to 3600000",
        "nothing was changed",
    ];
    fails(&cluster, "acquire --ttl 1h nightly", REFUSED, &texts).await;
    fails(&cluster, "acquire --ttl 1s nightly", REFUSED, &["at least 2.00 s", "min_timeout_ms"]).await;
    assert!(!exists(&cluster, "nightly.lease"));
    fails(&cluster, "queue nightly", REFUSED, &["no such lock"]).await;
    fails(&cluster, "acquire --ttl 25d nightly", USAGE, &["at most 24d"]).await;
    fails(&cluster, "acquire nightly", USAGE, &["--ttl <TIME>"]).await;
    fails(&cluster, "release --lease x nightly", USAGE, &["cannot be used with"]).await;
    fails(&cluster, "release --lease x --token 1", USAGE, &["cannot be used with"]).await;
    // A lease may be renewed only within the same limit, and stays as it was.
    done(&cluster, "acquire --ttl 30s nightly").await;
    let before = file(&cluster, "nightly.lease");
    fails(&cluster, "acquire --ttl 1h --renew nightly.lease", REFUSED, &["at most 10 min"]).await;
    assert_eq!(file(&cluster, "nightly.lease"), before);
    done(&cluster, "acquire --ttl 40s --renew nightly.lease").await;
    let after = file(&cluster, "nightly.lease");
    assert_eq!(after["token"], before["token"]);
    assert!(after["expires_ms"].as_i64() > before["expires_ms"].as_i64());
    done(&cluster, "release --lease nightly.lease").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_acquire_that_ends_leaves_neither_queue_nor_file() {
    let cluster = Cluster::start(1, FAST).await;
    done(&cluster, "acquire --ttl 30s l").await;
    let waiting = start(&cluster.folder, &["acquire", "--ttl", "30s", "--lease", "w", "l"]);
    queue_of(&cluster, "/locks/l", 2).await;
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.end().await.code, 128 + 15);
    queue_of(&cluster, "/locks/l", 1).await;
    assert!(!exists(&cluster, "w"));
    // A killed one leaves an empty file, and its place in the queue for a short session alone.
    let mut waiting = start(&cluster.folder, &["acquire", "--ttl", "2s", "--lease", "w", "l"]);
    queue_of(&cluster, "/locks/l", 2).await;
    waiting.child.kill().unwrap();
    waiting.child.wait().unwrap();
    queue_of(&cluster, "/locks/l", 1).await;
    assert_eq!(fs::metadata(cluster.folder.join("w")).unwrap().len(), 0);
    fails(&cluster, "release --lease w", FILE, &["w is no lease file"]).await;
    // One that cannot write its file releases the lock at once.
    let waiting = start(&cluster.folder, &["acquire", "--ttl", "30s", "--lease", "w", "l"]);
    queue_of(&cluster, "/locks/l", 2).await;
    fs::remove_file(cluster.folder.join("w")).unwrap();
    fs::create_dir(cluster.folder.join("w")).unwrap();
    done(&cluster, "release --lease l.lease").await;
    let said = waiting.end().await;
    assert_eq!(said.code, FILE, "{}", said.err);
    assert!(is_free(&cluster, "l").await);
    fs::remove_dir(cluster.folder.join("w")).unwrap();
    fs::write(cluster.folder.join("w"), "").unwrap();
    done(&cluster, "acquire --ttl 30s --lease w l").await;
    done(&cluster, "release --lease w").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_no_leases_are_neither_used_nor_replaced() {
    let cluster = Cluster::start(1, FAST).await;
    let at = |name: &str| cluster.folder.join(name);
    done(&cluster, "acquire --ttl 30s --lease good l").await;
    let good = fs::read_to_string(at("good")).unwrap();
    fs::write(at("cut"), &good[..good.len() / 2]).unwrap();
    fs::write(at("newer"), good.replacen("\"rowlock_lease\": 1", "\"rowlock_lease\": 2", 1)).unwrap();
    fs::write(at("foreign"), "{\"a\": 1}\n").unwrap();
    fs::create_dir(at("folder")).unwrap();
    for (name, why) in [
        ("cut", "not JSON"),
        ("newer", "its version is 2"),
        ("foreign", "no field"),
        ("folder", "cannot read"),
    ] {
        fails(&cluster, &format!("release --lease {name}"), FILE, &[name, why]).await;
        fails(&cluster, &format!("acquire --ttl 30s --lease {name} free"), FILE, &[name]).await;
    }
    fails(&cluster, "acquire --ttl 30s --lease none/x free", FILE, &["cannot open folder none"]).await;
    fails(&cluster, "queue free", REFUSED, &["no such lock"]).await;
    // A wrong secret ends nothing.
    let mut forged: Value = serde_json::from_str(&good).unwrap();
    let secret = forged["secret"].as_str().unwrap().split('.').next().unwrap().to_owned();
    forged["secret"] = format!("{secret}.00112233445566778899aabbccddeeff.1").into();
    fs::write(at("forged"), forged.to_string()).unwrap();
    fails(&cluster, "release --lease forged", LOST, &["was lost"]).await;
    assert!(!is_free(&cluster, "l").await);
    // The file works from anywhere.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::copy(at("good"), elsewhere.path().join("good")).unwrap();
    assert_eq!(start(elsewhere.path(), &["release", "--lease", "good"]).end().await.code, 0);
    assert!(is_free(&cluster, "l").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_a_cluster_or_at_another_one_keeps_the_file() {
    let mut cluster = Cluster::start(3, FAST).await;
    done(&cluster, "acquire --ttl 30s l").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    assert!(!is_free(&cluster, "l").await, "the lease outlives a leader");
    cluster.kill_all();
    fails(
        &cluster,
        "release --connect-timeout 1s --lease l.lease",
        UNAVAILABLE,
        &["not released", "is kept"],
    )
    .await;
    let other = Cluster::start(1, FAST).await;
    let at_other = format!("release --endpoints {} --lease l.lease", other.endpoints());
    fails(&cluster, &at_other, REFUSED, &["another cluster"]).await;
    drop(other);
    for id in cluster.ids() {
        cluster.start_node(id);
    }
    cluster.wait_until_serving().await;
    done(&cluster, "release --lease l.lease").await;
    let free = || async { is_free(&cluster, "l").await.then_some(()) };
    eventually("the lock is free", secs(20), free).await;
    assert!(!exists(&cluster, "l.lease"));
}

/// The steps of a CI job in YAML: a script, and whether it is run after a failure, too. GitHub runs each step
/// in a shell of its own, GitLab all commands of `script` in one.
fn steps(job: &str) -> Vec<(String, bool)> {
    let mut steps: Vec<(String, bool)> = Vec::new();
    let mut is_after = false;
    for line in job.lines().map(str::trim) {
        match (line.strip_prefix("- run: "), line.strip_prefix("- ")) {
            (Some(step), _) => steps.push((step.to_owned(), false)),
            (None, Some(command)) => match steps.last_mut().filter(|(_, after)| *after == is_after) {
                Some((script, _)) => *script += &format!("\n{command}"),
                None => steps.push((command.to_owned(), is_after)),
            },
            (None, None) if line == "if: always()" => steps.last_mut().unwrap().1 = true,
            (None, None) => is_after = line == "after_script:",
        }
    }
    steps
}

/// Runs the steps as a runner does, and returns the exit code of each that was run.
async fn run_job(cluster: &Cluster, job: &str) -> Vec<i32> {
    let (environment, mut codes) = (cluster.folder.join("github_env"), Vec::new());
    fs::write(&environment, "").unwrap();
    for (script, is_always) in steps(job) {
        if codes.iter().any(|code| *code != 0) && !is_always {
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &script]).current_dir(&cluster.folder).env("PATH", path_with_rowlock());
        shell
            .env("GITHUB_ENV", &environment)
            .env_remove("ROWLOCK_ENDPOINTS")
            .env_remove("ROWLOCK_LOCK_TOKEN");
        shell.envs(fs::read_to_string(&environment).unwrap().lines().filter_map(|line| line.split_once('=')));
        let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        codes.push(tokio::task::spawn_blocking(move || finish(child)).await.unwrap().code);
    }
    codes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ci_jobs_of_the_page_hold_the_lock_for_their_work_and_release_it_if_that_fails() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
    let page = fs::read_to_string(PAGE).unwrap();
    let jobs = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let jobs: Vec<&str> = jobs.filter(|job| job.contains("rowlock acquire")).collect();
    assert_eq!(jobs.len(), 2, "GitHub's and GitLab's");
    let cluster = Cluster::start(1, "[session]\nmax_timeout_ms = 1800000\n").await;
    let work = cluster.folder.join("deploy.sh");
    for (job, code) in jobs.iter().flat_map(|job| [(job, 0), (job, 3)]) {
        // The lock is this job's: with its token, and busy for any other client.
        let script = "#!/bin/sh\nrowlock queue -o json ci/deploy | grep -q \"\\\"$ROWLOCK_LOCK_TOKEN\\\"\" || exit 9\n";
        fs::write(&work, format!("{script}rowlock lock -n ci/deploy true && exit 9\nexit {code}\n")).unwrap();
        fs::set_permissions(&work, fs::Permissions::from_mode(0o755)).unwrap();
        let codes = run_job(&cluster, job).await;
        assert!(codes.len() >= 2 && codes.iter().all(|found| [0, code].contains(found)), "{job}: {codes:?}");
        assert_eq!(codes.contains(&3), code == 3, "{job}: {codes:?}");
        assert!(
            is_free(&cluster, "ci/deploy").await && !exists(&cluster, "deploy.lease"),
            "{job}: {codes:?}"
        );
    }
    // A holder that does not release: the job waits, and fails without its work.
    done(&cluster, "acquire --ttl 30m --lease other ci/deploy").await;
    for job in jobs {
        let codes = run_job(&cluster, &job.replace("-w 10m", "-w 1s")).await;
        assert_eq!(codes, [1, 1], "{job}: the acquire is busy, and the release has no file");
    }
}
