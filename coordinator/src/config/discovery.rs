//! Section `[cluster]`: nodes find each other by name instead of by a list of all nodes.

use std::ops::RangeInclusive;

use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

use super::check::split;
use super::source::Source;
use super::{ClusterConfig, ConfigError, NodeEntry};

/// One node needs no discovery, and more than nine voters only cost time.
const EXPECT: RangeInclusive<u64> = 2..=9;

/// Section `[cluster]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    /// Number of founders, 2 to 9: the nodes 1 to this number form the cluster. Never change it later.
    pub expect: u64,
    /// Names or addresses of peer ports, `host:port` with commas between, that together resolve to all nodes.
    /// Resolved every half second while a node is missing.
    #[serde(with = "with_commas")]
    pub seeds: Vec<String>,
}

impl Discovery {
    /// Iterates over the nodes that form the cluster.
    pub fn founders(&self) -> impl Iterator<Item = NodeId> {
        (1..=self.expect).map(NodeId)
    }
}

pub(super) fn check(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    let Some(Discovery { expect, seeds }) = &config.discovery else { return Ok(()) };
    if !EXPECT.contains(expect) {
        let what = format!("expect = {expect} in [cluster] is out of range");
        let remedy = "say how many nodes form the cluster, from 2 to 9; one node alone needs no [cluster]";
        return Err(source.at("cluster.expect", what, remedy));
    }
    if seeds.is_empty() {
        let remedy = "name what leads to all nodes, e.g. seeds = \"rowlock-nodes:2281\"";
        return Err(source.at("cluster.seeds", "seeds in [cluster] is empty".to_owned(), remedy));
    }
    for seed in seeds {
        split(seed).map_err(|why| {
            let what = format!("seeds in [cluster] has \"{seed}\", which is not an address: {why}");
            source.at("cluster.seeds", what, "write \"host:port\", more of them with commas between")
        })?;
    }
    for (at, NodeEntry { id, learner, .. }) in config.nodes.iter().enumerate() {
        let (id_is, remedy) = match (id.0 <= *expect, learner) {
            (true, true) => {
                ("is a learner, and one of those who form the cluster", "remove `learner = true`")
            }
            (false, false) => (
                "is none of those who form the cluster",
                "set `learner = true`: it joins when there is a cluster",
            ),
            _ => continue,
        };
        let what = format!("node {id} {id_is} (expect = {expect} in [cluster])");
        return Err(source.at(&format!("node.{at}.id"), what, remedy));
    }
    Ok(())
}

/// Reads and writes the seeds as one text with commas.
mod with_commas {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        let text = String::deserialize(from)?;
        let seeds = text.split(',').map(str::trim).filter(|seed| !seed.is_empty());
        Ok(seeds.map(str::to_owned).collect())
    }

    pub fn serialize<S: Serializer>(seeds: &[String], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&seeds.join(","))
    }
}
