//! Relay between a client and the servers that can be cut. To the servers a cut looks like a client's death
//! by SIGKILL: the connection ends without a close of the session.

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// One relay per server.
pub struct Relay {
    /// Addresses in the order of the servers.
    pub addresses: Vec<String>,
    tasks: JoinSet<()>,
    handles: Vec<AbortHandle>,
}

impl Relay {
    /// Listens on free ports.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(targets: &[String]) -> Result<Relay> {
        let (mut addresses, mut tasks, mut handles) = (Vec::new(), JoinSet::new(), Vec::new());
        for target in targets {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?.to_string());
            handles.push(tasks.spawn(relay(listener, target.clone())));
        }
        Ok(Relay { addresses, tasks, handles })
    }

    /// Closes every connection through the relay, and accepts no new ones. Returns when all are closed.
    pub async fn cut(&mut self) {
        for handle in &self.handles {
            handle.abort();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Accepts connections, which end with this task.
async fn relay(listener: TcpListener, target: String) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(pass(client, target.clone()));
    }
}

/// Copies until one side closes or breaks; then closes both sides.
async fn pass(mut client: TcpStream, target: String) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::Relay;

    #[tokio::test]
    async fn a_relay_that_is_cut_closes_both_sides_and_refuses_more() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut relay = Relay::start(&[server.local_addr().unwrap().to_string()]).await.unwrap();
        let mut client = TcpStream::connect(&relay.addresses[0]).await.unwrap();
        let (mut served, _) = server.accept().await.unwrap();
        client.write_all(b"abc").await.unwrap();
        let mut bytes = [0; 3];
        served.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"abc");
        relay.cut().await;
        assert_eq!(client.read(&mut bytes).await.unwrap_or(0), 0);
        assert_eq!(served.read(&mut bytes).await.unwrap_or(0), 0);
        assert!(TcpStream::connect(&relay.addresses[0]).await.is_err());
    }
}
