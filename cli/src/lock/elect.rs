//! `rowlock elect`: runs a command while this process leads, or prints the leader.
//!
//! With `--http` the process serves the leadership to HTTP clients: 200 while this process leads, else 503
//! with the leader's value. Each response checks the clock against the lock's deadline (`Loss::reason`), and
//! is right even after a pause of the process. Invariant: no response with 200 begins after the leadership is
//! lost or released.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rowlock_client::{Client, Election, Error, Leader, Leadership, Loss, SessionState};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task;
use rowlock_proto::Right;
use serde_json::{Value, json};

use super::http_server::{self, Limits, Request, Response};
use super::options::{self, SessionOptions, TimeLimit, Work};
use super::terminal::ForwardedSignals;
use super::under::{self, CommandMode, ProcessEnd, RunContext};
use crate::acl::{self, LockRef};
use crate::cluster::{failed, leave};
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::moment::duration;
use crate::name::Name;
use crate::print::{print, safe};
use crate::znode::{Output, print_json};

/// Run a command while leading an election, or follow who leads
#[derive(clap::Args)]
pub struct Elect {
    #[command(flatten)]
    name: Name,
    /// Value that other candidates and listeners see, e.g. a name or an address
    #[arg(required_unless_present = "listen")]
    value: Option<String>,
    /// Do not stand for election: print the leader now and at every change; an empty line means none
    #[arg(short, long, conflicts_with_all = ["value", "shell", "words", "timeout"])]
    listen: bool,
    /// Format of the output
    #[arg(short = 'o', long = "output", value_enum, default_value_t, requires = "listen")]
    output: Output,
    /// Serve HTTP at this address: 200 while leading, otherwise 503 with the leader's value. :PORT listens
    /// on loopback only, 0.0.0.0:PORT on all interfaces. Requests must be for an IP address, localhost or
    /// HOST
    #[arg(long, value_name = "ADDR", conflicts_with = "listen", value_parser = address)]
    http: Option<String>,
    /// Give up if not elected after this time
    #[arg(short = 'w', long, visible_alias = "wait", value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Exit code after giving up
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    conflict_exit_code: u8,
    #[command(flatten)]
    session: SessionOptions,
    #[command(flatten)]
    work: Work,
    /// Program and arguments; everything from here on is the program's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Elect {
    /// Exits with the command's code; a listener exits with 0 at a signal.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        if self.takes_command_as_value(std::env::args_os()) {
            let problem = format!("{}: the value is missing before `--`", self.name.as_typed());
            return Err(Failure::new(USAGE, format!("{problem}; use rowlock elect NAME VALUE CMD...")));
        }
        let mut signals = ForwardedSignals::listen()?;
        // Listens before there is a session: requests until then get 503.
        let endpoint = match &self.http {
            Some(addr) => Some(LeaderEndpoint::start(addr).await?),
            None => None,
        };
        let limit = TimeLimit::begin(self.timeout);
        let connecting = self.session.connect(self.value.as_deref(), &limit);
        let client = match signals.unless(connecting).await {
            Ok(connected) => connected?,
            Err(_) if self.listen => return Ok(ExitCode::SUCCESS),
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let election = self.name.election(&client);
        let ended = if self.listen {
            signals.unless(self.follow(&election)).await.unwrap_or(Ok(ProcessEnd::Code(0)))
        } else {
            let work = self.lead(&client, &election, &limit, &mut signals, endpoint.as_ref());
            match &endpoint {
                None => work.await,
                Some(endpoint) => {
                    self.work.report(&format!(
                        "{}: serves the leadership at {}",
                        self.name.as_typed(),
                        endpoint.addr()
                    ));
                    tokio::select! {
                        biased;
                        ended = work => ended,
                        () = endpoint.follow(&client, &election) => unreachable!("follow never returns"),
                    }
                }
            }
        };
        leave(&client).await;
        ended.map(ProcessEnd::exit)
    }

    /// Returns true if the value came after `--`, where a command is meant: `elect NAME -- CMD`.
    fn takes_command_as_value(&self, arguments: impl Iterator<Item = OsString>) -> bool {
        let after_dashes = arguments.skip_while(|word| word != "--").skip(1).count();
        self.value.is_some() && after_dashes == self.words.len() + 1
    }

    async fn follow(&self, election: &Election) -> Result<ProcessEnd, Failure> {
        let mut observer = election.observe();
        loop {
            let leader = observer.next().await.map_err(|e| failed(self.name.as_typed(), &e))?;
            match self.output {
                Output::Json => print_json(&leader.map_or(serde_json::Value::Null, |leader| json(&leader)))?,
                Output::Simple => print(
                    format!("{}\n", safe(&leader.map(|leader| leader.value).unwrap_or_default())).as_bytes(),
                )?,
            }
        }
    }

    async fn lead(
        &self,
        client: &Client,
        election: &Election,
        limit: &TimeLimit,
        signals: &mut ForwardedSignals,
        endpoint: Option<&LeaderEndpoint>,
    ) -> Result<ProcessEnd, Failure> {
        let campaign = async {
            let owner = options::owner(client).await?;
            match self.campaign(&election.of_owner(owner), limit).await {
                Ok(leadership) => Ok((owner, leadership)),
                Err(e) => Err(acl::refused(
                    client,
                    LockRef {
                        name: self.name.as_typed(),
                        path: &client.mutex_at(election.path()).server_path(),
                    },
                    Right::Take,
                    &e,
                )
                .await),
            }
        };
        let (owner, leadership) = match signals.unless(limit.bound_request(campaign)).await {
            Ok(campaigned) => campaigned?,
            // The candidacy ends with the session.
            Err(signal) => return Ok(ProcessEnd::Code(under::shell_code(signal))),
        };
        let Some(leadership) = leadership else {
            return Ok(ProcessEnd::Code(self.conflict_exit_code));
        };
        if let Some(endpoint) = endpoint {
            endpoint.set_leadership(&leadership, client, self.value.as_deref().unwrap_or_default());
        }
        let context = RunContext {
            client,
            name: self.name.as_typed(),
            work: &self.work,
            words: self.work.command(&self.words),
            owner,
            cluster_flags: self.session.cluster.arguments()?,
            ends_session_on_death: true,
            mode: CommandMode::Plain,
        };
        under::run(leadership, context, signals).await
    }

    async fn campaign(&self, election: &Election, limit: &TimeLimit) -> Result<Option<Leadership>, Error> {
        let value = self.value.clone().unwrap_or_default();
        let report = |text: &str| self.work.report(&format!("{}: {text}", self.name.as_typed()));
        let campaign = match limit.left() {
            Some(limit) => election.campaign_timeout(value, limit).await,
            None => election.campaign(value).await,
        };
        match campaign {
            Ok(leadership) => {
                report(&format!("leads with token {}", leadership.token()));
                Ok(Some(leadership))
            }
            Err(e @ Error::Timeout { .. }) => {
                report(&e.to_string());
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

pub(super) fn json(leader: &Leader) -> serde_json::Value {
    json!({
        "value": leader.value,
        "token": leader.token.to_string(),
        "session": leader.session.to_string(),
        "key": leader.path,
    })
}

/// Requests have no body.
const LIMITS: Limits = Limits { exchange_max: Duration::from_secs(2), body_max_bytes: 0 };

/// HTTP listener, running until the process ends.
struct LeaderEndpoint {
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
            "token": leadership.token().to_string(),
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
