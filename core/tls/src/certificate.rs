//! Names in a certificate: of a node or of a client.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};

use crate::error::TlsError;
use crate::subject;

/// Names and validity in a certificate. After a handshake the peer's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Subject as Java prints it (RFC 2253): the identity in ZooKeeper's scheme `x509`.
    pub subject: String,
    pub uris: Vec<String>,
    /// Host names and IP addresses among the subject alternative names.
    pub hosts: Vec<String>,
    /// True if the owner may sign certificates.
    pub is_authority: bool,
    /// Serial number, in hexadecimal.
    pub serial: String,
    /// Time of expiry, in milliseconds since 1970.
    pub expires_ms: i64,
}

/// Returns the URI of a node in the node's certificate.
pub fn node_uri(cluster: &str, node: u64) -> String {
    format!("rowlock://{cluster}/node/{node}")
}

impl Certificate {
    /// Parses a certificate in DER form.
    ///
    /// # Errors
    /// The bytes are no certificate, or violate the standard.
    pub fn of(der: &CertificateDer<'_>) -> Result<Certificate, TlsError> {
        let unreadable = |error: x509_cert::der::Error| {
            TlsError::Identity(format!("a certificate cannot be understood: {error}"))
        };
        let parsed = x509_cert::Certificate::from_der(der).map_err(unreadable)?;
        let body = parsed.tbs_certificate;
        let names = body.get::<SubjectAltName>().map_err(unreadable)?;
        let (mut uris, mut hosts) = (Vec::new(), Vec::new());
        for name in names.into_iter().flat_map(|(_, names)| names.0) {
            match name {
                GeneralName::UniformResourceIdentifier(uri) => uris.push(uri.to_string()),
                GeneralName::DnsName(host) => hosts.push(host.to_string()),
                GeneralName::IpAddress(ip) => hosts.extend(address(ip.as_bytes())),
                _ => {}
            }
        }
        let constraints = body.get::<BasicConstraints>().map_err(unreadable)?;
        let expires = body.validity.not_after.to_unix_duration().as_millis();
        let serial = body.serial_number.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Certificate {
            subject: subject::rfc2253(&body.subject).map_err(unreadable)?,
            uris,
            hosts,
            is_authority: constraints.is_some_and(|(_, constraints)| constraints.ca),
            serial,
            expires_ms: i64::try_from(expires).unwrap_or(i64::MAX),
        })
    }

    /// Returns the certificate's node in `cluster`, or `None` for no node or several nodes.
    pub fn node_of(&self, cluster: &str) -> Option<u64> {
        let prefix = node_uri(cluster, 0);
        let prefix = prefix.strip_suffix('0')?;
        let mut nodes = self.uris.iter().filter_map(|uri| uri.strip_prefix(prefix));
        let node = nodes.next()?;
        if nodes.next().is_some() {
            return None;
        }
        let number: u64 = node.parse().ok()?;
        // Refuses the forms `+3` and `03`.
        (number.to_string() == node).then_some(number)
    }
}

/// Parses an address of four or sixteen bytes.
fn address(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(uris: &[&str]) -> Certificate {
        let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
        Certificate {
            subject: String::new(),
            uris,
            hosts: Vec::new(),
            is_authority: false,
            serial: String::new(),
            expires_ms: 0,
        }
    }

    #[test]
    fn a_certificate_names_one_node_of_one_cluster() {
        assert_eq!(with(&["https://a", "rowlock://prod/node/2"]).node_of("prod"), Some(2));
        let none = [
            &["rowlock://test/node/2"][..],
            &["rowlock://prod/node/2", "rowlock://prod/node/3"],
            &["rowlock://prod/node/+2"],
            &["rowlock://prod/node/02"],
            &["rowlock://prod/node/"],
            &["rowlock://prod/node/2/x"],
            &["rowlock://prod.evil/node/2"],
            &[],
        ];
        for uris in none {
            assert_eq!(with(uris).node_of("prod"), None, "{uris:?}");
        }
    }
}
