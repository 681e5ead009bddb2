//! Bounds of a node's clients, HTTP and tasks, with the action at each bound.

use std::time::Duration;

pub use rowlock_consensus::operation::{LOG_FILTER_MAX_BYTES, LOG_LEVEL_MAX_MS};

/// Largest client frame in both directions (ZooKeeper's default `jute.maxbuffer`). Beyond: the node closes
/// the connection.
pub const CLIENT_FRAME_MAX_BYTES: usize = 0xfffff;
/// Time from the accept of a client to the end of its handshake. Beyond: the node closes the connection.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Largest first frame of a client: a connect request has under 100 bytes. Beyond: the node closes the
/// connection.
pub const HANDSHAKE_FRAME_MAX_BYTES: usize = 1 << 10;
/// TLS handshakes in progress at all listeners; each holds handshake state.
pub const TLS_HALF_OPEN_MAX: usize = 1_024;
/// TLS handshakes that a node starts per second; a burst may have a twentieth of them. Beyond: handshakes
/// wait, and the node closes late handshakes. A handshake costs some tenths of a millisecond.
pub const TLS_HANDSHAKES_PER_SECOND: u32 = 1_000;
/// Bytes read after the first frame while the session opens, approximately. Beyond: the bytes wait in the
/// socket.
pub const HANDSHAKE_ARRIVED_MAX_BYTES: usize = 16 << 10;
/// Connections without their first frame. Beyond: the node closes the oldest, since a client sends the frame
/// at once.
pub const HALF_OPEN_MAX: usize = 4_096;
/// Messages (events, replies) queued for a connection's task. Beyond: the node drops the messages and closes
/// the connection.
pub const OUTBOX_MAX_MESSAGES: usize = 16_384;
/// Approximate bytes of these messages. Beyond: the same. A single larger message still passes.
pub const OUTBOX_MAX_BYTES: usize = 8 << 20;
/// Bytes encoded for a connection that does not read. Beyond: the node closes the connection. The reply that
/// reaches the bound still passes.
pub const WRITE_BACKLOG_MAX_BYTES: usize = 8 << 20;
/// Bytes that a connection may hold (read but not processed, replied but not written) while all connections
/// of the node hold a quarter of `limits.memory_bytes`. Beyond: the node closes the connection.
pub const HELD_SMALL_BYTES: u64 = 64 << 10;
/// Bytes of data and names in the reply to one multiRead. The operation that reaches the bound is still done.
/// Beyond: the remaining operations get ThrottledOp.
pub const MULTI_READ_MAX_BYTES: usize = 4 << 20;
/// Requests of a connection that wait for the commit. Beyond: the node stops reading from the socket.
pub const PIPELINE_MAX_REQUESTS: usize = 1_024;
/// Identities of a connection. Beyond: the auth packet fails, which closes the connection.
pub const IDENTITIES_MAX: usize = 64;
/// Bytes of a connection's identities: every write of the connection carries the identities. Beyond: the auth
/// packet fails, which closes the connection.
pub const IDENTITIES_MAX_BYTES: usize = 64 << 10;
/// Bytes of the frames that wait under [`PIPELINE_MAX_REQUESTS`]. Beyond: the node stops reading from the
/// socket.
pub const PIPELINE_MAX_BYTES: usize = 4 << 20;
/// Shortest disconnect grace of a connection in milliseconds: time to reconnect. Below: raised to this value.
pub const DISCONNECT_GRACE_MIN_MS: u32 = 100;
/// Bytes of a connection's watches: 256 and the path for each. Beyond: the request gets a system error, and
/// the node closes the connection.
pub const WATCH_BYTES_PER_CONNECTION: usize = 64 << 20;
/// Bytes of all connections' watches above which each connection may have only [`WATCH_BYTES_SMALL`].
pub const WATCH_BYTES_ALL: usize = 256 << 20;
/// Bytes of a connection's watches above [`WATCH_BYTES_ALL`]. Beyond: as [`WATCH_BYTES_PER_CONNECTION`].
pub const WATCH_BYTES_SMALL: usize = 16 << 10;
/// Submissions queued for the proposer, each of at most one client frame: a gigabyte in the worst case, while
/// there is no leader and every client writes the largest znodes. Beyond: submitting waits, so reading from
/// sockets stops.
pub const PROPOSER_QUEUE_MAX: usize = 1_024;
/// Submitted writes of one connection without a reply. Beyond: the connection's next writes wait.
pub const WRITES_OF_CONNECTION_MAX: usize = 512;
/// Bytes of the frames of these writes. Beyond: the same. A single larger frame still passes.
pub const WRITES_OF_CONNECTION_MAX_BYTES: usize = 1 << 20;
/// Submissions that wait for their turn in the proposer: `WRITES_OF_CONNECTION_MAX` for 32 connections.
/// Beyond: the proposer takes no more submissions, so all connections wait.
pub const FAIR_QUEUE_MAX: usize = 16_384;
/// Writes of a node's clients on their way to the log, or in the log and not applied. The proposer allows
/// fewer while replies are slow. Beyond: writes wait for their connection's turn.
pub const WRITES_UNDER_WAY_MAX: usize = 2_048;
/// HTTP connections at once. Beyond: the oldest without a request closes at once, else the oldest after
/// `HTTP_YIELD_AFTER`; until then the node closes new connections. Large enough for a probe to send its
/// request while thousands of connections arrive per second.
pub const HTTP_CONNECTIONS_MAX: usize = 256;
/// HTTP connections of one address, except loopback. Beyond: closed at once.
pub const HTTP_CONNECTIONS_OF_ADDRESS_MAX: usize = 16;
/// Time from the accept to the end of an HTTP request's head. Beyond: the node closes the connection.
pub const HTTP_HEAD_MAX: Duration = Duration::from_secs(2);
/// Time that an HTTP connection with a request has before newer connections may replace the connection.
pub const HTTP_YIELD_AFTER: Duration = Duration::from_millis(50);
/// Life of an HTTP connection, for a single request. Beyond: the node closes the connection.
pub const HTTP_CONNECTION_MAX: Duration = Duration::from_secs(10);
/// TLS handshakes that the HTTP listener starts per second; a burst may have a twentieth of them. Beyond:
/// handshakes wait, and the node closes late handshakes.
pub const HTTP_TLS_HANDSHAKES_PER_SECOND: u32 = 200;
/// API connections (locks over HTTP) at once. Beyond: the oldest without a request closes, else the oldest.
pub const API_CONNECTIONS_MAX: usize = 10_000;
/// API connections of one address, except loopback. Beyond: closed at once.
pub const API_CONNECTIONS_OF_ADDRESS_MAX: usize = 1_000;
/// Time from the head of an API request to its response: the longest wait, and time for the response. Beyond:
/// the node closes the connection.
pub const API_REQUEST_MAX: Duration = Duration::from_secs(75);
/// Streams of lock events at one node. Beyond: 503 with Retry-After.
pub const API_WATCHES_MAX: usize = 1_000;
/// Age of an API stream of lock events. Beyond: the stream ends, and the client opens a new stream.
pub const API_WATCH_MAX: Duration = Duration::from_secs(600);
/// Silence of a stream of lock events before the node sends a keepalive.
pub const API_WATCH_KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
/// Divisor: part of the processor time of the node's thread for all streams of lock events together. Beyond:
/// streams pause and collect events.
pub const API_WATCH_SHARE: u32 = 5;
/// Accounted work of one piece of a stream, besides its events and bytes: a wake-up, and a write to the
/// socket.
pub const API_WATCH_PIECE: Duration = Duration::from_micros(6);
/// Lock events that a stream receives at once.
pub const API_WATCH_BATCH: usize = 256;
/// Past lock events at the start of a stream. Beyond: only the newest, and a gap.
pub const API_WATCH_PAST_MAX: usize = 4_096;
/// Lock events that a node keeps in memory for its streams. Beyond: the oldest go, and streams without these
/// events receive a gap.
pub const LOCK_FEED_MAX: usize = 16_384;
/// Bytes of these lock events. Beyond: the same.
pub const LOCK_FEED_MAX_BYTES: usize = 8 << 20;
/// Time between two requests of an API connection. Beyond: the node closes the connection.
pub const API_IDLE_MAX: Duration = Duration::from_secs(120);
/// Age of an API connection. Beyond: the next response is the last, so a revoked certificate soon has no
/// effect.
pub const API_CONNECTION_MAX: Duration = Duration::from_secs(600);
/// Requests that wait for locks at a node. Beyond: 503 with Retry-After.
pub const API_WAITS_MAX: usize = 5_000;
/// Longest wait of one request for a lock; the queue position stays. Beyond: 400.
pub const API_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest wait of a request for the cluster. Beyond: 503, since the request may have taken effect.
pub const API_ANSWER_MAX: Duration = Duration::from_secs(8);
/// Locks of one request. Beyond: 400.
pub const API_LOCKS_MAX: usize = 64;
/// Bytes of a request's body. Beyond: 413.
pub const API_BODY_MAX_BYTES: usize = 16 << 10;
/// Bytes of a znode's data in a request. Beyond: 413. Data and path fit into a frame of other clients.
pub const API_DATA_MAX_BYTES: usize = 1_000_000;
/// Names of children in one response. A larger request is an error.
pub const API_PAGE_MAX: usize = 10_000;
/// Bytes of these names. Beyond: the response ends early and is marked incomplete.
pub const API_PAGE_MAX_BYTES: usize = 768 << 10;
/// Bytes of znodes in transit to and from API clients of one node. Beyond: 503 with Retry-After.
pub const API_ANSWERS_MAX_BYTES: usize = 64 << 20;
/// Time for the body of a request to arrive. Beyond: 408.
pub const API_BODY_MAX: Duration = Duration::from_secs(5);
/// State locks held at once; at most a quarter of `limits.sessions`. Beyond: 503. Sessions of state locks
/// outlive restarts, and only an operator ends the sessions of departed clients.
pub const STATE_LOCKS_MAX: u64 = 25_000;
/// Bytes of a label. Beyond: 400.
pub const API_LABEL_MAX_BYTES: usize = 256;
/// Questions to the holder, or holders reached by a question, in one response. Beyond: left out.
pub const API_QUESTIONS_MAX: usize = 64;
/// Tokens in one file. Beyond: the file is refused.
pub const TOKENS_MAX: usize = 1_024;
/// Bytes of the file of tokens. Beyond: the file is refused.
pub const TOKEN_FILE_MAX_BYTES: u64 = 1 << 20;
/// Bytes of a node's log lines queued for stderr; the writer may hold as many again. Beyond: the node drops
/// lines, counts them and logs their number.
pub const LOG_QUEUE_MAX_BYTES: usize = 1 << 20;
/// Lines of the audit log queued for their file. Beyond: the node drops lines, counts them and logs their
/// number.
pub const AUDIT_QUEUE_MAX: usize = 8_192;
/// Audited failures per second of clients without a proven identity. Beyond: dropped and counted. Protects
/// the records of other clients from being pushed out of the files.
pub const AUDIT_STRANGERS_PER_SECOND: u32 = 100;
/// Keepalives queued for the liveness task. Beyond: dropped; the session's next frame sends another.
pub const KEEPALIVE_QUEUE_MAX: usize = 65_536;
/// Batches of proposals queued for the leader's intake, each of about `BATCH_MAX_BYTES` at most. Beyond:
/// forwarding waits.
pub const INTAKE_QUEUE_MAX: usize = 64;
/// Queued reconfigurations of superusers on a node. Beyond: the reply is ReconfigInProgress.
pub const RECONFIG_QUEUE_MAX: usize = 16;
/// Queued operations of superusers on a node. Beyond: refused as too many.
pub const OPERATIONS_QUEUE_MAX: usize = 16;
/// Containers and TTL znodes removed by a sweep (ZooKeeper's `znode.container.maxPerMinute`). Beyond: the
/// next sweep continues.
pub const SWEEP_MAX_ZNODES: usize = 10_000;
/// Due locks proposed by a sweep. Beyond: the next sweep continues.
pub const LOCK_SWEEP_MAX: usize = 2_048;
/// Exceeded quotas logged by a sweep. Beyond: the sweep logs only the number.
pub const SWEEP_MAX_QUOTA_WARNINGS: usize = 10;
/// Wrong passwords (of the superuser and of SASL users) and wrong tokens in HTTP requests of one host per
/// second. Beyond: the node checks no passwords from the host (AuthFailed, and the connection closes), except
/// of users with a correct password from there before; wrong tokens get HTTP 429 instead of 401.
pub const WRONG_PASSWORDS_PER_SECOND: u32 = 10;
/// Hosts with a separate count of a kind of request (wrong passwords, new sessions). Beyond: all further
/// hosts share a count.
pub const HOSTS_COUNTED_MAX: usize = 1_024;
/// Reports in progress at once. Beyond: ThrottledOp, or HTTP's 503.
pub const REPORTS_MAX: usize = 8;
/// Reports among [`REPORTS_MAX`] reserved for superusers.
pub const REPORTS_FOR_SUPERUSERS: usize = 2;
/// Backups that clients fetch from a node at once. Beyond: ThrottledOp.
pub const BACKUPS_MAX: usize = 2;
/// Bytes of a backup in a reply.
pub const BACKUP_PIECE_BYTES: u64 = 256 << 10;
/// Items of a report without a requested number.
pub const REPORT_DEFAULT_ITEMS: usize = 100;
/// Items of a report. A larger request is an error.
pub const REPORT_MAX_ITEMS: usize = 10_000;
/// Bytes of a report's items: a report must fit into a client's frame. Beyond: the report ends early and has
/// `more`.
pub const REPORT_MAX_BYTES: usize = 768 << 10;
/// Steps of a report on contention: entries of the history, and pairs of a waiter and a holder at one moment.
/// Beyond: the report begins at the reached time and has `cut`.
pub const CONTENTION_STEPS_MAX: u64 = 50_000_000;
/// Approximate bytes of such a report in memory. Beyond: the same.
pub const CONTENTION_MAX_BYTES: usize = 32 << 20;
/// Gaps of the history in such a report. Beyond: the same.
pub const CONTENTION_GAPS_MAX: usize = 100;
/// Holders, and waiters, per lock of a report on the contention of several locks: those with the longest
/// times.
pub const CONTENTION_CLIENTS_SHOWN: usize = 5;
/// Marks of the replica comparison that wait for the digests of a majority of the voters. Beyond: if the
/// received digests differ, those nodes stop.
pub const MARKS_MAX: usize = 8;
