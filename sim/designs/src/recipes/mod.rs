//! Designs, one file each (variants of one algorithm share a file). Each header names the publisher of the
//! design and the claims about the design.

mod client_timestamps;
mod database_row;
mod redis_setting;
mod redisson;
mod redlock;
mod set_nx_px;
mod setnx_expire;
mod zk_one_znode;
mod zk_queue;
mod zk_queue_wrong;
mod zk_setting;

pub use client_timestamps::ClientTimestamps;
pub use database_row::DatabaseRow;
pub use redisson::{Redisson, Replication};
pub use redlock::Redlock;
pub use set_nx_px::{Release, SetNxPx};
pub use setnx_expire::SetnxExpire;
pub use zk_one_znode::OneZnode;
pub use zk_queue::Queue;
pub use zk_queue_wrong::{Flaw, WrongQueue};

use crate::design::Design;

/// Returns all designs of this crate, in the order of the table.
pub fn all() -> Vec<Box<dyn Design>> {
    vec![
        Box::new(SetnxExpire),
        Box::new(ClientTimestamps),
        Box::new(SetNxPx { release: Release::Del }),
        Box::new(SetNxPx { release: Release::GetThenDel }),
        Box::new(SetNxPx { release: Release::CompareAndDelete }),
        Box::new(SetNxPx { release: Release::CompareAndDeleteAlways }),
        Box::new(Redisson { replication: Replication::None }),
        Box::new(Redisson { replication: Replication::Asynchronous }),
        Box::new(Redisson { replication: Replication::MinReplicas }),
        Box::new(Redisson { replication: Replication::Wait }),
        Box::new(Redisson { replication: Replication::WaitForAll }),
        Box::new(Redlock { flushes: false }),
        Box::new(Redlock { flushes: true }),
        Box::new(DatabaseRow { expires: false }),
        Box::new(DatabaseRow { expires: true }),
        Box::new(OneZnode),
        Box::new(WrongQueue { flaw: Flaw::AsPrinted }),
        Box::new(WrongQueue { flaw: Flaw::WakeIsGrant }),
        Box::new(WrongQueue { flaw: Flaw::WatchBeforeLatch }),
        Box::new(Queue { is_fenced: false }),
        Box::new(Queue { is_fenced: true }),
    ]
}

/// Reason why scenarios between two commands do not apply to a design with one command per acquire and
/// release.
const ONE_COMMAND: &str = "acquire and release are one command each";
/// Reason why a cut-off holder with a long job does not apply to a design that does not keep its lock alive.
const NO_LONG_JOBS: &str = "the lock is not kept alive: see long-job";
