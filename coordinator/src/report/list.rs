//! The list that every report is: so many items, and so many bytes, and whether there are more.

use rowlock_types::limits::REPORT_MAX_BYTES;
use serde_json::Value;

/// Items of a document.
pub(super) struct List {
    /// So far.
    pub items: Vec<Value>,
    /// There was no room for all.
    pub more: bool,
    limit: usize,
    bytes: usize,
}

impl List {
    /// None, of at most `limit`.
    pub fn new(limit: usize) -> List {
        List { items: Vec::new(), more: false, limit, bytes: 0 }
    }

    /// Takes an item; false: there is no room for it.
    pub fn push(&mut self, item: Value) -> bool {
        let bytes = self.bytes + item.to_string().len() + 1;
        // One item always fits, so that whoever asks for the rest gets on.
        if self.items.len() >= self.limit || (bytes > REPORT_MAX_BYTES && !self.items.is_empty()) {
            self.more = true;
            return false;
        }
        self.bytes = bytes;
        self.items.push(item);
        true
    }

    /// Takes what the other list did not have room for.
    pub fn rest_of(limit: usize, other: &List) -> List {
        List { items: Vec::new(), more: other.more, limit: limit - other.items.len(), bytes: other.bytes }
    }
}
