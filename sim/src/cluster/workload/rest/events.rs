//! Follows lock events by HTTP: interrupted streams that continue at another node, pages of the history, and
//! queues. The follower reports all input as it arrives.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::Zxid;
use rowlock_proto::report::{History, in_query};

use super::super::chance::{about, between, chance, millis, pick};
use super::super::life::Place;
use super::call::{Asking, any_node, connect};
use crate::history::access::Bearer;
use crate::history::client::{ClientFact, Events};

/// Mean duration of a stream, and mean pause between two streams.
const STREAM: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(300);
/// Percentage of streams kept for as long as the node keeps them open.
const KEPT_PERCENT: u64 = 25;
/// Silence after which a stream is dead; nodes send something every 15 s.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// Percentage of pauses in which the follower reads the history.
const PAGES_PERCENT: u64 = 40;
/// Time limit of one node's reply.
const EACH: Duration = Duration::from_secs(3);

/// Follows streams one after another, until the run ends.
pub(in super::super) async fn live(place: Place) {
    let mut follower = Follower { scope: any_scope(&place), place, up_to: None };
    while !follower.place.is_over() {
        // A node without a reply shows nothing.
        if chance(PAGES_PERCENT) {
            let _ = follower.read_pages().await;
        }
        for _ in 0..between(0, 3) {
            let _ = follower.read_queues().await;
        }
        // A lost stream continues at any node.
        let _ = follower.stream().await;
        follower.report(Events::Ends);
        follower.place.rest(about(PAUSE)).await;
    }
}

/// Returns the path of a lock, or `None` for all locks.
fn any_scope(place: &Place) -> Option<String> {
    let profile = place.caller.profile();
    chance(60).then(|| profile.locks.path(pick(&profile.plain)).to_owned())
}

struct Follower {
    place: Place,
    scope: Option<String>,
    /// Zxid up to which all events have arrived.
    up_to: Option<Zxid>,
}

impl Follower {
    fn report(&self, what: Events) {
        self.place.caller.journal().record(ClientFact::Events(what));
    }

    /// Returns path and query for the followed scope.
    fn question(&self, path: &str, more: Option<String>) -> String {
        let scope = self.scope.as_ref().map(|lock| format!("lock={}", in_query(lock)));
        let query: Vec<String> = scope.into_iter().chain(more).collect();
        format!("{path}?{}", query.join("&"))
    }

    /// Follows one stream. Returns `None` when the stream fails or ends.
    async fn stream(&mut self) -> Option<()> {
        let node = any_node(&self.place.caller.profile().membership)?;
        let after = self.up_to.map(|zxid| format!("after={}", zxid.0));
        let request = format!("GET {}", self.question("/v1/watch", after));
        self.report(Events::Begins { scope: self.scope.clone(), after: self.up_to });
        let mut wire = connect(&node, (Bearer::Worker, &request, "")).await.ok()?;
        let status = time::timeout(EACH, wire.frame()).await.ok()?.ok()?;
        match &*status {
            b"200\n" => {}
            answer if answer.starts_with(b"400\n") => {
                self.report(Events::Refused);
                // The position belongs to an earlier cluster.
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
                self.report(what);
            }
            if chance(2) {
                // A slow client.
                self.place.rest(millis(0, 2_000)).await;
            }
        }
    }

    fn get(&self, question: &str) -> Asking {
        Asking::get(&self.place.caller.profile().membership, question)
    }

    /// Reads one queue, or the list of locks. Returns `None` without a reply, or if the lock does not exist.
    async fn read_queues(&self) -> Option<()> {
        let profile = self.place.caller.profile();
        let limit = between(1, 30);
        if chance(30) {
            let (_, locks) = self.get(&format!("/v1/locks?limit={limit}")).once(EACH).await?;
            self.report(Events::Locks(serde_json::from_value(locks).expect("a list of locks")));
            return None;
        }
        let lock = in_query(profile.locks.path(pick(&profile.plain)));
        let (status, queue) = self.get(&format!("/v1/queue?lock={lock}&limit={limit}")).once(EACH).await?;
        if status == 404 {
            return None;
        }
        self.report(Events::Queue(serde_json::from_value(queue).expect("a queue")));
        Some(())
    }

    /// Reads the history backwards from the newest page, after a sync. Returns `None` without a reply, or if
    /// the node has no history.
    async fn read_pages(&self) -> Option<()> {
        let membership = &self.place.caller.profile().membership;
        let node = any_node(membership)?;
        self.report(Events::Pages { scope: self.scope.clone() });
        Asking::sync(membership, &node, EACH).await?;
        let (limit, mut before) = (between(1, 40), String::new());
        loop {
            let question = self.question("/v1/history", Some(format!("limit={limit}{before}")));
            let (status, page) = self.get(&question).at(&node, EACH).await?;
            assert!(status == 200, "pages are for all: {status} {page}");
            let page: History = serde_json::from_value(page).expect("a page of the history");
            assert!(page.entries.len() as u64 <= limit, "{page:?}");
            self.report(Events::Page(page.entries));
            before = format!("&before={}", page.before?);
            if chance(5) || self.place.is_over() {
                return None;
            }
        }
    }
}

/// Next message of a stream, as far as received.
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
