//! Connecting to what is no server, or none that serves: the error says so for each endpoint.

use std::time::Duration;

use rowlock_client::{Client, ConnectError};
use rowlock_env::net::Listener;
use rowlock_env::task::{self, Task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SOON: Duration = Duration::from_millis(300);

/// Reads the first bytes of each connection, answers with these, and hangs up.
async fn answering(answer: &'static [u8]) -> (String, Task<()>) {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().to_string();
    let serving = task::spawn("server", async move {
        loop {
            let mut stream = listener.accept().await;
            let mut first = [0; 64];
            let _ = stream.read(&mut first).await;
            let _ = stream.write_all(answer).await;
        }
    });
    (endpoint, serving)
}

#[tokio::test]
async fn the_error_says_of_each_endpoint_what_is_wrong_with_it() {
    let (without_quorum, _one) = answering(b"").await;
    let (http, _two) = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let nobody = Listener::bind("127.0.0.1:0").await.unwrap().local_addr().to_string();
    let config = Client::builder().endpoints(&format!("{without_quorum},{http},{nobody}"));
    let error = config.connect_timeout(SOON).connect().await.unwrap_err();
    let ConnectError::Unreachable { failures, .. } = &error else { panic!("{error}") };
    assert_eq!(failures.len(), 3, "{error}");
    for (endpoint, what) in
        [(without_quorum, "it has no quorum"), (http, "speaks HTTP"), (nobody, "Connection refused")]
    {
        let said: Vec<String> = failures.iter().map(ToString::to_string).collect();
        let said = said.iter().find(|said| said.starts_with(&endpoint)).unwrap();
        assert!(said.contains(what) && error.to_string().contains(said), "{error}");
    }
}
