//! ZooKeeper's four-letter words, which Rowlock answers too.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the index of the server that reports to be the leader.
///
/// # Errors
/// No server does.
pub async fn leader(addresses: &[String]) -> Result<usize> {
    for (n, address) in addresses.iter().enumerate() {
        if word(address, "srvr").await.is_ok_and(|answer| answer.contains("Mode: leader")) {
            return Ok(n);
        }
    }
    bail!("no node leads")
}

/// Returns all figures of `mntr`.
///
/// # Errors
/// The server does not answer.
pub async fn mntr(address: &str) -> Result<BTreeMap<String, f64>> {
    Ok(figures(&word(address, "mntr").await?))
}

/// Parses the lines of a name, a tab and a number; skips other lines.
fn figures(answer: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (name, value) = line.split_once('\t')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    answer.lines().filter_map(line).collect()
}

/// Sends a word and reads until the server closes.
///
/// # Errors
/// No whole answer arrives within a second.
pub async fn word(address: &str, word: &str) -> Result<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    tokio::time::timeout(Duration::from_secs(1), ask)
        .await
        .context("no answer in a second")?
        .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn figures_are_the_lines_that_end_in_a_number() {
        let answer = "zk_version\t3.8.0-1\nzk_packets_received\t17\nzk_avg_latency\t0.5\n\n";
        let found: Vec<_> = figures(answer).into_iter().collect();
        assert_eq!(found, [("zk_avg_latency".to_owned(), 0.5), ("zk_packets_received".to_owned(), 17.0)]);
    }
}
