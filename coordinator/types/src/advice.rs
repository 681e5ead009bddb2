//! Advice to a person whose node cannot go on with its data folder. Pure.
//!
//! The only place that speaks of a new node in the place of an old one: such advice, followed on all nodes,
//! loses everything. Must never do: give it without condition before the node has heard, in this run, that a
//! majority of the voters has the data.

use std::fmt;

use rowlock_proto::NodeId;

/// Knowledge of a node, from this run alone, about the data of its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    /// No majority has said that it has the data.
    #[default]
    Nothing,
    /// A majority of the voters has said so, without this node.
    Quorum,
}

/// Advice how to replace a node, by what it has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replace {
    pub node: Option<NodeId>,
    pub heard: Heard,
}

impl Replace {
    /// Makes the advice of a node that has not asked the others.
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
                "Keep this folder as it is: this node does not know whether the others have the data. Check the disk, and \
                 ask the others (rowlock member ls). Only if a majority of them serves, put a new node with another id and \
                 a folder of its own in the place of this one ({command}). Never start this node under its old id with \
                 another folder: it would have forgotten its vote."
            ),
            Heard::Quorum => write!(
                f,
                "A majority of the voters has the data without this node: put a new node with another id and a folder of \
                 its own in the place of this one ({command}), and keep this folder until the new node serves. Never start \
                 this node under its old id with another folder: it would have forgotten its vote."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_advice_to_replace_a_node_is_without_condition_before_a_majority_was_heard() {
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
