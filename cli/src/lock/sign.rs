//! `rowlock elect --http`: serves the leadership to HTTP clients: 200 while this process leads, else 503 with
//! the leader's value.
//!
//! Each response checks the clock against the lock's deadline (`Loss::reason`), and is right even after a
//! pause of the process. Invariant: no response with 200 begins after the leadership is lost or released.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rowlock_client::{Client, Election, Leadership, Loss, SessionState};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task;
use serde_json::{Value, json};

use super::http_server::{self, Limits, Request, Response};
use crate::exit::{Failure, UNAVAILABLE};

/// Requests have no body.
const LIMITS: Limits = Limits { exchange_max: Duration::from_secs(2), body_max_bytes: 0 };

/// HTTP listener, running until the process ends.
pub struct LeaderEndpoint {
    addr: SocketAddr,
    state: Arc<LeaderState>,
    leader: watch::Sender<Value>,
}

struct LeaderState {
    /// Host name in `--http`.
    host: String,
    session: OnceLock<Client>,
    lead: OnceLock<(Loss, Value)>,
    leader: watch::Receiver<Value>,
}

/// Parses `--http`: `:4040` listens on loopback only, for programs on this machine; remote clients need an
/// address, or 0.0.0.0.
pub fn address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("use :PORT or HOST:PORT")?;
    port.parse::<u16>().map_err(|_| format!("{port:?} is no port"))?;
    Ok(format!("{}:{port}", if host.is_empty() { "127.0.0.1" } else { host }))
}

impl LeaderEndpoint {
    /// Starts the listener; no leader is known at first.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(addr: &str) -> Result<LeaderEndpoint, Failure> {
        let listener = Listener::bind(addr).await;
        let listener = listener
            .map_err(|e| Failure::new(UNAVAILABLE, format!("--http {addr}: {e}; use a free address")))?;
        let (sender, leader) = watch::channel(Value::Null);
        let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).to_owned();
        let state = Arc::new(LeaderState { host, session: OnceLock::new(), lead: OnceLock::new(), leader });
        let addr = listener.local_addr();
        // Ends with the runtime.
        let shared = state.clone();
        let answer = move |request| std::future::ready(shared.answer(&request));
        task::spawn("sign", http_server::serve(listener, LIMITS, answer));
        Ok(LeaderEndpoint { addr, state, leader: sender })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Follows the leader through this session. Never returns: drop the future to stop. After the session's
    /// end the leader is unknown. Cancel safe.
    pub async fn follow(&self, client: &Client, election: &Election) {
        let _: Result<(), Client> = self.state.session.set(client.clone());
        let mut observer = election.observe();
        while let Ok(leader) = observer.next().await {
            self.leader.send(leader.map_or(Value::Null, |leader| super::elect::json(&leader)));
        }
        self.leader.send(Value::Null);
        std::future::pending().await
    }

    /// Records the own leadership, until lost or released.
    pub fn set_leadership(&self, leadership: &Leadership, client: &Client, value: &str) {
        let document = json!({
            "value": value,
            "token": leadership.token().0,
            "session": client.session_id().to_string(),
            "key": leadership.path(),
        });
        let _: Result<(), (Loss, Value)> = self.state.lead.set((leadership.loss(), document));
    }
}

impl LeaderState {
    /// Returns the same response for all paths: health checkers choose their own.
    fn answer(&self, request: &Request) -> Response {
        match request.method.as_str() {
            _ if !is_own_host(&request.head, &self.host) => Response::text(421, ""),
            "GET" | "HEAD" => {
                let (leads, leader) = self.leadership();
                let body = format!("{}\n", json!({ "leads": leads, "leader": leader }));
                Response::new(if leads { 200 } else { 503 }, body)
            }
            _ => Response::not_allowed("GET, HEAD"),
        }
    }

    /// Returns true while this process leads, and the document of the leader.
    fn leadership(&self) -> (bool, Value) {
        if let Some((_, document)) = self.lead.get().filter(|(loss, _)| loss.reason().is_none()) {
            return (true, document.clone());
        }
        // A disconnected session would not learn of another leader.
        let is_connected = self.session.get().is_some_and(|client| client.state() == SessionState::Connected);
        let leader = if is_connected { self.leader.borrow().clone() } else { Value::Null };
        // Our leadership is over even if the cluster has not noticed yet.
        let was_ours = self.lead.get().is_some_and(|(_, document)| document["key"] == leader["key"]);
        (false, if was_ours { Value::Null } else { leader })
    }
}

/// Returns true if the request names this host. A foreign page whose name points to our address (DNS
/// rebinding) makes a browser send requests for that name.
fn is_own_host(head: &str, own: &str) -> bool {
    let named: Vec<&str> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("host")))
        .map(|(_, host)| host.trim())
        .collect();
    match named[..] {
        // HTTP/1.0, which browsers do not use.
        [] => head.lines().next().is_some_and(|line| line.ends_with("HTTP/1.0")),
        [host] => {
            let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
            let host = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(host, _)| host);
            let ip = host.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host);
            ip.parse::<IpAddr>().is_ok()
                || ["localhost", own].iter().any(|name| host.eq_ignore_ascii_case(name))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_loopback() {
        assert_eq!(address(":4040").as_deref(), Ok("127.0.0.1:4040"));
        assert_eq!(address("0.0.0.0:4040").as_deref(), Ok("0.0.0.0:4040"));
        assert_eq!(address("[::1]:4040").as_deref(), Ok("[::1]:4040"));
        for wrong in ["4040", ":", ":70000", "host"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn without_a_leader_get_and_head_return_503_and_post_405() {
        let (_sender, leader) = watch::channel(Value::Null);
        let host = "sidecar".to_owned();
        let state = LeaderState { host, session: OnceLock::new(), lead: OnceLock::new(), leader };
        let answer = |method: &str, head: &str| {
            let (method, path, body) = (method.to_owned(), String::new(), bytes::Bytes::new());
            state.answer(&Request { method, path, head: head.to_owned(), body })
        };
        let get = answer("GET", "GET /any HTTP/1.1\r\nHost: 127.0.0.1:4040\r\n\r\n");
        assert_eq!((get.code, &get.body[..]), (503, &b"{\"leader\":null,\"leads\":false}\n"[..]));
        assert_eq!(answer("HEAD", "HEAD / HTTP/1.0\r\n\r\n").code, 503);
        assert_eq!(answer("POST", "POST / HTTP/1.1\r\nHost: [::1]\r\n\r\n").code, 405);
    }

    #[test]
    fn a_request_for_a_foreign_name_is_misdirected() {
        for (host, is_ours) in [
            ("localhost:4040", true),
            ("LOCALHOST", true),
            ("10.1.2.3:80", true),
            ("[fd00::1]:80", true),
            ("sidecar:4040", true),
            ("evil.example:4040", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
            assert_eq!(is_own_host(&head, "sidecar"), is_ours, "{host}");
        }
        for head in ["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"] {
            assert!(!is_own_host(head, "sidecar"), "{head}");
        }
    }
}
