//! A gateway between a client and the nodes that is set up wrongly, or worse. The first level of a request's
//! path says how it behaves, the rest goes to a node: `/html-401/v1/leases`,
//! `/deep.keepalive/v1/leases/0x1/keepalive` (all but keepalive is passed on).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Between two bytes of an answer that trickles.
const TRICKLE: Duration = Duration::from_millis(500);

/// Documents of another shape than a node's.
const SHAPES: [&str; 12] = [
    "[]",
    "null",
    "7",
    "\"held\"",
    r#"{"lease":{},"secret":[],"ttl_ms":"6000"}"#,
    r#"{"valid_for_ms":"soon","state":["held"],"token":{}}"#,
    r#"{"valid_for_ms":1e999,"ttl_ms":-1}"#,
    r#"{"valid_for_ms":null,"state":"held","token":5}"#,
    r#"{"state":"held","token":"99999999999999999999999999"}"#,
    r#"{"state":"waiting","position":"first"}"#,
    r#"{"state":"held""#,
    "\u{feff}{}",
];

/// Starts a gateway to this node, which lives as long as the runtime, and returns its URL.
pub async fn gateway(node: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let turn = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (node, turn) = (node.clone(), turn.clone());
            // A client that has gone is no failure.
            tokio::spawn(async move { serve(stream, &node, turn.fetch_add(1, Ordering::Relaxed)).await });
        }
    });
    url
}

async fn serve(mut stream: TcpStream, node: &str, turn: usize) -> Option<()> {
    let (head, body) = request(&mut stream).await?;
    let (method, rest) = head.split_once(' ')?;
    let (behavior, path) = rest.strip_prefix('/')?.split_once('/')?;
    let behavior = match behavior.split_once('.') {
        Some((_, only)) if !path.split(' ').next()?.ends_with(only) => "forward",
        Some((behavior, _)) => behavior,
        None => behavior,
    };
    let answer = match behavior {
        "forward" => forward(node, &format!("{method} /{path}"), &body).await?,
        "deep" => ok(&deep(turn)),
        "shape" => ok(SHAPES[turn % SHAPES.len()]),
        "trickle" => return trickle(stream).await,
        other => page(other.strip_prefix("html-").expect("a behavior of this gateway")),
    };
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// Reads a request to its end; gives its head and its body.
async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut text = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
        text.extend_from_slice(&piece[..count]);
        let said = String::from_utf8_lossy(&text);
        if let Some((head, body)) = said.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
            if body.len() >= length.map_or(0, |length| length.trim().parse().unwrap()) {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
    }
}

/// Returns the answer of the node, without what it says of its leader: the client stays here.
async fn forward(node: &str, head: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(node).await.ok()?;
    let kept = |text: &str, but: &[&str]| -> String {
        let lines = text.lines().filter(|line| {
            let line = line.to_ascii_lowercase();
            !but.iter().any(|name| line.starts_with(name))
        });
        lines.map(|line| format!("{line}\r\n")).collect()
    };
    let head = kept(head, &["connection:", "prefer:", "upgrade:", "http2-settings:"]);
    stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(format!("{}\r\n{body}", kept(head, &["rowlock-leader:"])))
}

fn ok(document: &str) -> String {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length";
    format!("{head}: {}\r\n\r\n{document}", document.len())
}

/// Returns more levels than any reader's stack has room for, or than its bound, whole or broken off.
fn deep(turn: usize) -> String {
    let lists = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    match turn % 4 {
        0 => "[".repeat(100_000),
        1 => "{\"valid_for_ms\":".repeat(50_000),
        2 => format!("{{\"state\":\"busy\",\"valid_for_ms\":1,\"holder\":{}}}", lists(100_000)),
        _ => format!("{{\"state\":\"busy\",\"valid_for_ms\":1,\"detail\":{}}}", lists(500)),
    }
}

/// Returns an error page, written as nginx does.
fn page(status: &str) -> String {
    let reason = match status {
        "401" => "Authorization Required",
        "403" => "Forbidden",
        "404" => "Not Found",
        "429" => "Too Many Requests",
        _ => "Bad Gateway",
    };
    let html = format!(
        "<html>\r\n<head><title>{status} {reason}</title></head>\r\n<body>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
    );
    let head = format!("HTTP/1.1 {status} {reason}\r\nContent-Type: text/html\r\nConnection: close");
    format!("{head}\r\nContent-Length: {}\r\n\r\n{html}", html.len())
}

async fn trickle(mut stream: TcpStream) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.ok()?;
    loop {
        tokio::time::sleep(TRICKLE).await;
        stream.write_all(b" ").await.ok()?;
    }
}
