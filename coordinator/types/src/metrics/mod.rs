//! What a node counts and measures. All its parts share one `Arc<Metrics>`; `http/` and the four-letter word
//! `mntr` render it. Nothing decides by a metric: they are written here and read by people.

pub mod instrument;
mod leaderships;
mod stages;
mod text;

pub use instrument::{
    Counter, ExpiryGauge, Gauge, Histogram, LongHistogram, LongestGauge, PartsGauge, RoleGauge, Silence,
    SilenceGauge, SizeHistogram, TlsListener, View,
};
pub use leaderships::{LeaderEnd, Leaderships};
pub use stages::{Stage, StageHistograms};

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident: $instrument:ty,)*) => {
        /// All metrics of a node. A field is exported as `rowlock_` + its name, its first doc line as help.
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
    /// Sessions opened.
    sessions_opened_total: Counter,
    /// New sessions that this node has refused (too many a second, too many in all, no memory).
    sessions_refused_total: Counter,
    /// Sessions closed by their client.
    sessions_closed_total: Counter,
    /// Sessions expired.
    sessions_expired_total: Counter,
    /// Sessions ended by superusers.
    sessions_ended_total: Counter,
    /// Znodes in the replicated state.
    znodes: Gauge,
    /// Ephemeral znodes in the replicated state.
    ephemerals: Gauge,
    /// Approximate bytes of paths and data in the replicated state.
    approximate_data_bytes: Gauge,

    /// Watches of this node's connections.
    watches: Gauge,
    /// Approximate bytes of these watches: 256 plus the path, for each path of each connection.
    watch_bytes: Gauge,
    /// Watch events queued for connections of this node.
    watch_fired_total: Counter,

    /// Approximate bytes that this node holds in memory, by use.
    memory_bytes: PartsGauge,
    /// Bytes from which new sessions, addWatch and (on the leader) growing writes are refused; 0: no limit.
    memory_limit_bytes: Gauge,
    /// 1 while the memory limit is reached.
    memory_full: Gauge,
    /// Growing commands that this node as the leader has refused while the memory limit was reached.
    growth_refused_total: Counter,

    /// Seconds until sessions are opened after a restore or a recovery, at most; 0: they are opened.
    restore_grace_seconds: Gauge,
    /// 1 while this node is drained by an operator.
    drained: Gauge,
    /// On the leader: seconds since it sent the latest request that the member has answered.
    member_silent_seconds: SilenceGauge,

    /// Places in locks' queues that hold.
    locks_held: Gauge,
    /// Places in locks' queues that wait.
    lock_waiters: Gauge,
    /// Grants of locks to any client, as applied by this node.
    lock_grants_total: Counter,
    /// From asking for a lock to holding it.
    lock_wait_seconds: LongHistogram,
    /// From holding a lock to its end.
    lock_hold_seconds: LongHistogram,
    /// Notices of grants and losses queued for connections of this node.
    lock_notices_total: Counter,

    /// Connections to the nodes' port refused, of other nodes and of strangers.
    peer_connections_refused_total: Counter,
    /// Those of them that were refused because no version is known to both nodes.
    peer_versions_refused_total: Counter,
    /// The version in which the cluster writes.
    cluster_version: Gauge,
    /// The newest version that this node knows.
    node_version: Gauge,
    /// Learners that this node as the leader has made voters by itself.
    autopilot_promoted_total: Counter,
    /// Dead voters that this node as the leader has removed by itself.
    autopilot_removed_total: Counter,
    /// Seconds until the node's certificate expires, by the listener that shows it; below 0: it has expired.
    tls_cert_expiry_seconds: ExpiryGauge,
    /// Changed files of certificates that could not be used: the old ones count.
    tls_reload_failures_total: Counter,
    /// Connections with nodes and clients closed because the other side's certificate counts no more.
    tls_connections_closed_total: Counter,

    /// Client connections.
    connections: Gauge,
    /// Client connections accepted.
    connections_accepted_total: Counter,
    /// Client connections refused (limit reached, not serving, bad handshake).
    connections_rejected_total: Counter,
    /// Client connections closed because a bound was exceeded (slow reader, frame too large).
    connections_overflowed_total: Counter,
    /// TLS handshakes with clients that succeeded.
    client_tls_handshakes_total: Counter,
    /// Of these, those that were resumed by a ticket of an earlier one, which is cheaper.
    client_tls_resumed_total: Counter,
    /// TLS handshakes with clients that failed, on either side.
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
    /// Bytes sent to clients.
    bytes_sent_total: Counter,
    /// Client requests received and not yet answered.
    requests_outstanding: Gauge,
    /// From decoding a client request to encoding its reply.
    request_seconds: Histogram,
    /// Parts of a request's way: queue, forward, flush, quorum, apply, outbox.
    stage_seconds: StageHistograms,
    /// Client requests that took longer than `slow_request` of `[log]`.
    slow_requests_total: Counter,

    /// Events of locks that this node has written into its history.
    history_records_total: Counter,
    /// Events of locks that are missing in this node's history.
    history_dropped_total: Counter,

    /// Commands given to the proposer of this node.
    proposals_total: Counter,
    /// Commands whose outcome this node waits for.
    proposals_in_flight: Gauge,
    /// Commands whose outcome cannot be known (leader lost).
    proposals_lost_total: Counter,
    /// Log entries proposed by this node as the leader.
    batches_total: Counter,
    /// Log entries proposed by this node as the leader that only compare the nodes' digests.
    comparison_batches_total: Counter,
    /// Log entries that all nodes skipped, since they had overtaken another one; they were proposed again.
    batches_skipped_total: Counter,
    /// Commands that this node as the leader has refused because they cost too much for the log.
    commands_refused_total: Counter,
    /// Log entries whose last commands were left to the next one, since together they cost too much.
    batches_cut_total: Counter,
    /// Commands per log entry proposed.
    batch_commands: SizeHistogram,
    /// From proposing a log entry to having applied it, on the leader.
    commit_seconds: Histogram,
    /// The longest time that applying one log entry has taken since the start.
    apply_longest_seconds: LongestGauge,
    /// The longest turn of a task since the start, by the work that is accounted for (not by the clock).
    turn_longest_seconds: LongestGauge,
    /// Commands sent to the leader by this node.
    forwarded_total: Counter,
    /// Commands received from other nodes by this node as the leader.
    forwards_received_total: Counter,
    /// Commands from other nodes that this node refused because it does not lead.
    forwards_refused_total: Counter,

    /// Flushes of the write-ahead log.
    wal_fsync_seconds: Histogram,
    /// Bytes written to the write-ahead log.
    wal_bytes_total: Counter,
    /// Records per flush of the write-ahead log.
    wal_flush_records: SizeHistogram,
    /// Flushes that failed; the node stops at the first.
    fsync_errors_total: Counter,
    /// Bytes that this node may still write to the file system of its data folder.
    disk_free_bytes: Gauge,
    /// 1 while this node has less than `limits.warn_free_bytes` free.
    disk_low: Gauge,
    /// 1 while this node has less than `limits.min_free_bytes` free, or its log waits for room.
    disk_short: Gauge,
    /// 1 while the write-ahead log waits for room on a full disk.
    wal_waits_for_room: Gauge,
    /// 1 while a write of the write-ahead log has not ended for five seconds.
    disk_hangs: Gauge,
    /// 1 while log entries wait for their commit and none was committed for five seconds.
    commits_stalled: Gauge,
    /// Growing commands that this node as the leader has refused since too few disks had room.
    growth_refused_for_room_total: Counter,
    /// Snapshots written.
    snapshots_written_total: Counter,
    /// Snapshots that could not be written.
    snapshots_failed_total: Counter,
    /// Snapshots received from the leader and installed.
    snapshots_installed_total: Counter,
    /// Snapshots sent to other nodes.
    snapshots_sent_total: Counter,
    /// From freezing the state to the durable snapshot file.
    snapshot_write_seconds: Histogram,
    /// From the received snapshot file to the replaced state.
    snapshot_install_seconds: Histogram,
    /// Bytes of the last snapshot file written or installed.
    snapshot_bytes: Gauge,

    /// Raft role of this node.
    raft_role: RoleGauge,
    /// Raft term.
    raft_term: Gauge,
    /// Last log index stored here.
    raft_last_log_index: Gauge,
    /// Last log index known committed here.
    raft_committed_index: Gauge,
    /// Last log index applied here.
    raft_applied_index: Gauge,
    /// Log index of the last snapshot.
    raft_snapshot_index: Gauge,
    /// Changes of the known leader, including to none.
    leader_changes_total: Counter,
    /// Times that this node became the leader, by what had ended the leadership before.
    leaderships_total: Leaderships,
    /// 1 while clients are served.
    serving: Gauge,
    /// HTTP connections accepted.
    http_connections_total: Counter,
    /// HTTP connections closed at once because their address has reached its limit.
    http_connections_refused_total: Counter,
    /// HTTP requests refused because they proved nothing (no certificate, no token or a wrong one).
    http_unauthorized_total: Counter,
    /// HTTP requests refused because what they proved does not allow them.
    http_forbidden_total: Counter,
    /// Wrong and expired tokens in HTTP requests.
    http_tokens_wrong_total: Counter,
    /// TLS handshakes with HTTP clients that failed, on either side.
    http_tls_handshakes_failed_total: Counter,
    /// Requests to the API for locks, with those that were refused.
    api_requests_total: Counter,
    /// Requests that wait for a lock at the API.
    api_waits: Gauge,
    /// Requests refused because too many wait for locks at the API.
    api_waits_refused_total: Counter,
    /// Streams of lock events at the API.
    api_watches: Gauge,
    /// Gaps in streams of lock events: a client was too slow, or the history did not reach back.
    api_watch_gaps_total: Counter,
    /// Changed files of tokens that could not be used: the old tokens count.
    token_reload_failures_total: Counter,
    /// Records given to the audit log.
    audit_records_total: Counter,
    /// Records missing in the audit log (too many strangers' failures a second, queue full, disk full).
    audit_dropped_total: Counter,
    /// Log lines dropped because the reader of stderr was too slow, or gone.
    log_lines_dropped_total: Counter,
    /// Backups that this node has made by itself.
    backups_made_total: Counter,
    /// Backups that this node could not make.
    backups_failed_total: Counter,
    /// Bytes of the last backup that this node has made by itself.
    backup_bytes: Gauge,
}

impl Metrics {
    /// All at zero. `start_time_ms` is the wall clock at the start of the process.
    pub fn started_at(start_time_ms: i64) -> Self {
        Metrics { start_time_ms, ..Metrics::default() }
    }

    /// The Prometheus text format, version 0.0.4.
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
    use crate::status::Role;

    /// Name, labels and value of every sample, after checking each line's form.
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
