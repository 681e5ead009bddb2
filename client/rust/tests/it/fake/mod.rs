//! Servers in memory, for the tests of the client, over real sockets and with switches for faults. A
//! [`Keeper`] decides everything; connections only carry bytes.

mod commands;
pub mod keeper;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
pub use keeper::{Cut, Keeper};
use rowlock_client::{Client, ClientBuilder};
use rowlock_env::net::{Listener, Stream};
use rowlock_env::sync::watch;
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_proto::{Request, decode, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// The timeout of a session that is to end: a machine that stands still for a second ends none before.
pub const SHORT: Duration = Duration::from_secs(2);
/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// The first number for connections of the next listener.
const CONNECTIONS_PER_DOOR: u64 = 1 << 32;

/// What a server sends on a connection; `None` closes it.
pub type Outbox = mpsc::UnboundedSender<Option<Bytes>>;

pub struct Fake {
    pub endpoint: String,
    shared: Arc<Shared>,
    acceptors: Vec<Task<()>>,
}

struct Shared {
    world: Mutex<Keeper>,
    changed: watch::Sender<u64>,
}

impl Fake {
    /// Starts a ZooKeeper without our extensions.
    pub async fn start() -> Fake {
        Fake::of(Keeper::new(true)).await
    }

    pub async fn rowlock() -> Fake {
        Fake::of(Keeper::new(false)).await
    }

    /// Applies `fault` to the first request from now on that fits.
    pub fn fault(&self, fault: Cut, fits: impl Fn(&Request) -> bool + Send + 'static) {
        self.world().faults.push((fault, Box::new(fits)));
    }

    async fn of(world: Keeper) -> Fake {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().to_string();
        let (changed, _) = watch::channel(0);
        let shared = Arc::new(Shared { world: Mutex::new(world), changed });
        let acceptors = vec![task::spawn("fake-acceptor", accept(listener, 0, shared.clone()))];
        Fake { endpoint, shared, acceptors }
    }

    /// A further endpoint of the same world.
    pub async fn another_door(&mut self) -> String {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().to_string();
        let first = self.acceptors.len() as u64 * CONNECTIONS_PER_DOOR;
        self.acceptors.push(task::spawn("fake-acceptor", accept(listener, first, self.shared.clone())));
        endpoint
    }

    /// A look at the world, or a change in it.
    pub fn world(&self) -> MutexGuard<'_, Keeper> {
        self.shared.world.lock().unwrap()
    }

    pub fn config(&self) -> ClientBuilder {
        Client::builder().endpoints(&self.endpoint)
    }

    pub async fn client(&self) -> Client {
        self.config().connect().await.unwrap()
    }

    /// Waits until something is true of the world.
    pub async fn until(&self, what: &str, mut condition: impl FnMut(&Keeper) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let reached = changed.wait_for(|_| condition(&self.world()));
        if time::timeout(PATIENCE, reached).await.is_err() {
            panic!("never: {what}; asked {:?}", self.world().log);
        }
    }

    /// Tells those who wait for a change that the test made one.
    pub fn touch(&self) {
        self.shared.changed.modify(|n| *n += 1);
    }

    pub fn drop_connections(&self) {
        self.world().drop_connections();
        self.touch();
    }

    /// Expires a session as the servers do: its ephemerals go, its connection is closed.
    pub fn expire(&self, client: &Client) {
        self.world().end_session(client.session_id());
        self.touch();
    }

    /// From now on nothing is answered, nor done, nor any connection served.
    pub fn silence(&self) {
        self.world().silent = true;
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.acceptors.iter().for_each(Task::abort);
    }
}

async fn accept(listener: Listener, first: u64, shared: Arc<Shared>) {
    let mut number = first;
    loop {
        let stream = listener.accept().await;
        number += 1;
        drop(task::spawn("fake-connection", serve(stream, number, shared.clone())));
    }
}

async fn serve(stream: Stream, number: u64, shared: Arc<Shared>) {
    let (mut read, mut write) = stream.into_split();
    let (outbox, mut outgoing) = mpsc::unbounded_channel::<Option<Bytes>>();
    let mut inbox = BytesMut::new();
    let mut attached = false;
    loop {
        tokio::select! {
            biased;
            bytes = outgoing.recv() => match bytes {
                Some(Some(bytes)) if write.write_all(&bytes).await.is_ok() => {}
                _ => break,
            },
            count = read.read_buf(&mut inbox) => {
                if !matches!(count, Ok(1..)) {
                    break;
                }
                while let Some(frame) = frame::split(&mut inbox, 1 << 20).unwrap() {
                    let mut world = shared.world.lock().unwrap();
                    if world.silent {
                        continue;
                    }
                    if attached {
                        world.request(number, decode::request(frame).unwrap());
                    } else {
                        world.attach(number, decode::connect_request(frame).unwrap(), outbox.clone());
                        attached = true;
                    }
                    drop(world);
                    shared.changed.modify(|n| *n += 1);
                }
            }
        }
    }
    shared.world.lock().unwrap().detach(number);
    shared.changed.modify(|n| *n += 1);
}
