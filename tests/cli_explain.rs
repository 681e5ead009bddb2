//! `rowlock queue`, `locks`, `history`, `session` and `release`: explaining locks, and taking one away.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rowlock_proto::lock::NoticeEvent;
use serde_json::Value;

use crate::cli_under_lock::{Running, queue_of, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, rowlock};
use rowlock_frames::raw::{RawClient, SESSION_MS, exclusive, held, waiting};

/// Its password is `test`.
const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";
const REFUSED: i32 = 1;
const USAGE: i32 = 64;
const LOST: i32 = 75;

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    start(&cluster.folder, arguments).end().await
}

async fn told(cluster: &Cluster, arguments: &[&str]) -> String {
    let said = ask(cluster, arguments).await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    said.out
}

async fn as_super(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = rowlock(&cluster.folder, arguments);
    let child = command.env("ROWLOCK_AUTH", "digest:super:test").stdin(Stdio::piped()).spawn().unwrap();
    let said = Running::of(child, &cluster.folder).end().await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    said.out
}

async fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.extend(["-o", "json"]);
    serde_json::from_str(&told(cluster, &all).await).unwrap()
}

/// The cells of each line of `-o simple`.
async fn lines(cluster: &Cluster, arguments: &[&str]) -> Vec<Vec<String>> {
    let mut all = arguments.to_vec();
    all.extend(["-o", "simple"]);
    let out = told(cluster, &all).await;
    out.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// A holder of `l` and two waiters, the first of which would share it.
async fn contended(cluster: &Cluster) -> [Running; 3] {
    let mut holder = start(&cluster.folder, &["lock", "--label", "worker-1", "l"]);
    holder.first_line().await;
    let reader = start(&cluster.folder, &["lock", "-s", "--label", "worker-2", "l", "true"]);
    queue_of(cluster, "/locks/l", 2).await;
    // What a label says must not reach the terminal as commands.
    let writer = start(&cluster.folder, &["lock", "--label", "worker\x1b[31m3", "l", "true"]);
    queue_of(cluster, "/locks/l", 3).await;
    [holder, reader, writer]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_shows_who_holds_and_what_each_waiter_waits_for() {
    let cluster = Cluster::start(1, &format!("{FAST}{SUPER}")).await;
    let [holder, reader, writer] = contended(&cluster).await;
    let document = json(&cluster, &["queue", "l"]).await;
    let places = lines(&cluster, &["queue", "l"]).await;
    let column = |at: usize| places.iter().map(|place| place[at].as_str()).collect::<Vec<_>>();
    assert_eq!(column(0), ["1", "2", "3"]);
    assert_eq!(column(1), ["holds", "waits", "waits"]);
    assert_eq!(column(5), ["exclusive", "shared", "exclusive"]);
    assert_eq!(column(6), ["worker-1", "worker-2", "worker [31m3"]);
    assert!(column(8).iter().all(|address| address.starts_with("127.0.0.1")), "{places:?}");
    let path = |list: &str, at: usize| document[list][at]["path"].as_str().unwrap().to_owned();
    assert_eq!(column(9), ["-", &path("holders", 0), &path("waiters", 0)]);
    let table = told(&cluster, &["queue", "l"]).await;
    assert!(table.starts_with("/locks/l: 1 holds, 2 wait\n#  state  since "), "{table}");
    assert!(table.trim_end().ends_with("#2") && !table.contains('\x1b'), "{table}");
    // The same lock by its path.
    assert_eq!(json(&cluster, &["queue", "--path", "/locks/l"]).await["lock"], "/locks/l");
    for lock in ["absent", "/locks/absent"] {
        for command in [&["queue"][..], &["queue", "-o", "json"], &["history"], &["release"]] {
            let said = ask(&cluster, &[command, &[lock]].concat()).await;
            assert_eq!((said.code, said.out.as_str()), (REFUSED, ""), "{command:?} {lock}");
            let what = format!("{lock}: no such lock: there is no /locks/absent");
            assert!(said.err.contains(&what), "{command:?}: {}", said.err);
        }
    }

    let mut quiet = start(&cluster.folder, &["lock", "quiet"]);
    quiet.first_line().await;
    let locks = lines(&cluster, &["locks"]).await;
    let locks: Vec<_> = locks.iter().map(|lock| [&*lock[0], &*lock[1], &*lock[3]]).collect();
    assert_eq!(locks, [["/locks/l", "2", "1"], ["/locks/quiet", "0", "1"]], "the most contended first");

    let mut watched = start(&cluster.folder, &["locks", "--watch", "0.1", "-o", "simple", "--limit", "1"]);
    let mut out = BufReader::new(watched.child.stdout.take().unwrap()).lines();
    tokio::task::block_in_place(|| {
        for _ in 0..3 {
            assert!(out.next().unwrap().unwrap().starts_with("/locks/l\t2\t"), "the same, again and again");
        }
    });
    watched.end_with_signal().await;

    let own = json(&cluster, &["session", "ls"]).await;
    assert_eq!(
        (own["sessions"].as_array().unwrap().len(), &own["sessions"][0]["locks_held"]),
        (1, &0.into())
    );
    let sessions: Value =
        serde_json::from_str(&as_super(&cluster, &["session", "ls", "-o", "json"]).await).unwrap();
    let sessions = sessions["sessions"].as_array().unwrap();
    let sum = |what: &str| sessions.iter().map(|session| session[what].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("locks_held"), sum("locks_waiting")), (2, 2));
    let id = document["holders"][0]["session"].as_str().unwrap();
    assert_eq!(ask(&cluster, &["session", "ls", id]).await.code, REFUSED, "another's");
    let one = as_super(&cluster, &["session", "ls", "-o", "simple", id]).await;
    let one: Vec<&str> = one.trim_end().split('\t').collect();
    assert_eq!((one[0], one[3]), (id, "1"));

    quiet.end_with_signal().await;
    holder.end_with_signal().await;
    assert_eq!((reader.end().await.code, writer.end().await.code), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_takes_a_lock_away_only_by_force_and_token() {
    let cluster = Cluster::start(1, FAST).await;
    let script = "trap 'echo bye > goodbye; exit 0' TERM; echo $ROWLOCK_LOCK_TOKEN > token; \
                  while :; do sleep 0.02; done";
    let holder = start(&cluster.folder, &["lock", "--label", "worker-1", "l", "-c", script]);
    let token = holder.wrote("token").await.trim().to_owned();
    for arguments in
        [&["release", "l"][..], &["release", "--force", "l"], &["release", "--token", &token, "l"]]
    {
        let said = ask(&cluster, arguments).await;
        assert_eq!(said.code, USAGE, "{arguments:?}");
        let who = format!("\"worker-1\" holds it with token {token} since ");
        assert!(said.err.contains(&who), "{}", said.err);
    }
    let wrong = ask(&cluster, &["release", "--force", "--token", "1", "l"]).await;
    assert_eq!(wrong.code, REFUSED);
    assert!(wrong.err.contains("no holder or waiter has token 1; \"worker-1\" holds it"), "{}", wrong.err);
    assert_eq!(told(&cluster, &["release", "--force", "--token", &token, "l"]).await, "");
    assert_eq!(holder.wrote("goodbye").await, "bye\n");
    let said = holder.end().await;
    assert_eq!(said.code, LOST);
    assert!(said.err.contains("forced"), "{}", said.err);
    assert_eq!(
        ask(&cluster, &["release", "--force", "--token", &token, "l"]).await.code,
        REFUSED,
        "it is gone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_tells_what_was_done_in_order() {
    let cluster = Cluster::start(1, FAST).await;
    let [holder, reader, writer] = contended(&cluster).await;
    let token = json(&cluster, &["queue", "l"]).await["holders"][0]["token"].to_string();
    told(&cluster, &["release", "--force", "--token", &token, "l"]).await;
    assert_eq!((reader.end().await.code, writer.end().await.code), (0, 0));
    assert_eq!(holder.code().await, Some(LOST));
    told(&cluster, &["lock", "other", "true"]).await;

    let done = lines(&cluster, &["history", "l"]).await;
    let done: Vec<_> = done.iter().map(|entry| [&*entry[2], &*entry[5]]).collect();
    let weird = "worker [31m3";
    assert_eq!(
        done,
        [
            ["requested", "worker-1"],
            ["granted", "worker-1"],
            ["requested", "worker-2"],
            ["requested", weird],
            ["lost", "worker-1"],
            ["granted", "worker-2"],
            ["released", "worker-2"],
            ["granted", weird],
            ["released", weird],
        ]
    );
    let all = json(&cluster, &["history", "--since", "1h"]).await;
    assert_eq!((all["entries"].as_array().unwrap().len(), &all["more"]), (12, &Value::Bool(false)));
    let last = ask(&cluster, &["history", "--limit", "2", "-o", "simple"]).await;
    let shown: Vec<_> = last.out.lines().map(|line| line.split('\t').nth(1).unwrap()).collect();
    assert_eq!(shown, ["/locks/other", "/locks/other"]);
    assert!(last.err.contains("there is more"), "{}", last.err);
    let session = all["entries"][0]["session"].as_str().unwrap();
    let one = lines(&cluster, &["history", "--session", session]).await;
    assert_eq!(one.iter().map(|entry| &*entry[2]).collect::<Vec<_>>(), ["requested", "granted", "lost"]);
    assert!(lines(&cluster, &["history", "--since", "2100-01-01T00:00:00Z"]).await.is_empty());
    assert_eq!(ask(&cluster, &["history", "--since", "yesterday"]).await.code, USAGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_finds_the_place_that_is_meant_in_a_queue_of_any_length() {
    const WAITERS: usize = 1_200;
    let cluster = Cluster::start(1, FAST).await;
    let mut raw = RawClient::attach(cluster.endpoint(1), SESSION_MS).await;
    let first = held(raw.acquire(exclusive("/locks/l", "_c_first-lock-")).await);
    let mut last = first;
    for n in 0..WAITERS {
        last = waiting(raw.acquire(exclusive("/locks/l", &format!("_c_{n}-lock-"))).await).0;
    }
    let token = last.token.to_string();
    told(&cluster, &["release", "l", "--force", "--token", &token]).await;
    let notice = raw.notice().await.1;
    assert_eq!((notice.claim, notice.event), (last, NoticeEvent::Deleted));
    let said = ask(&cluster, &["release", "l", "--force", "--token", &token]).await;
    assert_eq!(said.code, REFUSED);
    assert!(said.err.contains(&format!("no holder or waiter has token {token}; \"")), "{}", said.err);
}

/// The entries that a follower of the history prints, one after the other.
struct Followed {
    running: Running,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Followed {
    fn start(cluster: &Cluster, arguments: &[&str]) -> Followed {
        let mut running = start(&cluster.folder, arguments);
        let lines = BufReader::new(running.child.stdout.take().unwrap()).lines();
        Followed { running, lines }
    }

    /// Event, label and change of the next ones.
    fn next(&mut self, count: usize) -> Vec<(String, String, u64)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lines = (&mut self.lines).take(count).map(|line| {
            let entry: Value = serde_json::from_str(&line.unwrap()).unwrap();
            (text(&entry["event"]), text(&entry["label"]), entry["zxid"].as_u64().unwrap())
        });
        lines.collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_the_history_sees_each_entry_once_though_its_node_dies() {
    let mut cluster = Cluster::start(3, FAST).await;
    let (first, others) = (cluster.ids()[0], cluster.ids()[1..].to_vec());
    told(&cluster, &["lock", "--label", "before", "l", "true"]).await;
    told(&cluster, &["lock", "--label", "else", "other", "true"]).await;
    let arguments = ["history", "l", "--follow", "-o", "json", "--limit", "2"];
    let mut of_all = Followed::start(&cluster, &["history", "-f", "-o", "json", "--limit", "1"]);
    let mut of_one = Followed::start(&cluster, &arguments);
    let (begun, rest) = (of_one.next(2), of_all.next(1));
    assert_eq!(begun.iter().map(|entry| &*entry.0).collect::<Vec<_>>(), ["granted", "released"]);
    assert_eq!((&*rest[0].0, &*rest[0].1), ("released", "else"));

    // Each node dies once, so that the followers' do, too.
    let mut zxids = vec![begun[1].2];
    for (round, node) in std::iter::once(first).chain(others).enumerate() {
        cluster.kill(node);
        let label = format!("round-{round}");
        told(&cluster, &["lock", "--label", &label, "l", "true"]).await;
        for followed in [&mut of_one, &mut of_all] {
            let seen = followed.next(3);
            let (events, labels): (Vec<_>, Vec<_>) =
                seen.iter().map(|(event, label, _)| (event.as_str(), label.as_str())).unzip();
            assert_eq!((events, labels), (vec!["requested", "granted", "released"], vec![&*label; 3]));
            zxids.push(seen[0].2);
        }
        cluster.start_node(node);
        cluster.wait_until_serves(node).await;
    }
    assert!(zxids.is_sorted(), "{zxids:?}");
    of_one.running.end_with_signal().await;
    of_all.running.end_with_signal().await;
    // No node can be asked.
    let nowhere = ["history", "-f", "--endpoints", "127.0.0.1:1", "--connect-timeout", "0.2"];
    assert_eq!(ask(&cluster, &nowhere).await.code, 69);
}
