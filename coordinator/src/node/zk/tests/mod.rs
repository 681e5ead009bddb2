//! The whole path of a request over loopback: real sockets and frames, the real state machine, and instead of
//! the log a task that applies every submission at once (or when the test triggers it).

mod abuse;
mod announcement;
pub(crate) mod client;
mod client_disconnect;
mod conversation;
mod flood;
mod handshake;
pub(crate) mod locks;
pub(crate) mod node;
mod proof;
mod read_only;
mod requests;
mod stories;
mod turns;
mod watches;
mod words;
