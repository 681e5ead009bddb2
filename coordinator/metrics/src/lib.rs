//! Metrics of a node. All parts of a node share one `Arc<Metrics>`; `http/` and the four-letter word `mntr`
//! render the metrics. No code decides by a metric: parts write metrics, and people read them.

mod instrument;
mod leaderships;
pub mod memory;
mod stages;
mod text;

pub use instrument::{
    Counter, DurationGauge, ExpiryGauge, Gauge, Histogram, LongHistogram, PartsGauge, Role, RoleGauge,
    Silence, SilenceGauge, SizeHistogram, TlsListener, View,
};
pub use leaderships::{LeaderEnd, Leaderships};
pub use stages::{Stage, StageHistograms};

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident: $instrument:ty,)*) => {
        /// All metrics of a node. Each field is exported as `rowlock_` and its name, with its first doc line
        /// as help.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $name: $instrument,)*
            start_time_ms: i64,
        }

        impl Metrics {
            /// Calls `f` with (name, help, instrument) of every metric, in order of declaration.
            fn each(&self, mut f: impl FnMut(&'static str, &'static str, &dyn text::Render)) {
                $(f(concat!("rowlock_", stringify!($name)), [$($help),+][0].trim(), &self.$name);)*
            }
        }
    };
}

metrics! {
    /// Open sessions in the replicated state.
    sessions: Gauge,
    /// New sessions refused by this node (rate, limit, memory).
    sessions_refused_total: Counter,
    /// Clients at work that this follower has invited to the leader.
    sessions_invited_total: Counter,
    /// Sessions expired by the leader.
    sessions_expired_total: Counter,
    /// Znodes in the replicated state.
    znodes: Gauge,
    /// Ephemeral znodes in the replicated state.
    ephemerals: Gauge,
    /// Approximate bytes of paths and data in the replicated state.
    approximate_data_bytes: Gauge,

    /// Watches of this node's connections.
    watches: Gauge,
    /// Approximate bytes of watches of this node's connections.
    watch_bytes: Gauge,
    /// Watch events queued for connections of this node.
    watch_fired_total: Counter,

    /// Approximate bytes in memory, by use.
    memory_bytes: PartsGauge,
    /// Memory limit in bytes; 0: none.
    memory_limit_bytes: Gauge,
    /// 1 while the memory limit is reached.
    memory_full: Gauge,
    /// Commands refused by this node as leader at the memory limit.
    growth_refused_total: Counter,

    /// Seconds until sessions are opened after a restore; 0: open.
    restore_grace_seconds: Gauge,
    /// 1 while this node is drained by an operator.
    drained: Gauge,
    /// Seconds since this leader sent the newest request that the member has answered.
    member_silent_seconds: SilenceGauge,

    /// Queue positions holding a lock.
    locks_held: Gauge,
    /// Queue positions waiting for a lock.
    lock_waiters: Gauge,
    /// Lock grants applied by this node.
    lock_grants_total: Counter,
    /// Time from request to grant of a lock.
    lock_wait_seconds: LongHistogram,
    /// Time from grant to end of a hold.
    lock_hold_seconds: LongHistogram,
    /// Notices of grants and losses queued for clients.
    lock_notices_total: Counter,

    /// Connections refused at the port for nodes.
    peer_connections_refused_total: Counter,
    /// Connections from nodes refused for lack of a common version.
    peer_versions_refused_total: Counter,
    /// Version of the cluster.
    cluster_version: Gauge,
    /// Newest version known to this node.
    node_version: Gauge,
    /// Learners promoted by this node as leader.
    autopilot_promoted_total: Counter,
    /// Dead voters removed by this node as leader.
    autopilot_removed_total: Counter,
    /// Seconds until the certificate expires, by listener; negative once expired.
    tls_cert_expiry_seconds: ExpiryGauge,
    /// Failed reloads of certificates; the previous ones stay in use.
    tls_reload_failures_total: Counter,
    /// Connections closed because the peer's certificate is no longer valid.
    tls_connections_closed_total: Counter,

    /// Client connections that are open.
    connections: Gauge,
    /// Client connections accepted since the start.
    connections_accepted_total: Counter,
    /// Client connections refused (limit reached, not serving, bad handshake).
    connections_rejected_total: Counter,
    /// Client connections closed at a bound (slow reader, large frame).
    connections_overflowed_total: Counter,
    /// TLS handshakes with clients that succeeded.
    client_tls_handshakes_total: Counter,
    /// TLS handshakes with clients resumed by ticket.
    client_tls_resumed_total: Counter,
    /// Failed TLS handshakes with clients.
    client_tls_handshakes_failed_total: Counter,
    /// Wrong passwords of the superuser.
    super_passwords_wrong_total: Counter,
    /// Failed SASL logins: wrong passwords and unknown users.
    sasl_passwords_wrong_total: Counter,
    /// Frames received from clients.
    packets_received_total: Counter,
    /// Frames sent to clients.
    packets_sent_total: Counter,
    /// Bytes received from clients.
    bytes_received_total: Counter,
    /// Client requests received without a reply yet.
    requests_outstanding: Gauge,
    /// Time from decoding a client request to encoding its reply.
    request_seconds: Histogram,
    /// Stages of a request: queue, forward, flush, quorum, apply, outbox.
    stage_seconds: StageHistograms,
    /// Client requests that took longer than `slow_request` of `[log]`.
    slow_requests_total: Counter,

    /// Lock events written to the history.
    history_records_total: Counter,
    /// Lock events missing in the history.
    history_dropped_total: Counter,

    /// Log entries proposed by this node as the leader.
    batches_total: Counter,
    /// Log entries proposed only to compare digests.
    comparison_batches_total: Counter,
    /// Log entries skipped after overtaking another entry; proposed again.
    batches_skipped_total: Counter,
    /// Commands refused by this node as leader because of their cost.
    commands_refused_total: Counter,
    /// Commands per log entry proposed.
    batch_commands: SizeHistogram,
    /// Time from proposing a log entry to its apply, on the leader.
    commit_seconds: Histogram,
    /// Longest apply of one log entry since the start.
    apply_longest_seconds: DurationGauge,
    /// Accounted work of the last second, percent of the threads' time.
    load_percent: Gauge,
    /// Commands sent to the leader by this node.
    forwarded_total: Counter,

    /// Flushes of the write-ahead log.
    wal_fsync_seconds: Histogram,
    /// Bytes written to the write-ahead log.
    wal_bytes_total: Counter,
    /// Failed flushes; the node stops at the first.
    fsync_errors_total: Counter,
    /// Free bytes on the data folder's file system.
    disk_free_bytes: Gauge,
    /// 1 while less than `limits.warn_free_bytes` is free.
    disk_low: Gauge,
    /// 1 below `limits.min_free_bytes`, or while the log waits for room.
    disk_short: Gauge,
    /// 1 while the log waits for room on a full disk.
    wal_waits_for_room: Gauge,
    /// 1 if this node acknowledges commands about locks before their flush, with `acknowledge = "written"`.
    locks_written: Gauge,
    /// Commands about locks that the log has acknowledged and not flushed, with `acknowledge = "written"`.
    wal_unflushed_commands: Gauge,
    /// Age of the oldest acknowledged command about locks that is not flushed; above
    /// `locks.flush_within_ms` the disk is slow.
    wal_unflushed_seconds: DurationGauge,
    /// 1 while this node has forgotten entries in a loss of power, and no leader has admitted the node.
    forgotten: Gauge,
    /// 1 while a write of the log has been hanging for five seconds.
    disk_hangs: Gauge,
    /// 1 while entries wait and none was committed for five seconds.
    commits_stalled: Gauge,
    /// Commands refused by this node as leader because disks were full.
    growth_refused_for_room_total: Counter,
    /// Snapshots written by this node.
    snapshots_written_total: Counter,
    /// Failed writes of snapshots.
    snapshots_failed_total: Counter,
    /// Bytes of the last snapshot file written or installed.
    snapshot_bytes: Gauge,

    /// Raft role of this node.
    raft_role: RoleGauge,
    /// Last log index known to this node as committed.
    raft_committed_index: Gauge,
    /// Last log index applied by this node.
    raft_applied_index: Gauge,
    /// Log index of the last snapshot.
    raft_snapshot_index: Gauge,
    /// Changes of the known leader, including to none.
    leader_changes_total: Counter,
    /// Times this node became leader, by what ended the previous leadership.
    leaderships_total: Leaderships,
    /// 1 while this node serves clients.
    serving: Gauge,
    /// HTTP connections accepted since the start.
    http_connections_total: Counter,
    /// HTTP requests refused without a valid certificate or token.
    http_unauthorized_total: Counter,
    /// HTTP requests refused for lack of permission.
    http_forbidden_total: Counter,
    /// Wrong and expired tokens in HTTP requests.
    http_tokens_wrong_total: Counter,
    /// Failed TLS handshakes with HTTP clients.
    http_tls_handshakes_failed_total: Counter,
    /// API requests, refused ones included.
    api_requests_total: Counter,
    /// API requests without a response yet.
    api_requests_in_progress: Gauge,
    /// API requests waiting for a lock.
    api_waits: Gauge,
    /// Streams of lock events at the API.
    api_watches: Gauge,
    /// Failed reloads of tokens; the previous ones stay in use.
    token_reload_failures_total: Counter,
    /// 1 while the file of tokens is missing or invalid; the previous tokens stay in use.
    token_file_unusable: Gauge,
    /// Records submitted to the audit log.
    audit_records_total: Counter,
    /// Audit records dropped (rate, full queue, full disk).
    audit_dropped_total: Counter,
    /// Log lines dropped because the reader of stderr was slow or gone.
    log_lines_dropped_total: Counter,
    /// Scheduled backups made by this node.
    backups_made_total: Counter,
    /// Failed scheduled backups of this node.
    backups_failed_total: Counter,
}

impl Metrics {
    /// Returns metrics at zero. `start_time_ms` is the wall clock at the start of the process.
    pub fn started_at(start_time_ms: i64) -> Self {
        Metrics { start_time_ms, ..Metrics::default() }
    }

    /// Renders the Prometheus text format, version 0.0.4.
    pub fn render(&self) -> String {
        let mut out = text::Text::default();
        self.each(|name, help, metric| metric.render(&mut out, name, help));
        out.family("rowlock_build_info", "gauge", "Version of the binary.");
        out.sample("rowlock_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        out.family("process_start_time_seconds", "gauge", "Start of the process, seconds since 1970.");
        out.sample("process_start_time_seconds", &[], self.start_time_ms as f64 / 1e3);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use super::*;

    /// Returns name, labels and value of every sample, and checks the form of each line.
    fn samples(text: &str) -> Vec<(String, String, f64)> {
        let mut typed = BTreeSet::new();
        let mut samples = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(
                    kind == "counter",
                    name.ends_with("_total"),
                    "counters and only they end in _total: {line}"
                );
                assert!(typed.insert(name.to_owned()), "declared twice: {line}");
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let base =
                    ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
                assert!(typed.contains(base) || typed.contains(name), "sample without TYPE: {line}");
                samples.push((
                    name.to_owned(),
                    labels.strip_suffix('}').unwrap().to_owned(),
                    value.parse().unwrap(),
                ));
            }
        }
        samples
    }

    fn value(text: &str, name: &str, labels: &str) -> f64 {
        let found: Vec<_> = samples(text).into_iter().filter(|(n, l, _)| n == name && l == labels).collect();
        assert_eq!(found.len(), 1, "{name}{{{labels}}}");
        found[0].2
    }

    #[test]
    fn every_metric_is_rendered_with_help_and_type() {
        let metrics = Metrics::started_at(1_500);
        metrics.sessions.set(3);
        metrics.sessions_expired_total.add(7);
        metrics.raft_role.set(Role::Leader);
        let text = metrics.render();
        assert!(text.ends_with('\n'));
        assert!(text.contains("# HELP rowlock_sessions Open sessions in the replicated state.\n# TYPE rowlock_sessions gauge\nrowlock_sessions 3\n"));
        assert_eq!(value(&text, "rowlock_sessions_expired_total", ""), 7.0);
        assert_eq!(value(&text, "process_start_time_seconds", ""), 1.5);
        assert_eq!(value(&text, "rowlock_raft_role", "role=\"leader\""), 1.0);
        assert_eq!(value(&text, "rowlock_raft_role", "role=\"follower\""), 0.0);
    }

    #[test]
    fn buckets_are_cumulative_and_end_in_the_count() {
        let metrics = Metrics::default();
        for micros in [5, 12, 900, 900, 30_000_000] {
            metrics.wal_fsync_seconds.record(Duration::from_micros(micros));
        }
        metrics.stage_seconds.record(Stage::Flush, Duration::from_micros(1_600));
        for size in [1, 512, 5_000] {
            metrics.batch_commands.record(size);
        }
        let text = metrics.render();
        let mut last: BTreeMap<(String, String), (f64, f64)> = BTreeMap::new();
        for (name, labels, count) in samples(&text) {
            let Some(name) = name.strip_suffix("_bucket") else { continue };
            let (others, le) = labels.rsplit_once("le=\"").unwrap();
            let le = le.strip_suffix('"').unwrap();
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
            let series = (name.to_owned(), others.trim_end_matches(',').to_owned());
            if let Some((last_le, last_count)) = last.insert(series, (le, count)) {
                assert!(last_le < le && last_count <= count, "{name} {labels}");
            }
        }
        for ((name, labels), (le, count)) in last {
            assert_eq!(le, f64::INFINITY, "{name}");
            assert_eq!(count, value(&text, &format!("{name}_count"), &labels), "{name}");
        }
        assert_eq!(value(&text, "rowlock_stage_seconds_count", "stage=\"flush\""), 1.0);
        assert_eq!(value(&text, "rowlock_stage_seconds_bucket", "stage=\"flush\",le=\"0.002\""), 1.0);
        assert_eq!(value(&text, "rowlock_stage_seconds_sum", "stage=\"queue\""), 0.0);
        assert_eq!(value(&text, "rowlock_wal_fsync_seconds_bucket", "le=\"0.00001\""), 1.0);
        assert_eq!(value(&text, "rowlock_wal_fsync_seconds_bucket", "le=\"10\""), 4.0);
        assert_eq!(value(&text, "rowlock_wal_fsync_seconds_count", ""), 5.0);
        assert!((value(&text, "rowlock_wal_fsync_seconds_sum", "") - 30.001817).abs() < 1e-9);
        assert_eq!(value(&text, "rowlock_batch_commands_sum", ""), 5_513.0);
    }
}
