//! [`Extensions`]: what the server on the other end understands beyond ZooKeeper's protocol.
//!
//! Asked on every attachment, right behind the handshake, by reading [`rowlock_proto::lock::ANNOUNCEMENT`].
//! Apache's servers have no such znode, and close a connection that sends an unknown opcode:
//! nothing but the protocol's own requests may be sent before the answer is there.

use rowlock_proto::{ClusterId, Request};

/// Parses the leader's client address, if announced.
pub(crate) fn leader_of(announcement: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(announcement);
    text.lines().find_map(|line| line.strip_prefix("leader ")).map(|address| address.trim().to_owned())
}

/// Parses the invitation to this session by the leader.
pub(crate) fn invites(announcement: &[u8]) -> bool {
    String::from_utf8_lossy(announcement).lines().any(|line| line.trim_end() == "invites 1")
}

/// Parses the server's cluster id, if announced.
pub(crate) fn cluster_of(announcement: &[u8]) -> Option<ClusterId> {
    let text = String::from_utf8_lossy(announcement);
    text.lines().find_map(|line| line.strip_prefix("cluster ")?.trim().parse().ok())
}

/// The versions of Rowlock's extensions that a server announces; 0: it has none (Apache ZooKeeper).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extensions {
    /// Locks as one request, and grants that are pushed; from 2 on with owners that work under another's
    /// place, from 3 on with questions to holders.
    pub acquire: u32,
    /// Writes that take effect once, however often they are sent.
    pub tagged: u32,
    /// A session may end soon after its client's socket has closed.
    pub session_options: u32,
    /// Reports on locks, queues, sessions and their history.
    pub report: u32,
    /// Version of operators' requests.
    pub operate: u32,
    /// Bytes of the largest request that it takes; 0: it does not say.
    pub frame_bytes: u32,
}

impl Extensions {
    /// A plain ZooKeeper server.
    pub(crate) const NONE: Extensions =
        Extensions { acquire: 0, tagged: 0, session_options: 0, report: 0, operate: 0, frame_bytes: 0 };

    /// Parses an announcement: lines `name version`. Unknown names are for newer clients.
    pub(crate) fn parse(data: &[u8]) -> Self {
        let mut it = Extensions::NONE;
        for line in String::from_utf8_lossy(data).lines() {
            let Some((name, version)) = line.split_once(' ') else { continue };
            let field = match name {
                "acquire" => &mut it.acquire,
                "tagged" => &mut it.tagged,
                "session-options" => &mut it.session_options,
                "report" => &mut it.report,
                "operate" => &mut it.operate,
                "frame-bytes" => &mut it.frame_bytes,
                _ => continue,
            };
            *field = version.trim().parse().unwrap_or(0);
        }
        it
    }

    /// The server has Rowlock's locks; otherwise this client uses ZooKeeper's recipes.
    pub fn has_locks(&self) -> bool {
        self.acquire > 0
    }

    /// The most that one request may have, if the server says so.
    pub(crate) fn request_bytes(&self) -> Option<usize> {
        usize::try_from(self.frame_bytes).ok().filter(|bytes| *bytes > 0)
    }

    /// The server knows [`Owner::Under`](rowlock_proto::lock::Owner::Under).
    pub fn has_owners_under_places(&self) -> bool {
        self.acquire > 1
    }

    /// Returns the extension that the server lacks for this request, if any.
    pub(crate) fn lacks(&self, request: &Request) -> Option<&'static str> {
        match request {
            Request::Acquire(_)
            | Request::Release(_)
            | Request::Abandon(_)
            | Request::Verify(_)
            | Request::Convert { .. }
            | Request::ForceRelease(_) => (self.acquire == 0).then_some("locks kept by the server"),
            Request::Ask(_) => (self.acquire < 3).then_some("questions to holders"),
            Request::Tagged { .. } => (self.tagged == 0).then_some("writes that take effect once"),
            Request::SessionOptions(_) => (self.session_options == 0).then_some("session options"),
            Request::Report(_) => (self.report == 0).then_some("reports"),
            Request::Operate(_) => (self.operate == 0).then_some("what operators have nodes do"),
            _ => None,
        }
    }

    /// The request is to be sent so that it takes effect once. A change of the membership is no command of
    /// the log.
    pub(crate) fn tags(&self, request: &Request) -> bool {
        let excepted = matches!(
            request,
            Request::CloseSession | Request::Reconfig { .. } | Request::Tagged { .. } | Request::Abandon(_)
        );
        self.tagged > 0 && request.is_write() && !excepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_read_line_by_line_and_what_is_unknown_is_skipped() {
        let it = Extensions::parse(b"acquire 1\ntagged 2\nteleport 9\nnonsense\nreport x\nframe-bytes 9\n");
        assert_eq!(it, Extensions { acquire: 1, tagged: 2, frame_bytes: 9, ..Extensions::NONE });
        assert!(it.has_locks() && !Extensions::parse(b"").has_locks());
    }

    #[test]
    fn the_leaders_address_is_one_of_the_lines() {
        assert_eq!(leader_of(b"acquire 1\nleader 10.0.0.3:2181\n").as_deref(), Some("10.0.0.3:2181"));
        assert_eq!(leader_of(b"acquire 1\n"), None);
    }

    #[test]
    fn extension_opcodes_are_lacking_on_plain_servers_and_nothing_else_is() {
        assert!(Extensions::NONE.lacks(&Request::Verify(Default::default())).is_some());
        assert!(Extensions::NONE.lacks(&Request::Report(String::new())).is_some());
        assert!(Extensions::NONE.lacks(&Request::Operate(String::new())).is_some());
        assert_eq!(Extensions::NONE.lacks(&Request::Sync("/".into())), None);
    }
}
