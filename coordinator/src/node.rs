//! The heart of a node: ZooKeeper's protocol, writes on their way into the log, apply, the ways back to the
//! clients, the leader's duties, and the audit log.
//!
//! Invariant: nothing here knows `cluster` or `access`, which are features. They reach the heart by four
//! traits: [`admin::Admin`], [`admin::ReportSource`], [`apply::Observer`] and [`leader_duties::LeaderDuty`].

pub mod admin;
pub mod apply;
pub mod audit;
pub mod context;
pub mod delivery;
pub mod end_session;
pub mod hand_over;
pub mod leader_duties;
pub mod moment;
pub mod proposer;
pub(crate) mod remember;
pub mod service;
pub mod slow;
pub(crate) mod slow_links;
pub mod status_publisher;
pub(crate) mod stored_facts;
pub mod sweep;
pub mod trace;
pub mod zk;
