//! A network that can lose everything that one node sends to another. The nodes dial each other through it.
//!
//! While a way is cut, its connections stand and nothing arrives, as with lost packets; when it is healed,
//! what was sent arrives late.

use std::collections::BTreeSet;

use rowlock_env::net::{Listener, ReadHalf, Stream, WriteHalf};
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_transport::frame::FrameReader;
use rowlock_transport::handshake;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::PATIENCE;
use crate::peer::tests::support::{framed, identity};

/// The connections, by dialer and listener, that carry nothing.
#[derive(Clone)]
pub struct Cuts {
    cut: watch::Sender<BTreeSet<(u64, u64)>>,
    tasks: TaskGroup,
}

impl Cuts {
    pub fn new() -> Cuts {
        Cuts { cut: watch::channel(BTreeSet::new()).0, tasks: TaskGroup::new(Shutdown::new()) }
    }

    /// Cuts connections that others dial to `node`; its own stay.
    pub fn deafen(&self, node: u64) {
        self.cut.modify(|cut| cut.extend((1..=9).map(|other| (other, node))));
    }

    /// Cuts `node` off in both directions.
    pub fn isolate(&self, node: u64) {
        self.cut.modify(|cut| cut.extend((1..=9).flat_map(|other| [(other, node), (node, other)])));
    }

    /// Cuts all links between `node` and these others.
    pub fn part(&self, node: u64, others: &[u64]) {
        self.cut.modify(|cut| cut.extend(others.iter().flat_map(|other| [(*other, node), (node, *other)])));
    }

    pub fn heal(&self) {
        self.cut.send(BTreeSet::new());
    }

    pub async fn stop(&self) {
        self.tasks.stop().await;
    }

    async fn pass(&self, way: (u64, u64)) {
        self.cut.subscribe().wait_for(|cut| !cut.contains(&way)).await.expect("the sender lives here");
    }
}

/// Stands in front of node `to`, which listens at `target`; gives the address for the others to dial.
pub async fn relay(to: u64, target: String, cuts: &Cuts) -> String {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().to_string();
    let (cuts, tasks) = (cuts.clone(), cuts.tasks.clone());
    let shutdown = tasks.shutdown().clone();
    tasks.clone().spawn("relay", async move {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                stream = listener.accept() => {
                    let (target, cuts, shutdown) = (target.clone(), cuts.clone(), shutdown.clone());
                    tasks.spawn("relay-connection", async move {
                        tokio::select! {
                            () = shutdown.wait() => {}
                            _ = connect(to, stream, &target, &cuts) => {}
                        }
                    });
                }
            }
        }
    });
    address
}

async fn connect(to: u64, stream: Stream, target: &str, cuts: &Cuts) -> Option<()> {
    let (mut from_dialer, to_dialer) = stream.into_split();
    let mut frames = FrameReader::new(1 << 12);
    let hello = loop {
        if let Some(frame) = frames.next_frame().ok()? {
            break frame;
        }
        if from_dialer.read_buf(frames.room()).await.ok()? == 0 {
            return None;
        }
    };
    let dialer = handshake::check_hello(&hello.body, &identity(to)).ok()?.from.node.0;
    let way = (dialer, to);
    cuts.pass(way).await;
    let (from_node, mut to_node) = Stream::connect(target, PATIENCE).await.ok()?.into_split();
    to_node.write_all(&framed(0, &hello.body)).await.ok()?;
    tokio::select! {
        ended = pump(from_dialer, to_node, way, cuts) => ended,
        ended = pump(from_node, to_dialer, way, cuts) => ended,
    }
}

async fn pump(mut from: ReadHalf, mut to: WriteHalf, way: (u64, u64), cuts: &Cuts) -> Option<()> {
    let mut buf = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buf).await.ok()?;
        if read == 0 {
            return None;
        }
        cuts.pass(way).await;
        to.write_all(&buf[..read]).await.ok()?;
    }
}
