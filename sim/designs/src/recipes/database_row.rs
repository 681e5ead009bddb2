//! Row with a unique key (S1-1, S2-2): the client with the successful insert holds the lock. Without expiry,
//! or with a column of the time of expiry, checked by the database's clock.
//!
//! Claims: a crashed holder keeps the lock for ever (the reason for expiry); a bottleneck under load (S2-2).

use std::net::Ipv4Addr;
use std::time::Duration;

use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use crate::database::core::{Outcome, Transaction};
use crate::database::{self, Client, PORT, Storage};
use crate::design::{About, Contender, Deployment, Design, Doing, Grant, Locker, Servers, poll_interval};
use crate::outside_view::{OutsideView, Released, Remark};
use crate::scenario::Scenario;
use crate::wire::{Meter, Trouble};
use crate::{LOCK, TTL};

pub struct DatabaseRow {
    /// The table has a column of expiry.
    pub expires: bool,
}

impl Design for DatabaseRow {
    fn about(&self) -> About {
        let (id, name, source) = match self.expires {
            true => ("row-expiry", "database row with expiry", "ShedLock and others"),
            false => ("row", "database row", "tutorials"),
        };
        About { id, name, source, claims: &["S1-1", "S2-2"], keeps_alive: !self.expires, ..About::default() }
    }

    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::CrashBetween | Scenario::CutBetween | Scenario::PauseBetween => {
                Some(super::ONE_COMMAND)
            }
            Scenario::HolderCutOff if self.expires => Some(super::NO_LONG_JOBS),
            Scenario::ClockJump if !self.expires => Some("no clock decides anything"),
            _ => None,
        }
    }

    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        let host = world.add_host("database", "database", Ipv4Addr::new(10, 0, 0, 1));
        let servers = OneDatabase {
            world: world.clone(),
            meter: view.meter().clone(),
            host,
            storage: Storage::default(),
        };
        world.boot(host);
        servers.start(host);
        let ttl_ms = self.expires.then_some(TTL.as_millis() as i64);
        let locker = move |me: &Contender| -> Box<dyn Locker> {
            let database = Client::new(format!("database:{PORT}"), me.view.meter().clone());
            Box::new(RowLocker { me: me.clone(), database, ttl_ms })
        };
        Deployment { servers: Box::new(servers), locker: Box::new(locker) }
    }
}

struct OneDatabase {
    world: Simulation,
    meter: Meter,
    host: HostId,
    storage: Storage,
}

impl Servers for OneDatabase {
    fn all(&self) -> Vec<HostId> {
        vec![self.host]
    }
    fn primary(&self) -> HostId {
        self.host
    }
    fn outage(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn minority(&self) -> Vec<HostId> {
        Vec::new()
    }
    fn start(&self, host: HostId) {
        self.world.on(host, || database::start(self.storage.clone(), &self.meter));
    }
}

struct RowLocker {
    me: Contender,
    database: Client,
    ttl_ms: Option<i64>,
}

impl Locker for RowLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                let value = self.me.unique();
                let insert =
                    Transaction::Insert { name: LOCK.to_owned(), owner: value.clone(), ttl_ms: self.ttl_ms };
                if self.database.run(insert).await? == Outcome::Rows(1) {
                    return Ok(Grant { token: None, value });
                }
                self.me.view.remark(Remark::Denied);
                poll_interval().await;
            }
        })
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async move {
            let delete = Transaction::Delete { name: LOCK.to_owned(), owner: grant.value };
            match self.database.run(delete).await {
                Ok(Outcome::Rows(1)) => Released::Freed,
                Ok(_) => Released::WasNotHeld,
                Err(_) => Released::Unknown,
            }
        })
    }
}
