//! Identities of a connection: always the address, and the results of auth packets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_proto::acl::Id;
use rowlock_state::acl::digest_identity;

use crate::limits::{IDENTITIES_MAX, IDENTITIES_MAX_BYTES};

/// Minimum number of addresses before unused ones are dropped.
const UNUSED_MIN: usize = 64;

/// The auth packet failed: unknown scheme, or too many or too long identities of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AuthFailed;

/// Initial identities of connections, one shared list per address: a host has many sessions.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    lists: BTreeMap<IpAddr, Arc<[Id]>>,
    /// Limit of addresses, beyond which unused addresses are dropped: twice the used addresses, at least
    /// `UNUSED_MIN`.
    max: usize,
}

impl Neighbours {
    /// Returns the identities of a connection before any auth packet.
    pub(super) fn identities(&self, addr: IpAddr) -> Arc<[Id]> {
        let mut known = self.known.lock();
        if let Some(list) = known.lists.get(&addr) {
            return list.clone();
        }
        if known.lists.len() >= known.max {
            known.lists.retain(|_, list| Arc::strong_count(list) > 1);
            known.max = UNUSED_MIN.max(2 * known.lists.len());
        }
        let list = of_address(addr);
        known.lists.insert(addr, list.clone());
        list
    }
}

fn of_address(addr: IpAddr) -> Arc<[Id]> {
    Arc::from([Id { scheme: "ip".to_owned(), id: addr.to_canonical().to_string() }])
}

/// Returns the identities after an auth packet: packets only add identities. A wrong digest password is no
/// error but just another identity.
pub(super) fn authenticated(
    identities: &Arc<[Id]>,
    scheme: &str,
    auth: &Bytes,
    super_digest: Option<&str>,
) -> Result<Arc<[Id]>, AuthFailed> {
    let proven = match scheme {
        "digest" => {
            busy::spend(Work::Hash, 1);
            let digest = digest_identity(&String::from_utf8_lossy(auth));
            let is_super = super_digest.is_some_and(|s| {
                decides!("superuser-digest-fits", same_secret(s.as_bytes(), digest.id.as_bytes()))
            });
            let superuser = is_super.then(|| Id { scheme: "super".to_owned(), id: String::new() });
            superuser.into_iter().chain([digest]).collect()
        }
        // The connection itself proves the address, as in ZooKeeper; the packet adds nothing.
        "ip" => Vec::new(),
        _ => return Err(AuthFailed),
    };
    with(identities, proven)
}

/// Returns whether the password is right, if the packet presents the superuser's name.
pub(super) fn super_attempt(scheme: &str, auth: &Bytes, super_digest: Option<&str>) -> Option<bool> {
    let expected = super_digest.filter(|_| scheme == "digest" && auth.starts_with(b"super:"))?;
    busy::spend(Work::Hash, 1);
    let digest = digest_identity(&String::from_utf8_lossy(auth));
    Some(same_secret(expected.as_bytes(), digest.id.as_bytes()))
}

/// Returns the claimed identity of an auth packet, without its secret.
pub(super) fn attempted(scheme: &str, auth: &Bytes) -> String {
    let text = String::from_utf8_lossy(auth);
    match scheme {
        "digest" => format!("digest:{}", text.split(':').next().unwrap_or_default()),
        other => other.to_owned(),
    }
}

/// Returns the identities after a SASL negotiation that authenticated `user`.
pub(super) fn with_sasl_user(identities: &Arc<[Id]>, user: String) -> Result<Arc<[Id]>, AuthFailed> {
    with(identities, vec![Id { scheme: "sasl".to_owned(), id: user }])
}

/// Returns the identities after a TLS handshake with a client certificate of this subject.
pub(super) fn with_certificate(
    identities: &Arc<[Id]>,
    subject: String,
    superusers: &[String],
) -> Result<Arc<[Id]>, AuthFailed> {
    let superuser =
        superusers.contains(&subject).then(|| Id { scheme: "super".to_owned(), id: String::new() });
    let x509 = Id { scheme: "x509".to_owned(), id: subject };
    with(identities, superuser.into_iter().chain([x509]).collect())
}

/// Compares in constant time, so that the duration reveals nothing about the difference.
pub(super) fn same_secret(one: &[u8], other: &[u8]) -> bool {
    let different = one.iter().zip(other).fold(0, |sum, (a, b)| sum | std::hint::black_box(a ^ b));
    one.len() == other.len() && different == 0
}

/// Adds proven identities, within bounds: every write carries its connection's identities to the leader and
/// into the log, and must fit a frame between nodes.
fn with(identities: &Arc<[Id]>, proven: Vec<Id>) -> Result<Arc<[Id]>, AuthFailed> {
    let mut all = identities.to_vec();
    all.extend(proven.into_iter().filter(|id| !identities.contains(id)));
    let bytes: usize = all.iter().map(|id| id.scheme.len() + id.id.len()).sum();
    if all.len() > IDENTITIES_MAX || bytes > IDENTITIES_MAX_BYTES { Err(AuthFailed) } else { Ok(all.into()) }
}

/// Returns the identities in the form of whoAmI: of a digest only the user, of the superuser the scheme.
pub(super) fn shown(identities: &[Id]) -> Vec<Id> {
    identities
        .iter()
        .map(|id| {
            let user = id.id.split(':').next().filter(|_| id.scheme == "digest").unwrap_or(&id.id);
            Id { scheme: id.scheme.clone(), id: user.to_owned() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

    fn ids(identities: &[Id]) -> Vec<(&str, &str)> {
        identities.iter().map(|id| (id.scheme.as_str(), id.id.as_str())).collect()
    }

    fn digest(identities: &Arc<[Id]>, secret: &'static str) -> Arc<[Id]> {
        authenticated(identities, "digest", &Bytes::from_static(secret.as_bytes()), Some(SUPER)).unwrap()
    }

    #[test]
    fn identities_add_up_and_each_is_kept_once() {
        let address = of_address(IpAddr::from([127, 0, 0, 1]));
        let one = digest(&address, "u:pw");
        assert_eq!(ids(&one)[0], ("ip", "127.0.0.1"));
        assert!(one[1].scheme == "digest" && one[1].id.starts_with("u:"), "{one:?}");
        assert_eq!(digest(&one, "u:pw"), one);
        assert_eq!(digest(&one, "u:other").len(), 3);
        assert_eq!(ids(&shown(&one)), [("ip", "127.0.0.1"), ("digest", "u")]);
    }

    #[test]
    fn connections_of_one_address_share_identities_until_unused() {
        let neighbours = Neighbours::default();
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        let one = neighbours.identities(address(1));
        assert_eq!(ids(&one), [("ip", "0.0.0.1")]);
        for n in 2..10_000 {
            neighbours.identities(address(n));
            assert!(neighbours.known.lock().lists.len() <= UNUSED_MIN);
        }
        assert!(Arc::ptr_eq(&one, &neighbours.identities(address(1))));
        let used: Vec<_> = (0..1_000).map(|n| neighbours.identities(address(n))).collect();
        assert_eq!(neighbours.known.lock().lists.len(), used.len());
    }

    #[test]
    fn secrets_are_the_same_in_length_and_every_byte() {
        assert!(same_secret(b"abc", b"abc") && same_secret(b"", b""));
        assert!(!same_secret(b"abc", b"abd") && !same_secret(b"abc", b"ab") && !same_secret(b"", b"a"));
    }

    #[test]
    fn who_am_i_hides_the_superusers_digest() {
        let superuser = digest(&of_address(IpAddr::from([10, 0, 0, 1])), "super:test");
        assert_eq!(ids(&superuser)[1..], [("super", ""), ("digest", SUPER)]);
        assert_eq!(ids(&shown(&superuser)), [("ip", "10.0.0.1"), ("super", ""), ("digest", "super")]);
    }

    #[test]
    fn unknown_schemes_and_a_flood_of_identities_fail() {
        let mut identities = of_address(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(authenticated(&identities, "nosuch", &Bytes::new(), None), Err(AuthFailed));
        for i in 1..IDENTITIES_MAX {
            identities = authenticated(&identities, "digest", &format!("u{i}:p").into(), None).unwrap();
        }
        assert_eq!(authenticated(&identities, "digest", &Bytes::from_static(b"x:y"), None), Err(AuthFailed));
    }

    #[test]
    fn identities_that_would_not_travel_with_a_write_fail() {
        let address = of_address(IpAddr::from([127, 0, 0, 1]));
        let user = |letter: &str, len: usize| Bytes::from(format!("{}:pw", letter.repeat(len)));
        let half = authenticated(&address, "digest", &user("a", IDENTITIES_MAX_BYTES / 2), None).unwrap();
        assert_eq!(
            authenticated(&half, "digest", &user("b", IDENTITIES_MAX_BYTES / 2), None),
            Err(AuthFailed)
        );
        assert_eq!(authenticated(&half, "digest", &user("a", IDENTITIES_MAX_BYTES / 2), None), Ok(half));
    }
}
