//! Backups of a cluster: the file format, and making a new cluster from a file.
//!
//! A backup is the state at a single moment, encoded as a snapshot, behind a readable header and before a
//! checksum of all bytes ([`mod@file`]). A node makes a backup from its frozen state and sends the file in
//! pieces; apply continues meanwhile. A restore runs on stopped nodes ([`mod@folder`]): a restore makes data
//! folders of a **new** cluster, since clients and nodes of the old cluster may still be alive.
//! `rowlock_state::Machine::restore` has the rules. After the permanent loss of a majority, the state of a
//! surviving node replaces the file ([`survivor`]).
//!
//! The crate uses no network, and no part of Raft except the content of a data folder.

pub mod file;
pub mod folder;
pub mod survivor;
