//! Invitations to the leader: a client at the leader saves two messages per write, and no lease is bound to a
//! node. Sessions and HTTP clients share the rate limit of [`rowlock_consensus::invitations`].

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::response::Response;

use super::ApiContext;

/// Returns whether the client follows invitations and the request is a write. Keepalives do not count: any
/// node serves them equally well.
pub(super) fn prefers_leader(request: &Request) -> bool {
    let is_work = !request.method().is_safe() && !request.uri().path().starts_with("/v1/leases/");
    is_work && request.headers().get("prefer").is_some_and(|preference| preference == "leader")
}

/// Adds the leader's address to a response, if another node leads and the rate limit permits.
pub(super) fn invite(context: &ApiContext, response: &mut Response) {
    if let Some(leader) = leader_elsewhere(context)
        && context.api.invite()
    {
        response.headers_mut().insert("rowlock-leader", leader);
    }
}

/// Returns the leader's address. `None` also for a leader outside `cluster.toml` or without a listener for
/// locks.
fn leader_elsewhere(context: &ApiContext) -> Option<HeaderValue> {
    let (leader, here) = {
        let status = context.http.status.borrow();
        (status.leader?, status.node)
    };
    let entry = context.http.nodes.iter().find(|entry| entry.node == leader.0 && leader != here)?;
    HeaderValue::from_str(entry.api.as_deref()?).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::connect_info::ConnectInfo;
    use axum::http::{Method, Request};
    use rowlock_env::task::Shutdown;
    use rowlock_env::time;
    use rowlock_metrics::Role;
    use rowlock_proto::NodeId;
    use serde_json::{Value, json};
    use tower_service::Service as _;

    use super::{ApiContext, Response};
    use crate::access::http::connection::Visitor;
    use crate::access::http::{HttpAddresses, HttpContext, tests};
    use crate::access::tests::Node;

    const LEASES: (Method, &str) = (Method::POST, "/v1/leases");

    struct Server {
        node: Node,
        routes: Router,
        /// Invitations per second granted by the leader.
        pace: u32,
    }

    impl Server {
        /// Starts node 1. The third node has no listener for locks.
        async fn start() -> Server {
            let node = Node::start().await;
            let entry = |node: u64| HttpAddresses {
                node,
                http: format!("10.0.0.{node}:8081"),
                api: (node != 3).then(|| format!("10.0.0.{node}:8481")),
            };
            let metrics = node.context.metrics.clone();
            let http = HttpContext {
                nodes: [1, 2, 3].map(entry).into(),
                ..tests::context(node.context.status.clone(), metrics)
            };
            let context = ApiContext { http, api: Arc::new(node.api()) };
            let routes = super::super::router(context, false, Shutdown::new());
            Server { node, routes, pace: 0 }
        }

        async fn send(&mut self, (method, path): (Method, &str), prefer: &str, body: &str) -> Response {
            let visitor = ConnectInfo(Visitor::unconnected(([127, 0, 0, 1], 7).into()));
            let request = Request::builder().method(method).uri(path).header("host", "localhost");
            let request = request.header("prefer", prefer).extension(visitor);
            let Ok(answer) = self.routes.call(request.body(Body::from(body.to_owned())).unwrap()).await;
            answer
        }

        /// Returns the status of the response and the leader named by the response.
        async fn named(&mut self, what: (Method, &str), prefer: &str, body: &str) -> (u16, Option<String>) {
            self.node.context.replica.invitations.allow(self.pace, time::now());
            let answer = self.send(what, prefer, body).await;
            let leader = answer.headers().get("rowlock-leader");
            (answer.status().as_u16(), leader.map(|leader| leader.to_str().unwrap().to_owned()))
        }

        fn leader_is(&self, leader: Option<u64>) {
            let leader = leader.map(NodeId);
            self.node.status.modify(|status| (status.leader, status.role) = (leader, Role::Follower));
        }
    }

    #[tokio::test]
    async fn writer_that_prefers_the_leader_is_invited_within_the_rate() {
        let mut it = Server::start().await;
        it.leader_is(Some(2));
        assert_eq!(it.named(LEASES, "leader", "").await, (201, None), "the leader has no room");
        it.pace = 50;
        let leader = Some("10.0.0.2:8481".to_owned());
        assert_eq!(it.named(LEASES, "leader", "").await, (201, leader.clone()));
        assert_eq!(it.named((Method::POST, "/v1/znodes/x"), "leader", "data").await, (201, leader));
        let invited = it.node.context.metrics.clone();
        assert_eq!(invited.sessions_invited_total.get(), 2);

        assert_eq!(it.named(LEASES, "wait=5", "").await, (201, None), "it does not go");
        assert_eq!(it.named((Method::GET, "/v1/znodes/x"), "leader", "").await, (200, None), "a read");
        assert_eq!(it.named((Method::PUT, "/v1/znodes/none"), "leader", "").await, (404, None), "a refusal");
        let opened = to_bytes(it.send(LEASES, "", "").await.into_body(), 1 << 10).await.unwrap();
        let opened: Value = serde_json::from_slice(&opened).unwrap();
        let keep_alive = format!("/v1/leases/{}/keepalive", opened["lease"].as_str().unwrap());
        let secret = json!({ "secret": opened["secret"] }).to_string();
        assert_eq!(it.named((Method::POST, &keep_alive), "leader", &secret).await, (200, None), "it rests");
        for other in [Some(1), None, Some(3), Some(4)] {
            it.leader_is(other);
            assert_eq!(it.named(LEASES, "leader", "").await, (201, None), "here, unknown or without locks");
        }
        assert_eq!(invited.sessions_invited_total.get(), 2, "no invitation is lost");

        it.leader_is(Some(2));
        it.pace = 0;
        assert_eq!(it.named(LEASES, "leader", "").await, (201, None), "there is no room any more");
        it.pace = 1;
        let begun = time::now();
        let mut all = 0;
        for _ in 0..20 {
            all += u64::from(it.named(LEASES, "leader", "").await.1.is_some());
        }
        assert!(all >= 1 && all <= 1 + begun.elapsed().as_secs(), "at the leader's pace: {all}");
        let Server { node, routes, .. } = it;
        drop(routes);
        node.stop().await;
    }
}
