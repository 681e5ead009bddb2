//! Watches the free space of the data folder's file system, keeps the reserve, and reports whether this node
//! is short of space.
//!
//! In the flow: results go to [`Room`](rowlock_consensus::room::Room), and the node's reports carry them to
//! the leader. A leader short of space hands over to a voter with space: a log without disk space does less
//! harm on a follower. An unresponsive disk counts as a disk without space.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::worker;
use rowlock_proto::NodeId;

use crate::config::LimitsConfig;
use crate::node::context::NodeContext;

const EVERY: Duration = time::BEAT.saturating_mul(4);
/// Longest wait for a measurement; then the loop continues without a result.
const MEASURE_MAX: Duration = Duration::from_millis(500);
/// Delay before a leader short of space hands over.
const HAND_OVER_AFTER: Duration = Duration::from_secs(1);
/// Pause between two attempts to hand over.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(10);
/// Hysteresis: a short node needs `1 / MORE_BY_PART` more than the least to recover.
const MORE_BY_PART: u64 = 8;

pub struct DiskWatch {
    node: Arc<NodeContext>,
    /// Measurement under way; an unresponsive disk delays it over several turns.
    measurement: BoxFuture<'static, io::Result<u64>>,
    level: Level,
    short_since: Option<Instant>,
    handed_over: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    #[default]
    Plenty,
    Low,
    /// Less than `min_free_bytes`, or the log waits for room.
    Short,
}

impl Duty for DiskWatch {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        let found = time::timeout(MEASURE_MAX, &mut self.measurement).await.ok();
        if found.is_some() {
            self.measurement = measure_free_bytes(&self.node);
        }
        match found {
            Some(Ok(free)) => self.update_level(free),
            Some(Err(error)) => tracing::debug!(%error, "cannot measure free disk space"),
            None => {}
        }
        let hangs = self.node.metrics.disk_hangs.get() == 1;
        let (is_short, room) = (self.level == Level::Short || hangs, &self.node.replica.room);
        room.set_short(is_short);
        assert!(self.level != Level::Short || room.is_short(), "reports carry the shortage");
        self.short_since = is_short.then(|| self.short_since.unwrap_or_else(time::now));
        let is_due = self.short_since.is_some_and(|since| hangs || since.elapsed() >= HAND_OVER_AFTER)
            && self.handed_over.is_none_or(|at| at.elapsed() >= HAND_OVER_PAUSE);
        if let Some(next) = is_due.then(|| self.roomier_voter()).flatten() {
            self.handed_over = Some(time::now());
            rare::taken(Rare::HandedOverForRoom);
            tracing::warn!(
                to = %next,
                "this leader's disk is full or unresponsive: handing over to another voter"
            );
            self.node.hand_over_to(next).await;
        }
        Ok(Some(time::about(EVERY)))
    }
}

impl DiskWatch {
    pub fn new(node: Arc<NodeContext>) -> DiskWatch {
        let measurement = measure_free_bytes(&node);
        DiskWatch { node, measurement, level: Level::default(), short_since: None, handed_over: None }
    }

    /// Returns the voter with the longest stored log among the voters with space, while this node leads.
    fn roomier_voter(&self) -> Option<NodeId> {
        if !self.node.leads() {
            return None;
        }
        let term = self.node.leadership.borrow().term;
        let with_room = self.node.replica.room.others_with_room(term);
        let alive = self.node.alive_voters().into_iter();
        let fit = alive.filter(|(node, _)| with_room.contains(node));
        let next = fit.max_by_key(|(_, stored)| *stored).map(|(node, _)| node);
        assert!(next != Some(self.node.me), "a leader does not hand over to itself");
        next
    }

    fn update_level(&mut self, free: u64) {
        let (metrics, limits) = (&self.node.metrics, &self.node.config.limits);
        let log_waits = metrics.wal_waits_for_room.get() == 1;
        let level = level(limits, self.level, free, log_waits);
        assert!(level == Level::Short || !log_waits, "a log that waits for room makes the node short");
        metrics.disk_free_bytes.set(free);
        metrics.disk_low.set(u64::from(level >= Level::Low));
        metrics.disk_short.set(u64::from(level == Level::Short));
        let LimitsConfig { warn_free_bytes, min_free_bytes, .. } = *limits;
        match (self.level, level) {
            (Level::Plenty | Level::Low, Level::Short) => tracing::error!(
                free,
                min_free_bytes,
                "the disk is nearly full: free space, or growing writes are refused when too few voters have space"
            ),
            (Level::Plenty, Level::Low) => {
                tracing::warn!(free, warn_free_bytes, "the disk is filling up: free space");
            }
            (Level::Short, Level::Low | Level::Plenty) => tracing::info!(free, "the disk has space again"),
            _ => {}
        }
        self.level = level;
    }
}

fn level(limits: &LimitsConfig, before: Level, free: u64, log_waits: bool) -> Level {
    let least = limits.min_free_bytes;
    // Hysteresis against flapping.
    let least = if before == Level::Short { least.saturating_add(least / MORE_BY_PART) } else { least };
    assert!(least >= limits.min_free_bytes, "a node that was short needs no less than one that was not");
    if decides!("disk-is-short", log_waits || free < least) {
        Level::Short
    } else if free < limits.warn_free_bytes {
        Level::Low
    } else {
        Level::Plenty
    }
}

/// Keeps the reserve and returns the free bytes beside the reserve. May take long.
fn measure_free_bytes(node: &NodeContext) -> BoxFuture<'static, io::Result<u64>> {
    let (reserve, limits) = (node.reserve.clone(), node.config.limits);
    let work = move || {
        let rest = limits.min_free_bytes.saturating_add(limits.reserve_bytes);
        match reserve.keep(limits.reserve_bytes, rest) {
            Ok(true) => tracing::debug!(bytes = limits.reserve_bytes, "reserved disk space for the log"),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "cannot reserve disk space for the log"),
        }
        reserve.free_bytes()
    };
    // A worker ends with its node, a thread of its own could outlive the node.
    worker::run_blocking("disk-look", work).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_level_falls_and_recovers_with_hysteresis() {
        let limits = LimitsConfig { warn_free_bytes: 200, min_free_bytes: 80, ..LimitsConfig::default() };
        let then = |before, free| level(&limits, before, free, false);
        assert_eq!(then(Level::Plenty, 200), Level::Plenty);
        assert_eq!(then(Level::Plenty, 199), Level::Low);
        assert_eq!(then(Level::Low, 80), Level::Low);
        assert_eq!(then(Level::Low, 79), Level::Short);
        assert_eq!(then(Level::Short, 89), Level::Short, "a little more is not enough");
        assert_eq!(then(Level::Short, 90), Level::Low);
        assert_eq!(then(Level::Short, 200), Level::Plenty);
        assert_eq!(level(&limits, Level::Plenty, 1_000, true), Level::Short, "the log waits");
        let off = LimitsConfig { warn_free_bytes: 0, min_free_bytes: 0, ..limits };
        assert_eq!(level(&off, Level::Plenty, 0, false), Level::Plenty);
    }
}
