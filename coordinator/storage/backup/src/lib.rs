//! Backups of a cluster: the file, and how a new cluster is made of it.
//!
//! A backup is the state at one moment, as a snapshot has it, with a header that people can read in front and
//! a checksum of everything at the end ([`mod@file`]). A node makes one from its frozen state and sends it in
//! pieces; apply goes on meanwhile. Restoring is done while no node runs ([`mod@folder`]): it makes data
//! folders of a **new** cluster, since clients and nodes of the old one may still be alive. The rules of that
//! are `rowlock_state::Machine::restore`. When a majority is lost for good, the state of a node that is left
//! takes the place of the file ([`survivor`]).
//!
//! Knows no network and no Raft beyond what a data folder holds.

pub mod file;
pub mod folder;
pub mod place;
pub mod survivor;
