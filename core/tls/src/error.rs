//! TLS errors, worded for the operator of a node or a client. In the texts of a reason "it" is the peer.

use std::io;
use std::path::PathBuf;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates or keys is unusable.
    #[error("{}: {what}", .file.display())]
    File { file: PathBuf, what: String },
    #[error("{0}")]
    Settings(String),
    /// The peer hung up during the handshake: perhaps a peer without TLS.
    #[error("the other side hung up in the TLS handshake: it may not speak TLS")]
    HungUp,
    #[error("{0}")]
    Handshake(String),
    /// A valid certificate with the wrong names or purpose.
    #[error("{0}")]
    Identity(String),
}

impl TlsError {
    pub(crate) fn file(file: impl Into<PathBuf>, what: impl ToString) -> TlsError {
        TlsError::File { file: file.into(), what: what.to_string() }
    }
}

/// Returns the reason for a failed handshake or connection.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::NoCertificatesPresented => "it presented no certificate".to_owned(),
        Error::AlertReceived(alert) => refused(*alert),
        Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        Error::PeerIncompatible(why) => format!("no version or cipher of TLS in common: {why:?}"),
        other => other.to_string(),
    }
}

/// Wraps the reason in a socket error.
pub(crate) fn broken(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {}", reason(error)))
}

/// Describes the problem with the peer's certificate.
pub(crate) fn certificate(error: &CertificateError) -> String {
    use CertificateError as E;
    match error {
        E::Expired | E::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet: check both clocks".to_owned()
        }
        E::Revoked => "its certificate was revoked".to_owned(),
        E::UnknownIssuer => "its certificate is signed by an unknown authority".to_owned(),
        E::NotValidForNameContext { expected, presented } => {
            let wanted = match expected {
                ServerName::DnsName(name) => name.as_ref().to_owned(),
                ServerName::IpAddress(ip) => std::net::IpAddr::from(*ip).to_string(),
                other => format!("{other:?}"),
            };
            // rustls prints names such as `DnsName("a")` and `IpAddress(10.0.0.1)`.
            let inside = |name: &String| {
                Some(name.split_once('(')?.1.trim_end_matches(')').trim_matches('"').to_owned())
            };
            let is_host = |name: &&String| name.starts_with("DnsName") || name.starts_with("IpAddress");
            let hosts: Vec<String> = presented.iter().filter(is_host).filter_map(inside).collect();
            if hosts.is_empty() {
                return format!("its certificate is for no host, and not for {wanted}");
            }
            format!("its certificate is for {}, and not for {wanted}", hosts.join(", "))
        }
        E::BadSignature => {
            "its certificate has a bad signature: its authority's key here is another one".to_owned()
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "its certificate is for another purpose (extended key usage)".to_owned()
        }
        other => format!("its certificate is refused: {other}"),
    }
}

/// Describes the peer's refusal of our certificate.
fn refused(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let why = match alert {
        A::CertificateRequired | A::NoCertificate => {
            return "it asks for a certificate, and we have none".to_owned();
        }
        A::CertificateExpired => "it has expired",
        A::CertificateRevoked => "it was revoked",
        A::UnknownCA => "its authority is unknown there",
        A::DecryptError => "its authority there has the same name and another key",
        A::BadCertificate | A::UnsupportedCertificate | A::CertificateUnknown | A::AccessDenied => {
            "it says no more"
        }
        A::ProtocolVersion | A::HandshakeFailure | A::InsufficientSecurity => {
            return format!("it has no version or cipher of TLS in common with us ({alert:?})");
        }
        other => return format!("it has ended the connection by an alert ({other:?})"),
    };
    format!("it refuses our certificate: {why}")
}
