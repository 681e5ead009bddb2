//! Database with one table of locks: [`core`] decides, this module is the server. Commits are durable: the
//! table lives outside of its host, so a restart loses nothing. The way to durability does not matter to a
//! lock design.

pub mod core;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::{task, time};

use self::core::{Outcome, Table, Transaction};
use crate::wire::{Meter, Peer, PeerId, Protocol, Redial, Service, serve};

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

/// Creates a client. An [unanswered](crate::wire::Trouble::Unanswered) transaction may have been committed.
pub fn client(meter: &Meter) -> Redial<Sql> {
    Redial::new(format!("database:{PORT}"), TIMEOUT, meter)
}
