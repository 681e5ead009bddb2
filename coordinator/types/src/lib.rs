//! Types shared by the parts of a Rowlock node: no part depends on another part just for a type.
//!
//! A node consists of floors (`docs/architecture.md`): the log on the disk, the connections between nodes,
//! the lock history, Raft, sessions, clients. Several floors need the same terms: the address of a member, a
//! client's disconnect, the bound of a queue. This crate defines these terms below all floors.
//!
//! | module | content | used by |
//! |---|---|---|
//! | [`limits`] | every bound of a node, with the action at the bound | each floor |
//! | [`pacing`] | every deliberate delay of a command | each floor |
//! | [`metrics`] | counters and measurements of a node | each floor writes, people read |
//! | [`memory`] | memory of a node by use, against its limit | holders count, admission checks |
//! | [`status`] | role, term, leader and log end of a node | the node publishes, its tasks and people read |
//! | [`node_hook`] | changes of a node's log and state | log, state machine and sessions, for a hook |
//! | [`member`] | addresses of a member | the membership, for dialing nodes |
//! | [`reconfiguration`] | a change of the membership in ZooKeeper's terms | clients, for the leader |
//! | [`operation`] | an operator's command to a node | clients, for the executing node |
//! | [`client_disconnect`] | the disconnect of a client | its node, for the leader |
//! | [`incarnation`] | identity of a data folder | the folder, for the other nodes |
//! | [`versions`] | versions of all formats that a node knows | each node, for the other nodes |
//! | [`duration`] | text form of durations | `cluster.toml` |
//! | [`codec`] | encoding of values into bytes | log, snapshots, history, messages between nodes |
//!
//! # Guarantees
//!
//! The crate is pure: no IO, no clock, no randomness, no task, no lock held across other work. Counters are
//! relaxed atomics, which never wait.
//!
//! The types that are sent or stored (`Status`, `Member`, `Wanted`, `Operation`, `ClientDisconnect`,
//! `Incarnation`, `Versions`) are part of formats: a change of a type changes the messages between nodes
//! (`docs/protocol.md`).
//!
//! [`codec::decode`] never allocates more than one step above the size of its input, whatever lengths the
//! bytes claim.
//!
//! # Outside this crate
//!
//! The crate knows no floor of a node: neither openraft nor the log, neither connections nor tasks. The crate
//! uses ZooKeeper's protocol (`rowlock-proto`) for numbers and error codes, and the replicated state
//! (`rowlock-state`) for the arguments of a hook and the memory of a state.

pub mod advice;
pub mod client_disconnect;
pub mod codec;
pub mod duration;
pub mod incarnation;
pub mod limits;
pub mod member;
pub mod memory;
pub mod metrics;
pub mod node_hook;
pub mod operation;
pub mod pacing;
pub mod reconfiguration;
pub mod status;
pub mod versions;
