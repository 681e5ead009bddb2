//! The designs, one file each (variants of one algorithm share a file). Each header says who publishes the
//! design and what is claimed of it.

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

/// All designs of this crate, in the order of the table.
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

/// Why scenarios between two commands mean nothing to a design whose acquire and release are one command
/// each.
const ONE_COMMAND: &str = "acquire and release are one command each";
/// Why a holder that is cut off in a long job means nothing to a design that does not keep its lock alive.
const NO_LONG_JOBS: &str = "the lock is not kept alive: see long-job";
