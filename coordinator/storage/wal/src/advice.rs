//! Advice to an operator whose node cannot continue with its data folder. Pure.
//!
//! No other code advises to replace a node by a new one: such advice, followed on all nodes, loses
//! everything. Must never give unconditional advice before the node has learned, in this run, that a majority
//! of the voters has the data.

use std::fmt;

use rowlock_proto::NodeId;

/// A node's knowledge about the data of its cluster, from this run alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    /// No majority has confirmed that it has the data.
    #[default]
    Nothing,
    /// A majority of the voters without this node has confirmed that it has the data.
    Quorum,
}

/// Advice on how to replace a node, depending on the node's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replace {
    pub node: Option<NodeId>,
    pub heard: Heard,
}

impl Replace {
    /// Makes the advice of a node without contact to the other nodes.
    pub fn unasked(node: Option<NodeId>) -> Replace {
        Replace { node, heard: Heard::Nothing }
    }
}

impl fmt::Display for Replace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.node.map_or("ID".to_owned(), |node| node.to_string());
        let command = format!("rowlock member replace {number} NEW, docs/operations.md");
        match self.heard {
            Heard::Nothing => write!(
                f,
                "Keep this folder as it is: this node does not know whether the other nodes have the data. Check the disk, \
                 and check the other nodes (rowlock member ls). Only if a majority of them serves, replace this node by a \
                 new node with another id and its own folder ({command}). Never start this node under its old id with \
                 another folder: it would have forgotten its vote."
            ),
            Heard::Quorum => write!(
                f,
                "A majority of the voters has the data without this node: replace this node by a new node with another id \
                 and its own folder ({command}), and keep this folder until the new node serves. Never start this node \
                 under its old id with another folder: it would have forgotten its vote."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_conditional_until_a_majority_confirms_the_data() {
        let asked = Replace { node: Some(NodeId(2)), heard: Heard::Quorum }.to_string();
        let unasked = Replace::unasked(Some(NodeId(2))).to_string();
        for text in [&asked, &unasked] {
            assert!(text.contains("member replace 2 NEW") && text.contains("this folder"), "{text}");
            assert!(!text.contains("empty"), "{text}");
        }
        assert!(
            unasked.starts_with("Keep this folder") && unasked.contains("Only if a majority"),
            "{unasked}"
        );
        assert!(asked.starts_with("A majority of the voters has the data"), "{asked}");
    }
}
