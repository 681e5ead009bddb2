//! Bounds of the connections between nodes, with the action at each bound, and pauses between dials.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Largest frame between nodes, on lanes for the log, proposals and snapshots. Beyond: the node closes the
/// connection and logs the cause.
pub const PEER_FRAME_MAX_BYTES: usize = 16 << 20;
/// Largest frame on lanes for heartbeats, votes and control.
pub const PEER_SMALL_FRAME_MAX_BYTES: usize = 1 << 20;
/// Size of the hello, the first frame of a connection between nodes. Beyond: closed.
pub const PEER_HELLO_MAX_BYTES: usize = 4 << 10;
/// Connections to the peer port without a finished handshake. Beyond: closed at once.
pub const PEER_STRANGERS_MAX: usize = 1_024;
/// Unproven connections of one address, except loopback; a node needs one for each lane.
pub const PEER_STRANGERS_OF_ADDRESS_MAX: usize = 32;
/// Refused handshakes of one address per second, except loopback. Beyond: connections of the address close
/// before a handshake until the second ends. A TLS handshake takes some 0.2 ms of a processor.
pub const PEER_REFUSALS_OF_ADDRESS_MAX: u32 = 50;
/// Connections from other nodes to this node. Beyond: refused in the handshake.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// Requests queued for one lane's connection to a node. Beyond: the call fails at once, unsent.
pub const PEER_QUEUE_MAX: usize = 1_024;
/// Requests of one connection without a response. Beyond: the dialer keeps further requests queued, the
/// listener stops reading.
pub const PEER_IN_FLIGHT_MAX: usize = 1_024;
/// Bytes encoded for another node and not written. Beyond: the dialer takes no more requests from the queue
/// (one larger frame still passes).
pub const PEER_WRITE_BUFFER_MAX_BYTES: usize = 4 << 20;
/// Bytes of requests that a listener has read and not started. Beyond: the listener stops reading.
pub const PEER_BACKLOG_MAX_BYTES: usize = 32 << 20;
/// Append requests to a follower without a response. Beyond: the next request waits for a response.
pub const PEER_APPEND_WINDOW_REQUESTS: usize = 64;
/// Bytes of append requests to a follower without a response. Beyond: the next request waits for a response.
pub const PEER_APPEND_WINDOW_BYTES: usize = 16 << 20;
/// Forwarded batches without an acknowledgement of the leader. Beyond: the proposer keeps the batches and
/// continues batching.
pub const PEER_FORWARD_WINDOW_BATCHES: usize = 256;
/// Bytes of forwarded batches without an acknowledgement of the leader. Beyond: the proposer keeps the
/// batches and continues batching.
pub const PEER_FORWARD_WINDOW_BYTES: usize = 16 << 20;
/// Time to establish a connection to another node. Beyond: the node is unreachable.
pub const PEER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the peer handshake, on either side. Beyond: closed.
pub const PEER_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// Silence of the other side before the dialer sends a ping.
pub const PEER_PING_AFTER: Duration = Duration::from_secs(1);
/// Silence of the other side after the ping. Beyond: the dialer closes the connection and dials again.
pub const PEER_SILENCE_MAX: Duration = Duration::from_secs(2);
/// Silence of the dialer despite its pings. Beyond: the listener closes the connection.
pub const PEER_IDLE_MAX: Duration = Duration::from_secs(10);
/// Pauses between dials of an unreachable node. Short: a returning node is reached soon.
pub const DIAL_PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(250);
/// Pauses after a refused handshake. Longer: a refusal lasts until an operator changes something, and
/// frequent attempts only fill the other node's log.
pub const DIAL_REFUSED_PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(5);
