//! `rowlock elect --http`: tells programs that speak HTTP whether this process leads. 200 while it does, 503
//! with the leader's name while it does not.
//!
//! Each answer looks at the clock and at the lock's deadline (`Loss::reason`), so it is right also after the
//! process was paused. Invariant: no answer of 200 begins when the lead is lost or given back.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rowlock_client::{Client, Election, Leadership, Loss, SessionState};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task;
use serde_json::{Value, json};

use super::http_server::{self, Incoming, Outgoing};
use crate::exit::{Failure, UNAVAILABLE};

/// From the accept to the end of the answer.
const EXCHANGE_MAX: Duration = Duration::from_secs(2);

/// What is answered. It ends with the process.
pub struct Sign {
    addr: SocketAddr,
    known: Arc<Known>,
    leader: watch::Sender<Value>,
}

/// What an answer is made of.
struct Known {
    /// The host that we were told to listen at.
    host: String,
    session: OnceLock<Client>,
    /// Of our own lead.
    lead: OnceLock<(Loss, Value)>,
    /// Who leads, as was told last.
    leader: watch::Receiver<Value>,
}

/// `:4040` is that port of this machine only, for programs beside us. For others name the address to listen
/// at, or 0.0.0.0.
pub fn address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("use :PORT or HOST:PORT")?;
    port.parse::<u16>().map_err(|_| format!("{port:?} is no port"))?;
    Ok(format!("{}:{port}", if host.is_empty() { "127.0.0.1" } else { host }))
}

impl Sign {
    /// Answers from now on, at first that no leader is known.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub async fn put_up(addr: &str) -> Result<Sign, Failure> {
        let listener = Listener::bind(addr).await;
        let listener = listener.map_err(|e| {
            Failure::new(UNAVAILABLE, format!("--http {addr}: {e}; name an address that is free"))
        })?;
        let (tell, leader) = watch::channel(Value::Null);
        let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).to_owned();
        let known = Arc::new(Known { host, session: OnceLock::new(), lead: OnceLock::new(), leader });
        let addr = listener.local_addr();
        // It ends with the runtime.
        let answering = known.clone();
        let answer = move |asked| std::future::ready(answering.answer(&asked));
        task::spawn("sign", http_server::serve(listener, (EXCHANGE_MAX, 0), answer));
        Ok(Sign { addr, known, leader: tell })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Follows who leads, as this session sees it. Never returns: drop the future when no answer is needed.
    /// A session that has ended learns of no leader. Cancel safe.
    pub async fn follow(&self, client: &Client, election: &Election) {
        let _: Result<(), Client> = self.known.session.set(client.clone());
        let mut observer = election.observe();
        while let Ok(leader) = observer.next().await {
            self.leader.send(leader.map_or(Value::Null, |leader| super::elect::json(&leader)));
        }
        self.leader.send(Value::Null);
        std::future::pending().await
    }

    /// This process leads, until that is lost or given back.
    pub fn leads(&self, leadership: &Leadership, client: &Client, value: &str) {
        let document = json!({
            "value": value,
            "token": leadership.token().0,
            "session": client.session_id().to_string(),
            "key": leadership.path(),
        });
        let _: Result<(), (Loss, Value)> = self.known.lead.set((leadership.loss(), document));
    }
}

impl Known {
    /// The same for all paths: what checks health has its own idea of them.
    fn answer(&self, asked: &Incoming) -> Outgoing {
        match asked.method.as_str() {
            _ if !is_for_us(&asked.head, &self.host) => Outgoing::text(421, ""),
            "GET" | "HEAD" => {
                let (leads, leader) = self.who_leads();
                let body = format!("{}\n", json!({ "leads": leads, "leader": leader }));
                Outgoing::new(if leads { 200 } else { 503 }, body)
            }
            _ => Outgoing::not_allowed("GET, HEAD"),
        }
    }

    /// Whether this process leads, and what is known of the leader.
    fn who_leads(&self) -> (bool, Value) {
        if let Some((_, ourselves)) = self.lead.get().filter(|(loss, _)| loss.reason().is_none()) {
            return (true, ourselves.clone());
        }
        // Cut off, we would not be told of another leader.
        let hears = self.session.get().is_some_and(|client| client.state() == SessionState::Connected);
        let leader = if hears { self.leader.borrow().clone() } else { Value::Null };
        // Our lead is over; that the cluster does not know this yet makes us no leader.
        let was_ours = self.lead.get().is_some_and(|(_, ourselves)| ourselves["key"] == leader["key"]);
        (false, if was_ours { Value::Null } else { leader })
    }
}

/// Whether the request is for this host. A page of another site that lets its name point to our address (DNS
/// rebinding) makes a browser ask for that name.
fn is_for_us(head: &str, ours: &str) -> bool {
    let named: Vec<&str> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("host")))
        .map(|(_, host)| host.trim())
        .collect();
    match named[..] {
        // By HTTP/1.0, which no browser speaks.
        [] => head.lines().next().is_some_and(|line| line.ends_with("HTTP/1.0")),
        [host] => {
            let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
            let host = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(host, _)| host);
            let ip = host.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host);
            ip.parse::<IpAddr>().is_ok()
                || ["localhost", ours].iter().any(|name| host.eq_ignore_ascii_case(name))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_machine_only() {
        assert_eq!(address(":4040").as_deref(), Ok("127.0.0.1:4040"));
        assert_eq!(address("0.0.0.0:4040").as_deref(), Ok("0.0.0.0:4040"));
        assert_eq!(address("[::1]:4040").as_deref(), Ok("[::1]:4040"));
        for wrong in ["4040", ":", ":70000", "host"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_knows_of_no_leader_answers_get_and_head_with_503_and_refuses_the_rest() {
        let (_tell, leader) = watch::channel(Value::Null);
        let host = "sidecar".to_owned();
        let known = Known { host, session: OnceLock::new(), lead: OnceLock::new(), leader };
        let answer = |method: &str, head: &str| {
            let (method, path, body) = (method.to_owned(), String::new(), bytes::Bytes::new());
            known.answer(&Incoming { method, path, head: head.to_owned(), body })
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
            assert_eq!(is_for_us(&head, "sidecar"), is_ours, "{host}");
        }
        for head in ["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"] {
            assert!(!is_for_us(head, "sidecar"), "{head}");
        }
    }
}
