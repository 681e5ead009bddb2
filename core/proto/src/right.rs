//! Rights on locks. Rules grant them by the path of a lock and the identity of a client.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A right on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Allows a queue position in any mode, and the znodes that the lock needs.
    Take,
    /// Allows questions to the holders without a deadline.
    Ask,
    /// Allows every way of ending another session's hold: forced releases, deadlines, deletions.
    Force,
    /// Allows reads of the lock and of its queue: znodes, watches, reports, history, events.
    See,
}

impl Right {
    /// All rights, in the order used in messages.
    pub const ALL: [Right; 4] = [Right::Take, Right::Ask, Right::Force, Right::See];

    /// Returns the name used in rules and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Take => "take",
            Right::Ask => "ask",
            Right::Force => "force",
            Right::See => "see",
        }
    }

    /// Returns an error text that names the missing right and the operator's next step.
    pub fn missing_on(self, lock: &str) -> String {
        format!("the right \"{self}\" on {lock} is missing; an operator can grant it with `rowlock acl set`")
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Right::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a right: use take, ask, force, or see"))
    }
}
