//! Open connections whose other side has shown a certificate. They are closed when it does not count any
//! more: it has expired, was revoked, or is of an authority that new files do not name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::conduit::TlsConduit;

/// Those that are gone are forgotten when there are twice as many entries as after the last time, and at
/// least this many.
const FORGET_MIN: usize = 64;

/// The connections of one kind (nodes, or clients), over all materials of a keeper.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    all: Vec<Weak<TlsConduit>>,
    forget_at: usize,
}

/// Where the handshakes of one material leave their connections.
#[derive(Clone, Default)]
pub(crate) struct Book {
    watched: Arc<Watched>,
    /// Newer material has taken the place of this one.
    is_old: Arc<AtomicBool>,
}

impl Book {
    pub(crate) fn of(watched: Arc<Watched>) -> Self {
        Book { watched, is_old: Arc::default() }
    }

    /// From now on its handshakes fail at their end: what they verified may not count any more.
    pub(crate) fn close(&self) {
        self.is_old.store(true, Ordering::SeqCst);
    }

    /// Notes a connection. False: the material is old, and the connection must not be used.
    pub(crate) fn note(&self, connection: &Arc<TlsConduit>) -> bool {
        self.watched.add(connection);
        // After it was noted: a later close finds it there.
        !self.is_old.load(Ordering::SeqCst)
    }
}

impl Watched {
    fn add(&self, connection: &Arc<TlsConduit>) {
        let inner = &mut *self.0.lock();
        if inner.all.len() >= inner.forget_at.max(FORGET_MIN) {
            inner.all.retain(|one| one.strong_count() > 0);
            inner.forget_at = 2 * inner.all.len();
        }
        inner.all.push(Arc::downgrade(connection));
    }

    fn open(&self) -> Vec<Arc<TlsConduit>> {
        self.0.lock().all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Closes those whose certificate has expired; gives how many.
    pub(crate) fn close_expired(&self) -> usize {
        let now_ms = time::wall_ms();
        self.open().iter().filter(|one| one.expires_ms() <= now_ms && one.end()).count()
    }

    /// Closes those whose certificate this verifier does not let in; gives how many. `None`: no certificate
    /// counts.
    pub(crate) fn close_refused(&self, verifier: Option<&dyn ClientCertVerifier>) -> usize {
        let now = Duration::from_millis(u64::try_from(time::wall_ms()).unwrap_or(0));
        let now = UnixTime::since_unix_epoch(now);
        // Clients share certificates, and to verify one takes a tenth of a millisecond.
        let mut known: BTreeMap<Vec<Vec<u8>>, bool> = BTreeMap::new();
        let mut counts = |chain: Vec<CertificateDer<'static>>| {
            let key = chain.iter().map(|one| one.to_vec()).collect();
            *known.entry(key).or_insert_with(|| match (verifier, chain.split_first()) {
                (Some(verifier), Some((leaf, rest))) => verifier.verify_client_cert(leaf, rest, now).is_ok(),
                _ => false,
            })
        };
        self.open().iter().filter(|one| !counts(one.chain()) && one.end()).count()
    }
}
