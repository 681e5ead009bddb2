//! The list that every report is: a bounded number of items and bytes, and whether there are more.

use rowlock_types::limits::REPORT_MAX_BYTES;
use serde::Serialize;

/// Items of a document.
pub(super) struct List<T> {
    pub items: Vec<T>,
    pub more: bool,
    limit: usize,
    bytes: usize,
}

impl<T: Serialize> List<T> {
    /// None, of at most `limit`.
    pub fn new(limit: usize) -> List<T> {
        List { items: Vec::new(), more: false, limit, bytes: 0 }
    }

    /// Takes an item; false: there is no room for it.
    pub fn push(&mut self, item: T) -> bool {
        let bytes = self.bytes + super::json_of(&item).len() + 1;
        // One item always fits, so that a client that asks for the rest gets on.
        if self.items.len() >= self.limit || (bytes > REPORT_MAX_BYTES && !self.items.is_empty()) {
            self.more = true;
            return false;
        }
        self.bytes = bytes;
        self.items.push(item);
        true
    }

    /// Takes what the other list did not have room for.
    pub fn rest_of<U>(limit: usize, other: &List<U>) -> List<T> {
        List { items: Vec::new(), more: other.more, limit: limit - other.items.len(), bytes: other.bytes }
    }
}
