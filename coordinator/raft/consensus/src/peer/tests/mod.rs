//! Nodes talk over real sockets on loopback.

mod calls;
mod forwarding;
mod golden;
mod handshakes;
pub mod support;
