//! Follows the events of locks by HTTP: streams that are lost and go on at another node, pages of the
//! history, and queues. What is heard is reported as it comes.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::Zxid;
use rowlock_proto::report::{History, in_query};

use super::super::chance::{about, between, chance, millis, pick};
use super::super::life::Place;
use super::call::{Asking, any_node, connect};
use crate::history::client::{ClientFact, Events};

/// Mean time of a stream, and between two of them.
const STREAM: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(300);
/// Percentage of streams that are kept for as long as the node keeps them.
const KEPT_PERCENT: u64 = 25;
/// A stream that is silent for longer than nodes are (15 s) is dead.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// Percentage of pauses in which the history is read.
const PAGES_PERCENT: u64 = 40;
/// How long one node may take to answer.
const EACH: Duration = Duration::from_secs(3);

/// Streams one after another, until its place in the run ends.
pub(in super::super) async fn live(place: Place) {
    let mut follower = Follower { scope: any_scope(&place), place, up_to: None };
    while !follower.place.is_over() {
        // A node that does not answer shows nothing.
        if chance(PAGES_PERCENT) {
            let _ = follower.read_pages().await;
        }
        for _ in 0..between(0, 3) {
            let _ = follower.read_queues().await;
        }
        // A lost stream goes on at any node.
        let _ = follower.stream().await;
        follower.tell(Events::Ends);
        follower.place.rest(about(PAUSE)).await;
    }
}

/// The path of a lock, or all locks.
fn any_scope(place: &Place) -> Option<String> {
    let profile = place.caller.profile();
    chance(60).then(|| profile.locks.path(pick(&profile.plain)).to_owned())
}

struct Follower {
    place: Place,
    scope: Option<String>,
    /// All up to here is known.
    up_to: Option<Zxid>,
}

impl Follower {
    fn tell(&self, what: Events) {
        self.place.caller.journal().tell(ClientFact::Events(what));
    }

    /// Path and query of a question about what it follows.
    fn question(&self, path: &str, more: Option<String>) -> String {
        let scope = self.scope.as_ref().map(|lock| format!("lock={}", in_query(lock)));
        let query: Vec<String> = scope.into_iter().chain(more).collect();
        format!("{path}?{}", query.join("&"))
    }

    /// Follows one stream. None: it could not be had, or has ended.
    async fn stream(&mut self) -> Option<()> {
        let node = any_node(&self.place.caller.profile().membership)?;
        let after = self.up_to.map(|zxid| format!("after={}", zxid.0));
        let request = format!("GET {}\n", self.question("/v1/watch", after));
        self.tell(Events::Begins { scope: self.scope.clone(), after: self.up_to });
        let mut wire = connect(&node, &request).await.ok()?;
        let status = time::timeout(EACH, wire.frame()).await.ok()?.ok()?;
        match &*status {
            b"200\n" => {}
            answer if answer.starts_with(b"400\n") => {
                self.tell(Events::Refused);
                // That of a cluster before this one.
                self.up_to = None;
                return None;
            }
            answer if answer.starts_with(b"5") => return None,
            answer => panic!("{request} gets {}", String::from_utf8_lossy(answer)),
        }
        let ends = time::now() + if chance(KEPT_PERCENT) { 20 * STREAM } else { about(STREAM) };
        let mut message = Message::default();
        loop {
            let piece = tokio::select! {
                biased;
                piece = wire.frame() => piece.ok()?,
                () = self.place.rest(ends.saturating_since(time::now()).min(SILENT_MAX)) => return None,
            };
            for what in message.read(&piece) {
                if let Events::UpTo(zxid) = what {
                    self.up_to = Some(zxid);
                }
                self.tell(what);
            }
            if chance(2) {
                // A client that is slow.
                self.place.rest(millis(0, 2_000)).await;
            }
        }
    }

    fn get(&self, question: &str) -> Asking {
        Asking::get(&self.place.caller.profile().membership, question)
    }

    /// Looks at one queue, or at all locks. None: the node does not answer, or there is no such lock.
    async fn read_queues(&self) -> Option<()> {
        let profile = self.place.caller.profile();
        let limit = between(1, 30);
        if chance(30) {
            let (_, locks) = self.get(&format!("/v1/locks?limit={limit}")).once(EACH).await?;
            self.tell(Events::Locks(serde_json::from_value(locks).expect("a list of locks")));
            return None;
        }
        let lock = in_query(profile.locks.path(pick(&profile.plain)));
        let (status, queue) = self.get(&format!("/v1/queue?lock={lock}&limit={limit}")).once(EACH).await?;
        if status == 404 {
            return None;
        }
        self.tell(Events::Queue(serde_json::from_value(queue).expect("a queue")));
        Some(())
    }

    /// Reads the history from the newest page back, behind all that has happened. None: the node does not
    /// answer, or has no history.
    async fn read_pages(&self) -> Option<()> {
        let membership = &self.place.caller.profile().membership;
        let node = any_node(membership)?;
        self.tell(Events::Pages { scope: self.scope.clone() });
        Asking::sync(membership, &node, EACH).await?;
        let (limit, mut before) = (between(1, 40), String::new());
        loop {
            let question = self.question("/v1/history", Some(format!("limit={limit}{before}")));
            let (status, page) = self.get(&question).at(&node, EACH).await?;
            assert!(status == 200, "pages are for all: {status} {page}");
            let page: History = serde_json::from_value(page).expect("a page of the history");
            assert!(page.entries.len() as u64 <= limit, "{page:?}");
            self.tell(Events::Page(page.entries));
            before = format!("&before={}", page.before?);
            if chance(5) || self.place.is_over() {
                return None;
            }
        }
    }
}

/// The next message of a stream, as far as it has come.
#[derive(Default)]
struct Message {
    rest: String,
    id: Option<Zxid>,
    data: String,
}

impl Message {
    fn read(&mut self, piece: &Bytes) -> Vec<Events> {
        let mut heard = Vec::new();
        self.rest.push_str(std::str::from_utf8(piece).expect("events are text"));
        let text = std::mem::take(&mut self.rest);
        let mut left = text.as_str();
        while let Some((line, behind)) = left.split_once('\n') {
            match line.split_once(": ") {
                Some(("id", id)) => self.id = Some(Zxid(id.parse().expect("an id is a number"))),
                Some(("data", data)) => self.data.push_str(data),
                None if line.is_empty() => {
                    if !self.data.is_empty() {
                        let entry = serde_json::from_str(&std::mem::take(&mut self.data));
                        heard.push(Events::Told(entry.expect("data are an event")));
                    }
                    heard.extend(self.id.take().map(Events::UpTo));
                }
                _ => {}
            }
            left = behind;
        }
        self.rest = left.to_owned();
        heard
    }
}
