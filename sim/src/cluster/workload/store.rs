//! Stores that the locks of a run protect, with a [`Fence`] each. The stores are outside of the cluster and
//! always up, like a database that knows only the locks' tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_client::Fence;
use rowlock_env::time;
use rowlock_proto::FencingToken;

use super::chance::millis;
use crate::history::Lock;
use crate::history::client::Store;

/// One store per lock. Clones share the stores.
#[derive(Clone, Debug)]
pub struct Stores {
    is_fenced: bool,
    fences: Arc<Mutex<BTreeMap<Lock, Arc<Fence>>>>,
}

impl Stores {
    /// Creates empty stores. With `is_fenced` a fence guards each store.
    pub fn new(is_fenced: bool) -> Self {
        Stores { is_fenced, fences: Arc::default() }
    }

    /// Writes, and reports each step to `report`: before the store's answer, at the answer, and at the end of
    /// a write that takes time, which is one of every second store.
    pub async fn write(&self, lock: Lock, token: FencingToken, report: impl Fn(Store)) {
        if !self.is_fenced {
            return report(Store::Plain);
        }
        let fence = self.fences.lock().entry(lock).or_default().clone();
        report(Store::Presented);
        if lock.0.is_multiple_of(2) {
            return report(Store::Fenced { accepted: fence.check(token).is_ok() });
        }
        let entered = fence.enter(token).await;
        report(Store::Fenced { accepted: entered.is_ok() });
        if let Ok(_inside) = entered {
            time::sleep(millis(0, 20)).await;
            report(Store::Fenced { accepted: true });
        }
    }
}
