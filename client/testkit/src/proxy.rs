//! Switchable network: a proxy in front of each port of each node, for all connections to the port.
//!
//! A cut link is silent, like a real one: connections stay open, bytes wait, and flow after `heal`. A
//! connection that the dialer gives up during a cut never reaches the node. The first bytes identify the
//! dialer (`sniff.rs`), hence the switches also apply to processes and clients in other languages.

use std::io;
use std::time::Duration;

use rowlock_env::net::{Listener, ReadHalf, Stream, WriteHalf};
use rowlock_env::sync::watch;
use rowlock_env::task::TaskGroup;
use rowlock_proto::SessionId;
use rowlock_transport::Identity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::rules::{Link, Rules};
use super::sniff::{self, Seen};

const CHUNK: usize = 64 << 10;
/// Bytes of a connection that is not open yet. A sender of more waits.
const OPENING_MAX: usize = 1 << 20;
/// A node on loopback accepts at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Target of a proxied connection.
#[derive(Clone, Debug)]
pub(super) enum Behind {
    /// Other nodes, connecting to this node.
    Nodes(Identity),
    Clients,
}

/// Proxy in front of a port of a node.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) node: usize,
    pub(super) behind: Behind,
    /// Listening address of the node; `None` while stopped.
    pub(super) target: watch::Receiver<Option<String>>,
    pub(super) rules: watch::Receiver<Rules>,
}

impl Door {
    /// Lets connections through for as long as the group runs.
    pub(super) async fn serve(self, listener: Listener, tasks: TaskGroup) {
        loop {
            let stream = listener.accept().await;
            let (door, open) = (self.clone(), tasks.clone());
            tasks.spawn("door", async move {
                // An error is the end of the connection, which both sides see.
                let _ = door.open(stream, open).await;
            });
        }
    }

    async fn open(self, near: Stream, tasks: TaskGroup) -> io::Result<()> {
        let (near_in, mut near_out) = near.into_split();
        let mut near_in = Opening { half: near_in, bytes: Vec::new() };
        let mut link = match &self.behind {
            Behind::Nodes(us) => {
                Link::Nodes(near_in.first(|bytes| sniff::dialer(bytes, us)).await?, self.node)
            }
            Behind::Clients => Link::Client(self.node, near_in.first(sniff::session_asked).await?),
        };
        let mut switch = Switch::new(self.rules.clone(), link);
        near_in.read_until(switch.open()).await?;
        let target = self.target.borrow().clone().ok_or(io::ErrorKind::ConnectionRefused)?;
        let (far_in, mut far_out) = Stream::connect(&target, CONNECT_TIMEOUT).await?.into_split();
        far_out.write_all(&near_in.bytes).await?;
        let mut far_in = Opening { half: far_in, bytes: Vec::new() };
        if link == Link::Client(self.node, SessionId::NONE) {
            // What the client sends before it knows its session waits for the answer.
            match far_in.first(sniff::session_given).await {
                Ok(session) => link = Link::Client(self.node, session),
                // A four-letter word is answered shortly, and the connection is closed.
                Err(_) => return near_out.write_all(&far_in.bytes).await,
            }
            switch.link = link;
            switch.open().await?;
        }
        near_out.write_all(&far_in.bytes).await?;
        tasks.spawn("pump", pump(switch.clone(), near_in.half, far_out));
        tasks.spawn("pump", pump(switch, far_in.half, near_out));
        Ok(())
    }
}

/// Direction whose first bytes are inspected before forwarding.
struct Opening {
    half: ReadHalf,
    bytes: Vec<u8>,
}

impl Opening {
    async fn first<T>(&mut self, see: impl Fn(&[u8]) -> Seen<T>) -> io::Result<T> {
        loop {
            match see(&self.bytes) {
                Seen::Found(it) => return Ok(it),
                Seen::Garbage => return Err(io::ErrorKind::InvalidData.into()),
                Seen::Incomplete => self.more().await?,
            }
        }
    }

    /// Keeps reading until the future is ready, to notice an end of the connection.
    async fn read_until(&mut self, open: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let mut open = std::pin::pin!(open);
        loop {
            tokio::select! {
                biased;
                opened = &mut open => return opened,
                more = self.more(), if self.bytes.len() < OPENING_MAX => more?,
            }
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.half.read_buf(&mut self.bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// State of the switches for a connection.
#[derive(Clone)]
struct Switch {
    rules: watch::Receiver<Rules>,
    link: Link,
    generation: u64,
}

impl Switch {
    fn new(rules: watch::Receiver<Rules>, link: Link) -> Self {
        let generation = rules.borrow().generation(link);
        Switch { rules, link, generation }
    }

    /// Waits until bytes may flow; an error: the connection is to be closed.
    async fn open(&mut self) -> io::Result<()> {
        let (link, generation) = (self.link, self.generation);
        let settled = |rules: &Rules| rules.generation(link) != generation || !rules.holds(link);
        self.rules.wait_for(settled).await.map_err(|_| io::ErrorKind::ConnectionAborted)?;
        if self.rules.borrow().generation(link) == generation {
            Ok(())
        } else {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }

    async fn closed(&mut self) {
        let (link, generation) = (self.link, self.generation);
        // The kit going away closes as well.
        let _ = self.rules.wait_for(|rules| rules.generation(link) != generation).await;
    }
}

/// Forwards bytes in a direction while the link carries.
async fn pump(mut switch: Switch, mut from: ReadHalf, mut to: WriteHalf) {
    let mut closing = switch.clone();
    let carry = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = from.read(&mut buffer).await;
            // While the link is cut, an end is not passed on either.
            switch.open().await?;
            match read? {
                0 => return io::Result::Ok(()),
                n => to.write_all(&buffer[..n]).await?,
            }
        }
    };
    tokio::select! {
        biased;
        () = closing.closed() => {}
        // Dropping `to` passes the end on.
        _ = carry => {}
    }
}
