//! Every bound of a node in one place, with what happens when it is reached.

/// Largest client frame, either way (ZooKeeper's default `jute.maxbuffer`). Beyond: the connection is closed.
pub const CLIENT_FRAME_MAX_BYTES: usize = 0xfffff;
/// Messages (events, answers) waiting for one connection's task. Beyond: the connection is closed.
pub const OUTBOX_MAX_MESSAGES: usize = 16_384;
/// Bytes encoded for a connection that does not read. Beyond: the connection is closed.
pub const WRITE_BACKLOG_MAX_BYTES: usize = 8 << 20;
/// Requests of one connection that wait for their commit. Beyond: reading from its socket stops.
pub const PIPELINE_MAX_REQUESTS: usize = 1_024;
/// Watches of one connection. Beyond: the request is answered with a system error and the connection closed.
pub const WATCHES_PER_CONNECTION_MAX: usize = 1 << 20;
/// Submissions waiting for the proposer. Beyond: submitting waits, so reading from sockets stops.
pub const PROPOSER_QUEUE_MAX: usize = 8_192;
/// Commands folded into one log entry.
pub const BATCH_MAX_COMMANDS: usize = 512;
/// Bytes of commands folded into one log entry (a single larger command still passes).
pub const BATCH_MAX_BYTES: usize = 1 << 20;
/// Log entries proposed and not yet committed. Beyond: folding waits, so batches grow.
pub const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// Largest frame between nodes. Beyond: the connection is closed and the cause logged.
pub const PEER_FRAME_MAX_BYTES: usize = 64 << 20;
/// HTTP connections at once. Beyond: accepting waits until one ends, which `HTTP_CONNECTION_MAX` bounds.
pub const HTTP_CONNECTIONS_MAX: usize = 64;
/// Life of an HTTP connection (it carries one request). Beyond: the connection is closed.
pub const HTTP_CONNECTION_MAX: std::time::Duration = std::time::Duration::from_secs(10);
