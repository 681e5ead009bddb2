//! The ZooKeeper wire protocol (3.9 dialect): records, frames, errors. No IO and no runtime.
//!
//! Bytes of a socket go through [`frame::split`], then one function of [`decode`]; answers and requests leave
//! through one function of [`encode`]. Records keep paths and flags as they came: judging them is the
//! server's part.
//!
//! Invariant: no input makes decoding panic, or allocate for more than the frame can hold.
//!
//! Strings are UTF-8 and nothing else. Java's jute writer emits characters above U+FFFF as two three-byte
//! surrogates; such a frame is refused ([`DecodeError::NotUtf8`], so MarshallingError on the wire). Paths may
//! not hold them anyway.

#![warn(missing_docs)]

pub mod acl;
mod codec;
pub mod create_mode;
pub mod decode;
pub mod encode;
pub mod error;
pub mod event;
pub mod frame;
pub mod ids;
pub mod lock;
pub mod name;
pub mod opcode;
pub mod path;
pub mod report;
pub mod request;
pub mod response;
pub mod right;
pub mod stat;
pub mod word;

pub use acl::{Acl, Id, perms};
pub use codec::DecodeError;
pub use create_mode::CreateMode;
pub use decode::BadRequest;
pub use error::ErrorCode;
pub use event::{EventType, WatchedEvent};
pub use frame::FrameError;
pub use ids::{ClusterId, FencingToken, NodeId, SessionId, Version, Xid, Zxid};
pub use opcode::OpCode;
pub use path::PathError;
pub use request::{ConnectRequest, Op, Request, RequestFrame};
pub use response::{ConnectResponse, OpResult, ReplyHeader, Response};
pub use right::Right;
pub use stat::Stat;
pub use word::FourLetterWord;
