//! Database with one table of locks: [`core`] decides, this module is the server. Commits are durable: the
//! table lives outside of its host, so a restart loses nothing. The way to durability does not matter to a
//! lock design.

pub mod core;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::{task, time};

use self::core::{Outcome, Table, Transaction};
use crate::wire::{Connection, Meter, Peer, PeerId, Protocol, Service, Trouble, serve};

pub const PORT: u16 = 5432;
const TIMEOUT: Duration = Duration::from_secs(1);

pub struct Sql;

impl Protocol for Sql {
    type Request = Transaction;
    type Reply = Outcome;
    type Push = ();
}

/// Disk of a database, which survives its host.
pub type Storage = Arc<Mutex<Table>>;

struct Server(Storage);

impl Service for Server {
    type Protocol = Sql;

    async fn handle(&self, _: &Peer<Sql>, transaction: Transaction) -> Outcome {
        self.0.lock().run(transaction, time::wall_ms())
    }

    fn gone(&self, _: PeerId) {}
}

pub fn start(storage: Storage, meter: &Meter) {
    let server = Arc::new(Server(storage));
    drop(task::spawn("database.serve", serve(format!("0.0.0.0:{PORT}"), server, meter.clone())));
}

pub struct Client {
    addr: String,
    meter: Meter,
    connection: Option<Connection<Sql>>,
}

impl Client {
    /// Creates a client without a connection.
    pub fn new(addr: String, meter: Meter) -> Self {
        Client { addr, meter, connection: None }
    }

    /// Runs a transaction. An [unanswered](Trouble::Unanswered) transaction may have been committed.
    pub async fn run(&mut self, transaction: Transaction) -> Result<Outcome, Trouble> {
        if self.connection.as_ref().is_none_or(Connection::is_closed) {
            self.connection = Some(Connection::open(&self.addr, TIMEOUT, &self.meter).await?.0);
        }
        let Some(connection) = &self.connection else { return Err(Trouble::NoConnection) };
        let outcome = connection.call(transaction, TIMEOUT).await;
        if outcome.is_err() {
            self.connection = None;
        }
        outcome
    }
}
