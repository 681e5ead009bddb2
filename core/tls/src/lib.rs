//! TLS under Rowlock's connections: certificates, who they name, reading them again, and streams that
//! encrypt.
//!
//! A stream of [`rowlock_env::net`] goes in, a stream of the same type comes out ([`Acceptor`],
//! [`Connector`]): its readers and writers do not know that it is encrypted. The simulator keeps plain
//! streams, so nothing here runs there.
//!
//! ```text
//! Files ──read──> Material ──> Acceptor, Connector ──handshake──> (Stream, Certificate)
//!                 Keeper: the Material of now; reads the files again
//! ```
//!
//! # What it promises
//!
//! - A chain is verified against the authorities of the listener that it came to, and against the list of
//!   revoked certificates, before a byte of the application is read.
//! - The owner of a [`Certificate`] has proven that it has the key.
//! - New files take the place of old ones all together or not at all: bad ones leave everything as it was.
//! - A connection is closed when the certificate of its other side does not count any more: at once after new
//!   files were read, and within seconds when it has expired.
//! - A refusal tells the other side nothing but an alert of TLS.
//!
//! Must never do: decide who may do what. That is for those who accept connections.

mod certificate;
mod client;
mod conduit;
mod error;
mod files;
mod frames;
mod handshake;
pub mod inspect;
#[cfg(feature = "issue")]
pub mod issue;
mod keeper;
mod material;
mod subject;
mod verify;
mod watched;
mod words;

pub use certificate::{Certificate, node_uri};
pub use client::{ClientKeeper, ClientTls, Pem};
pub use error::TlsError;
pub use files::Files;
pub use handshake::{Acceptor, Connector, Hello, Secured, looks_like_tls, refuse_plain};
pub use keeper::{Keeper, Reloaded};
pub use material::{ClientAuth, Material};
