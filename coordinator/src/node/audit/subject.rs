//! Identity of a client for audit records, bounded in length: text from a client must not fill the disk.

use std::net::SocketAddr;

use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::ASK_BY_MAX_BYTES;
use rowlock_state::acl;
use serde::Serialize;

use crate::node::trace::TraceParent;

/// Maximum recorded bytes of a client's text. A longer text is cut and ends in `…`.
const TEXT_MAX_BYTES: usize = 1_024;
/// Maximum recorded identities. A longer list ends in `…`.
const IDENTITIES_MAX: usize = 8;
pub(super) const CUT: char = '…';

#[derive(Clone, Debug, Default, Serialize)]
pub struct Client {
    /// Identities as `scheme:id`; for a digest only the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub who: Vec<String>,
    /// Session id in the form of all logs and reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Trace context of the request. Only HTTP requests carry one.
    #[serde(rename = "traceparent", skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

impl Client {
    pub fn new(identities: &[Id], session: SessionId, address: SocketAddr) -> Client {
        let session = (session != SessionId::NONE).then(|| session.to_string());
        Client { who: who(identities), session, address: Some(address), trace: None }
    }

    /// Sets the trace context.
    pub fn traced(self, trace: Option<&TraceParent>) -> Client {
        Client { trace: trace.map(ToString::to_string), ..self }
    }

    /// Returns whether a remote client has no identity but its IP address.
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

/// Returns the name of a client that asks for a lock, for display to the lock's holders: the authenticated
/// name, else the address, followed by the client's own label. At most [`ASK_BY_MAX_BYTES`].
pub(crate) fn asker(identities: &[Id], label: &str) -> String {
    let mut text = acl::name_of(identities);
    if !label.is_empty() {
        text = if text.is_empty() { label.to_owned() } else { format!("{text} ({label})") };
    }
    let end = (0..=ASK_BY_MAX_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

/// Cuts a client's text to the recorded length.
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
    fn an_askers_name_prefers_proven_identities_and_is_bounded() {
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
