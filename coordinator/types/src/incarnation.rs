//! By which one data folder of a node is told from another. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which folder of a node this is: random, made with the folder. A folder that was emptied comes back with
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// From the form in which it is written in files.
    pub fn parse(text: &str) -> Option<Incarnation> {
        u128::from_str_radix(text, 16).ok().map(Incarnation)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
