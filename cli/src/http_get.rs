//! One GET of a JSON document from a node's HTTP listener, by TLS or without, with a token or without: all
//! the HTTP that `status` and `up` need.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rowlock_env::net::Stream;
use rowlock_env::time;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Secure, TlsOptions};
use crate::exit::{CONFIG, Failure, USAGE};

/// A status document is a few hundred bytes, a metrics page some thousand lines.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// How a command asks nodes over HTTP.
#[derive(Clone, Default)]
pub struct Way {
    pub secure: Option<Secure>,
    /// Sent with each request.
    pub token: Option<String>,
}

/// Options of commands that ask nodes over HTTP.
#[derive(clap::Args)]
pub struct TokenOption {
    /// Bearer token for the HTTP API (prefer the environment variable: flags are visible in process lists)
    #[arg(long, value_name = "TOKEN", env = "ROWLOCK_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl TokenOption {
    /// How to ask nodes at `addrs`, which take TLS only or none at all (`by_tls`). A token goes over plain
    /// connections to this machine only, unless that was allowed.
    pub fn way(&self, by_tls: bool, tls: &TlsOptions, addrs: &[String]) -> Result<Way, Failure> {
        let token = self.token.clone().filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Failure::new(
                USAGE,
                "the token has characters that none has; give it as it was made",
            ));
        }
        if by_tls {
            let secure = tls.secure()?.ok_or_else(|| {
                let what = "the nodes' HTTP is by TLS, and nothing is known of their authority";
                Failure::new(CONFIG, format!("{what}; give it with --tls-ca or ROWLOCK_TLS_CA"))
            })?;
            return Ok(Way { secure: Some(secure), token });
        }
        let beyond = addrs.iter().find(|addr| !is_loopback(addr));
        if let (Some(_), Some(addr), false) = (&token, beyond, tls.allows_plaintext_passwords()) {
            let what = format!("a token sent to {addr} without TLS could be read on its way");
            let remedy = "set tls = true in [http], or use --allow-plaintext-passwords";
            return Err(Failure::new(USAGE, format!("{what}; {remedy}")));
        }
        Ok(Way { secure: None, token })
    }
}

/// Gets `path` from `addr` (`host:port`) as JSON, within `deadline` altogether.
pub async fn json(addr: &str, path: &str, way: &Way, deadline: Duration) -> io::Result<Value> {
    let body = text(addr, path, way, deadline).await?;
    serde_json::from_str(&body).map_err(|e| invalid(format!("{path} of {addr} is not JSON: {e}")))
}

pub struct Answer {
    /// The status code as text, such as `200`.
    pub status: String,
    /// The response without its head.
    pub body: String,
}

impl Answer {
    /// Why it is no 200: the detail of a problem document, as far as there is one.
    pub fn reason(&self) -> String {
        let problem: Option<Value> = serde_json::from_str(&self.body).ok();
        let detail = problem.and_then(|problem| Some(problem["detail"].as_str()?.to_owned()));
        detail.unwrap_or_else(|| format!("answered with {}", self.status))
    }
}

/// Gets `path` from `addr` as text, within `deadline` altogether. Any status but 200 is an error.
pub async fn text(addr: &str, path: &str, way: &Way, deadline: Duration) -> io::Result<String> {
    let Answer { status, body } = answer(addr, path, way, deadline).await?;
    match status.as_str() {
        "200" => Ok(body),
        "400" if body.contains("https") => {
            Err(invalid("its HTTP is by TLS: name it with https://".to_owned()))
        }
        "401" => Err(invalid("it wants a token (ROWLOCK_TOKEN) or a client certificate".to_owned())),
        "403" => Err(invalid("the token does not allow this".to_owned())),
        status => Err(invalid(format!("{addr} answered {path} with {status}"))),
    }
}

/// Gets `path` from `addr` as text, whatever its status is, within `deadline` altogether.
pub async fn answer(addr: &str, path: &str, way: &Way, deadline: Duration) -> io::Result<Answer> {
    let exchange = async {
        let mut stream = Stream::connect(addr, deadline).await?;
        if let Some(secure) = &way.secure {
            stream = secure.connect(stream, addr).await?;
        }
        let token = way.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        // HTTP/1.0: no chunks, and the end of the body is the end of the connection.
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

/// Whether what is sent there stays on this machine.
pub fn is_loopback(addr: &str) -> bool {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
