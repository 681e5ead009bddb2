//! Resolves names to addresses, on separate threads.
//!
//! The system's resolver blocks, for half a minute and longer without a name server, and cannot be
//! interrupted. On the runtime's blocking threads the resolver would delay other work and the runtime's
//! shutdown. Here each look-up blocks only its own thread. Simultaneous requests for a name share a look-up.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Bound of simultaneous look-ups; further look-ups fail, so that a hanging resolver costs a bounded number
/// of threads.
const LOOKUPS_MAX: usize = 64;

type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;
type Answer = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// Names under resolution, each with its waiting callers.
struct Resolver {
    lookup: Lookup,
    lookups: Mutex<BTreeMap<String, Vec<oneshot::Sender<Answer>>>>,
}

static SYSTEM: Resolver = Resolver::new(system_lookup);

fn system_lookup(name: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(name.to_socket_addrs()?.collect())
}

/// Returns all present addresses of `host:port`. Cancel safe: the look-up continues without the caller.
pub(crate) async fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    match name.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => SYSTEM.resolve(name).await,
    }
}

impl Resolver {
    const fn new(lookup: Lookup) -> Self {
        Resolver { lookup, lookups: Mutex::new(BTreeMap::new()) }
    }

    async fn resolve(&'static self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let receiver = self.lookup(name)?;
        let gone = || io::Error::other("the look-up of the name was given up");
        let found = receiver.await.map_err(|_| gone())?;
        found.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    }

    fn lookup(&'static self, name: &str) -> io::Result<oneshot::Receiver<Answer>> {
        let (sender, receiver) = oneshot::channel();
        let mut lookups = self.lookups.lock();
        if let Some(waiting) = lookups.get_mut(name) {
            waiting.retain(|waiter| !waiter.is_closed());
            waiting.push(sender);
            return Ok(receiver);
        }
        if lookups.len() >= LOOKUPS_MAX {
            return Err(io::Error::other("the name server does not answer"));
        }
        let owned = name.to_owned();
        let run_lookup = move || {
            let found = (self.lookup)(&owned).map_err(Arc::new);
            let waiting = self.lookups.lock().remove(&owned).unwrap_or_default();
            // A dropped caller needs no result.
            waiting.into_iter().for_each(|sender| drop(sender.send(found.clone())));
        };
        std::thread::Builder::new().name("rowlock-resolve".to_owned()).spawn(run_lookup)?;
        lookups.insert(name.to_owned(), vec![sender]);
        Ok(receiver)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::time;

    #[tokio::test]
    async fn an_address_needs_no_look_up() {
        assert_eq!(resolve("127.0.0.1:7").await.expect("an address").len(), 1);
        assert_eq!(resolve("[::1]:7").await.expect("an address").len(), 1);
        assert!(resolve("localhost:7").await.expect("a name").iter().all(|found| found.port() == 7));
        assert!(resolve("no port").await.is_err());
    }

    type Gate = (Mutex<Option<Sender<()>>>, Mutex<Option<Receiver<()>>>);

    fn gate() -> &'static Gate {
        static GATE: std::sync::OnceLock<Gate> = std::sync::OnceLock::new();
        GATE.get_or_init(|| {
            let (open, opened) = channel();
            (Mutex::new(Some(open)), Mutex::new(Some(opened)))
        })
    }

    /// Hangs on a single name until the gate opens.
    fn hanging(name: &str) -> io::Result<Vec<SocketAddr>> {
        if name == "hangs:1" {
            let opened = gate().1.lock().take().expect("looked for once");
            let _ = opened.recv();
        }
        Ok(vec![SocketAddr::from(([10, 0, 0, 1], 1))])
    }

    #[test]
    fn a_hanging_look_up_delays_neither_other_names_nor_shutdown() {
        static RESOLVER: Resolver = Resolver::new(hanging);
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let first = runtime();
        first.block_on(async {
            let hangs = time::timeout(Duration::from_millis(20), RESOLVER.resolve("hangs:1")).await;
            assert!(hangs.is_err());
            assert_eq!(RESOLVER.resolve("other:1").await.expect("found").len(), 1);
        });
        // A look-up on the runtime's own blocking threads would wait for the gate.
        drop(first);
        runtime().block_on(async {
            // A second request shares the thread.
            let again = RESOLVER.lookup("hangs:1").expect("shared");
            drop(gate().0.lock().take());
            assert!(again.await.expect("answered").is_ok());
        });
    }
}
