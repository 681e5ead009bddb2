//! Who has done it, within bounds: what a client says of itself must not fill the disk.

use std::net::SocketAddr;

use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::ASK_BY_MAX_BYTES;
use rowlock_state::acl;
use serde::Serialize;

use crate::trace::TraceParent;

/// Bytes of a text of a client that are recorded. Beyond: it is cut, and ends in `…`.
const TEXT_MAX_BYTES: usize = 1_024;
/// Identities that are recorded. Beyond: the last one is `…`.
const IDENTITIES_MAX: usize = 8;
pub(super) const CUT: char = '…';

#[derive(Clone, Debug, Default, Serialize)]
pub struct Client {
    /// Its identities as `scheme:id`; of a digest only the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub who: Vec<String>,
    /// Its session, in the form of all logs and reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The trace that its request belongs to, if it has said so by HTTP.
    #[serde(rename = "traceparent", skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

impl Client {
    pub fn new(identities: &[Id], session: SessionId, address: SocketAddr) -> Client {
        let session = (session != SessionId::NONE).then(|| session.to_string());
        Client { who: who(identities), session, address: Some(address), trace: None }
    }

    /// Returns it with the trace of its request.
    pub fn traced(self, trace: Option<&TraceParent>) -> Client {
        Client { trace: trace.map(ToString::to_string), ..self }
    }

    /// Whether it comes from somewhere and has no identity but its address.
    pub fn has_proven_nothing(&self) -> bool {
        self.address.is_some() && self.who.iter().all(|one| one.starts_with("ip:"))
    }
}

pub fn who(identities: &[Id]) -> Vec<String> {
    let mut all: Vec<String> = identities
        .iter()
        .take(IDENTITIES_MAX)
        .map(|Id { scheme, id }| {
            let shown = id.split(':').next().filter(|_| scheme == "digest").unwrap_or(id);
            if shown.is_empty() { scheme.clone() } else { text(&format!("{scheme}:{shown}")) }
        })
        .collect();
    all.extend((identities.len() > IDENTITIES_MAX).then(|| CUT.to_string()));
    all
}

/// Who asks for a lock, as its holders are told: what the client has proven to be, else its address, and
/// behind that what it says of itself. At most [`ASK_BY_MAX_BYTES`].
pub(crate) fn asker(identities: &[Id], label: &str) -> String {
    let mut text = acl::name_of(identities);
    if !label.is_empty() {
        text = if text.is_empty() { label.to_owned() } else { format!("{text} ({label})") };
    }
    let end = (0..=ASK_BY_MAX_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

/// As much of a client's text as is recorded.
pub(crate) fn text(of: &str) -> String {
    if of.len() <= TEXT_MAX_BYTES {
        return of.to_owned();
    }
    let end = (0..=TEXT_MAX_BYTES).rev().find(|at| of.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{CUT}", &of[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_what_is_proven_before_the_address_and_never_long() {
        let id = |scheme: &str, id: &str| Id { scheme: scheme.to_owned(), id: id.to_owned() };
        let ip = || id("ip", "10.0.0.1");
        let (name, digest) = (id("x509", "CN=a"), id("digest", "bob:hash"));
        for (who, label, expected) in [
            (vec![ip()], "", "ip:10.0.0.1"),
            (vec![ip()], "deploy", "ip:10.0.0.1 (deploy)"),
            (vec![ip(), id("super", ""), name], "", "x509:CN=a"),
            (vec![ip(), digest], "d", "digest:bob (d)"),
            (vec![id("super", "")], "", "super"),
            (Vec::new(), "d", "d"),
        ] {
            assert_eq!(asker(&who, label), expected);
        }
        let long = asker(&[id("x509", &"é".repeat(200))], &"l".repeat(9_000));
        assert!(long.len() <= ASK_BY_MAX_BYTES && long.starts_with("x509:é"), "{long}");
    }
}
