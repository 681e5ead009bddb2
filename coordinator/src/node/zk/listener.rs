//! Accepts clients: a bounded number of connections, each with a task; all tasks end at shutdown.

use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use rowlock_env::choice::{self, Choice};
use rowlock_env::net::{self, Stream};
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::turnstile::Class;
use rowlock_env::{busy, time};
use rowlock_tls::Keeper;

use super::connection;
use super::shared::{ClientContext, Shared};
use crate::node::delivery::outbox::{self, CloseReason};
use crate::node::delivery::registry::{Door, Most};

/// Simulated delay of an accepted connection.
const ACCEPTED_LATE: Duration = Duration::from_millis(25);

/// A node's listeners for clients.
pub struct Doors {
    pub plain: Option<net::Listener>,
    pub secure: Option<SecureDoor>,
}

/// Listener for clients with TLS.
pub struct SecureDoor {
    pub listener: net::Listener,
    pub keeper: Arc<Keeper>,
}

/// Listener of a node's clients.
pub struct Listener {
    shared: Arc<Shared>,
}

impl Listener {
    /// Creates the listener with the node's parts that connections use.
    pub fn new(context: ClientContext) -> Self {
        Listener { shared: Arc::new(Shared::new(context)) }
    }

    /// Sets another deadline for handshakes than `limits::HANDSHAKE_MAX`.
    pub fn with_handshake_max(mut self, handshake_max: Duration) -> Self {
        Arc::get_mut(&mut self.shared).expect("no connection has been accepted yet").handshake_max =
            handshake_max;
        self
    }

    /// Serves clients until `shutdown` fires; then closes all connections, and returns when their tasks have
    /// ended. While the node does not serve, new connections are closed at their handshake; four-letter words
    /// always get a reply.
    pub async fn run(mut self, doors: Doors, shutdown: Shutdown) {
        let shared = Arc::get_mut(&mut self.shared).expect("no connection has been accepted yet");
        shared.client_port = doors.plain.as_ref().map_or(0, |plain| plain.local_addr().port());
        shared.secure_port = doors.secure.as_ref().map_or(0, |secure| secure.listener.local_addr().port());
        let tasks = TaskGroup::new(Shutdown::new());
        let Doors { plain, secure } = doors;
        let (listener, keeper) = secure.map(|door| (door.listener, door.keeper)).unzip();
        tokio::join!(
            self.accept(plain, &shutdown, |stream| self.accepted(stream, None, &tasks)),
            self.accept(listener, &shutdown, |stream| self.accepted(stream, keeper.as_ref(), &tasks)),
        );
        self.shared.context.registry.close_all(CloseReason::Shutdown);
        tasks.stop().await;
    }

    async fn accept(&self, listener: Option<net::Listener>, shutdown: &Shutdown, accepted: impl Fn(Stream)) {
        let Some(listener) = listener else { return };
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                stream = listener.accept() => {
                    if choice::taken(Choice::AcceptedLate, 20) {
                        time::sleep(ACCEPTED_LATE).await;
                    }
                    accepted(stream);
                    busy::end_turn_if_over().await;
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Starts the task of an accepted connection. `keeper` has the certificates of the TLS listener.
    fn accepted(&self, stream: Stream, keeper: Option<&Arc<Keeper>>, tasks: &TaskGroup) {
        let context = &self.shared.context;
        let (outbox, inbox) = outbox::channel();
        let config = &context.config.client;
        let most = Most {
            connections: config.max_connections,
            of_address: config.max_connections_per_address,
            half_open: if keeper.is_some() { limits::TLS_HALF_OPEN_MAX } else { limits::HALF_OPEN_MAX },
        };
        context.metrics.connections_accepted_total.inc();
        let door = if keeper.is_some() { Door::Secure } else { Door::Plain };
        let peer = match context.registry.accepted(stream.peer_addr(), door, outbox, most) {
            Ok(peer) => peer,
            Err(reason) => {
                context.metrics.connections_rejected_total.inc();
                if let Some(suppressed) = self.shared.connections_log.admit() {
                    tracing::info!(peer = %stream.peer_addr(), %reason, suppressed, "client turned away");
                }
                return;
            }
        };
        let shared = self.shared.clone();
        let turnstile = &context.registry.turnstile;
        match keeper.cloned() {
            None => {
                let connection = connection::run(shared, stream, peer, inbox);
                tasks.spawn("client connection", turnstile.turns(Class::Client, connection));
            }
            Some(keeper) => {
                let connection = connection::run_secured(shared, keeper, stream, peer, inbox);
                tasks.spawn("client connection", turnstile.turns(Class::Client, connection));
            }
        }
    }
}
