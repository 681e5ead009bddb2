//! Switchable network: a proxy in front of each port of each node, for all connections to the port.
//!
//! A cut link is silent, like a real one: connections stay open, bytes wait, and flow after `heal`. A
//! connection that the dialer gives up during a cut never reaches the node. The first bytes identify the
//! dialer ([`Seen`]), hence the switches also apply to processes and clients in other languages.

use std::io;
use std::time::Duration;

use rowlock_env::net::{Listener, ReadHalf, Stream, WriteHalf};
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_proto::{NodeId, SessionId};
use rowlock_transport::Identity;
use rowlock_transport::frame::FrameReader;
use rowlock_transport::handshake::check_hello;
use rowlock_transport::limits::PEER_HELLO_MAX_BYTES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::rules::{Link, Rules};

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
            Behind::Nodes(us) => Link::Nodes(near_in.first(|bytes| dialer(bytes, us)).await?, self.node),
            Behind::Clients => Link::Client(self.node, near_in.first(session_asked).await?),
        };
        let mut switch = Switch::new(self.rules.clone(), link);
        near_in.read_until(switch.open()).await?;
        let target = self.target.borrow().clone().ok_or(io::ErrorKind::ConnectionRefused)?;
        let (far_in, mut far_out) = Stream::connect(&target, CONNECT_TIMEOUT).await?.into_split();
        far_out.write_all(&near_in.bytes).await?;
        let mut far_in = Opening { half: far_in, bytes: Vec::new() };
        if link == Link::Client(self.node, SessionId::NONE) {
            // What the client sends before it knows its session waits for the answer.
            match far_in.first(session_given).await {
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

/// Offset of the session in a `ConnectRequest` with the length in front: protocol, last zxid, timeout,
/// session.
const SESSION_ASKED: usize = 4 + 4 + 8 + 4;
/// Offset of the session in a `ConnectResponse`: protocol, timeout, session.
const SESSION_GIVEN: usize = 4 + 4 + 4;

/// Result of looking at the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen<T> {
    Incomplete,
    Found(T),
    Garbage,
}

/// Returns the node that dials `us`, counted from 0.
fn dialer(bytes: &[u8], us: &Identity) -> Seen<usize> {
    let mut reader = FrameReader::new(PEER_HELLO_MAX_BYTES);
    reader.room().extend_from_slice(bytes);
    match reader.next_frame() {
        Ok(None) => Seen::Incomplete,
        Ok(Some(frame)) => match check_hello(&frame.body, us) {
            Ok(hello) => index_of(hello.from.node).map_or(Seen::Garbage, Seen::Found),
            Err(_) => Seen::Garbage,
        },
        Err(_) => Seen::Garbage,
    }
}

/// Nodes are numbered from 1, and counted from 0 by the test kit.
fn index_of(node: NodeId) -> Option<usize> {
    usize::try_from(node.0).ok()?.checked_sub(1)
}

/// Session that a client resumes; [`SessionId::NONE`] for a new session, or for a four-letter word instead of
/// a request.
fn session_asked(bytes: &[u8]) -> Seen<SessionId> {
    match bytes.first_chunk::<4>() {
        None => Seen::Incomplete,
        Some(word) if word.iter().all(u8::is_ascii_lowercase) => Seen::Found(SessionId::NONE),
        Some(_) => session_at(bytes, SESSION_ASKED),
    }
}

fn session_given(bytes: &[u8]) -> Seen<SessionId> {
    session_at(bytes, SESSION_GIVEN)
}

fn session_at(bytes: &[u8], at: usize) -> Seen<SessionId> {
    let session = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    session.map_or(Seen::Incomplete, |id| Seen::Found(SessionId(i64::from_be_bytes(*id))))
}

/// Links between the nodes of a cluster of processes: a door in front of each node's port for nodes. A cut
/// link is silent, as for [`crate::Cluster`].
pub struct PeerNetwork {
    rules: watch::Sender<Rules>,
}

impl PeerNetwork {
    /// For each node of `cluster`: its number, from 1 on, where the others find it, and where it listens.
    ///
    /// # Panics
    /// An address where the others find a node is taken.
    pub async fn start(cluster: &str, routes: Vec<(u64, String, String)>) -> PeerNetwork {
        let (rules, _) = watch::channel(Rules::default());
        let tasks = TaskGroup::new(Shutdown::new());
        for (id, found, listens) in routes {
            let listener = Listener::bind(&found).await.expect("the address is free");
            let behind = Behind::Nodes(Identity { cluster: cluster.to_owned(), node: NodeId(id) });
            let (_, target) = watch::channel(Some(listens));
            let door = Door { node: index(id), behind, target, rules: rules.subscribe() };
            tasks.spawn("door", door.serve(listener, tasks.clone()));
        }
        PeerNetwork { rules }
    }

    /// Cuts all links of node `id`, one of `nodes`.
    pub fn isolate(&self, id: u64, nodes: &[u64]) {
        let nodes: Vec<usize> = nodes.iter().copied().map(index).collect();
        self.rules.modify(|rules| rules.cut(&[index(id)], &nodes));
    }

    /// Makes all links whole.
    pub fn heal(&self) {
        self.rules.modify(Rules::heal);
    }
}

/// Nodes are counted from 0 by the test kit.
fn index(id: u64) -> usize {
    usize::try_from(id - 1).expect("a cluster is small")
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use rowlock_proto::Incarnation;
    use rowlock_state::version::Versions;
    use rowlock_transport::Lane;
    use rowlock_transport::frame::{self, RequestId};
    use rowlock_transport::handshake::{Hello, encode_hello};

    use super::*;

    fn us() -> Identity {
        Identity { cluster: "test".to_owned(), node: NodeId(1) }
    }

    #[test]
    fn a_node_is_known_by_its_whole_first_frame() {
        let from = Identity { cluster: "test".to_owned(), node: NodeId(3) };
        let mut out = BytesMut::new();
        let hello = Hello {
            from,
            to: NodeId(1),
            lane: Lane::Control,
            incarnation: Incarnation(3),
            cluster: None,
            versions: Versions::of_this_release(),
        };
        frame::push(&mut out, RequestId::NONE, &encode_hello(&hello));
        assert_eq!(dialer(&out[..out.len() - 1], &us()), Seen::Incomplete);
        assert_eq!(dialer(&out, &us()), Seen::Found(2));
        out[20] ^= 1;
        assert_eq!(dialer(&out, &us()), Seen::Garbage);
    }

    #[test]
    fn a_session_is_read_where_it_stands_and_words_have_none() {
        let mut request = vec![0, 0, 0, 45];
        request.resize(SESSION_ASKED, 0);
        request.extend(0x0100_0000_0000_0007_i64.to_be_bytes());
        assert_eq!(session_asked(&request[..SESSION_ASKED + 7]), Seen::Incomplete);
        assert_eq!(session_asked(&request), Seen::Found(SessionId(0x0100_0000_0000_0007)));
        assert_eq!(session_asked(b"ruok"), Seen::Found(SessionId::NONE));
        assert_eq!(
            session_given(&request[SESSION_ASKED - SESSION_GIVEN..]),
            Seen::Found(SessionId(0x0100_0000_0000_0007))
        );
    }
}
