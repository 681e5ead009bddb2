//! An operator's command to a node, as path and query: `/v1/drain?node=2&on=true`. Pure.
//!
//! The node that receives the text parses the operation and forwards it to the executing node. Must never
//! accept a text with a part that it does not understand.

use rowlock_proto::{FencingToken, NodeId, SessionId};
use serde::{Deserialize, Serialize};

/// One operation. Sent between nodes: append variants, never reorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// `/v1/hand-over`: hands the leadership over to another voter.
    HandOver {
        /// The new leader. `None`: the voter with most of the log.
        to: Option<NodeId>,
    },
    /// `/v1/drain`: the node stops leading and serving clients, until an operator ends the drain or the node
    /// restarts.
    Drain {
        node: NodeId,
        /// False ends the drain.
        on: bool,
    },
    /// `/v1/rebalance`: the node closes a share of its clients' connections, and these clients connect to
    /// other nodes.
    Rebalance { node: NodeId, percent: u8 },
    /// `/v1/end-session`: ends a session, whatever its client does.
    EndSession { session: SessionId },
    /// `/v1/upgrade`: shows or changes the version written by the cluster.
    Upgrade(UpgradeStep),
    /// `/v1/log-level`: shows or changes the node's log level.
    LogLevel { node: NodeId, change: LogLevelChange },
    /// `/v1/raise-tokens?above=5000`: all later fencing tokens are larger.
    RaiseTokens { above: FencingToken },
}

/// A query or a change of a node's log level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLevelChange {
    Show,
    /// `reset=true`: restores the log level of the configuration.
    Reset,
    /// `filter=debug`: sets a filter.
    Set {
        /// A level or directives, as the key `log` of `cluster.toml`.
        filter: String,
        /// `for_ms=600000`: time for the filter, 1 to [`LOG_LEVEL_MAX_MS`]. `None`: until the next change or
        /// a restart.
        for_ms: Option<u64>,
    },
}

/// Longest time for a filter: a week.
pub const LOG_LEVEL_MAX_MS: u64 = 7 * 86_400_000;
pub const LOG_FILTER_MAX_BYTES: usize = 1_024;

/// A step of the cluster's upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradeStep {
    /// `do=look`: shows the state of the upgrade.
    Show,
    /// `do=finalize`: switches to the newest version known to all members.
    Finalize,
    /// `do=hold`: keeps the version until an operator finalizes.
    Hold,
}

impl Operation {
    /// Parses `path?query`. `None`: the operation is unknown or invalid.
    pub fn parse(text: &str) -> Option<Operation> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            given.push(part.split_once('=')?);
        }
        let mut take = |name: &str| {
            let at = given.iter().position(|(known, _)| *known == name)?;
            Some(given.remove(at).1)
        };
        let operation = match path {
            "/v1/hand-over" => {
                let to = match take("to") {
                    Some(text) => Some(node(text)?),
                    None => None,
                };
                Operation::HandOver { to }
            }
            "/v1/drain" => Operation::Drain { node: node(take("node")?)?, on: take("on")?.parse().ok()? },
            "/v1/rebalance" => {
                let percent = take("percent")?.parse().ok().filter(|percent| (1..=100).contains(percent))?;
                Operation::Rebalance { node: node(take("node")?)?, percent }
            }
            "/v1/end-session" => Operation::EndSession { session: session(take("session")?)? },
            "/v1/raise-tokens" => {
                let above = take("above")?.parse().ok().filter(|above| *above >= 0)?;
                Operation::RaiseTokens { above: FencingToken(above) }
            }
            "/v1/upgrade" => Operation::Upgrade(match take("do")? {
                "look" => UpgradeStep::Show,
                "finalize" => UpgradeStep::Finalize,
                "hold" => UpgradeStep::Hold,
                _ => return None,
            }),
            "/v1/log-level" => {
                let node = node(take("node")?)?;
                let change = match (take("filter"), take("for_ms"), take("reset")) {
                    (None, None, None) => LogLevelChange::Show,
                    (None, None, Some("true")) => LogLevelChange::Reset,
                    (Some(filter), for_ms, None) => log_filter(filter, for_ms)?,
                    _ => return None,
                };
                Operation::LogLevel { node, change }
            }
            _ => return None,
        };
        // Refuses unknown and repeated parameters.
        if !given.is_empty() {
            return None;
        }
        if let Operation::Rebalance { percent, .. } = &operation {
            assert!((1..=100).contains(percent), "a share outside 1 to 100 percent");
        }
        Some(operation)
    }

    /// Returns the node that executes the operation, while `leader` leads. The receiving node `me` executes
    /// operations that go through the log.
    pub fn executor(&self, me: NodeId, leader: Option<NodeId>) -> Option<NodeId> {
        match self {
            Operation::EndSession { .. } | Operation::RaiseTokens { .. } => Some(me),
            Operation::HandOver { .. } | Operation::Upgrade(_) => leader,
            Operation::Drain { node, .. }
            | Operation::Rebalance { node, .. }
            | Operation::LogLevel { node, .. } => Some(*node),
        }
    }
}

fn node(text: &str) -> Option<NodeId> {
    text.parse().ok().map(NodeId)
}

/// Parses the change of a filter. Only the logger can check that the filter is valid.
fn log_filter(filter: &str, for_ms: Option<&str>) -> Option<LogLevelChange> {
    let for_ms = match for_ms {
        Some(text) => Some(text.parse().ok().filter(|ms| (1..=LOG_LEVEL_MAX_MS).contains(ms))?),
        None => None,
    };
    let is_short = !filter.is_empty() && filter.len() <= LOG_FILTER_MAX_BYTES;
    is_short.then(|| LogLevelChange::Set { filter: filter.to_owned(), for_ms })
}

/// Parses a hexadecimal session id of up to 64 bits, with or without `0x`.
fn session(text: &str) -> Option<SessionId> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().map(|id| SessionId(id.cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_parsed_and_have_their_executor() {
        let two = NodeId(2);
        for (text, operation, executor) in [
            ("/v1/hand-over", Operation::HandOver { to: None }, Some(NodeId(7))),
            ("/v1/hand-over?to=2", Operation::HandOver { to: Some(two) }, Some(NodeId(7))),
            ("/v1/drain?on=true&node=2", Operation::Drain { node: two, on: true }, Some(two)),
            ("/v1/upgrade?do=hold", Operation::Upgrade(UpgradeStep::Hold), Some(NodeId(7))),
            ("/v1/rebalance?node=2&percent=100", Operation::Rebalance { node: two, percent: 100 }, Some(two)),
            (
                "/v1/log-level?node=2",
                Operation::LogLevel { node: two, change: LogLevelChange::Show },
                Some(two),
            ),
            (
                "/v1/log-level?node=2&reset=true",
                Operation::LogLevel { node: two, change: LogLevelChange::Reset },
                Some(two),
            ),
            (
                "/v1/log-level?node=2&filter=info,a::b=debug&for_ms=5",
                Operation::LogLevel {
                    node: two,
                    change: LogLevelChange::Set { filter: "info,a::b=debug".to_owned(), for_ms: Some(5) },
                },
                Some(two),
            ),
            (
                "/v1/raise-tokens?above=5000",
                Operation::RaiseTokens { above: FencingToken(5_000) },
                Some(NodeId(1)),
            ),
            (
                "/v1/end-session?session=0x1f",
                Operation::EndSession { session: SessionId(31) },
                Some(NodeId(1)),
            ),
        ] {
            assert_eq!(Operation::parse(text), Some(operation.clone()), "{text}");
            assert_eq!(operation.executor(NodeId(1), Some(NodeId(7))), executor, "{text}");
        }
        assert_eq!(Operation::HandOver { to: None }.executor(NodeId(1), None), None);
    }

    #[test]
    fn an_invalid_operation_is_refused() {
        for text in [
            "",
            "/v1/stop",
            "/v1/hand-over?to=",
            "/v1/hand-over?to=x",
            "/v1/hand-over?to=1&to=2",
            "/v1/drain",
            "/v1/drain?node=1",
            "/v1/drain?node=1&on=perhaps",
            "/v1/drain?node=1&on=true&now",
            "/v1/end-session?session=0x",
            "/v1/end-session?session=+1",
            "/v1/upgrade",
            "/v1/upgrade?do=undo",
            "/v1/rebalance?node=1&percent=0",
            "/v1/rebalance?node=1&percent=101",
            "/v1/rebalance?node=1&percent=5&speed=2",
            "/v1/log-level?filter=debug",
            "/v1/log-level?node=1&filter=",
            "/v1/log-level?node=1&for_ms=5",
            "/v1/log-level?node=1&filter=debug&for_ms=0",
            "/v1/log-level?node=1&filter=debug&for_ms=604800001",
            "/v1/log-level?node=1&filter=debug&reset=true",
            "/v1/log-level?node=1&reset=false",
        ] {
            assert_eq!(Operation::parse(text), None, "{text}");
        }
    }
}
