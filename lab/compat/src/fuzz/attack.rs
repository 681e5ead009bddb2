//! One attacker: repeatedly connects, sends a corrupted conversation, and ends the connection in one of the
//! ways of real clients.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use rowlock_env::net::Stream;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::mutate::{Corrupted, Ending, corrupt};
use super::{Tally, corpus};
use rowlock_world::rng::Rng;

/// Longest life of one connection.
const STAY_MAX: Duration = Duration::from_millis(1500);
/// Longest wait for the server to close the connection.
const READING_MAX: Duration = Duration::from_millis(100);
/// Longest time to connect; also the pause after a failure.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 << 10;

/// Attacks until the shutdown.
pub async fn run(target: String, seed: u64, tally: Arc<Tally>, stop: Shutdown) {
    let mut rng = Rng::new(seed);
    while !stop.is_triggered() {
        let frames = corpus::conversation(&mut rng);
        let corrupted = corrupt(&mut rng, frames);
        match Stream::connect(&target, CONNECT_MAX).await {
            Ok(stream) => {
                tally.connections.fetch_add(1, Relaxed);
                tally.mutations.fetch_add(corrupted.mutations, Relaxed);
                // The result does not matter: `vigil` checks the node.
                let _ = time::timeout(STAY_MAX, attack(stream, corrupted, &tally)).await;
            }
            Err(_) => time::sleep(CONNECT_MAX).await,
        }
    }
}

async fn attack(mut stream: Stream, corrupted: Corrupted, tally: &Tally) -> io::Result<()> {
    let mut input = BytesMut::with_capacity(READ_BYTES);
    for segment in &corrupted.segments {
        stream.write_all(segment).await?;
        tally.bytes_sent.fetch_add(segment.len() as u64, Relaxed);
        if corrupted.ending != Ending::Deaf {
            // Lets the server run, so that segments arrive separately.
            tokio::task::yield_now().await;
            read_available(&stream, &mut input, tally)?;
        }
    }
    match corrupted.ending {
        Ending::Abrupt => return Ok(()),
        Ending::Deaf => {
            time::sleep(READING_MAX).await;
            return Ok(());
        }
        Ending::HalfClose => stream.shutdown().await?,
        Ending::Reading => {}
    }
    let _ = time::timeout(READING_MAX, async {
        loop {
            input.clear();
            match stream.read_buf(&mut input).await {
                Ok(0) | Err(_) => break tally.closed_by_server.fetch_add(1, Relaxed),
                Ok(count) => tally.bytes_received.fetch_add(count as u64, Relaxed),
            };
        }
    })
    .await;
    Ok(())
}

fn read_available(stream: &Stream, input: &mut BytesMut, tally: &Tally) -> io::Result<()> {
    input.resize(READ_BYTES, 0);
    match stream.try_read(input) {
        Ok(count) => {
            tally.bytes_received.fetch_add(count as u64, Relaxed);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
