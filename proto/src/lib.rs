//! The ZooKeeper wire protocol: records, frames, errors. No IO and no runtime.

pub mod acl;
pub mod create_mode;
pub mod error;
pub mod event;
pub mod ids;
pub mod request;
pub mod response;
pub mod stat;

pub use create_mode::CreateMode;
pub use error::ErrorCode;
pub use ids::{FencingToken, NodeId, SessionId, Version, Xid, Zxid};
pub use stat::Stat;
