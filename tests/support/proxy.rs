//! A network between nodes whose links can be cut: one TCP proxy in front of each node's peer port.
//!
//! A cut link is silent, as a real one is: connections stay open, bytes wait, and flow again when it heals.
//! The proxy finds the other end of an accepted connection in /proc, so it knows nothing of the protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

type Link = (u64, u64);

pub struct Network {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Unordered pairs, the smaller number first.
    cut: watch::Sender<BTreeSet<Link>>,
    pids: Mutex<BTreeMap<u64, u32>>,
}

impl Network {
    /// For each node: its number, where the others find it, where it listens.
    pub async fn start(routes: Vec<(u64, String, String)>) -> Network {
        let shared = Arc::new(Shared { cut: watch::channel(BTreeSet::new()).0, pids: Mutex::default() });
        let mut tasks = Vec::new();
        for (id, found, listens) in routes {
            let listener = TcpListener::bind(&found).await.unwrap();
            tasks.push(tokio::spawn(serve(shared.clone(), id, listener, listens)));
        }
        Network { shared, tasks }
    }

    pub fn set_pid(&self, id: u64, pid: u32) {
        self.shared.pids.lock().unwrap().insert(id, pid);
    }

    /// Cuts all links of `id`.
    pub fn isolate(&self, id: u64, nodes: &[u64]) {
        let links = nodes.iter().filter(|other| **other != id).map(|other| link(id, *other));
        self.shared.cut.send_modify(|cut| cut.extend(links));
    }

    pub fn heal(&self) {
        self.shared.cut.send_modify(BTreeSet::clear);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn link(a: u64, b: u64) -> Link {
    (a.min(b), a.max(b))
}

async fn serve(shared: Arc<Shared>, id: u64, listener: TcpListener, target: String) {
    loop {
        let Ok((accepted, from)) = listener.accept().await else { continue };
        let pids = shared.pids.lock().unwrap().clone();
        // A process that has died meanwhile needs no connection.
        let Some(source) = owner(from.port(), &pids) else { continue };
        let Ok(onward) = TcpStream::connect(&target).await else { continue };
        let (near_in, near_out) = accepted.into_split();
        let (far_in, far_out) = onward.into_split();
        let link = link(source, id);
        tokio::spawn(pump(shared.cut.subscribe(), link, near_in, far_out));
        tokio::spawn(pump(shared.cut.subscribe(), link, far_in, near_out));
    }
}

/// Carries bytes one way; holds them while the link is cut.
async fn pump(
    mut cut: watch::Receiver<BTreeSet<Link>>,
    link: Link,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        if cut.wait_for(|cut| !cut.contains(&link)).await.is_err() {
            break;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    // Dropping `to` passes the end on; while the link is cut, it is not passed on.
    let _ = cut.wait_for(|cut| !cut.contains(&link)).await;
}

/// Which of the processes has a connection from this local port.
fn owner(port: u16, pids: &BTreeMap<u64, u32>) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!(":{port:04X}");
    let inode = table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.get(1).filter(|address| address.ends_with(&local))?;
        columns.get(9).map(|inode| format!("socket:[{inode}]"))
    })?;
    pids.iter().find(|(_, pid)| holds(**pid, &inode)).map(|(id, _)| *id)
}

fn holds(pid: u32, socket: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == socket))
}
