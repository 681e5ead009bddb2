//! Model of ZooKeeper as lock recipes see it: [`core`] is the service, [`server`] puts the service behind a
//! port, [`session`] is the client library.

pub mod core;
pub mod server;
pub mod session;
#[cfg(test)]
mod tests;

use self::core::{Event, Reply, Request};
use crate::wire::Protocol;

pub const PORT: u16 = 2181;

pub struct Zk;

impl Protocol for Zk {
    type Request = Request;
    type Reply = Reply;
    type Push = Event;
}
