//! Resolves names to addresses, on threads of its own.
//!
//! The system's resolver blocks, for half a minute and longer where a name server is away, and cannot be
//! interrupted. On the runtime's blocking threads it would delay other work and the runtime's shutdown. Here
//! it only holds up a thread of its own. Requests for a name that is being resolved share the answer.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Names that are resolved at the same time; more are an error, so that a resolver that hangs costs a bounded
/// number of threads.
const LOOKUPS_MAX: usize = 64;

/// The system's answer for `host:port`.
type Look = fn(&str) -> io::Result<Vec<SocketAddr>>;
type Answer = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// The names that are being resolved, and the callers that wait for each.
struct Resolver {
    look: Look,
    lookups: Mutex<BTreeMap<String, Vec<oneshot::Sender<Answer>>>>,
}

static SYSTEM: Resolver = Resolver::new(ask_the_system);

fn ask_the_system(name: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(name.to_socket_addrs()?.collect())
}

/// All addresses of `host:port`, as of now. Cancel safe: the look-up goes on without the caller.
pub(crate) async fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    match name.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => SYSTEM.resolve(name).await,
    }
}

impl Resolver {
    const fn new(look: Look) -> Self {
        Resolver { look, lookups: Mutex::new(BTreeMap::new()) }
    }

    async fn resolve(&'static self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let answer = self.ask(name)?;
        let gone = || io::Error::other("the look-up of the name was given up");
        let found = answer.await.map_err(|_| gone())?;
        found.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    }

    fn ask(&'static self, name: &str) -> io::Result<oneshot::Receiver<Answer>> {
        let (tell, answer) = oneshot::channel();
        let mut lookups = self.lookups.lock();
        if let Some(waiting) = lookups.get_mut(name) {
            waiting.retain(|waiter| !waiter.is_closed());
            waiting.push(tell);
            return Ok(answer);
        }
        if lookups.len() >= LOOKUPS_MAX {
            return Err(io::Error::other("the name server does not answer"));
        }
        let owned = name.to_owned();
        let look_up = move || {
            let found = (self.look)(&owned).map_err(Arc::new);
            let waiting = self.lookups.lock().remove(&owned).unwrap_or_default();
            // Who does not wait any more does not need it.
            waiting.into_iter().for_each(|tell| drop(tell.send(found.clone())));
        };
        std::thread::Builder::new().name("rowlock-resolve".to_owned()).spawn(look_up)?;
        lookups.insert(name.to_owned(), vec![tell]);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::time;

    #[tokio::test]
    async fn a_name_that_is_an_address_is_no_question() {
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

    /// Hangs over one name until the gate opens.
    fn hanging(name: &str) -> io::Result<Vec<SocketAddr>> {
        if name == "hangs:1" {
            let opened = gate().1.lock().take().expect("looked for once");
            let _ = opened.recv();
        }
        Ok(vec![SocketAddr::from(([10, 0, 0, 1], 1))])
    }

    #[test]
    fn a_look_up_that_hangs_holds_up_neither_other_names_nor_the_end_of_the_runtime() {
        static RESOLVER: Resolver = Resolver::new(hanging);
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let first = runtime();
        first.block_on(async {
            let hangs = time::timeout(Duration::from_millis(20), RESOLVER.resolve("hangs:1")).await;
            assert!(hangs.is_err());
            assert_eq!(RESOLVER.resolve("other:1").await.expect("found").len(), 1);
        });
        // With the runtime's own threads for blocking work this would wait for the gate.
        drop(first);
        runtime().block_on(async {
            // Asked again, it costs no second thread.
            let again = RESOLVER.ask("hangs:1").expect("shared");
            drop(gate().0.lock().take());
            assert!(again.await.expect("answered").is_ok());
        });
    }
}
