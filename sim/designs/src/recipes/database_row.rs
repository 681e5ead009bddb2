//! Row with a unique key (S1-1, S2-2): the client with the successful insert holds the lock. Without expiry,
//! or with a column of the time of expiry, checked by the database's clock.
//!
//! Claims: a crashed holder keeps the lock for ever (the reason for expiry); a bottleneck under load (S2-2).

use rowlock_world::executor::Simulation;

use super::machines;
use crate::database::Sql;
use crate::database::{Outcome, Transaction};
use crate::design::{Build, Contender, Deployment, Doing, Grant, Polling};
use crate::outside_view::OutsideView;
use crate::wire::{Redial, Trouble};
use crate::{LOCK, TTL};

pub(super) const MODELS: [(&str, Build); 2] = [
    ("row", |world, view| build(world, view, None)),
    ("row-expiry", |world, view| build(world, view, Some(TTL.as_millis() as i64))),
];

fn build(world: &Simulation, view: &OutsideView, ttl_ms: Option<i64>) -> Deployment {
    machines::database(world, view, move |me, database| {
        Box::new(RowLocker { me: me.clone(), database, ttl_ms })
    })
}

struct RowLocker {
    me: Contender,
    database: Redial<Sql>,
    /// Time to live of a row, if the table has a column of expiry.
    ttl_ms: Option<i64>,
}

impl Polling for RowLocker {
    fn contender(&self) -> &Contender {
        &self.me
    }

    fn attempt(&mut self) -> Doing<'_, Result<Option<Grant>, Trouble>> {
        Box::pin(async {
            let value = self.me.unique();
            let (name, owner, ttl_ms) = (LOCK.to_owned(), value.clone(), self.ttl_ms);
            let inserted = self.database.call(Transaction::Insert { name, owner, ttl_ms }).await?;
            Ok((inserted == Outcome::Rows(1)).then_some(Grant { token: None, value }))
        })
    }

    fn release(&mut self, grant: Grant) -> Doing<'_, Result<bool, Trouble>> {
        Box::pin(async {
            let delete = Transaction::Delete { name: LOCK.to_owned(), owner: grant.value };
            Ok(self.database.call(delete).await? == Outcome::Rows(1))
        })
    }
}
