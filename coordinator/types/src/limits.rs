//! Every bound of a node in one place, with what happens when it is reached.

use std::time::Duration;

/// Largest client frame, either way (ZooKeeper's default `jute.maxbuffer`). Beyond: the connection is closed.
pub const CLIENT_FRAME_MAX_BYTES: usize = 0xfffff;
/// From accepting a client to its whole handshake. Beyond: the connection is closed.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Largest first frame of a client: a connect request has under 100 bytes. Beyond: the connection is closed.
pub const HANDSHAKE_FRAME_MAX_BYTES: usize = 1 << 10;
/// TLS handshakes under way at all listeners, since each holds the state of a handshake.
pub const TLS_HALF_OPEN_MAX: usize = 1_024;
/// TLS handshakes that a node begins in a second, and a twentieth of that at once. Beyond: they wait, and
/// those that would not be done in time are closed. A handshake costs some tenths of a millisecond.
pub const TLS_HANDSHAKES_PER_SECOND: u32 = 1_000;
/// Bytes read behind the first frame while the session is opened, about. Beyond: they wait in the socket.
pub const HANDSHAKE_ARRIVED_MAX_BYTES: usize = 16 << 10;
/// Connections that have not sent their first frame. Beyond: the oldest of them is closed, since a client
/// sends it at once.
pub const HALF_OPEN_MAX: usize = 4_096;
/// Messages (events, answers) waiting for one connection's task. Beyond: they are dropped and the connection
/// is closed.
pub const OUTBOX_MAX_MESSAGES: usize = 16_384;
/// Bytes of these messages, about. Beyond: the same. A single larger one still passes.
pub const OUTBOX_MAX_BYTES: usize = 8 << 20;
/// Bytes encoded for a connection that does not read. Beyond: the connection is closed. The reply that
/// reaches the bound still passes.
pub const WRITE_BACKLOG_MAX_BYTES: usize = 8 << 20;
/// Bytes that a connection may hold (read and not done, answered and not written) while all connections of
/// the node hold a quarter of `limits.memory_bytes`. Beyond: it is closed.
pub const HELD_SMALL_BYTES: u64 = 64 << 10;
/// Bytes of data and names in the answer to one multiRead. The operation that reaches it is still done.
/// Beyond: the others are answered ThrottledOp.
pub const MULTI_READ_MAX_BYTES: usize = 4 << 20;
/// Requests of one connection that wait for their commit. Beyond: reading from its socket stops.
pub const PIPELINE_MAX_REQUESTS: usize = 1_024;
/// Identities of one connection. Beyond: the auth packet fails, which closes the connection.
pub const IDENTITIES_MAX: usize = 64;
/// Bytes of one connection's identities, since they travel with each of its writes. Beyond: the auth packet
/// fails, which closes the connection.
pub const IDENTITIES_MAX_BYTES: usize = 64 << 10;
/// Bytes of the frames of those requests. Beyond: reading from its socket stops, too.
pub const PIPELINE_MAX_BYTES: usize = 4 << 20;
/// Shortest disconnect grace of a connection, in milliseconds: time to come back over another one. Below:
/// raised to it.
pub const DISCONNECT_GRACE_MIN_MS: u32 = 100;
/// Bytes of one connection's watches, each of 256 and its path. Beyond: the request is answered with a system
/// error and the connection closed.
pub const WATCH_BYTES_PER_CONNECTION: usize = 64 << 20;
/// From this number of bytes of all connections' watches on, each connection may have [`WATCH_BYTES_SMALL`].
pub const WATCH_BYTES_ALL: usize = 256 << 20;
/// Bytes of one connection's watches while all of them have much. Beyond: as with more of them.
pub const WATCH_BYTES_SMALL: usize = 16 << 10;
/// Submissions handed to the proposer and not looked at yet, each of at most one client frame: a gigabyte at
/// the very worst, while there is no leader and every client writes the largest znodes. Beyond: submitting
/// waits, so reading from sockets stops.
pub const PROPOSER_QUEUE_MAX: usize = 1_024;
/// Writes of one connection that are submitted and not answered. Beyond: its next ones wait with it.
pub const WRITES_OF_CONNECTION_MAX: usize = 512;
/// Bytes of the frames of these writes. Beyond: likewise. A single larger one still passes.
pub const WRITES_OF_CONNECTION_MAX_BYTES: usize = 1 << 20;
/// Submissions that wait for their turn in the proposer, as many as `WRITES_OF_CONNECTION_MAX` of 32
/// connections. Beyond: none is taken from those handed to it, so all connections feel it.
pub const FAIR_QUEUE_MAX: usize = 16_384;
/// Writes of a node's clients that are on their way to the log, or in it and not applied, at most. The
/// proposer has fewer on the way while answers take long. Beyond: they wait for their connection's turn.
pub const WRITES_UNDER_WAY_MAX: usize = 2_048;
/// Commands in one log entry.
pub const BATCH_MAX_COMMANDS: usize = 512;
/// Bytes of the commands in one log entry (a single larger command still passes).
pub const BATCH_MAX_BYTES: usize = 1 << 20;
/// Time, or accounted work, that apply takes at a stretch, but for what one entry takes more
/// (`rowlock_state::ENTRY_STEPS_MAX`). Beyond: other tasks of the thread come first.
pub const APPLY_SLICE: Duration = Duration::from_millis(1);
/// Log entries proposed and not yet committed. Beyond: the next entry waits, so batches grow.
pub const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// Largest frame between nodes, on lanes that carry the log, proposals or snapshots. Beyond: the connection
/// is closed and the cause logged.
pub const PEER_FRAME_MAX_BYTES: usize = 16 << 20;
/// Largest frame on lanes for heartbeats, votes and control.
pub const PEER_SMALL_FRAME_MAX_BYTES: usize = 1 << 20;
/// How far ahead of this node's a term can be that comes from a node of its cluster. Beyond: the message is
/// refused, since a term can never be taken back, and after the last one there is no leader.
pub const TERM_AHEAD_MAX: u64 = 1 << 32;
/// HTTP connections at once. Beyond: the oldest without a request gives way at once, else the oldest after
/// `HTTP_YIELD_AFTER`; until then new ones are closed. Enough that a probe has time to send its request
/// while thousands come in a second.
pub const HTTP_CONNECTIONS_MAX: usize = 256;
/// HTTP connections of one address, but loopback. Beyond: closed at once.
pub const HTTP_CONNECTIONS_OF_ADDRESS_MAX: usize = 16;
/// From the accept to the end of the head of an HTTP request. Beyond: the connection is closed.
pub const HTTP_HEAD_MAX: std::time::Duration = std::time::Duration::from_secs(2);
/// Time that an HTTP connection with a request has before it gives way to others.
pub const HTTP_YIELD_AFTER: std::time::Duration = std::time::Duration::from_millis(50);
/// Life of an HTTP connection (it carries one request). Beyond: the connection is closed.
pub const HTTP_CONNECTION_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// TLS handshakes that the HTTP listener begins in a second, and a twentieth of that at once. Beyond: they
/// wait, and those that would not be done in time are closed.
pub const HTTP_TLS_HANDSHAKES_PER_SECOND: u32 = 200;
/// Connections at once for locks by HTTP. Beyond: the oldest without a request gives way, else the oldest.
pub const API_CONNECTIONS_MAX: usize = 10_000;
/// API connections of one address, except loopback. Beyond: closed at once.
pub const API_CONNECTIONS_OF_ADDRESS_MAX: usize = 1_000;
/// From the head of such a request to its answer: the longest wait, and time for the answer. Beyond: the
/// connection is closed.
pub const API_REQUEST_MAX: Duration = Duration::from_secs(75);
/// Streams of lock events at one node. Beyond: 503 with Retry-After.
pub const API_WATCHES_MAX: usize = 1_000;
/// Age of such a stream. Beyond: it ends, and its client goes on with the next one.
pub const API_WATCH_MAX: Duration = Duration::from_secs(600);
/// Pause of such a stream before its client hears that it is still there.
pub const API_WATCH_SIGN_EVERY: Duration = Duration::from_secs(15);
/// Part of what the node's thread gets of its processor that all streams of lock events together take: one in
/// this many. Beyond: they pause, and collect events.
pub const API_WATCH_SHARE: u32 = 5;
/// Work of a piece of a stream, besides its events and bytes: a wake-up, and a write to the socket.
pub const API_WATCH_PIECE: Duration = Duration::from_micros(6);
/// Lock events that a stream is given at once.
pub const API_WATCH_BATCH: usize = 256;
/// Past lock events that a stream begins with. Beyond: only the newest, and a gap.
pub const API_WATCH_PAST_MAX: usize = 4_096;
/// Lock events that a node keeps in memory for its streams. Beyond: the oldest go, and streams that have not
/// been given them are told of a gap.
pub const LOCK_FEED_MAX: usize = 16_384;
/// Their bytes. Beyond: likewise.
pub const LOCK_FEED_MAX_BYTES: usize = 8 << 20;
/// Between two requests of such a connection. Beyond: it is closed.
pub const API_IDLE_MAX: Duration = Duration::from_secs(120);
/// Age of such a connection. Beyond: the next answer is its last one, so that a certificate that was revoked
/// does not count for long.
pub const API_CONNECTION_MAX: Duration = Duration::from_secs(600);
/// Requests that wait for locks at one node. Beyond: 503 with Retry-After.
pub const API_WAITS_MAX: usize = 5_000;
/// How long one request waits for a lock; its place stays. Beyond: 400.
pub const API_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a request waits for the cluster. Beyond: 503, since it may have happened.
pub const API_ANSWER_MAX: Duration = Duration::from_secs(8);
/// Locks of one request. Beyond: 400.
pub const API_LOCKS_MAX: usize = 64;
/// Bytes of a request's body. Beyond: 413.
pub const API_BODY_MAX_BYTES: usize = 16 << 10;
/// Bytes of a znode's data in a request. Beyond: 413. With its path it fits into a frame of other clients.
pub const API_DATA_MAX_BYTES: usize = 1_000_000;
/// Names of children in one answer. Asking for more is a mistake.
pub const API_PAGE_MAX: usize = 10_000;
/// Their bytes. Beyond: the answer says that there are more.
pub const API_PAGE_MAX_BYTES: usize = 768 << 10;
/// Bytes of znodes that are on their way from and to such clients at one node. Beyond: 503 with Retry-After.
pub const API_ANSWERS_MAX_BYTES: usize = 64 << 20;
/// How long a body may take to come. Beyond: 408.
pub const API_BODY_MAX: Duration = Duration::from_secs(5);
/// How long the session may be silent that holds the lock of a state, milliseconds: 24 days, which is as long
/// as the protocol can say. Beyond: the lock is free.
pub const STATE_LOCK_MS: u32 = 24 * 24 * 3_600_000;
/// State locks that are held at once, and no more than a quarter of `limits.sessions`. Beyond: 503. Their
/// sessions outlive restarts, and nothing but an operator ends those of clients that have gone.
pub const STATE_LOCKS_MAX: u64 = 25_000;
/// Bytes of a label. Beyond: 400.
pub const API_LABEL_MAX_BYTES: usize = 256;
/// Questions to the holder, or holders that a question has reached, in one answer. Beyond: left out.
pub const API_QUESTIONS_MAX: usize = 64;
/// Tokens in one file. Beyond: the file is refused.
pub const TOKENS_MAX: usize = 1_024;
/// Bytes of that file. Beyond: likewise.
pub const TOKEN_FILE_MAX_BYTES: u64 = 1 << 20;
/// Bytes of a node's log lines that wait for stderr. As many may be on their way to it. Beyond: lines are
/// dropped, counted and told.
pub const LOG_QUEUE_MAX_BYTES: usize = 1 << 20;
/// Lines of the audit log that wait for their file. Beyond: dropped, counted and told.
pub const AUDIT_QUEUE_MAX: usize = 8_192;
/// Failures in the audit log in a second of those who have proven nothing. Beyond: dropped and counted, so
/// that they cannot push what others have done out of the files.
pub const AUDIT_STRANGERS_PER_SECOND: u32 = 100;
/// The first frame of a connection between nodes, before the other side has said who it is. Beyond: closed.
pub const PEER_HELLO_MAX_BYTES: usize = 4 << 10;
/// Connections to the nodes' port that have not said yet who they are. Beyond: closed at once.
pub const PEER_STRANGERS_MAX: usize = 1_024;
/// Unproven connections of one address, except loopback; a node needs one for each lane.
pub const PEER_STRANGERS_OF_ADDRESS_MAX: usize = 32;
/// Refused handshakes of one address but loopback, in a second. Beyond: its connections are closed before a
/// handshake until that second is over. A handshake by TLS takes some 0.2 ms of a processor.
pub const PEER_REFUSALS_OF_ADDRESS_MAX: u32 = 50;
/// Connections of other nodes to this one. Beyond: refused in the handshake.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// Nodes whose incarnations a node remembers, all members that a cluster ever had. Beyond: refused in the
/// handshake.
pub const KNOWN_NODES_MAX: usize = 1_024;
/// Requests that wait for one lane's connection to a node. Beyond: the call fails at once, unsent.
pub const PEER_QUEUE_MAX: usize = 1_024;
/// Requests of one connection that wait for their answer. Beyond: the dialer keeps them queued, the listener
/// stops reading.
pub const PEER_IN_FLIGHT_MAX: usize = 1_024;
/// Bytes encoded for another node and not yet written. Beyond: taking from the queue stops (one larger frame
/// still passes).
pub const PEER_WRITE_BUFFER_MAX_BYTES: usize = 4 << 20;
/// Bytes of requests that a listener has read and not begun. Beyond: it stops reading.
pub const PEER_BACKLOG_MAX_BYTES: usize = 32 << 20;
/// Append requests sent to a follower and not yet answered. Beyond: the next waits for an answer.
pub const PEER_APPEND_WINDOW_REQUESTS: usize = 64;
/// Bytes of append requests sent to a follower and not yet answered. Beyond: the next waits for an answer.
pub const PEER_APPEND_WINDOW_BYTES: usize = 16 << 20;
/// Forwarded batches that the leader has not acknowledged. Beyond: the proposer keeps them and batches on.
pub const PEER_FORWARD_WINDOW_BATCHES: usize = 256;
/// Bytes of forwarded batches that the leader has not acknowledged. Beyond: the proposer keeps them and
/// batches on.
pub const PEER_FORWARD_WINDOW_BYTES: usize = 16 << 20;
/// One chunk of a snapshot on its way to another node.
pub const PEER_SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;
/// For a connection to another node to be established. Beyond: the node is unreachable.
pub const PEER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// For the handshake, on either side. Beyond: closed.
pub const PEER_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The dialer asks for a sign of life when it has heard nothing for so long.
pub const PEER_PING_AFTER: Duration = Duration::from_secs(1);
/// No byte of the other side for so long after it was asked: the dialer gives the connection up and dials
/// again.
pub const PEER_SILENCE_MAX: Duration = Duration::from_secs(2);
/// No byte of the dialer for so long although it pings: the listener closes the connection.
pub const PEER_IDLE_MAX: Duration = Duration::from_secs(10);
/// Time for a follower to check and install a snapshot, per MiB, beyond the time for one chunk.
pub const PEER_SNAPSHOT_INSTALL_PER_MIB: Duration = Duration::from_millis(20);
/// Replication to a follower that gives no answer at all for this time is broken off and begun again.
pub const PEER_APPEND_IDLE_MAX: Duration = Duration::from_secs(1);
/// Heartbeats of this node's clients that wait for the leader. Beyond: they stay unanswered.
pub const HEARTBEATS_WAITING_MAX: usize = 65_536;
/// Hang-ups of this node's clients that wait for the leader. Beyond: those sessions have their whole timeout.
pub const DISCONNECTS_WAITING_MAX: usize = 32_768;
// All that wait go in one frame: a session's number takes 9 bytes at most, and a hang-up 24.
const _: () = assert!(HEARTBEATS_WAITING_MAX * 9 < PEER_SMALL_FRAME_MAX_BYTES);
const _: () = assert!(DISCONNECTS_WAITING_MAX * 24 < PEER_SMALL_FRAME_MAX_BYTES);
/// Hang-ups of sessions that the leader does not know (yet). Beyond: that of the lowest session is forgotten,
/// which then ends after its whole timeout.
pub const DISCONNECTS_EARLY_MAX: usize = 1_024;
/// Signs of life waiting for the liveness task. Beyond: dropped; the session's next frame gives another.
pub const TOUCH_QUEUE_MAX: usize = 65_536;
/// Batches of proposals waiting for the leader's intake, each of about `BATCH_MAX_BYTES` at most. Beyond:
/// forwarding waits.
pub const INTAKE_QUEUE_MAX: usize = 64;
/// Reconfigurations of superusers that wait on one node. Beyond: answered that one is in progress.
pub const RECONFIG_QUEUE_MAX: usize = 16;
/// Operations of superusers that wait on one node. Beyond: refused as too many.
pub const OPERATIONS_QUEUE_MAX: usize = 16;
/// Writes waiting for the log's thread. Beyond: Raft waits with its next write.
pub const WAL_QUEUE_MAX: usize = 16_384;
/// Containers and TTL znodes that one sweep removes (ZooKeeper's `znode.container.maxPerMinute`). Beyond: the
/// next sweep.
pub const SWEEP_MAX_ZNODES: usize = 10_000;
/// Locks that one look at what is due proposes. Beyond: the next look.
pub const LOCK_SWEEP_MAX: usize = 2_048;
/// Exceeded quotas that one sweep logs. Beyond: only their number.
pub const SWEEP_MAX_QUOTA_WARNINGS: usize = 10;
/// Bytes of entries that one replication read takes into memory (a single larger entry still passes).
pub const REPLICATION_READ_MAX_BYTES: usize = 4 << 20;
/// Bytes of the log in memory beyond which a snapshot is taken and the log behind it purged, however few
/// entries it has, while the state is small: as much memory as is used again and again. Of a larger state it
/// is twice the last snapshot.
pub const LOG_MEMORY_BYTES: usize = 32 << 20;
/// The most of them, or as many as the last snapshot has, if that is more.
pub const LOG_MEMORY_MAX_BYTES: usize = 256 << 20;
/// Bytes of a snapshot that are written to its file at once.
pub const SNAPSHOT_PIECE_BYTES: usize = 256 << 10;
/// Pause after each such piece: the log's flushes wait for what is in the disk's queue before them. So a
/// snapshot is written at 128 MB per second at most.
pub const SNAPSHOT_PIECE_PAUSE: Duration = Duration::from_millis(2);
/// Bytes by which the snapshot before it is made shorter at once: the log's flushes may wait for the file
/// system, which takes the longer the more room it gets back.
pub const SNAPSHOT_CUT_BYTES: u64 = 4 << 20;
/// Pause after each such cut.
pub const SNAPSHOT_CUT_PAUSE: Duration = Duration::from_millis(5);
/// Events of locks that wait for the history's thread. Beyond: dropped and counted, and the history shows a
/// gap.
pub const HISTORY_QUEUE_MAX_RECORDS: usize = 65_536;
/// Bytes of them. Beyond: likewise. One log entry may go beyond both.
pub const HISTORY_QUEUE_MAX_BYTES: usize = 16 << 20;
/// From this number of bytes on the history's thread sets to work at once. Below: when it has let them
/// collect.
pub const HISTORY_PRESSING_BYTES: usize = 1 << 20;
/// From this number of events on, likewise.
pub const HISTORY_PRESSING_RECORDS: usize = HISTORY_QUEUE_MAX_RECORDS / 4;
/// How long the history's thread lets events collect.
pub const HISTORY_DELAY_MAX: Duration = Duration::from_millis(100);
/// Questions, and words about snapshots, that wait for the history's thread. Beyond: they fail.
pub const HISTORY_QUEUE_MAX_JOBS: usize = 65_536;
/// With less on the disk than this the history records nothing: what is left is the log's.
pub const HISTORY_FREE_MIN_BYTES: u64 = 256 << 20;
/// Pause before the history's files are tried again after they have failed.
pub const HISTORY_RETRY_PAUSE: Duration = Duration::from_secs(60);
/// A question to the history that takes longer fails.
pub const HISTORY_READ_MAX: Duration = Duration::from_secs(5);
/// Time for the history to write out its buffers when a node stops.
pub const HISTORY_CLOSE_MAX: Duration = Duration::from_secs(2);
/// Wrong passwords (of the superuser, of SASL users) and wrong tokens in HTTP requests of one host. Beyond:
/// passwords of that host are not judged, but those of users who were right there before (AuthFailed, and the
/// connection is closed); wrong tokens get HTTP 429 instead of 401.
pub const GUESSES_PER_SECOND: u32 = 10;
/// Hosts whose requests of one kind (wrong passwords, new sessions) are counted one by one. Beyond: all
/// others count as one.
pub const HOSTS_COUNTED_MAX: usize = 1_024;
/// Reports that are made at once. Beyond: ThrottledOp, or HTTP's 503.
pub const REPORTS_MAX: usize = 8;
/// Reports among these that are reserved for superusers.
pub const REPORTS_FOR_SUPERUSERS: usize = 2;
/// Backups that are fetched from a node at once. Beyond: ThrottledOp.
pub const BACKUPS_MAX: usize = 2;
/// Bytes of a backup in one answer.
pub const BACKUP_PIECE_BYTES: u64 = 256 << 10;
/// Items of a report that does not say how many it wants.
pub const REPORT_DEFAULT_ITEMS: usize = 100;
/// Items of a report. Asking for more is a mistake.
pub const REPORT_MAX_ITEMS: usize = 10_000;
/// Bytes of a report's items, since it has to fit into a client's frame. Beyond: the report says that there
/// are more.
pub const REPORT_MAX_BYTES: usize = 768 << 10;
/// Marks for the comparison of replicas that are waited for until a majority of the voters has told its
/// digest. Beyond: if those that have told theirs differ, they stop.
pub const MARKS_MAX: usize = 8;
