//! Limits of the machine, measured in the same run: a round trip on loopback, and a flush of the disk. No
//! system answers faster. Figures of two days are comparable only together with their floors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::latency::Latency;

/// Median round trip of 64 bytes on one connection between two threads, milliseconds.
pub const ECHO_P50_MS: &str = "echo_1_connection_p50_ms";
/// Round trips per second over 16 connections with a thread at each end.
pub const ECHO_16_PER_S: &str = "echo_16_connections_per_s";
/// Median fdatasync after an overwrite of 4 KiB in an allocated and written file, milliseconds.
pub const FLUSH_OVERWRITE_P50_MS: &str = "fdatasync_overwrite_4k_p50_ms";
/// Median fdatasync after an append of 512 bytes to a growing file, milliseconds.
pub const FLUSH_APPEND_P50_MS: &str = "fdatasync_append_512_p50_ms";

/// Measures for `each` per figure; creates files in `folder` and removes them.
///
/// # Errors
/// A socket or file cannot be created.
pub fn run(folder: &Path, each: Duration) -> Result<BTreeMap<String, f64>> {
    std::fs::create_dir_all(folder)?;
    let file = folder.join("floor");
    let one = echo(1, each)?;
    let sixteen = echo(16, each)?;
    let overwrite = overwrite(&file, each)?;
    let append = append(&file, each)?;
    let figures = [
        (ECHO_P50_MS, one.ms(0.5)),
        (ECHO_16_PER_S, sixteen.count() as f64 / each.as_secs_f64()),
        (FLUSH_OVERWRITE_P50_MS, overwrite.ms(0.5)),
        (FLUSH_APPEND_P50_MS, append.ms(0.5)),
    ];
    Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn echo(connections: usize, each: Duration) -> Result<Latency> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let ends = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = TcpStream::connect(address)?;
        let (mut server, _) = listener.accept()?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ends = ends.clone();
        // The thread ends when the client closes its side.
        thread::spawn(move || {
            let mut bytes = [0; 64];
            while server.read_exact(&mut bytes).is_ok() && server.write_all(&bytes).is_ok() {}
        });
        clients.push(thread::spawn(move || -> std::io::Result<Latency> {
            let (mut seen, mut bytes) = (Latency::default(), [7; 64]);
            while !ends.load(Ordering::Relaxed) {
                let begun = Instant::now();
                client.write_all(&bytes)?;
                client.read_exact(&mut bytes)?;
                seen.record(begun.elapsed());
            }
            Ok(seen)
        }));
    }
    thread::sleep(each);
    ends.store(true, Ordering::Relaxed);
    let mut all = Latency::default();
    for client in clients {
        all.add(&client.join().map_err(|_| anyhow!("an echo client panicked"))??);
    }
    Ok(all)
}

const FILE_BYTES: u64 = 16 << 20;

fn overwrite(path: &Path, each: Duration) -> Result<Latency> {
    let mut file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    file.write_all(&vec![0; FILE_BYTES as usize])?;
    file.sync_all()?;
    let (mut seen, mut at, begun) = (Latency::default(), 0, Instant::now());
    while begun.elapsed() < each {
        let page = [seen.count() as u8; 4096];
        let wrote = Instant::now();
        file.write_all_at(&page, at)?;
        file.sync_data()?;
        seen.record(wrote.elapsed());
        at = (at + page.len() as u64) % FILE_BYTES;
    }
    std::fs::remove_file(path)?;
    Ok(seen)
}

fn append(path: &Path, each: Duration) -> Result<Latency> {
    let mut file = File::create(path)?;
    let (mut seen, begun) = (Latency::default(), Instant::now());
    while begun.elapsed() < each {
        let wrote = Instant::now();
        file.write_all(&[7; 512])?;
        file.sync_data()?;
        seen.record(wrote.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_floor_is_above_zero() {
        let folder = tempfile::tempdir().expect("a folder");
        let floor = run(folder.path(), Duration::from_millis(50)).expect("sockets and files");
        assert_eq!(floor.len(), 4);
        assert!(floor.values().all(|value| *value > 0.0), "{floor:?}");
    }
}
