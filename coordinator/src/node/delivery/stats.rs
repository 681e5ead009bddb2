//! Statistics of one connection or of the whole listener, for the four-letter words. Connection tasks write
//! with relaxed atomics, reports read; no decision depends on the values.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rowlock_proto::{OpCode, SessionId, Xid, Zxid};

/// Minimum, maximum and mean time from a request to its reply, in microseconds.
#[derive(Debug)]
pub(crate) struct Latency {
    min: AtomicU64,
    max: AtomicU64,
    sum: AtomicU64,
    count: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency {
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }
}

impl Latency {
    pub(crate) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.min.fetch_min(micros, Relaxed);
        self.max.fetch_max(micros, Relaxed);
        self.sum.fetch_add(micros, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// Resets all values to zero.
    pub(crate) fn reset(&self) {
        self.min.store(u64::MAX, Relaxed);
        self.max.store(0, Relaxed);
        self.sum.store(0, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// Returns milliseconds, rounded down as ZooKeeper does.
    pub(crate) fn min_ms(&self) -> u64 {
        match self.min.load(Relaxed) {
            u64::MAX => 0,
            micros => micros / 1_000,
        }
    }

    pub(crate) fn max_ms(&self) -> u64 {
        self.max.load(Relaxed) / 1_000
    }

    pub(crate) fn mean_ms(&self) -> f64 {
        match self.count.load(Relaxed) {
            0 => 0.0,
            count => self.sum.load(Relaxed) as f64 / count as f64 / 1_000.0,
        }
    }
}

/// Statistics of the listener since its start or the last `srst`.
#[derive(Debug, Default)]
pub(crate) struct ListenerStats {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) latency: Latency,
}

impl ListenerStats {
    pub(crate) fn reset(&self) {
        self.received.store(0, Relaxed);
        self.sent.store(0, Relaxed);
        self.latency.reset();
    }
}

#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) outstanding: AtomicU64,
    /// Bytes held by the connection, as last reported.
    pub(crate) held: AtomicU64,
    pub(crate) latency: Latency,
    session: AtomicI64,
    timeout_ms: AtomicU64,
    last_opcode: AtomicI32,
    last_xid: AtomicI32,
    last_zxid: AtomicI64,
    last_latency_ms: AtomicU64,
    last_response_ms: AtomicU64,
}

impl ConnectionStats {
    /// Records the end of the handshake.
    pub(crate) fn opened(&self, session: SessionId, timeout: Duration) {
        self.session.store(session.0, Relaxed);
        self.timeout_ms.store(timeout.as_millis() as u64, Relaxed);
    }

    /// Records an encoded reply, `since_accept` after the connection was accepted.
    pub(crate) fn replied(&self, reply: LastReply, took: Duration, since_accept: Duration) {
        self.last_opcode.store(reply.opcode.as_i32(), Relaxed);
        self.last_xid.store(reply.xid.0, Relaxed);
        self.last_zxid.store(reply.zxid.0, Relaxed);
        self.last_latency_ms.store(took.as_millis() as u64, Relaxed);
        self.last_response_ms.store(since_accept.as_millis() as u64, Relaxed);
        self.latency.record(took);
    }

    pub(crate) fn reset(&self) {
        self.received.store(0, Relaxed);
        self.sent.store(0, Relaxed);
        self.latency.reset();
    }

    pub(crate) fn session(&self) -> SessionId {
        SessionId(self.session.load(Relaxed))
    }

    /// Formats the part of a `cons` line after `sent=`.
    pub(crate) fn in_full(&self, established_ms: i64) -> String {
        let lop = match OpCode::from_i32(self.last_opcode.load(Relaxed)) {
            Some(opcode) => opcode.as_str().chars().take(4).collect::<String>().to_uppercase(),
            None => "SESS".to_owned(),
        };
        format!(
            ",sid={},lop={lop},est={established_ms},to={},lcxid={:#x},lzxid={:#x},lresp={},llat={},minlat={},avglat={:.4},maxlat={}",
            self.session(),
            self.timeout_ms.load(Relaxed),
            self.last_xid.load(Relaxed),
            self.last_zxid.load(Relaxed),
            established_ms + self.last_response_ms.load(Relaxed) as i64,
            self.last_latency_ms.load(Relaxed),
            self.latency.min_ms(),
            self.latency.mean_ms(),
            self.latency.max_ms(),
        )
    }
}

#[derive(Clone, Copy)]
pub(crate) struct LastReply {
    pub(crate) opcode: OpCode,
    pub(crate) xid: Xid,
    pub(crate) zxid: Zxid,
}
