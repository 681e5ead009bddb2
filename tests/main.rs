//! Black box: real processes of the built binary, real clients, `kill -9`, partitions. All in one test
//! binary, so that not many clusters run at a time; see `support/cluster.rs`.
//!
//! These tests stand outside the system, so they use the clock, processes and the network directly.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs)]

mod support;

mod all_nodes_killed;
mod audit;
mod autopilot;
mod backup;
mod bad_input;
mod cli;
mod cli_doctor;
mod cli_elect;
mod cli_encrypted;
mod cli_explain;
mod cli_lock;
mod cli_pipes;
mod cli_sem;
mod cli_signals;
mod cli_tls;
mod cli_under_lock;
mod config_errors;
mod conformance;
mod console;
mod containers_and_quotas;
mod debug_bundle;
mod dependencies;
mod deploy;
mod discovery;
mod drills;
mod exactly_counts;
mod files;
mod full_disks;
mod hazards_crashes;
mod hazards_partitions;
mod hazards_requests;
mod hazards_table;
mod http_access;
mod import;
mod largest_frames;
mod leader_kill_rounds;
mod log_bound;
mod log_level;
mod members;
mod mixed_queue;
mod operations;
mod partition;
mod pods;
mod protocol_rules;
mod readme;
mod readmission;
mod reconfig;
mod rest;
mod rest_load;
mod rest_state_lock;
mod rest_znodes;
mod rolling_restarts;
mod slow_requests;
mod snapshot_rejoin;
mod stuck_sinks;
mod systemd;
mod thin_clients;
mod tls_clients;
mod tls_peers;
mod top;
mod up;
mod upgrade;
mod wal;
mod wiped_nodes;
