//! List of a report: bounded in items and bytes, with a flag for further items.

use serde::Serialize;

use crate::limits::REPORT_MAX_BYTES;

pub(super) struct List<T> {
    pub items: Vec<T>,
    pub more: bool,
    limit: usize,
    bytes: usize,
}

impl<T: Serialize> List<T> {
    /// Returns an empty list for at most `limit` items.
    pub fn new(limit: usize) -> List<T> {
        List { items: Vec::new(), more: false, limit, bytes: 0 }
    }

    /// Appends an item. Returns false if the list is full.
    pub fn push(&mut self, item: T) -> bool {
        let bytes = self.bytes + super::json_of(&item).len() + 1;
        // An empty list accepts an item of any size, so a client that pages through the list always advances.
        if self.items.len() >= self.limit || (bytes > REPORT_MAX_BYTES && !self.items.is_empty()) {
            self.more = true;
            return false;
        }
        self.bytes = bytes;
        self.items.push(item);
        true
    }

    /// Returns an empty list for the remaining items and bytes of `other`.
    pub fn rest_of<U>(limit: usize, other: &List<U>) -> List<T> {
        List { items: Vec::new(), more: other.more, limit: limit - other.items.len(), bytes: other.bytes }
    }
}
