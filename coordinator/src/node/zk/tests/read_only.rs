//! Tests of the contact with a quorum; `testdata/zk/read_only.txt` tells the rest.

use crate::node::zk::read_only::Isolation;
use rowlock_sessions::expiry_table::LastContact;

#[test]
fn a_node_counts_as_isolated_only_when_contact_is_old() {
    let second = std::time::Duration::from_secs(1);
    let contact = std::sync::Arc::new(LastContact::default());
    assert!(!Isolation::new(true, contact.clone(), 60 * second).is_isolated(), "it has just begun");
    let isolation = Isolation::new(true, contact.clone(), std::time::Duration::ZERO);
    assert!(isolation.is_isolated());
    contact.mark(rowlock_env::time::now() + 60 * second);
    assert!(!isolation.is_isolated());
    assert!(!Isolation::new(false, std::sync::Arc::default(), std::time::Duration::ZERO).is_isolated());
}
