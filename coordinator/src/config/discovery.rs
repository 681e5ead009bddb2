//! `[cluster]`: nodes that find each other by name instead of by a list of all of them.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use rowlock_proto::NodeId;
use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;
use super::check::{Source, split};
use super::parse::{RawNode, quote};

/// One node needs nobody, and more than nine voters only cost time.
const EXPECT: RangeInclusive<u64> = 2..=9;

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// The cluster is formed by the nodes 1 to this one, all of them. The same on all nodes.
    pub expect: u64,
    /// `host:port` each: names and addresses of nodes' ports, which together lead to all nodes.
    pub seeds: Vec<String>,
}

impl Discovery {
    /// Those who form the cluster.
    pub fn founders(&self) -> impl Iterator<Item = NodeId> {
        (1..=self.expect).map(NodeId)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDiscovery {
    expect: Spanned<u64>,
    seeds: Spanned<String>,
}

impl RawDiscovery {
    pub(super) fn check(&self, source: &Source<'_>, nodes: &[Spanned<RawNode>]) -> Result<(), ConfigError> {
        let expect = *self.expect.get_ref();
        if !EXPECT.contains(&expect) {
            let what = format!("expect = {expect} in [cluster] is out of range");
            let remedy =
                "say how many nodes form the cluster, from 2 to 9; one node alone needs no [cluster]";
            return Err(source.at(&self.expect, what, remedy));
        }
        let seeds = self.seeds();
        if seeds.is_empty() {
            let remedy = "name what leads to all nodes, e.g. seeds = \"rowlock-nodes:2281\"";
            return Err(source.at(&self.seeds, "seeds in [cluster] is empty".to_owned(), remedy));
        }
        for seed in &seeds {
            split(seed).map_err(|why| {
                let what = format!("seeds in [cluster] has \"{seed}\", which is not an address: {why}");
                source.at(&self.seeds, what, "write \"host:port\", more of them with commas between")
            })?;
        }
        for node in nodes {
            let RawNode { id, learner, .. } = node.get_ref();
            let is_founder = u64::try_from(*id.get_ref()).is_ok_and(|id| id <= expect);
            let (id_is, remedy) = match (is_founder, *learner) {
                (true, true) => {
                    ("is a learner, and one of those who form the cluster", "remove `learner = true`")
                }
                (false, false) => (
                    "is none of those who form the cluster",
                    "set `learner = true`: it joins when there is a cluster",
                ),
                _ => continue,
            };
            let what = format!("node {} {id_is} (expect = {expect} in [cluster])", id.get_ref());
            return Err(source.at(id, what, remedy));
        }
        Ok(())
    }

    fn seeds(&self) -> Vec<String> {
        let seeds = self.seeds.get_ref().split(',').map(str::trim);
        seeds.filter(|seed| !seed.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn config(self) -> Discovery {
        Discovery { expect: *self.expect.get_ref(), seeds: self.seeds() }
    }
}

pub(super) fn print(out: &mut String, discovery: &Discovery) {
    let seeds = quote(&discovery.seeds.join(","));
    // Writing to a String cannot fail.
    let _ = write!(out, "\n[cluster]\nexpect = {}\nseeds = {seeds}\n", discovery.expect);
}
