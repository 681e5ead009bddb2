//! Table `locks(name PRIMARY KEY, owner, expires_at NULL)`, pure. Each transaction touches one row;
//! transactions run one after another and are durable; `now()` is the database's own wall clock, which the
//! caller passes in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
