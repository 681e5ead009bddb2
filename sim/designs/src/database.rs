//! Database with one table `locks(name PRIMARY KEY, owner, expires_at NULL)`: [`Table`] decides and is pure.
//! Each transaction touches one row; transactions run one after another, and `now()` is the database's own
//! wall clock, which the server passes in. Commits are durable: the table lives outside of its host, so a
//! restart loses nothing. The way to durability does not matter to a lock design.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::{task, time};
use serde::{Deserialize, Serialize};

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transaction {
    /// `INSERT`; fails if the name exists. With a time to live, first deletes an expired row.
    Insert {
        name: String,
        owner: String,
        /// Time to live, milliseconds.
        ttl_ms: Option<i64>,
    },
    /// `DELETE WHERE name AND owner`.
    Delete { name: String, owner: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Rows(u64),
    /// The key already exists.
    Duplicate,
}

#[derive(Debug)]
struct Row {
    owner: String,
    expires_at_ms: Option<i64>,
}

#[derive(Debug, Default)]
pub struct Table {
    rows: BTreeMap<String, Row>,
}

impl Table {
    pub fn run(&mut self, transaction: Transaction, now_ms: i64) -> Outcome {
        match transaction {
            Transaction::Insert { name, owner, ttl_ms } => {
                let is_taken = |row: &Row| ttl_ms.is_none() || row.expires_at_ms.is_none_or(|at| at > now_ms);
                if self.rows.get(&name).is_some_and(is_taken) {
                    return Outcome::Duplicate;
                }
                self.rows.insert(name, Row { owner, expires_at_ms: ttl_ms.map(|ttl| now_ms + ttl) });
                Outcome::Rows(1)
            }
            Transaction::Delete { name, owner } => {
                let is_ours = self.rows.get(&name).is_some_and(|row| row.owner == owner);
                if is_ours {
                    self.rows.remove(&name);
                }
                Outcome::Rows(u64::from(is_ours))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &mut Table, owner: &str, ttl_ms: Option<i64>, now_ms: i64) -> Outcome {
        let (name, owner) = ("stock".to_owned(), owner.to_owned());
        table.run(Transaction::Insert { name, owner, ttl_ms }, now_ms)
    }

    #[test]
    fn a_row_without_expiry_stays_until_its_owner_deletes_it() {
        let mut table = Table::default();
        assert_eq!(insert(&mut table, "a", None, 0), Outcome::Rows(1));
        assert_eq!(insert(&mut table, "b", None, i64::MAX), Outcome::Duplicate);
        let delete = |owner: &str| Transaction::Delete { name: "stock".to_owned(), owner: owner.to_owned() };
        assert_eq!(table.run(delete("b"), 1), Outcome::Rows(0));
        assert_eq!(table.run(delete("a"), 1), Outcome::Rows(1));
        assert_eq!(insert(&mut table, "b", None, 2), Outcome::Rows(1));
    }

    #[test]
    fn an_expired_row_is_taken_over() {
        let mut table = Table::default();
        insert(&mut table, "a", Some(10), 0);
        assert_eq!(insert(&mut table, "b", Some(10), 9), Outcome::Duplicate);
        assert_eq!(insert(&mut table, "b", Some(10), 10), Outcome::Rows(1));
    }
}
