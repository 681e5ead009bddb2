//! Cases of the HTTP API as text. A paragraph is one request, or one of the steps below; the answer stands
//! below the dashes. The same files run on a router inside a test and on nodes of their own processes: a
//! [`Transport`] carries the requests.
//!
//! | line | |
//! |---|---|
//! | `[WHO ...] METHOD PATH [HTTP/1.0] [BODY]`, then `HEADER: VALUE` lines | sends a request |
//! | `lease NAME [TTL_MS]` | opens a lease: secret `$NAME`, id `$NAME.id`, another secret `$NAME.wrong` |
//! | `COUNT times REQUEST` | sends the request so often; `$n` is the number; prints counts of statuses |
//! | `begin NAME REQUEST`, `end NAME` | sends a request in the background; prints its answer |
//! | `pending NAME` | checks that the request in the background has no answer yet |
//! | `until TEXT in REQUEST` | repeats the request until the answer contains the text |
//! | `open NAME REQUEST` | opens a stream of events |
//! | `events NAME COUNT` | prints the next events; `$NAME` is the id of the last one |
//! | `close NAME` | drops the stream |
//!
//! WHO is a lease (its secret goes into a header), `@NAME` for an access token, `node2` for another node
//! than the first, `ops` for the operators' listener, or the client's IP address. In headers `@NAME` is the
//! text of a token, `Basic #USER:PASSWORD` is encoded, and `Host: -` sends no host.
//!
//! Answers show values that differ from run to run by names: `$token1` is the first fencing token of a
//! case. A token that is not above all earlier ones is `$late1`. Requests may contain the names. Times are
//! `"#"`.

mod names;
mod step;
mod tcp;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_env::task::{Task, spawn};
use rowlock_env::time;
use serde_json::Value;
use tokio::sync::mpsc;

use names::Names;
use step::{Step, Wanted};
pub use tcp::Tcp;

/// Longest wait for an answer on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(75);
const PAUSE: Duration = Duration::from_millis(10);
/// Time in which a request would be answered that does not wait.
const SETTLED: Duration = Duration::from_millis(50);
/// Time to live of a lease that outlives its case, in milliseconds.
const TTL_MS: u32 = 40_000;
/// Headers of a response that cases show.
const SHOWN: [&str; 6] = ["allow", "etag", "location", "retry-after", "rowlock-leader", "www-authenticate"];

/// A request, ready to be sent.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Number of the node, from 1; 0: the operators' listener.
    pub node: usize,
    /// Client's address, if the case names one.
    pub from: Option<IpAddr>,
    pub method: String,
    pub target: String,
    pub is_http_1_0: bool,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// Head of a response, and the body in pieces.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: mpsc::Receiver<Vec<u8>>,
}

/// Connection between a case and its nodes.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Sends a request and returns after the head of the response.
    fn send(&self, request: Request) -> impl Future<Output = Response> + Send;
}

/// Client of one case.
pub struct Client<T> {
    transport: T,
    names: Names,
    /// Access tokens by name.
    tokens: BTreeMap<String, String>,
    tasks: BTreeMap<String, Task<Answer>>,
    streams: BTreeMap<String, Stream>,
}

/// A response with its whole body.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// A stream of server-sent events, and its unread text.
struct Stream {
    body: mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl<T: Transport> Client<T> {
    /// Returns a client with these access tokens, by name.
    pub fn new(transport: T, tokens: BTreeMap<String, String>) -> Self {
        Client {
            transport,
            names: Names::default(),
            tokens,
            tasks: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Runs one paragraph and returns the text of the answer.
    pub async fn run(&mut self, paragraph: &str) -> String {
        match step::parse(paragraph) {
            Step::Lease { name, ttl_ms } => return self.open_lease(name, ttl_ms.unwrap_or(TTL_MS)).await,
            Step::Send(wanted) => {
                let answer = complete(self.transport.clone(), self.request(&wanted)).await;
                return self.shown(&answer);
            }
            Step::Times { count, wanted } => return self.send_often(count, &wanted).await,
            Step::Begin { name, wanted } => {
                let task = spawn("request", complete(self.transport.clone(), self.request(&wanted)));
                assert!(self.tasks.insert(name.to_owned(), task).is_none(), "{name} began before");
            }
            Step::Pending { name } => {
                time::sleep(SETTLED).await;
                assert!(!self.tasks[name].is_finished(), "{name} has an answer");
            }
            Step::End { name } => {
                let task = self.tasks.remove(name).unwrap_or_else(|| panic!("no request {name}"));
                let answer = task.await.expect("the request ends");
                return self.shown(&answer);
            }
            Step::Until { text, wanted } => self.repeat_until(text, &wanted).await,
            Step::Open { name, wanted } => {
                let response = self.transport.send(self.request(&wanted)).await;
                if response.status != 200 {
                    let answer = collect(response).await;
                    return self.shown(&answer);
                }
                let mut stream = Stream { body: response.body, text: String::new() };
                stream.read_until(|text| text.contains("retry: ")).await;
                self.streams.insert(name.to_owned(), stream);
            }
            Step::Events { name, count } => return self.events(name, count).await,
            Step::Close { name } => drop(self.streams.remove(name)),
        }
        "ok".to_owned()
    }

    /// Returns the value of a name.
    pub fn value(&self, name: &str) -> Option<&String> {
        self.names.value(name)
    }

    /// Ends the leases of the case, so that the next case on the same nodes finds free locks.
    pub async fn finish(self) {
        for (id, secret) in self.names.leases() {
            let body = format!("{{\"secret\":\"{secret}\"}}");
            let (method, target) = ("DELETE".to_owned(), format!("/v1/leases/{id}"));
            let headers = vec![("Host".to_owned(), "localhost".to_owned())];
            let request = Request { node: 1, method, target, headers, body, ..Request::default() };
            drop(complete(self.transport.clone(), request).await);
        }
    }

    async fn open_lease(&mut self, name: &str, ttl_ms: u32) -> String {
        let line = format!("POST /v1/leases {{\"ttl_ms\":{ttl_ms}}}");
        let answer = complete(self.transport.clone(), self.request(&Wanted::parse(&line))).await;
        let lease: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        match (lease["lease"].as_str(), lease["secret"].as_str()) {
            (Some(id), Some(secret)) => {
                self.names.bind_lease(name, id, secret);
                format!("{} {}", answer.status, lease["ttl_ms"])
            }
            _ => self.shown(&answer),
        }
    }

    async fn send_often(&mut self, count: usize, wanted: &Wanted<'_>) -> String {
        let mut statuses = BTreeMap::<u16, usize>::new();
        for number in 0..count {
            self.names.bind("n", &number.to_string());
            let answer = complete(self.transport.clone(), self.request(wanted)).await;
            *statuses.entry(answer.status).or_default() += 1;
        }
        let lines: Vec<String> =
            statuses.iter().map(|(status, times)| format!("{times} times {status}")).collect();
        lines.join("\n")
    }

    async fn repeat_until(&mut self, text: &str, wanted: &Wanted<'_>) {
        let request = self.request(wanted);
        let mut latest = String::new();
        let repeat = async {
            while !latest.contains(&self.names.replace(text)) {
                time::sleep(PAUSE).await;
                latest = complete(self.transport.clone(), request.clone()).await.body;
            }
        };
        assert!(time::timeout(PATIENCE, repeat).await.is_ok(), "no {text} in {latest}");
    }

    async fn events(&mut self, name: &str, count: usize) -> String {
        let stream = self.streams.get_mut(name).unwrap_or_else(|| panic!("no stream {name}"));
        let events = stream.take(count).await;
        let mut lines = Vec::new();
        for (event, data, id) in events {
            let mut data: Value = serde_json::from_str(&data).expect("data is JSON");
            // The name of the event stands before the data.
            data.as_object_mut().expect("data is an object").remove("event");
            lines.push(format!("{event} {}", self.names.shown("", &data)));
            if let Some(id) = id {
                self.names.bind(name, &id);
            }
        }
        lines.join("\n")
    }

    /// Builds a request with the values of all names.
    fn request(&self, wanted: &Wanted<'_>) -> Request {
        let mut headers: Vec<(String, String)> = Vec::new();
        for name in &wanted.leases {
            headers.push(("Rowlock-Lease".to_owned(), self.names.replace(&format!("${name}"))));
        }
        for name in &wanted.tokens {
            let token = self.tokens.get(*name).unwrap_or_else(|| panic!("no token {name}"));
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        for (name, value) in &wanted.headers {
            let value = self.tokens.iter().fold(self.names.replace(value), |value, (name, token)| {
                value.replace(&format!("@{name}"), token)
            });
            // A password for basic authentication.
            let value = match value.strip_prefix("Basic #") {
                Some(plain) => format!("Basic {}", STANDARD.encode(plain)),
                None => value,
            };
            headers.push(((*name).to_owned(), value));
        }
        let names_host = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
        headers.retain(|(name, value)| !(name.eq_ignore_ascii_case("host") && value == "-"));
        if !names_host {
            headers.push(("Host".to_owned(), "localhost".to_owned()));
        }
        Request {
            node: wanted.node,
            from: wanted.from,
            method: wanted.method.to_owned(),
            target: self.names.replace(wanted.target),
            is_http_1_0: wanted.is_http_1_0,
            headers,
            body: self.names.replace(wanted.body),
        }
    }

    /// Returns a response as text: status, document, and the headers that matter.
    fn shown(&mut self, answer: &Answer) -> String {
        let Answer { status, headers, body } = answer;
        let header = |wanted: &str| {
            headers.iter().find(|(name, _)| name == wanted).map_or("", |(_, value)| value.as_str())
        };
        let kind = header("content-type");
        let text = match (kind, serde_json::from_str::<Value>(body)) {
            ("application/problem+json", Ok(problem)) => self.names.problem(*status, problem),
            ("application/json", Ok(document)) => self.names.shown("", &document).to_string(),
            _ if body.is_empty() => String::new(),
            _ if body.trim_end().contains('\n') => format!("{kind}\n{}", body.trim_end()),
            _ => format!("{kind} {}", body.trim_end()),
        };
        let mut lines = vec![format!("{status} {text}").trim_end().to_owned()];
        for (name, value) in headers.iter().filter(|(name, _)| SHOWN.contains(&name.as_str())) {
            lines.push(format!("{name}: {}", self.names.within(value)));
        }
        lines.join("\n")
    }
}

impl Stream {
    async fn read_until(&mut self, is_there: impl Fn(&str) -> bool) {
        let read = async {
            while !is_there(&self.text) {
                let piece = self.body.recv().await.expect("the stream goes on");
                self.text.push_str(std::str::from_utf8(&piece).expect("events are text"));
            }
        };
        let read = time::timeout(PATIENCE, read).await;
        assert!(read.is_ok(), "no further event after {}", self.text);
    }

    /// Reads events: name, data, and the id before the data, if there is one.
    async fn take(&mut self, count: usize) -> Vec<(String, String, Option<String>)> {
        // A client knows an event as complete by the empty line behind its data.
        let complete =
            |text: &str| text.split("\ndata: ").skip(1).filter(|rest| rest.contains("\n\n")).count();
        self.read_until(|text| complete(text) >= count).await;
        let (mut events, mut id) = (Vec::new(), None);
        let mut event = String::new();
        while let Some((line, rest)) = self.text.split_once('\n') {
            if let Some(value) = line.strip_prefix("id: ") {
                id = Some(value.to_owned());
            } else if let Some(value) = line.strip_prefix("event: ") {
                value.clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data: ") {
                events.push((std::mem::take(&mut event), data.to_owned(), id.take()));
            }
            self.text = rest.to_owned();
            if events.len() == count {
                break;
            }
        }
        events
    }
}

async fn complete<T: Transport>(transport: T, request: Request) -> Answer {
    let response = time::timeout(PATIENCE, transport.send(request)).await.expect("an answer in time");
    collect(response).await
}

async fn collect(mut response: Response) -> Answer {
    let mut body = Vec::new();
    let read = async {
        while let Some(piece) = response.body.recv().await {
            body.extend_from_slice(&piece);
        }
    };
    time::timeout(PATIENCE, read).await.expect("a body in time");
    let body = String::from_utf8_lossy(&body).into_owned();
    Answer { status: response.status, headers: response.headers, body }
}
