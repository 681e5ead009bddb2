//! `rowlock-sim judge` on the folders of a real cluster: nodes were killed under load, and the logs or the
//! histories are falsified with right checksums.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod cluster;
mod falsify;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cluster::Recorded;
use falsify::{History, Log};
use rowlock_proto::SessionId;
use rowlock_proto::lock_event::{HistoryEvent, LockEventKind};
use rowlock_proto::request::Request;
use rowlock_state::command::{Batch, Command as Logged, Proposal};

/// Runs the program on these paths. Returns the exit code, and the output with errors.
fn examine(paths: &[PathBuf], options: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock-sim"));
    command.arg("judge").args(paths).args(options).env("NO_COLOR", "1").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
}

/// Returns the number of judged facts of a promise that held.
fn held(out: &str, promise: &str) -> u64 {
    let line = out.lines().find(|line| line.split_whitespace().nth(1) == Some(promise));
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("{promise}: {out}")).split_whitespace().collect();
    assert_eq!(words[0], "held", "{out}");
    words[2].replace(',', "").parse().unwrap()
}

fn is_broken(out: &str, promise: &str) -> bool {
    out.lines().any(|line| {
        line.trim_start().starts_with("BROKEN") && line.split_whitespace().nth(1) == Some(promise)
    })
}

fn is_acquire(proposal: &Proposal) -> bool {
    let command = match &proposal.command {
        Logged::Tagged { command, .. } => command,
        command => command,
    };
    matches!(command, Logged::Client(Request::Acquire(_)))
}

/// Gives the tenth acquire of a log to another session that is as far attached.
fn swap_session(log: &mut Log) -> (SessionId, SessionId) {
    let mut acquires: Vec<(usize, usize, Batch)> = Vec::new();
    for (at, batch) in log.batches() {
        let found = batch.proposals.iter().position(is_acquire);
        acquires.extend(found.map(|nth| (at, nth, batch)));
    }
    let (at, nth, mut batch) = acquires[10].clone();
    let own = batch.proposals[nth].session;
    let (.., other) =
        acquires.iter().find(|(.., other)| other.proposals.iter().all(|it| it.session != own)).unwrap();
    let other = other.proposals.iter().find(|it| is_acquire(it)).unwrap();
    batch.proposals[nth].session = other.session;
    batch.proposals[nth].attachment = other.attachment;
    log.replace(at, &batch);
    (own, other.session)
}

#[tokio::test]
async fn a_real_cluster_and_what_was_falsified_in_its_folders_are_judged() {
    let mut recorded = Recorded::under_kills(|_| ()).await;
    recorded.stop().await;
    let before = recorded.files();
    let (code, out) = examine(&recorded.live_folders(), &[]);
    assert_eq!(code, 0, "{out}");
    assert_eq!(recorded.files(), before, "the judge changes nothing");
    assert!(out.contains("Every promise that was judged held."), "{out}");
    for promise in [
        "the-oracle-agrees",
        "mutual-exclusion",
        "fifo",
        "no-lost-wakeup",
        "bounded",
        "fencing-monotonic",
        "no-deadlock",
        "ephemeral-lifetime",
        "session-order",
        "exactly-once",
        "log-matching",
        "committed-never-changes",
        "votes-never-go-back",
        "replica-equality",
        "lock-events",
    ] {
        assert!(held(&out, promise) > 0, "{promise}: {out}");
    }
    assert!(held(&out, "mutual-exclusion") > 20, "{out}");
    false_logs_are_found(&recorded).await;
    false_histories_are_found(&recorded).await;
}

async fn false_logs_are_found(recorded: &Recorded) {
    // Last entries that no node knows as committed differ, as after a lost leadership.
    let copy = recorded.copy();
    for (folder, terms_later) in copy[1..].iter().zip([1, 2]) {
        let mut log = Log::read(folder);
        log.append_uncommitted(terms_later);
        log.write(folder).await;
    }
    let (code, out) = examine(&copy, &[]);
    assert_eq!(code, 0, "{out}");

    // One node's committed entry is another one.
    let copy = recorded.copy();
    let mut log = Log::read(&copy[1]);
    swap_session(&mut log);
    log.write(&copy[1]).await;
    let (code, out) = examine(&copy, &[]);
    assert_eq!(code, 1, "{out}");
    assert!(is_broken(&out, "log-matching") && is_broken(&out, "committed-never-changes"), "{out}");
    // The falsified node alone contradicts its history.
    let (code, out) = examine(&copy[1..2], &[]);
    assert!(code == 1 && is_broken(&out, "lock-events"), "{out}");

    // All nodes agree on a grant to another session.
    let copy = recorded.copy();
    for folder in &copy {
        let mut log = Log::read(folder);
        swap_session(&mut log);
        log.write(folder).await;
    }
    let (code, out) = examine(&copy, &[]);
    assert!(code == 1 && is_broken(&out, "lock-events") && is_broken(&out, "replica-equality"), "{out}");
    assert!(!is_broken(&out, "log-matching"), "{out}");
}

/// Adds or removes an event of a history, without a gap.
async fn false_histories_are_found(recorded: &Recorded) {
    let granted = |event: &HistoryEvent| matches!(event, HistoryEvent::Lock(event) if matches!(event.kind, LockEventKind::Granted { .. }));
    for removes in [true, false] {
        let copy = recorded.copy();
        let mut history = History::read(&copy[2]);
        let mut grants = history.0.iter().enumerate().filter(|(_, entry)| granted(&entry.event));
        let (at, entry) = grants.nth(7).map(|(at, entry)| (at, entry.clone())).unwrap();
        match removes {
            true => drop(history.0.remove(at)),
            false => history.0.insert(at + 1, entry),
        }
        history.write(&copy[2]).await;
        let (code, out) = examine(&copy, &[]);
        assert!(code == 1 && is_broken(&out, "lock-events"), "{out}");
        let why = if removes { "lacks granted" } else { "which is not in the log there" };
        assert!(out.contains("the history of node 3") && out.contains(why), "{out}");
    }
}

#[tokio::test]
async fn a_log_behind_snapshots_is_judged_while_the_nodes_run() {
    let recorded = Recorded::under_kills(|config| {
        (config.raft.snapshot_every, config.raft.keep_logs) = (150, 20);
        config.log_segment_bytes = 64 << 10;
    });
    let mut recorded = recorded.await;
    let (mut code, mut out) = examine(&recorded.live_folders(), &[]);
    for _ in 0..20 {
        // The last snapshots may be of the last entries: then hardly anything is left to judge.
        if !out.contains("Nothing was judged") && held(&out, "mutual-exclusion") >= 20 {
            break;
        }
        recorded.work(Duration::from_millis(200)).await;
        (code, out) = examine(&recorded.live_folders(), &[]);
    }
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("replayed from the snapshot of node"), "{out}");
    assert!(held(&out, "the-oracle-agrees") > 0, "{out}");
    assert!(held(&out, "mutual-exclusion") > 0, "{out}");
    recorded.stop().await;
    let page = recorded.path().join("page.html");
    let (code, out) =
        examine(&recorded.live_folders(), &["--html", page.to_str().unwrap(), "--seconds", "20"]);
    assert_eq!(code, 0, "{out}");
    let page = std::fs::read_to_string(page).unwrap();
    for shown in ["\"leads\"", "\"holds\"", "\"waits\"", "node 1", "session 0x"] {
        assert!(page.contains(shown), "{shown}");
    }
}

#[test]
fn what_cannot_be_judged_is_refused_and_nothing_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path, why: &str| {
        let (code, out) = examine(&[path.to_owned()], &[]);
        assert!(code == 74 && out.contains(why), "{code} {out}");
    };
    refused(folder.path(), "there is no data folder");
    refused(&folder.path().join("none"), "cannot judge");
    let bundle = folder.path().join("bundle.tar.gz");
    std::fs::write(&bundle, [0x1f, 0x8b, 8, 0]).unwrap();
    refused(&bundle, "an archive has no log entries");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = folder.path().join("node-1");
    runtime.block_on(Log::default().write(&node));
    let (code, out) = examine(&[node], &[]);
    assert!(code == 1 && out.contains("Nothing was judged"), "{code} {out}");
}
