//! Minimal HTTP client: one GET from a node's HTTP listener, with or without TLS and token; and the nodes
//! that a command queries: all nodes of the cluster, unless the command line names some.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rowlock_env::net::Stream;
use rowlock_env::time;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, Secure, TlsOptions};
use crate::exit::{CONFIG, Failure, USAGE};

/// Longest answer: a status document is a few hundred bytes, a metrics page some thousand lines.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// TLS and token for requests to nodes.
#[derive(Clone, Default)]
pub struct HttpAccess {
    pub secure: Option<Secure>,
    pub token: Option<String>,
}

#[derive(clap::Args)]
pub struct TokenOption {
    /// Bearer token for the HTTP API (prefer the environment variable: flags are visible in process lists)
    #[arg(long, value_name = "TOKEN", env = "ROWLOCK_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl TokenOption {
    /// Checks the token, and TLS of the nodes at `addrs` (`by_tls`: all or none use TLS). Without TLS the
    /// token goes to loopback addresses only, unless the user allows plaintext.
    pub fn access(&self, by_tls: bool, tls: &TlsOptions, addrs: &[String]) -> Result<HttpAccess, Failure> {
        let token = self.token.clone().filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Failure::new(
                USAGE,
                "the token has invalid characters; use it as `rowlock token new` printed it",
            ));
        }
        if by_tls {
            let secure = tls.secure()?.ok_or_else(|| {
                let problem = "the nodes' HTTP uses TLS, and no CA is configured";
                Failure::new(CONFIG, format!("{problem}; set --tls-ca or ROWLOCK_TLS_CA"))
            })?;
            return Ok(HttpAccess { secure: Some(secure), token });
        }
        let beyond = addrs.iter().find(|addr| !is_loopback(addr));
        if let (Some(_), Some(addr), false) = (&token, beyond, tls.allows_plaintext_passwords()) {
            let problem = format!("a token sent to {addr} without TLS could be read on its way");
            let remedy = "set tls = true in [http], or use --allow-plaintext-passwords";
            return Err(Failure::new(USAGE, format!("{problem}; {remedy}")));
        }
        Ok(HttpAccess { secure: None, token })
    }
}

/// Gets `path` from `addr` (`host:port`) as JSON, within `deadline` in total.
pub async fn json(addr: &str, path: &str, access: &HttpAccess, deadline: Duration) -> io::Result<Value> {
    let body = text(addr, path, access, deadline).await?;
    serde_json::from_str(&body).map_err(|e| invalid(format!("{path} of {addr} is not JSON: {e}")))
}

pub struct Answer {
    /// Status code as text, such as `200`.
    pub status: String,
    pub body: String,
}

impl Answer {
    /// Returns the reason for a status other than 200: the detail of a problem document, if any.
    pub fn reason(&self) -> String {
        let problem: Option<Value> = serde_json::from_str(&self.body).ok();
        let detail = problem.and_then(|problem| Some(problem["detail"].as_str()?.to_owned()));
        detail.unwrap_or_else(|| format!("answered with {}", self.status))
    }
}

/// Gets `path` from `addr` as text, within `deadline` in total. Any status but 200 is an error.
pub async fn text(addr: &str, path: &str, access: &HttpAccess, deadline: Duration) -> io::Result<String> {
    let Answer { status, body } = answer(addr, path, access, deadline).await?;
    match status.as_str() {
        "200" => Ok(body),
        "400" if body.contains("https") => {
            Err(invalid("the node's HTTP uses TLS: put https:// before its address".to_owned()))
        }
        "401" => Err(invalid("the node requires a token (ROWLOCK_TOKEN) or a client certificate".to_owned())),
        "403" => Err(invalid("the token does not allow this".to_owned())),
        status => Err(invalid(format!("{addr} answered {path} with {status}"))),
    }
}

/// Gets `path` from `addr` as text with any status, within `deadline` in total.
pub async fn answer(addr: &str, path: &str, access: &HttpAccess, deadline: Duration) -> io::Result<Answer> {
    let exchange = async {
        let mut stream = Stream::connect(addr, deadline).await?;
        if let Some(secure) = &access.secure {
            stream = secure.connect(stream, addr).await?;
        }
        let token = access.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        // HTTP/1.0: no chunks, and the end of the connection ends the body.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\nAccept: */*\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer).await?;
        let answer =
            String::from_utf8(answer).map_err(|_| invalid(format!("{addr} answered with no text")))?;
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or_else(|| invalid(format!("{addr} does not speak HTTP")))?;
        let status = head.split_whitespace().nth(1).unwrap_or_default();
        Ok(Answer { status: status.to_owned(), body: body.to_owned() })
    };
    time::timeout(deadline, exchange).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{addr} did not answer in time")))
    })
}

/// Returns true if data sent to `addr` stays on this machine.
pub fn is_loopback(addr: &str) -> bool {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Options of commands that query every node over HTTP.
#[derive(clap::Args)]
pub struct HttpNodes {
    /// HTTP addresses, host:port,host:port [default: those of cluster.toml]. https:// before one: use TLS
    /// for all
    #[arg(long, value_name = "LIST", env = "ROWLOCK_HTTP", value_delimiter = ',')]
    http: Vec<String>,
    #[command(flatten)]
    token: TokenOption,
}

/// Addresses of nodes (`host:port`), with TLS and token for all.
pub struct Addresses {
    /// Order of the file or of the command line.
    pub all: Vec<String>,
    pub access: HttpAccess,
}

impl HttpNodes {
    /// Returns the nodes' HTTP addresses, or `None` if only client addresses are known. Explicit client
    /// addresses may belong to another cluster than the cluster.toml in the current folder.
    pub fn find(&self, cluster: &Cluster) -> Result<Option<Addresses>, Failure> {
        let (by_tls, all) = if !self.http.is_empty() {
            let by_tls = self.http.iter().any(|addr| addr.starts_with("https://"));
            let bare =
                |addr: &String| addr.trim_start_matches("https://").trim_start_matches("http://").to_owned();
            (by_tls, self.http.iter().map(bare).collect())
        } else if let Some(file) = cluster.file()? {
            (file.http.tls, file.nodes.iter().map(|node| node.http_addr.clone()).collect())
        } else {
            return Ok(None);
        };
        let all: Vec<String> = all;
        let access = self.token.access(by_tls, &cluster.tls, &all)?;
        Ok(Some(Addresses { all, access }))
    }
}
