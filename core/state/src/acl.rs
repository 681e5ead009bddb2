//! Access control: permission checks, well-formed lists, and the output of `getACL`.
//!
//! Follows ZooKeeper's `PrepRequestProcessor.fixupACL` and `ZooKeeperServer.checkACL`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_proto::ErrorCode;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ASK_BY_MAX_BYTES;
use sha1::{Digest as _, Sha1};

use crate::guard::decides;

/// Limit of a list's size on the wire, after the expansion of `auth`. Beyond: [`ErrorCode::InvalidAcl`].
/// ZooKeeper has no limit, but there one frame of `auth` entries can make a list of gigabytes.
pub const ACL_BYTES_MAX: usize = 256 << 10;

/// Returns whether `who` contains a superuser. Superusers pass every list.
pub fn is_super(who: &[Id]) -> bool {
    who.iter().any(|id| id.scheme == "super")
}

/// Returns whether `who` contains more than an address.
pub fn has_proven(who: &[Id]) -> bool {
    who.iter().any(|id| is_proof(&id.scheme))
}

/// Returns whether the list grants a bit of `perm` to any of `who` or to every client, or `who` contains a
/// superuser.
pub fn may(acl: &[Acl], perm: i32, who: &[Id]) -> bool {
    crate::steps::take(acl.len() * who.len());
    decides!(
        "acl-allows",
        is_super(who) || acl.iter().any(|entry| entry.perms & perm != 0 && is_one_of(&entry.id, who))
    )
}

/// Returns whether `wanted` is one of `who` or every client.
pub(crate) fn is_one_of(wanted: &Id, who: &[Id]) -> bool {
    is_anyone(wanted) || who.iter().any(|id| identity_matches(id, wanted))
}

/// Returns a client's name for operators: the first proven identity, else the address. Of a digest only the
/// user. At most [`ASK_BY_MAX_BYTES`].
pub fn name_of(who: &[Id]) -> String {
    let is_name = |id: &&Id| !["ip", "super", "world"].contains(&id.scheme.as_str());
    let Some(Id { scheme, id }) = who.iter().find(is_name).or(who.first()) else { return String::new() };
    let shown = id.split(':').next().filter(|_| scheme == "digest").unwrap_or(id);
    let mut name = if shown.is_empty() { scheme.clone() } else { format!("{scheme}:{shown}") };
    let end = (0..=ASK_BY_MAX_BYTES.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(end.unwrap_or(0));
    name
}

/// Returns the identity proven by an auth packet of scheme `digest` (`user:password`).
pub fn digest_identity(user_password: &str) -> Id {
    let user = user_password.split(':').next().unwrap_or_default();
    let hash = STANDARD.encode(Sha1::digest(user_password.as_bytes()));
    Id { scheme: "digest".to_owned(), id: format!("{user}:{hash}") }
}

/// Returns a list as `getACL` shows the list to `who`: digests only with ADMIN.
pub(crate) fn shown_to(acl: &[Acl], who: &[Id]) -> Vec<Acl> {
    let mut acl = acl.to_vec();
    if decides!("acl-digests-are-hidden", !may(&acl, perms::ADMIN, who)) {
        for entry in acl.iter_mut().filter(|entry| entry.id.scheme == "digest") {
            if let Some(colon) = entry.id.id.find(':') {
                entry.id.id.replace_range(colon.., ":x");
            }
        }
        debug_assert!(
            acl.iter().all(|entry| entry.id.scheme != "digest" || entry.id.id.ends_with(":x")),
            "a digest is shown to who may not see it"
        );
    }
    acl
}

/// Returns the list to store for a given list: without duplicates, and with the identities of `who` for
/// `auth`.
pub(crate) fn resolve<'a>(acl: Option<&'a [Acl]>, who: &'a [Id]) -> Result<Vec<Acl>, ErrorCode> {
    let mut resolved = Vec::new();
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    let mut push = |perms: i32, id: &'a Id| {
        crate::steps::take(1);
        if seen.insert((perms, id)) {
            // Permissions and two lengths, four bytes each.
            bytes += 12 + id.scheme.len() + id.id.len();
            resolved.push(Acl { perms, id: id.clone() });
        }
        if bytes > ACL_BYTES_MAX { Err(ErrorCode::InvalidAcl) } else { Ok(()) }
    };
    for entry in acl.unwrap_or_default() {
        if decides!("acl-entry-is-auth", entry.id.scheme == "auth") {
            let mut proven = who.iter().filter(|id| is_proof(&id.scheme)).peekable();
            if decides!("client-has-proven-nothing", proven.peek().is_none()) {
                return Err(ErrorCode::InvalidAcl);
            }
            for id in proven {
                push(entry.perms, id)?;
            }
        } else if is_well_formed(&entry.id) {
            push(entry.perms, &entry.id)?;
        } else {
            return Err(ErrorCode::InvalidAcl);
        }
    }
    assert!(bytes <= ACL_BYTES_MAX, "a list of {bytes} bytes was not refused");
    debug_assert!(resolved.iter().all(|entry| entry.id.scheme != "auth"), "auth stands for whom it proves");
    if resolved.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(resolved) }
}

pub(crate) fn is_anyone(id: &Id) -> bool {
    id.scheme == "world" && id.id == "anyone"
}

/// Returns whether a scheme proves an identity; an address does not.
pub(crate) fn is_proof(scheme: &str) -> bool {
    matches!(scheme, "digest" | "sasl" | "x509")
}

fn identity_matches(who: &Id, wanted: &Id) -> bool {
    who.scheme == wanted.scheme
        && match who.scheme.as_str() {
            "digest" | "x509" | "token" => who.id == wanted.id,
            "sasl" => who.id == wanted.id || who.id == "super",
            "ip" => is_in_network(&who.id, &wanted.id),
            _ => false,
        }
}

pub(crate) fn is_well_formed(id: &Id) -> bool {
    match id.scheme.as_str() {
        "world" => id.id == "anyone",
        "ip" => is_network(&id.id),
        // Like Java's `split(":").length == 2`, which ignores empty parts at the end.
        "digest" => id.id.trim_end_matches(':').split(':').count() == 2,
        "sasl" => is_kerberos_name(&id.id),
        "x509" => is_subject(&id.id),
        _ => false,
    }
}

/// Checks for parts of a type and a value, in the form in which Java prints a certificate's subject (RFC
/// 2253): a backslash precedes a comma within a value.
fn is_subject(name: &str) -> bool {
    let (mut has_type, mut is_escaped) = (false, false);
    for letter in name.chars() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '=' => has_type = true,
            ',' if !has_type => return false,
            ',' => has_type = false,
            _ => {}
        }
    }
    has_type && !is_escaped
}

/// Checks for `service`, `service@REALM` or `service/host@REALM`.
fn is_kerberos_name(name: &str) -> bool {
    match name.split_once('@') {
        None => true,
        Some((principal, realm)) => !realm.contains(['/', '@']) && principal.matches('/').count() <= 1,
    }
}

/// Returns whether `id` is an address or `address/bits`.
fn is_network(id: &str) -> bool {
    parse_network(id).is_some()
}

/// Returns whether the address `who` lies in the network `wanted`. v4 and v6 never match each other.
fn is_in_network(who: &str, wanted: &str) -> bool {
    let Ok(who) = who.parse::<IpAddr>() else { return false };
    match (who.to_canonical(), parse_network(wanted)) {
        (IpAddr::V4(who), Some((IpAddr::V4(network), bits))) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            who.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(who), Some((IpAddr::V6(network), bits))) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            who.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

fn parse_network(network: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match network.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (network, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) => bits.parse().ok()?,
        None => all,
    };
    (bits <= all).then_some((address, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id {
        let (scheme, id) = text.split_once(':').unwrap();
        Id { scheme: scheme.to_owned(), id: id.to_owned() }
    }

    fn entry(perms: i32, text: &str) -> Acl {
        Acl { perms, id: id(text) }
    }

    #[test]
    fn digest_identity_is_the_one_of_the_zookeeper_manual() {
        assert_eq!(digest_identity("super:test").id, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
    }

    #[test]
    fn only_a_matching_identity_with_the_bit_may() {
        let acl = [entry(perms::READ, "digest:u:h"), entry(perms::WRITE, "ip:10.0.0.0/8")];
        assert!(may(&acl, perms::READ, &[id("digest:u:h")]));
        assert!(!may(&acl, perms::WRITE, &[id("digest:u:h")]));
        assert!(may(&acl, perms::WRITE, &[id("ip:10.2.3.4")]));
        assert!(!may(&acl, perms::READ, &[]));
        assert!(may(&acl, perms::ADMIN, &[id("super:")]));
        assert!(may(&Acl::open(), perms::ALL, &[]));
        assert!(!may(&[entry(31, "sasl:bob")], perms::READ, &[id("x509:bob")]));
    }

    #[test]
    fn forms_of_ids_are_those_of_zookeeper() {
        for good in [
            "world:anyone",
            "digest:a:b",
            "digest::b",
            "digest:a:b:",
            "sasl:bob",
            "sasl:bob/h@REALM",
            "x509:CN=a,O=b",
            "x509:CN=R&D+OU=x,O=Acme\\, Inc.,2.5.4.5=#13023432",
        ] {
            assert!(is_well_formed(&id(good)), "{good}");
        }
        for bad in [
            "world:other",
            "digest:a",
            "digest:a:",
            "digest:a:b:c",
            "super:x",
            "none:x",
            "sasl:a/b/c@R",
            "x509:",
            "x509:a",
            "x509:CN=a,b",
            "x509:CN=a,",
            "x509:CN=a\\",
            "ip:300.1.1.1",
        ] {
            assert!(!is_well_formed(&id(bad)), "{bad}");
        }
    }

    #[test]
    fn auth_becomes_every_proven_identity_once() {
        let who = [id("ip:1.2.3.4"), id("digest:u:h"), id("digest:v:h")];
        let given = [
            entry(31, "auth:"),
            entry(31, "auth:ignored"),
            entry(1, "world:anyone"),
            entry(1, "world:anyone"),
        ];
        let expected = vec![entry(31, "digest:u:h"), entry(31, "digest:v:h"), entry(1, "world:anyone")];
        assert_eq!(resolve(Some(&given), &who), Ok(expected));
        assert_eq!(resolve(Some(&given), &who[..1]), Err(ErrorCode::InvalidAcl));
        assert_eq!(resolve(None, &who), Err(ErrorCode::InvalidAcl));
        assert_eq!(resolve(Some(&[]), &who), Err(ErrorCode::InvalidAcl));
    }

    #[test]
    fn a_list_that_would_grow_without_bound_is_refused() {
        let who = [Id { scheme: "digest".to_owned(), id: "u".repeat(ACL_BYTES_MAX / 100) }];
        let given: Vec<Acl> = (0..100).map(|perms| entry(perms, "auth:")).collect();
        assert_eq!(resolve(Some(&given), &who), Err(ErrorCode::InvalidAcl));
        assert_eq!(resolve(Some(&given[..90]), &who).map(|acl| acl.len()), Ok(90));
    }

    #[test]
    fn digests_are_shown_only_with_admin() {
        let acl = [entry(perms::ALL, "digest:u:h"), entry(perms::READ, "ip:::1")];
        assert_eq!(shown_to(&acl, &[])[0].id.id, "u:x");
        assert_eq!(shown_to(&acl, &[])[1], acl[1]);
        assert_eq!(shown_to(&acl, &[id("digest:u:h")]), acl);
        assert_eq!(shown_to(&[entry(perms::READ, "digest:a:b:")], &[])[0].id.id, "a:x");
    }

    #[test]
    fn prefixes_match_in_both_families() {
        assert!(is_in_network("10.1.2.3", "10.1.2.3"));
        assert!(is_in_network("10.1.2.3", "10.0.0.0/8"));
        assert!(is_in_network("10.1.2.3", "0.0.0.0/0"));
        assert!(!is_in_network("11.1.2.3", "10.0.0.0/8"));
        assert!(is_in_network("2001:db8::7", "2001:db8::/32"));
        assert!(is_in_network("2001:db8::7", "::/0"));
        assert!(!is_in_network("2001:db9::7", "2001:db8::/32"));
        assert!(!is_in_network("10.1.2.3", "::/0"));
        assert!(is_in_network("::ffff:10.1.2.3", "10.0.0.0/8"), "a v4 client on a v6 socket");
        assert!(!is_in_network("nonsense", "10.0.0.0/8"));
    }

    #[test]
    fn bad_forms_are_refused() {
        for bad in ["", "10.1.2", "10.1.2.3/33", "::1/129", "10.1.2.3/", "10.1.2.3/-1", "host"] {
            assert!(!is_network(bad), "{bad}");
        }
    }
}
