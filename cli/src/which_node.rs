//! Node selection by id, or by the ordinal at the end of the host's name, as orchestrators number hosts
//! (`rowlock-0`, `rowlock-1`, `rowlock-2`).

use std::str::FromStr;

use crate::exit::{Failure, USAGE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichNode {
    Number(u64),
    /// Node N + 1 on host `NAME-N`: ids begin with 1.
    FromHostname,
}

impl FromStr for WhichNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "from-hostname" => Ok(WhichNode::FromHostname),
            number => number.parse().map(WhichNode::Number).map_err(|_| {
                "use the node's id, or from-hostname for a host whose name ends in -0, -1, ...".to_owned()
            }),
        }
    }
}

impl WhichNode {
    /// Resolves the option to a node id.
    ///
    /// # Errors
    /// The host's name does not end in an ordinal.
    pub fn id(self) -> Result<u64, Failure> {
        match self {
            WhichNode::Number(id) => Ok(id),
            WhichNode::FromHostname => {
                let host = rustix::system::uname();
                let name = host.nodename().to_string_lossy();
                id_of_host(&name).ok_or_else(|| {
                    let problem = "does not end in -0, -1, ...; use --node ID";
                    Failure::new(USAGE, format!("the name of this host, {name}, {problem}"))
                })
            }
        }
    }
}

/// Parses the ordinal in the first label of the name: the rest is the domain.
fn id_of_host(name: &str) -> Option<u64> {
    let host = name.split('.').next()?;
    let (_, ordinal) = host.rsplit_once('-')?;
    // A sign, a leading zero or more than three digits belong to a name, not to an ordinal.
    let is_ordinal = ordinal.len() <= 3 && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = ordinal.parse().ok().filter(|_| is_ordinal)?;
    (number.to_string() == ordinal).then_some(number + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ordinal_of_a_host_gives_the_id() {
        for (name, id) in [
            ("rowlock-0", Some(1)),
            ("rowlock-2", Some(3)),
            ("rowlock-10.rowlock.default.svc.cluster.local", Some(11)),
            ("my-lock-1", Some(2)),
            ("rowlock", None),
            ("rowlock-", None),
            ("rowlock-00", None),
            ("rowlock-+1", None),
            ("rowlock-01", None),
            ("rowlock-1a", None),
            ("rowlock-20261123", None),
            ("rowlock.host-1", None),
            ("", None),
        ] {
            assert_eq!(id_of_host(name), id, "{name}");
        }
    }

    #[test]
    fn a_node_is_named_by_its_number_or_by_its_host() {
        assert_eq!("7".parse(), Ok(WhichNode::Number(7)));
        assert_eq!("from-hostname".parse(), Ok(WhichNode::FromHostname));
        assert!("hostname".parse::<WhichNode>().unwrap_err().contains("from-hostname"));
        assert!("-1".parse::<WhichNode>().is_err());
    }
}
