use std::io;
use std::time::Duration;

use rowlock_env::time;
use rowlock_frames::wire::Wire;
use serde_json::Value;

use super::super::chance::pick;
use crate::cluster::membership::Membership;
use crate::cluster::{rest_door, tokens};
use crate::history::access::Bearer;

/// Time after which an unaccepted connection means that the node is absent.
const DIAL: Duration = Duration::from_millis(500);
/// Part of a refusal for lack of room.
const NO_ROOM: &str = "make room";
/// Pause before the request goes to the next node.
const PAUSE: Duration = Duration::from_millis(40);

/// Returns the HTTP address of a random node.
pub(super) fn any_node(membership: &Membership) -> Option<String> {
    let endpoints = membership.endpoints();
    let nodes: Vec<&str> =
        endpoints.split(',').filter_map(|one| one.rsplit_once(':')).map(|it| it.0).collect();
    (!nodes.is_empty()).then(|| format!("{}:{}", pick(&nodes), rest_door::PORT))
}

/// Sends a request on a new connection.
pub(super) async fn connect(node: &str, (bearer, head, body): (Bearer, &str, &str)) -> io::Result<Wire> {
    let mut wire = Wire::connect(node, DIAL).await?;
    wire.send(&rest_door::frame(&format!("{head}{}\n{body}", tokens::header(bearer)))).await?;
    Ok(wire)
}

#[derive(Clone)]
pub(super) struct Asking {
    pub(super) membership: Membership,
    /// Method, path, and headers behind tabs.
    pub(super) head: String,
    /// Document; null is nothing, and text stands for itself.
    pub(super) body: Value,
    pub(super) bearer: Bearer,
    /// A refusal for lack of room is a reply: copies of the request mostly get it again.
    pub(super) keeps_refusals: bool,
}

impl Asking {
    pub(super) fn new(membership: &Membership, head: String, body: Value) -> Asking {
        Asking { membership: membership.clone(), head, body, bearer: Bearer::Worker, keeps_refusals: false }
    }

    pub(super) fn get(membership: &Membership, question: &str) -> Asking {
        Asking::new(membership, format!("GET {question}"), Value::Null)
    }

    pub(super) fn by(self, bearer: Bearer) -> Asking {
        Asking { bearer, ..self }
    }

    /// Sends the request to a random node. Returns `None` without a reply in time, and for a reply that
    /// demands a retry (5xx).
    pub(super) async fn once(&self, limit: Duration) -> Option<(u16, Value)> {
        self.at(&any_node(&self.membership)?, limit).await
    }

    /// Sends the request to this node; otherwise as [`Asking::once`].
    pub(super) async fn at(&self, node: &str, limit: Duration) -> Option<(u16, Value)> {
        let exchange = async {
            let body = match &self.body {
                Value::Null => String::new(),
                Value::String(data) => data.clone(),
                document => document.to_string(),
            };
            let mut wire = connect(node, (self.bearer, &self.head, &body)).await?;
            wire.frame().await
        };
        let answer = time::timeout(limit, exchange).await.ok()?.ok()?;
        let (status, body) = std::str::from_utf8(&answer).ok()?.split_once('\n')?;
        let status: u16 = status.parse().ok()?;
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).ok()? };
        assert!(!matches!(status, 405 | 413 | 500), "{} {} gets {status} {body}", self.head, self.body);
        // Clients of the locks' znodes write invalid numbers of permits into the semaphore's znode.
        let may_be_bad = self.body["mode"] == "permits";
        assert!(status != 400 || may_be_bad, "{} {} gets 400 {body}", self.head, self.body);
        let says = |what| body["detail"].as_str().is_some_and(|detail| detail.contains(what));
        (status < 500 || self.keeps_refusals && says(NO_ROOM)).then_some((status, body))
    }

    /// Makes a node apply all writes acknowledged before. Returns `None` without a reply.
    pub(super) async fn sync(membership: &Membership, node: &str, limit: Duration) -> Option<()> {
        // No role but the operator's names the root.
        let root = Asking::get(membership, "/v1/znodes/?view=stat").by(Bearer::Operator);
        let (status, _) = root.at(node, limit).await?;
        assert!(status == 200, "the root is there: {status}");
        Some(())
    }

    /// Sends the request to one node after another until a reply, or until the deadline.
    pub(super) async fn until(&self, deadline: time::Instant, each: Duration) -> Option<(u16, Value)> {
        loop {
            let left = deadline.saturating_since(time::now());
            if left.is_zero() {
                return None;
            }
            if let Some(answer) = self.once(each.min(left)).await {
                return Some(answer);
            }
            time::sleep(PAUSE).await;
        }
    }
}
