//! ZooKeeper's client library: one session, kept alive over changing connections, and the events of its
//! watches.
//!
//! The client computes for how long the session is safe: two thirds of the timeout from the sending of the
//! last answered request. A recipe that checks this time never loses its session by surprise; most recipes do
//! not check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::task::{self, Task};
use rowlock_env::time::{self, Instant};
use tokio::sync::{mpsc, oneshot};

use super::Zk;
use super::core::{Event, Reply, Request, SessionId};
use crate::TTL;
use crate::wire::{Connection, Meter, Trouble};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Returns the timeout of a request.
fn request_timeout() -> Duration {
    TTL / 3
}

struct State {
    id: SessionId,
    connection: Option<Arc<Connection<Zk>>>,
    safe_until: Instant,
    is_expired: bool,
    interests: BTreeMap<String, Vec<oneshot::Sender<()>>>,
}

/// Session of the client. A dropped session expires.
pub struct Session {
    state: Arc<Mutex<State>>,
    keeper: Task<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Session {
    pub async fn open(addr: &str, meter: &Meter) -> Result<Session, Trouble> {
        let (connection, pushes) = Connection::<Zk>::open(addr, CONNECT_TIMEOUT, meter).await?;
        let sent = time::now();
        let Reply::Session(id) = connection.call(Request::Open, request_timeout()).await? else {
            return Err(Trouble::NoConnection);
        };
        let state = Arc::new(Mutex::new(State {
            id,
            connection: Some(Arc::new(connection)),
            safe_until: sent + safe_for(),
            is_expired: false,
            interests: BTreeMap::new(),
        }));
        let keeper = Keeper { addr: addr.to_owned(), meter: meter.clone(), state: state.clone() };
        Ok(Session { state, keeper: task::spawn("zk.session", keeper.run(pushes)) })
    }

    /// Sends one request, never twice: an unanswered request may have taken effect.
    pub async fn run(&self, request: Request) -> Result<Reply, Trouble> {
        run(&self.state, request).await
    }

    /// Resolves when a watch on `path` fires from now on; fails when the session is over.
    pub fn interest(&self, path: &str) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let mut state = self.state.lock();
        if !state.is_expired {
            state.interests.entry(path.to_owned()).or_default().push(tell);
        }
        told
    }

    /// Reports whether the service has ended the session.
    pub fn is_expired(&self) -> bool {
        self.state.lock().is_expired
    }

    /// Reports whether the service cannot have ended the session yet.
    pub fn is_safe(&self) -> bool {
        let state = self.state.lock();
        !state.is_expired && time::now() < state.safe_until
    }

    /// Waits until the session is no longer safe. Cancel safe.
    pub async fn unsafe_now(&self) {
        while self.is_safe() {
            let until = self.state.lock().safe_until;
            time::sleep_until(until).await;
        }
    }
}

fn safe_for() -> Duration {
    TTL * 2 / 3
}

async fn run(state: &Mutex<State>, request: Request) -> Result<Reply, Trouble> {
    let connection = state.lock().connection.clone().ok_or(Trouble::NoConnection)?;
    let sent = time::now();
    let reply = connection.call(request, request_timeout()).await;
    let mut state = state.lock();
    match &reply {
        Ok(Reply::Expired) => state.expire(),
        Ok(_) => state.safe_until = state.safe_until.max(sent + safe_for()),
        Err(_) => state.connection = None,
    }
    reply
}

impl State {
    fn expire(&mut self) {
        self.is_expired = true;
        self.interests.clear();
    }

    fn notify(&mut self, event: &Event) {
        for interested in self.interests.remove(&event.path).unwrap_or_default() {
            let _ = interested.send(()); // who waited may be gone
        }
    }
}

struct Keeper {
    addr: String,
    meter: Meter,
    state: Arc<Mutex<State>>,
}

impl Keeper {
    async fn run(self, mut pushes: mpsc::Receiver<Event>) {
        loop {
            self.keep(&mut pushes).await;
            match self.connect_again().await {
                Some(fresh) => pushes = fresh,
                None => return,
            }
        }
    }

    /// Pings and receives events until the connection is over.
    async fn keep(&self, pushes: &mut mpsc::Receiver<Event>) {
        let mut ping_at = time::now() + TTL / 3;
        loop {
            match time::timeout_at(ping_at, pushes.recv()).await {
                Ok(Some(event)) => self.state.lock().notify(&event),
                Ok(None) => break,
                Err(time::Elapsed) => {
                    ping_at = time::now() + TTL / 3;
                    if !matches!(run(&self.state, Request::Ping).await, Ok(Reply::Done)) {
                        break;
                    }
                }
            }
        }
        self.state.lock().connection = None;
    }

    /// Reconnects. `None`: the session is over.
    async fn connect_again(&self) -> Option<mpsc::Receiver<Event>> {
        loop {
            if self.state.lock().is_expired {
                return None;
            }
            if let Ok((connection, pushes)) =
                Connection::<Zk>::open(&self.addr, CONNECT_TIMEOUT, &self.meter).await
            {
                let (id, sent) = (self.state.lock().id, time::now());
                match connection.call(Request::Attach(id), request_timeout()).await {
                    Ok(Reply::Session(_)) => {
                        let mut state = self.state.lock();
                        state.safe_until = state.safe_until.max(sent + safe_for());
                        state.connection = Some(Arc::new(connection));
                        return Some(pushes);
                    }
                    Ok(_) => {
                        self.state.lock().expire();
                        return None;
                    }
                    Err(_) => {}
                }
            }
            time::sleep(RETRY_AFTER).await;
        }
    }
}
