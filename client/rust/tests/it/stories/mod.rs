//! The recipes as stories in `testdata/*.txt`, one list for four servers: the fake ZooKeeper with and without
//! our extensions, a real node, and those that `ROWLOCK_TEST_ZK=host:port,...` names (Apache ZooKeeper).
//!
//! ```text
//! == title                          each story has clients and locks of its own
//! a lock l as g -> granted          client `a` takes the mutex `l`; its guard is `g` from then on
//! b write l as h & -> waits         `&`: beside what follows, as soon as it stands in the queue
//! release g -> ok                   steps of a guard need no client
//! await h -> granted                the end of what was begun with `&`
//! ```
//!
//! Behind `->` stands the outcome; `ROWLOCK_UPDATE=1` rewrites it as the fake Rowlock answers, for review.
//! [`steps`] and [`held`] list the steps. Beside the outcomes, each grant must have a larger token than the
//! last grant of its queue.

mod held;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rowlock_client::{Client, FencingToken, LeaderWatcher};
use rowlock_env::task::{self, Task};
use rowlock_env::{rng, time};
use rowlock_testkit::Cluster;

use self::held::Held;
use crate::fake::Fake;

/// No step takes longer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The future's value, in time.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// The outcome of a step, and the guard that it gives.
pub type Done = (String, Option<Held>);

/// The world of one story.
struct World {
    /// Reaches the servers; its base is that of all locks of the story.
    first: Client,
    base: String,
    clients: BTreeMap<String, Client>,
    held: BTreeMap<String, Held>,
    waiting: BTreeMap<String, Task<Done>>,
    observers: BTreeMap<String, LeaderWatcher>,
    /// The newest token that was granted in each queue.
    tokens: BTreeMap<String, FencingToken>,
}

impl World {
    async fn new(endpoints: &str) -> World {
        let base = format!("/rowlock-story-{:016x}", rng::u64());
        let config = Client::builder().endpoints(endpoints).lock_base(&base);
        let first = config.session_timeout(PATIENCE).connect_timeout(PATIENCE).connect().await.unwrap();
        World {
            first,
            base,
            clients: BTreeMap::new(),
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            observers: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    async fn on(fake: Fake) -> (World, Option<Fake>) {
        (World::new(&fake.endpoint).await, Some(fake))
    }

    /// Does one step and returns its outcome.
    async fn step(&mut self, line: &str) -> String {
        let (line, beside) = line.strip_suffix(" &").map_or((line, false), |line| (line, true));
        let (line, name) = line.split_once(" as ").map_or((line, None), |(line, name)| (line, Some(name)));
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let is_client = words[0].len() == 1;
        match (is_client, words[0].as_str()) {
            // A step that was begun with `&` has not ended.
            (false, "still") => {
                // Time for a step that should wait and does not.
                for _ in 0..5 {
                    self.first.sync("/").await.unwrap();
                }
                let waits = self.waiting.get(&words[1]).is_some_and(|task| !task.is_finished());
                if waits { "waits" } else { "ended" }.to_owned()
            }
            (false, "await") => {
                let Some(task) = self.waiting.remove(&words[1]) else { return "ended".to_owned() };
                let done = task.await.unwrap();
                self.keep(done, Some(&words[1]))
            }
            (false, "sees") => {
                let observer = self.observers.get_mut(&words[1]).expect("an observer");
                while observer.next().await.unwrap().map_or("none".to_owned(), |leader| leader.value)
                    != words[2]
                {}
                "seen".to_owned()
            }
            (false, _) => {
                let Some(held) = self.held.remove(&words[1]) else { return "no guard".to_owned() };
                let work = held.step(words.clone());
                if beside {
                    return self.begin(name.unwrap_or(&words[1]), None, work).await;
                }
                let done = work.await;
                self.keep(done, Some(name.unwrap_or(&words[1])))
            }
            (true, _) => {
                let client = self.client(&words[0]).await;
                if words[1] == "observe" {
                    self.observers.insert(name.unwrap().to_owned(), client.election(&words[2]).observe());
                    return "ok".to_owned();
                }
                if let "delete" | "force" | "force-stale" = words[1].as_str() {
                    return self.held[&words[2]].taken_away(&client, &words[1]).await;
                }
                let queue = steps::queue(&self.base, &words[1..]);
                let work = steps::step(client, words[1..].to_vec());
                if beside {
                    return self.begin(name.unwrap(), queue, work).await;
                }
                let done = work.await;
                self.keep(done, name)
            }
        }
    }

    async fn client(&mut self, name: &str) -> Client {
        if !self.clients.contains_key(name) {
            let client = self.first.renew().await.unwrap();
            self.clients.insert(name.to_owned(), client);
        }
        self.clients[name].clone()
    }

    /// Starts a step, and waits until the queue has become longer or the step has ended.
    async fn begin(
        &mut self,
        name: &str,
        queue: Option<String>,
        work: impl Future<Output = Done> + Send + 'static,
    ) -> String {
        let before = self.length(queue.as_deref()).await;
        let mut task = task::spawn("step", work);
        while queue.is_some() && !task.is_finished() && self.length(queue.as_deref()).await == before {
            tokio::task::yield_now().await;
        }
        if task.is_finished() {
            let done = (&mut task).await.unwrap();
            return self.keep(done, Some(name));
        }
        self.waiting.insert(name.to_owned(), task);
        "waits".to_owned()
    }

    async fn length(&self, queue: Option<&str>) -> usize {
        let Some(queue) = queue else { return 0 };
        self.first.get_children(queue).await.map_or(0, |children| children.names.len())
    }

    /// Keeps the guard of a step under its name.
    fn keep(&mut self, (outcome, held): Done, name: Option<&str>) -> String {
        if let Some(held) = held {
            if let (true, Some((path, token))) = (outcome == "granted", held.place()) {
                let queue = path.rsplit_once('/').unwrap().0.to_owned();
                let last = self.tokens.insert(queue, token);
                assert!(last < Some(token), "token {token:?} behind {last:?}");
            }
            self.held.insert(name.unwrap_or("unexpected").to_owned(), held);
        }
        outcome.replace(&self.base, "/locks")
    }
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata")
}

/// The servers of a run.
#[derive(Clone, Copy)]
enum Servers<'a> {
    PlainFake,
    RowlockFake,
    At(&'a str),
}

impl Servers<'_> {
    async fn world(self) -> (World, Option<Fake>) {
        match self {
            Servers::At(endpoints) => (World::new(endpoints).await, None),
            Servers::PlainFake => World::on(Fake::start().await).await,
            Servers::RowlockFake => World::on(Fake::rowlock().await).await,
        }
    }
}

/// Plays a file and returns it with the outcomes that came.
async fn play(text: &str, servers: Servers<'_>) -> String {
    let (mut played, mut world) = (String::new(), None);
    for line in text.lines() {
        let step = line.split_once(" -> ").map_or(line, |(step, _)| step);
        played.push_str(step);
        if line.starts_with("== ") {
            world = None;
        } else if !line.is_empty() && !line.starts_with('#') {
            if world.is_none() {
                world = Some(servers.world().await);
            }
            let (world, _) = world.as_mut().unwrap();
            let outcome = time::timeout(PATIENCE, world.step(step)).await;
            let outcome = outcome.unwrap_or_else(|_| format!("not within {PATIENCE:?}"));
            played.push_str(" -> ");
            played.push_str(&outcome);
        }
        played.push('\n');
    }
    played
}

/// Plays all files; they are rewritten by a run that is asked for it on the fake Rowlock.
#[expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]
async fn play_all(servers: Servers<'_>) {
    let files = std::fs::read_dir(testdata()).unwrap().map(|file| file.unwrap().path());
    let files: BTreeSet<PathBuf> = files.collect();
    assert!(files.len() >= 6, "{files:?}");
    let mut differences = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let played = play(&text, servers).await;
        if std::env::var_os("ROWLOCK_UPDATE").is_some() && matches!(servers, Servers::RowlockFake) {
            std::fs::write(&file, played).unwrap();
            continue;
        }
        for (number, (written, played)) in text.lines().zip(played.lines()).enumerate() {
            if written != played {
                differences.push(format!("{}:{}: {written}, and now: {played}", file.display(), number + 1));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn stories_on_a_fake_zookeeper() {
    play_all(Servers::PlainFake).await;
}

#[tokio::test]
async fn stories_on_a_fake_rowlock() {
    play_all(Servers::RowlockFake).await;
}

#[tokio::test]
async fn stories_on_a_node() {
    let cluster = Cluster::start(1).await;
    play_all(Servers::At(&cluster.endpoints())).await;
}

#[tokio::test]
async fn stories_on_apache_zookeeper() {
    if let Ok(endpoints) = std::env::var("ROWLOCK_TEST_ZK") {
        play_all(Servers::At(&endpoints)).await;
    }
}

#[tokio::test]
async fn an_outcome_that_differs_is_found() {
    let played = play("a lock l as g -> busy\na queue l -> 2\n", Servers::RowlockFake).await;
    assert_eq!(played, "a lock l as g -> granted\na queue l -> 1\n");
}
