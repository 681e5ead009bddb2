//! TLS for Rowlock's connections: certificates and their names, reloading of files, and encrypted streams.
//!
//! [`Acceptor`] and [`Connector`] turn a stream of [`rowlock_env::net`] into an encrypted stream of the same
//! type: readers and writers need no change. The simulator keeps plain streams, so this crate does not run
//! there.
//!
//! ```text
//! Files ──read──> Material ──> Acceptor, Connector ──handshake──> (Stream, Certificate)
//!                 Keeper: the current Material; reloads the files
//! ```
//!
//! # Guarantees
//!
//! - A chain is verified against the listener's authorities and the list of revoked certificates before the
//!   application reads a byte.
//! - The owner of a [`Certificate`] has proven possession of the key.
//! - New files replace the old files all together or not at all: an unusable file changes nothing.
//! - A connection closes when the peer's certificate becomes invalid: at once after reloading the files, and
//!   within seconds of an expiry.
//! - A refused peer learns nothing but a TLS alert.
//!
//! This crate never decides on access rights: the users of an [`Acceptor`] do.

mod certificate;
mod client;
mod conduit;
mod error;
mod files;
mod handshake;
pub mod inspect;
#[cfg(feature = "issue")]
pub mod issue;
mod material;
mod verify;

pub use certificate::{Certificate, node_uri};
pub use client::{ClientKeeper, ClientTls, Pem};
pub use error::TlsError;
pub use files::Files;
pub use handshake::{Acceptor, Connector, Hello, Secured, looks_like_tls, refuse_plain};
pub use material::{ClientAuth, Keeper, Material, Reloaded};
