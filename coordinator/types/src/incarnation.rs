//! Identity of one data folder of a node, among all folders that the node ever had. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Random number of a data folder, created with the folder. An emptied folder returns with another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// Parses the text form used in files.
    pub fn parse(text: &str) -> Option<Incarnation> {
        u128::from_str_radix(text, 16).ok().map(Incarnation)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
