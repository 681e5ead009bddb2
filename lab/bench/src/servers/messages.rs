//! Number of messages between servers and clients, by the servers' own counters.

use std::ops::Sub;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::words::mntr;

/// Messages of all servers since their start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Messages {
    pub received: f64,
    pub sent: f64,
}

impl Sub for Messages {
    type Output = Messages;

    fn sub(self, earlier: Messages) -> Messages {
        Messages { received: self.received - earlier.received, sent: self.sent - earlier.sent }
    }
}

/// Reads the counters by the four-letter word `mntr`, for Rowlock and ZooKeeper. The query itself may count.
///
/// # Errors
/// A server does not answer.
pub async fn by_word(addresses: &[String]) -> Result<Messages> {
    let mut all = Messages::default();
    for address in addresses {
        let figures = mntr(address).await?;
        let of = |name: &str| figures.get(name).copied().with_context(|| format!("mntr without {name}"));
        all.received += of("zk_packets_received")?;
        all.sent += of("zk_packets_sent")?;
    }
    Ok(all)
}

/// Reads the counters in etcd's metrics: the messages of all gRPC services.
///
/// # Errors
/// A server does not answer.
pub async fn by_metrics(addresses: &[String]) -> Result<Messages> {
    let mut all = Messages::default();
    for address in addresses {
        let text = tokio::time::timeout(Duration::from_secs(2), metrics(address)).await??;
        all.received += sum(&text, "grpc_server_msg_received_total{");
        all.sent += sum(&text, "grpc_server_msg_sent_total{");
    }
    Ok(all)
}

async fn metrics(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // With HTTP 1.0 the answer has no chunks and ends with the connection.
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// Returns the sum over all lines that begin with `name`.
fn sum(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn a_metric_is_the_sum_over_its_labels() {
        let text = "# TYPE a_total counter\na_total{x=\"1 2\"} 3\na_total{x=\"2\"} 4\nab_total{x=\"1\"} 9\n";
        assert_eq!(sum(text, "a_total{"), 7.0);
        assert_eq!(sum(text, "c_total{"), 0.0);
    }
}
