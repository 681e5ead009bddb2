//! Slots for long requests (long polls, streams): a bound for all clients of a node, and a share of the bound
//! for each client.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::rate::host;

use super::Caller;

/// Fraction of the slots for one client: one in this many.
const SHARE: usize = 4;

/// Pool of slots. Clones share the pool.
#[derive(Clone)]
pub(super) struct SlotPool {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Used slots by client. Bounded by the number of slots.
    by_client: BTreeMap<String, usize>,
}

/// One used slot. Dropping frees the slot.
pub(super) struct Slot {
    pool: SlotPool,
    client: Option<String>,
}

impl SlotPool {
    pub(super) fn new(most: usize) -> SlotPool {
        SlotPool { most, taken: Arc::default() }
    }

    /// Takes a slot. Returns `None` if all slots or the caller's share are in use.
    pub(super) fn take(&self, caller: &Caller) -> Option<Slot> {
        let client = client(caller);
        let mut taken = self.taken.lock();
        let own = client.as_ref().and_then(|client| taken.by_client.get(client)).copied().unwrap_or_default();
        if taken.all >= self.most || (client.is_some() && own >= self.most / SHARE) {
            return None;
        }
        taken.all += 1;
        if let Some(client) = &client {
            taken.by_client.insert(client.clone(), own + 1);
        }
        Some(Slot { pool: self.clone(), client })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.pool.taken.lock();
        assert!(taken.all > 0, "a freed slot was taken");
        taken.all -= 1;
        let Some(client) = self.client.take() else { return };
        match taken.by_client.get_mut(&client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.by_client.remove(&client)),
        }
    }
}

/// Returns the client whose share a request counts against: the proven identity, else the address (for IPv6
/// its /64). Returns `None` for loopback: a local proxy serves many clients, so no share applies.
fn client(caller: &Caller) -> Option<String> {
    if let Some(proven) = caller.identities.iter().find(|id| id.scheme != "ip") {
        return Some(format!("{}:{}", proven.scheme, proven.id));
    }
    let host = host(caller.address.ip());
    (!host.is_loopback()).then(|| host.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rowlock_proto::acl::Id;

    use super::*;

    fn caller(ip: &str, proven: Option<&str>) -> Caller {
        let id = |scheme: &str, id: &str| Id { scheme: scheme.to_owned(), id: id.to_owned() };
        let identities = [id("ip", ip)].into_iter().chain(proven.map(|name| id("token", name))).collect();
        Caller { address: SocketAddr::new(ip.parse().unwrap(), 1), identities, trace: None }
    }

    #[test]
    fn one_client_takes_at_most_a_quarter_of_the_slots() {
        let pool = SlotPool::new(8);
        let take = |ip, proven| pool.take(&caller(ip, proven));
        let mut one: Vec<_> = (0..8).map_while(|_| take("10.0.0.1", None)).collect();
        assert_eq!(one.len(), 2);
        let token: Vec<_> = (0..8).map_while(|_| take("10.0.0.1", Some("ci"))).collect();
        assert_eq!(token.len(), 2, "what is proven has a share of its own");
        assert!(take("10.0.0.2", Some("ci")).is_none(), "wherever it is shown");
        one.pop();
        assert!(
            take("10.0.0.1", None)
                .is_some_and(|again| take("10.0.0.1", None).is_none() && again.client.is_some())
        );
        let rest: Vec<_> = (0..8).map_while(|_| take("127.0.0.1", None)).collect();
        assert_eq!(rest.len(), 5);
        assert!(take("10.0.0.3", None).is_none());
        drop((one, token, rest));
        assert!(pool.taken.lock().by_client.is_empty() && pool.taken.lock().all == 0);
        let host: Vec<_> = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|ip| take(ip, None)).into();
        assert_eq!(host.iter().flatten().count(), 2, "a /64 is one host");
    }
}
