//! Connections with several requests.

use axum::routing::post;

use super::*;
use crate::access::http::api::take_turn;

const HEAD: Duration = Duration::from_millis(300);
const IDLE: Duration = Duration::from_millis(900);

async fn start_kept(connections: usize) -> (String, rowlock_env::task::Task<()>) {
    let inner = Listener::bind("127.0.0.1:0").await.unwrap();
    let addr = inner.local_addr().to_string();
    let bounds = Bounds { connections, head: HEAD, idle: Some(IDLE), ..Bounds::default() };
    let listener = BoundedListener::new(inner, Arc::default(), bounds, None);
    let routes = Router::new().route("/", post(async |body: String| body));
    let routes = routes.layer(axum::middleware::from_fn(take_turn));
    let turns = (Turnstile::default(), Class::Client);
    let task = spawn("http", serve_connections(listener, routes, turns, Shutdown::new()));
    (addr, task)
}

/// Sends a body of one byte and reads the response with the same body.
async fn exchange(stream: &mut Stream) -> std::io::Result<()> {
    stream.write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx").await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nx") {
        let mut piece = [0; 256];
        let len = timeout(PATIENCE, stream.read(&mut piece)).await.expect("an answer")?;
        if len == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&piece[..len]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

async fn end(mut stream: Stream) -> Duration {
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server closes it");
    assert!(rest.is_empty(), "it says nothing more");
    begun.elapsed()
}

#[tokio::test]
async fn connection_carries_many_requests_until_idle_or_partial() {
    let (addr, task) = start_kept(8).await;
    let connect = async || Stream::connect(&addr, PATIENCE).await.unwrap();
    let (mut silent, mut halting) = (connect().await, connect().await);
    for _ in 0..20 {
        exchange(&mut silent).await.unwrap();
        exchange(&mut halting).await.unwrap();
    }
    // Total duration longer than the deadline for one request head.
    for _ in 0..5 {
        rowlock_env::time::sleep(HEAD / 3).await;
        exchange(&mut silent).await.unwrap();
        exchange(&mut halting).await.unwrap();
    }
    halting.write_all(b"POST / HTTP/1.1\r\nHost:").await.unwrap();
    let (silent, halting) = futures_util::join!(end(silent), end(halting));
    assert!(silent >= IDLE / 2, "it may rest a while: {silent:?}");
    assert!(halting < silent, "half a head is waited for less long: {halting:?} {silent:?}");
    task.abort();
}

#[tokio::test]
async fn idle_connection_yields_to_a_new_one() {
    let (addr, task) = start_kept(1).await;
    let mut first = Stream::connect(&addr, PATIENCE).await.unwrap();
    exchange(&mut first).await.unwrap();
    let mut second = Stream::connect(&addr, PATIENCE).await.unwrap();
    exchange(&mut second).await.unwrap();
    assert!(exchange(&mut first).await.is_err(), "its place is another's");
    task.abort();
}
