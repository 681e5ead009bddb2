//! Names in a certificate: of a node or of a client.

use std::fmt::Write as _;
use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::{Decode, Encode, Error, Tag, Tagged};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};
use x509_cert::name::Name;

use crate::error::TlsError;

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
            subject: rfc2253(&body.subject).map_err(unreadable)?,
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

/// Attribute types with a name in RFC 2253. Java prints all other types as numbers.
const NAMES: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];
const ESCAPED: &str = ",=+<>#;\"\\";

/// Returns the text of a subject: its parts from the last to the first, in the form of Java's
/// `X500Principal.getName()`. ACLs of ZooKeeper's scheme `x509` hold this form; OpenSSL prints another form.
///
/// # Errors
/// The subject cannot be encoded again, which never happens to a parsed certificate.
fn rfc2253(subject: &Name) -> Result<String, Error> {
    let parts = subject.0.iter().rev().map(|part| {
        let all: Result<Vec<String>, Error> = part.0.iter().map(attribute).collect();
        Ok(all?.join("+"))
    });
    let parts: Result<Vec<String>, Error> = parts.collect();
    Ok(parts?.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue) -> Result<String, Error> {
    let oid = attribute.oid.to_string();
    let name = NAMES.iter().find(|(number, _)| *number == oid).map(|(_, name)| *name);
    match (name, text(attribute)) {
        (Some(name), Some(text)) => Ok(format!("{name}={}", escape(&text))),
        (name, _) => {
            let mut out = format!("{}=#", name.unwrap_or(&oid));
            for byte in attribute.value.to_der()? {
                // Writing to a String cannot fail.
                let _ = write!(out, "{byte:02x}");
            }
            Ok(out)
        }
    }
}

/// Decodes a value's text. Java reads the bytes of all these types as UTF-8. A BMPString is UTF-16 to its
/// signing authority, and its bytes may spell an ASCII name in UTF-8: this function follows the authority.
fn text(attribute: &AttributeTypeAndValue) -> Option<String> {
    let bytes = attribute.value.value();
    match attribute.value.tag() {
        Tag::PrintableString | Tag::TeletexString | Tag::Ia5String | Tag::Utf8String => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        Tag::BmpString => {
            let (units, rest) = bytes.as_chunks::<2>();
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

fn escape(text: &str) -> String {
    let mut marked: Vec<char> = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\0' => marked.extend(['\\', '0', '0']),
            letter => {
                if ESCAPED.contains(letter) {
                    marked.push('\\');
                }
                marked.push(letter);
            }
        }
    }
    let is_space = |letter: &char| *letter == ' ' || *letter == '\r';
    let lead = marked.iter().take_while(|letter| is_space(letter)).count();
    let trail = marked.iter().rev().take_while(|letter| is_space(letter)).count();
    let last = marked.len() - trail;
    let mut out = String::new();
    for (at, letter) in marked.into_iter().enumerate() {
        if at < lead || at >= last {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use x509_cert::der::Any;

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

    fn subject(pem: &[u8]) -> String {
        let der = CertificateDer::from_pem_slice(pem).expect("a certificate");
        Certificate::of(&der).expect("can be read").subject
    }

    #[test]
    fn a_bmp_string_is_read_as_utf_16_and_is_no_ascii_name() {
        let oid = "2.5.4.3".parse().expect("CN");
        let shown = |bytes: &[u8]| {
            let value = Any::new(Tag::BmpString, bytes).expect("a string");
            attribute(&AttributeTypeAndValue { oid, value }).expect("can be written")
        };
        assert_eq!(shown(b"admin7"), "CN=\u{6164}\u{6d69}\u{6e37}");
        assert_eq!(shown(b"\0a\0b"), "CN=ab");
        assert_eq!(shown(b"odd"), "CN=#1e036f6464");
    }

    #[test]
    fn subjects_have_the_form_of_java() {
        // Output of `X500Principal.getName()` in Java 17, in both cases.
        assert_eq!(
            subject(include_bytes!("../testdata/design.pem")),
            "2.5.4.5=#13023432,1.2.840.113549.1.9.1=#16056140622e63,CN=wörker 7,OU=R&D+CN=multi,O=Acme\\, Inc.,\
             L=Berlin,ST=Berlin,C=DE"
        );
        assert_eq!(
            subject(include_bytes!("../testdata/odd.pem")),
            r##"O=\ \#lead \= \"q\" \<a\>\;\\\\,2.5.4.12=#0c024472,STREET=x,UID=u7,DC=com"##
        );
    }
}
