//! The ZooKeeper wire protocol (3.9 dialect): records, frames, errors. No IO and no runtime.
//!
//! [`frame::split`] cuts the bytes of a socket into frames, and one function of [`decode`] reads each frame;
//! one function of [`encode`] writes each reply or request. Records keep paths and flags as received: the
//! server validates them.
//!
//! Invariant: no input makes decoding panic, or allocate more than the frame can hold.
//!
//! Strings are UTF-8 only. Java's jute writer emits characters above U+FFFF as two three-byte surrogates;
//! decoding refuses these frames ([`DecodeError::NotUtf8`], MarshallingError on the wire). Paths may not
//! contain these characters anyway.

#![warn(missing_docs)]

#[macro_use]
mod wire;
#[macro_use]
pub mod opcode;

pub mod acl;
mod codec;
pub mod decode;
pub mod encode;
pub mod error;
pub mod frame;
pub mod ids;
pub mod lock;
pub mod lock_event;
mod multi;
pub mod name;
pub mod path;
pub mod report;
pub mod request;
pub mod response;

#[cfg(test)]
mod tests;

pub use acl::{Acl, Id, perms};
pub use codec::DecodeError;
pub use decode::BadRequest;
pub use error::{ErrorCode, Right};
pub use frame::{FourLetterWord, FrameError};
pub use ids::{ClusterId, FencingToken, Incarnation, NodeId, SessionId, Version, Xid, Zxid};
pub use opcode::OpCode;
pub use path::PathError;
pub use request::{ConnectRequest, CreateMode, Op, Request, RequestFrame};
pub use response::{ConnectResponse, EventType, OpResult, ReplyHeader, Response, Stat, WatchedEvent};
