//! SASL DIGEST-MD5 (RFC 2831), the mechanism of ZooKeeper's clients: challenge, response, proof of the
//! server. Pure: the nonce is an input.
//!
//! The mechanism hides a password from eavesdroppers, and no more: MD5 is weak, and the passwords are in
//! cluster.toml. ZooKeeper has no stronger mechanism but Kerberos.
//!
//! Must never let a client distinguish an unknown user from a wrong password.

use std::collections::BTreeMap;

use md5::{Digest, Md5};
use rowlock_env::busy::{self, Work};

use super::identity::same_secret;

/// ZooKeeper's name for realm and host.
const REALM: &str = "zk-sasl-md5";
const DIGEST_URI: &str = "zookeeper/zk-sasl-md5";
/// Maximum length of a client's token. Beyond: the negotiation fails.
const TOKEN_MAX_BYTES: usize = 4 << 10;

/// Server side of one negotiation.
#[derive(Debug, Default)]
pub(super) enum Negotiation {
    /// Waits for the client's empty first token.
    #[default]
    Begin,
    /// Waits for the response to the challenge with this nonce.
    Challenged(String),
    /// Finished. A connection negotiates only once.
    Over,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SaslStep {
    Challenge(String),
    /// The client has authenticated; `token` proves that the server knows the password, too.
    Proven {
        user: String,
        token: String,
    },
}

/// The client has failed to authenticate, or does not speak DIGEST-MD5 as this server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

impl Negotiation {
    /// Handles the client's token. `nonce` must be new and not guessable. After a failure the caller closes
    /// the connection.
    pub(super) fn step(
        &mut self,
        token: &[u8],
        users: &BTreeMap<String, String>,
        nonce: impl FnOnce() -> String,
    ) -> Result<SaslStep, Failed> {
        match std::mem::replace(self, Negotiation::Over) {
            Negotiation::Begin if token.is_empty() => {
                let nonce = nonce();
                let challenge =
                    format!("realm=\"{REALM}\",nonce=\"{nonce}\",charset=utf-8,algorithm=md5-sess");
                *self = Negotiation::Challenged(nonce);
                Ok(SaslStep::Challenge(challenge))
            }
            Negotiation::Challenged(nonce) if token.len() <= TOKEN_MAX_BYTES => {
                let token = std::str::from_utf8(token).map_err(|_| Failed)?;
                check(&directives(token).ok_or(Failed)?, users, &nonce)
            }
            Negotiation::Begin | Negotiation::Challenged(_) | Negotiation::Over => Err(Failed),
        }
    }
}

type Directives = BTreeMap<String, String>;

fn check(given: &Directives, users: &BTreeMap<String, String>, nonce: &str) -> Result<SaslStep, Failed> {
    let of = |key: &str| given.get(key).map(String::as_str);
    let user = of("username").ok_or(Failed)?;
    let fits = of("realm").unwrap_or_default() == REALM
        && of("nonce") == Some(nonce)
        && of("nc") == Some("00000001")
        && of("qop").unwrap_or("auth") == "auth"
        && of("digest-uri").is_some_and(|uri| uri.eq_ignore_ascii_case(DIGEST_URI));
    if !fits || of("cnonce").is_none_or(str::is_empty) {
        return Err(Failed);
    }
    // Computed for an unknown user, too.
    let password = users.get(user);
    let response = answer(given, user, password.map_or("", String::as_str), "AUTHENTICATE");
    let matches = same_secret(response.as_bytes(), of("response").unwrap_or_default().as_bytes());
    match password {
        Some(password) if matches => {
            let token = format!("rspauth={}", answer(given, user, password, ""));
            Ok(SaslStep::Proven { user: user.to_owned(), token })
        }
        _ => Err(Failed),
    }
}

/// Computes the response value of RFC 2831, 2.1.2.1: the client's with the method AUTHENTICATE, the server's
/// without a method.
fn answer(given: &Directives, user: &str, password: &str, method: &str) -> String {
    busy::spend(Work::Hash, 1);
    let of = |key: &str| given.get(key).map_or("", String::as_str);
    let mut secret = Md5::new();
    for (i, part) in [user, of("realm"), password].into_iter().enumerate() {
        if i > 0 {
            secret.update(b":");
        }
        secret.update(in_latin_1_if_possible(part));
    }
    let mut a1 = Md5::new();
    a1.update(secret.finalize());
    a1.update(format!(":{}:{}", of("nonce"), of("cnonce")));
    if let Some(authzid) = given.get("authzid") {
        a1.update(format!(":{authzid}"));
    }
    let a2 = format!("{method}:{}", of("digest-uri"));
    let (a1, a2) = (hex(a1), hex(Md5::new_with_prefix(a2)));
    let all = format!("{a1}:{}:{}:{}:auth:{a2}", of("nonce"), of("nc"), of("cnonce"));
    hex(Md5::new_with_prefix(all))
}

fn hex(digest: Md5) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes a text as RFC 2831 hashes it: in ISO 8859-1 where possible, else in UTF-8.
fn in_latin_1_if_possible(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Parses `key=value,key="quoted value"`. Returns `None` for another form, or if a key appears twice.
fn directives(mut text: &str) -> Option<Directives> {
    let mut found = Directives::new();
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        if text.is_empty() {
            return Some(found);
        }
        let (key, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        if found.insert(key.trim().to_ascii_lowercase(), value).is_some() {
            return None;
        }
        text = rest;
    }
}

/// Returns the text up to the closing quote, and the rest.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn users() -> BTreeMap<String, String> {
        BTreeMap::from([
            ("chris".to_owned(), "secret".to_owned()),
            ("jürgen".to_owned(), "пароль".to_owned()),
        ])
    }

    fn begun(nonce: &str) -> Negotiation {
        let mut negotiation = Negotiation::default();
        let challenge = format!("realm=\"zk-sasl-md5\",nonce=\"{nonce}\",charset=utf-8,algorithm=md5-sess");
        assert_eq!(negotiation.step(b"", &users(), || nonce.to_owned()), Ok(SaslStep::Challenge(challenge)));
        negotiation
    }

    /// Returns a client's answer to the challenge with this nonce.
    pub(in crate::node::zk) fn token(user: &str, password: &str, nonce: &str) -> String {
        let start = format!(
            "charset=utf-8,username=\"{user}\",realm=\"zk-sasl-md5\",nonce=\"{nonce}\",nc=00000001,cnonce=\"c,\\\"n\",\
             digest-uri=\"zookeeper/zk-sasl-md5\",maxbuf=65536,qop=auth"
        );
        let response = answer(&directives(&start).unwrap(), user, password, "AUTHENTICATE");
        format!("{start},response={response}")
    }

    #[test]
    fn the_digest_is_the_one_of_the_rfc() {
        // RFC 2831, section 4.
        let given = "charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",\
                     nc=00000001,cnonce=\"OA6MHXh6VqTrRk\",digest-uri=\"imap/elwood.innosoft.com\",qop=auth";
        let given = directives(given).unwrap();
        let client = answer(&given, "chris", "secret", "AUTHENTICATE");
        assert_eq!(client, "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(answer(&given, "chris", "secret", ""), "ea40f60335c427b5527b84dbabcdfffd");
    }

    #[test]
    fn the_right_password_authenticates_once() {
        for (user, password) in [("chris", "secret"), ("jürgen", "пароль")] {
            let mut negotiation = begun("n");
            match negotiation.step(token(user, password, "n").as_bytes(), &users(), String::new) {
                Ok(SaslStep::Proven { user: proven, token }) => {
                    assert_eq!(proven, user);
                    assert!(token.starts_with("rspauth=") && token.len() == 40, "{token}");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(negotiation.step(b"", &users(), String::new), Err(Failed));
        }
    }

    #[test]
    fn anything_else_fails() {
        let right = token("chris", "secret", "n");
        for wrong in [
            token("chris", "guess", "n"),
            token("nobody", "", "n"),
            token("chris", "secret", "replayed"),
            right.replace("nc=00000001", "nc=00000002"),
            right.replace("qop=auth", "qop=auth-conf"),
            right.replace("digest-uri=\"zookeeper", "digest-uri=\"imap"),
            right.replace("realm=\"zk-sasl-md5\"", "realm=\"other\""),
            right.replace("username=\"chris\",", ""),
            format!("{right},nonce=\"n\""),
            right.replace("cnonce=\"c,\\\"n\"", "cnonce=\"c"),
            "x".repeat(TOKEN_MAX_BYTES + 1),
        ] {
            assert_eq!(begun("n").step(wrong.as_bytes(), &users(), String::new), Err(Failed), "{wrong}");
        }
        assert_eq!(begun("n").step(&[0xff], &users(), String::new), Err(Failed));
        assert_eq!(Negotiation::default().step(b"x", &users(), String::new), Err(Failed));
    }
}
