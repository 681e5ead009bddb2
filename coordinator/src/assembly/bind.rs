//! Binds one listener of a node.

use std::io;

use rowlock_env::net::Listener;

use super::errors::StartError;

/// Listens on an address of the configuration, or returns the advice to the operator.
pub(super) async fn bind(address: &str, purpose: &'static str) -> Result<Listener, StartError> {
    Listener::bind(address).await.map_err(|source| {
        let remedy = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "another process uses it: stop that process, or change the port in cluster.toml"
            }
            io::ErrorKind::AddrNotAvailable => "this machine has no such address: correct it in cluster.toml",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege: use a higher port in cluster.toml"
            }
            _ => "correct the address in cluster.toml",
        };
        StartError::Listen { address: address.to_owned(), purpose, source, remedy }
    })
}
