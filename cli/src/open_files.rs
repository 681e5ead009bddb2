//! Limit of open files. Each client takes a file, and some must stay free for the log and the snapshots: a
//! node that cannot open the next segment of its log stops.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files of a node besides its clients: other nodes (`limits::PEER_CONNECTIONS_MAX` and its own), HTTP
/// (`limits::HTTP_CONNECTIONS_MAX`), log, snapshots, history.
const NODE_FILES: u64 = 768;

/// Raises the limit to the hard limit and returns the result.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Ignores a refusal: the present limit is returned below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of clients allowed by `limit`, if less than `wanted`.
pub fn clients_below(wanted: usize, limit: u64) -> Option<usize> {
    let allowed = usize::try_from(limit.saturating_sub(NODE_FILES).max(1)).unwrap_or(usize::MAX);
    (allowed < wanted).then_some(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_files_for_the_node_itself() {
        assert_eq!(clients_below(20_000, 1_048_576), None);
        assert_eq!(clients_below(20_000, 20_768), None);
        assert_eq!(clients_below(20_000, 20_000), Some(19_232));
        assert_eq!(clients_below(20_000, 100), Some(1));
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        let limit = raise();
        assert_eq!(Some(limit), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }
}
