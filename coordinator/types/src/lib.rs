//! The words that the parts of a Rowlock node share, so that none of them has to know another one for a word.
//!
//! A node is made of floors (`docs/architecture.md`): the log on the disk, the connections between nodes, the
//! lock history, Raft, sessions, clients. Some things are said on several of them: which node a member is and
//! where, which client has hung up, how large something may become. They stand here, below all of them.
//!
//! | module | what it names | who says it to whom |
//! |---|---|---|
//! | [`limits`] | every bound of a node, with what happens there | each floor, to itself |
//! | [`pacing`] | every deliberate delay on the way of a command | the floors, to themselves |
//! | [`metrics`] | what a node counts and measures | each floor, to people |
//! | [`memory`] | what a node holds in memory, against its limit | its holder counts; admission asks |
//! | [`status`] | what a node is: role, term, leader, end of its log | the node, to people and its tasks |
//! | [`node_hook`] | what a node's log and state go through | log, state machine and sessions, to a hook |
//! | [`member`] | where a member is found | the membership, to dialing nodes |
//! | [`reconfiguration`] | a change of the membership in ZooKeeper's terms | clients, to the leader |
//! | [`operation`] | what an operator has a node do | clients, to the node that it is meant for |
//! | [`client_disconnect`] | a client has hung up | its node, to the leader |
//! | [`incarnation`] | one data folder of a node | the folder, to the other nodes |
//! | [`versions`] | which versions of all forms a node knows | each node, to the others |
//! | [`duration`] | durations as people write them | `cluster.toml`, to its readers |
//! | [`history`] | the settings of the lock history | `cluster.toml`, to the history |
//! | [`codec`] | how a value becomes bytes | log, snapshots, history, messages between nodes |
//!
//! # What it promises
//!
//! It is pure: no IO, no clock, no randomness, no task, no lock that is held across anything. What is counted
//! here is counted by relaxed atomics, which never wait.
//!
//! The types that travel or are stored (`Status`, `Member`, `Wanted`, `Operation`, `ClientDisconnect`,
//! `Incarnation`, `Versions`) are part of formats: a change of one is a change of the messages between nodes
//! (`docs/protocol.md`).
//!
//! [`codec::decode`] never allocates more than a step above what it is given, whatever the bytes claim.
//!
//! # What it does not know
//!
//! No floor of a node: neither openraft nor the log, neither connections nor tasks. It knows ZooKeeper's
//! protocol for numbers and error codes (`rowlock-proto`), and the replicated state (`rowlock-state`) for
//! what a hook is shown and for what a state weighs.

pub mod advice;
pub mod client_disconnect;
pub mod codec;
pub mod duration;
pub mod history;
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
