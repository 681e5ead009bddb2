//! Own authorities and certificates, for `rowlock tls init` and for tests.

use std::net::IpAddr;

use ::time::{Duration, OffsetDateTime};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber,
};
use rowlock_env::time;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName};
use x509_cert::der::Decode;

use crate::certificate::Certificate;
use crate::error::TlsError;

/// Validity before the issue, because the clocks of machines differ.
const CLOCKS_DIFFER: Duration = Duration::HOUR;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert_pem: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// Common name, and the whole subject.
    pub name: &'a str,
    /// Host names and IP addresses of the owner.
    pub hosts: &'a [&'a str],
    pub uri: Option<&'a str>,
    /// Validity, in seconds from now.
    pub valid_s: i64,
}

/// A certificate and its key, in PEM form.
#[derive(Clone)]
pub struct Issued {
    pub cert_pem: String,
    pub key_pem: String,
    pub certificate: Certificate,
}

impl Authority {
    /// Makes an authority with a new key.
    ///
    /// # Errors
    /// The name has characters outside the standard.
    pub fn new(name: &str, valid_s: i64) -> Result<Authority, TlsError> {
        let key = KeyPair::generate().map_err(to_settings_error)?;
        let mut params = authority_params(name);
        (params.not_before, params.not_after) = validity(valid_s)?;
        let cert_pem = params.self_signed(&key).map_err(to_settings_error)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), cert_pem })
    }

    /// Loads an authority made by [`Authority::new`].
    ///
    /// # Errors
    /// The texts are not PEM, or belong to a foreign authority.
    pub fn load(cert_pem: &str, key_pem: &str) -> Result<Authority, TlsError> {
        let key = KeyPair::from_pem(key_pem).map_err(to_settings_error)?;
        let der = CertificateDer::from_pem_slice(cert_pem.as_bytes()).map_err(to_settings_error)?;
        let read = Certificate::of(&der)?;
        let foreign = || TlsError::Settings("this authority was not made by Rowlock".to_owned());
        let name = read.subject.strip_prefix("CN=").ok_or_else(foreign)?;
        let authority =
            Authority { issuer: Issuer::new(authority_params(name), key), cert_pem: cert_pem.to_owned() };
        // Issues a trial certificate: a foreign subject would lose its other attributes in issued
        // certificates, and a wrong key would sign them.
        let trial = authority.issue(&Leaf { name: "trial", hosts: &[], uri: None, valid_s: 60 })?;
        let trial = CertificateDer::from_pem_slice(trial.cert_pem.as_bytes()).map_err(to_settings_error)?;
        let parse = |der: &[u8]| x509_cert::Certificate::from_der(der).map_err(to_settings_error);
        let (ours, made) = (parse(&der)?.tbs_certificate, parse(&trial)?.tbs_certificate);
        if ours.subject != made.issuer {
            return Err(foreign());
        }
        let public = ours.subject_public_key_info.subject_public_key.raw_bytes();
        if public != authority.issuer.key().public_key_raw() {
            return Err(TlsError::Settings(
                "the authority's key does not go with its certificate".to_owned(),
            ));
        }
        Ok(authority)
    }

    /// Returns the authority's certificate, in PEM form.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs a new certificate with a new key.
    ///
    /// # Errors
    /// A name has characters outside the standard.
    pub fn issue(&self, leaf: &Leaf<'_>) -> Result<Issued, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(leaf.name);
        (params.not_before, params.not_after) = validity(leaf.valid_s)?;
        for host in leaf.hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(host_name(host)?),
            });
        }
        if let Some(uri) = leaf.uri {
            params.subject_alt_names.push(SanType::URI(letters(uri)?));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A node both dials and listens.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !leaf.hosts.is_empty() || leaf.uri.is_some() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(to_settings_error)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(to_settings_error)?;
        let certificate = Certificate::of(signed.der())?;
        Ok(Issued { cert_pem: signed.pem(), key_pem: key.serialize_pem(), certificate })
    }

    /// Makes a list of revoked certificates, in PEM form.
    ///
    /// # Errors
    /// A time is outside the calendar.
    pub fn revoke(&self, revoked: &[&Certificate]) -> Result<String, TlsError> {
        let (now, next) = (at(0)?, at(30 * 86_400)?);
        let revoked_certs = revoked.iter().map(|certificate| RevokedCertParams {
            serial_number: SerialNumber::from(bytes(&certificate.serial)),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: now,
            next_update: next,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(to_settings_error)
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

fn validity(valid_s: i64) -> Result<(OffsetDateTime, OffsetDateTime), TlsError> {
    Ok((at(0)? - CLOCKS_DIFFER, at(valid_s)?))
}

/// Returns the time `seconds` from now.
fn at(seconds: i64) -> Result<OffsetDateTime, TlsError> {
    let since_1970 = (time::wall_ms() / 1_000).saturating_add(seconds);
    OffsetDateTime::from_unix_timestamp(since_1970).map_err(to_settings_error)
}

/// Parses a host name, or a pattern such as `*.example`.
fn host_name(host: &str) -> Result<Ia5String, TlsError> {
    match DnsName::try_from(host.strip_prefix("*.").unwrap_or(host)) {
        Ok(_) => letters(host),
        Err(_) => Err(TlsError::Settings(format!("{host:?} is neither the name of a host nor an address"))),
    }
}

fn letters(text: &str) -> Result<Ia5String, TlsError> {
    Ia5String::try_from(text).map_err(|_| TlsError::Settings(format!("{text:?} has letters beyond ASCII")))
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

fn to_settings_error(error: impl ToString) -> TlsError {
    TlsError::Settings(error.to_string())
}
