//! Passwords and connections that are not encrypted. In a simulated world, whose hosts are not on loopback.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock_client::{Client, ClientBuilder, ConnectError};
use rowlock_env::net::{Listener, Stream};
use rowlock_env::time;
use rowlock_world::executor::Simulation;
use rowlock_world::time::Nanos;
use tokio::io::AsyncReadExt;

/// What the server was sent, and what the client made of it.
#[derive(Default)]
struct Seen {
    sent: Vec<u8>,
    outcome: Option<Result<(), ConnectError>>,
    after: Duration,
}

/// A server that answers nothing on 10.0.0.1, and on loopback of the client's own host 10.0.0.2.
fn connected(builder: ClientBuilder) -> Seen {
    let sim = Simulation::new(1, false);
    let hosts = [1, 2].map(|n| {
        let host = sim.add_host(&format!("host{n}"), "host", Ipv4Addr::new(10, 0, 0, n));
        sim.boot(host);
        host
    });
    let seen = Arc::new(Mutex::new(Seen::default()));
    for host in hosts {
        let seen = seen.clone();
        sim.spawn(host, "server", async move {
            let listener = Listener::bind("0.0.0.0:2181").await.unwrap();
            loop {
                let mut stream: Stream = listener.accept().await;
                let mut bytes = [0; 1_024];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    seen.lock().unwrap().sent.extend(&bytes[..count]);
                }
            }
        });
    }
    let ours = seen.clone();
    sim.spawn(hosts[1], "client", async move {
        let begun = time::now();
        let outcome = builder.connect_timeout(Duration::from_secs(5)).connect().await.map(drop);
        let seen = &mut *ours.lock().unwrap();
        (seen.outcome, seen.after) = (Some(outcome), begun.elapsed());
    });
    sim.run_until(Nanos::from_millis(20_000)).unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.outcome.is_some(), "the client knows how it ended");
    seen
}

fn with_password(endpoints: &str) -> ClientBuilder {
    Client::builder().endpoints(endpoints).auth("digest", "alice:hush")
}

#[test]
fn a_password_is_kept_back_from_a_plain_connection_to_another_machine_and_the_error_says_what_to_do() {
    let seen = connected(with_password("10.0.0.1:2181"));
    let Some(Err(error @ ConnectError::PlaintextPassword)) = seen.outcome else {
        panic!("{:?}", seen.outcome)
    };
    assert!(error.to_string().contains("use TLS, or allow it"), "{error}");
    assert!(seen.sent.is_empty() && seen.after < Duration::from_secs(1), "{:?}", seen.after);
}

#[test]
fn servers_on_loopback_are_used_although_others_are_not() {
    let seen = connected(with_password("10.0.0.1:2181,127.0.0.1:2181"));
    assert!(matches!(seen.outcome, Some(Err(ConnectError::Unreachable { .. }))), "{:?}", seen.outcome);
    assert!(!seen.sent.is_empty(), "the one on loopback was spoken to");
}

#[test]
fn whoever_allows_it_or_has_no_password_is_connected_plainly() {
    for builder in [
        with_password("10.0.0.1:2181").allow_plaintext_passwords(true),
        Client::builder().endpoints("10.0.0.1:2181"),
    ] {
        let seen = connected(builder);
        assert!(matches!(seen.outcome, Some(Err(ConnectError::Unreachable { .. }))), "{:?}", seen.outcome);
        assert!(!seen.sent.is_empty());
    }
}
