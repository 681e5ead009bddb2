//! Scheduled backups: the leader writes backups into a folder of its own machine.
//!
//! The folder's content shows when the last backup was made, so a restart causes no additional backup. Each
//! node keeps its own series: after a change of leaders, the new leader begins with a backup if its newest
//! one is too old. Apply continues meanwhile: the task writes a frozen state, at the pace of a snapshot.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rowlock_backup::file;
use rowlock_backup::file::Target;
use rowlock_env::decides;
use rowlock_env::disk::Dir;
use rowlock_env::task::Shutdown;
use rowlock_env::{time, worker};
use rowlock_state::Frozen;
use rowlock_wal::limits::SNAPSHOT_PIECE_PAUSE;

use crate::node::context::NodeContext;
use crate::node::moment;

/// Interval at which the leader checks whether a backup is due.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failed backup.
const RETRY_PAUSE: Duration = Duration::from_secs(60);
const SUFFIX: &str = ".backup";

/// Task that makes the scheduled backups.
pub struct Backups {
    node: Arc<NodeContext>,
    folder: PathBuf,
    every: Duration,
}

impl Backups {
    /// Returns `None` if the configuration has no schedule.
    pub fn scheduled(node: Arc<NodeContext>) -> Option<Backups> {
        let config = &node.config;
        let every = Duration::from_millis(config.backup.every_ms?);
        let folder = config.backup.folder(config.id, &config.data_dir);
        Some(Backups { node, folder, every })
    }

    pub async fn run(self, shutdown: Shutdown) {
        loop {
            let mut pause = CHECK_EVERY;
            if self.node.leads() && self.make_if_due().await.is_err() {
                pause = RETRY_PAUSE;
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                () = time::sleep_about(pause) => {}
            }
        }
    }

    async fn make_if_due(&self) -> Result<(), ()> {
        let (folder, every, now_ms) = (self.folder.clone(), self.every, time::wall_ms());
        let due = worker::run_blocking("backup-look", move || is_due(&folder, every, now_ms)).await;
        let made = match due {
            Ok(false) => return Ok(()),
            Ok(true) => {
                let frozen = self.node.replica.state.read().freeze();
                let (folder, cluster) = (self.folder.clone(), self.node.config.name.clone());
                let keep = self.node.config.backup.keep as usize;
                worker::run_blocking("backup", move || make(&folder, &cluster, keep, now_ms, &frozen)).await
            }
            Err(error) => Err(error),
        };
        match made {
            Ok((name, bytes)) => {
                tracing::info!(name, bytes, folder = %self.folder.display(), "made a backup");
                self.node.metrics.backups_made_total.inc();
                Ok(())
            }
            Err(error) => {
                self.node.metrics.backups_failed_total.inc();
                let folder = self.folder.display();
                tracing::error!(%error, %folder, "no backup could be made: look at the folder and its disk; tried again in a minute");
                Err(())
            }
        }
    }
}

/// Returns the time of a backup, from its file name.
fn made_ms(name: &str) -> Option<i64> {
    let (_, moment) = name.strip_suffix(SUFFIX)?.rsplit_once('_')?;
    moment::parse_rfc3339(&moment.replace('.', ":"))
}

/// Returns the backups of the folder with their times, newest last.
fn series(dir: &Dir) -> io::Result<Vec<(i64, String)>> {
    let mut found: Vec<(i64, String)> =
        dir.list()?.into_iter().filter_map(|name| Some((made_ms(&name)?, name))).collect();
    found.sort();
    Ok(found)
}

fn is_due(folder: &std::path::Path, every: Duration, now_ms: i64) -> io::Result<bool> {
    // This check runs every second, and creating a folder flushes it: only the first backup creates the
    // folder.
    let dir = match Dir::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        opened => opened?,
    };
    let newest = series(&dir)?.pop().map(|(at_ms, _)| at_ms);
    let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
    // A time in the future means that the clock was set back.
    Ok(newest.is_none_or(|at_ms| {
        decides!("backup-is-due", at_ms > now_ms || at_ms.saturating_add(every_ms) <= now_ms)
    }))
}

fn make(
    folder: &std::path::Path,
    cluster: &str,
    keep: usize,
    now_ms: i64,
    frozen: &Frozen,
) -> io::Result<(String, u64)> {
    assert!(keep > 0, "the new backup is kept");
    let dir = Dir::create(folder)?;
    // Files may be copied to file systems that refuse colons in names.
    let second_ms = now_ms - now_ms.rem_euclid(1_000);
    let moment = moment::rfc3339(second_ms).replace(".000Z", "Z").replace(':', ".");
    let plain: String = cluster.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let name = format!("{plain}_{moment}{SUFFIX}");
    let target = Target::create_in(dir.clone(), &name, true, || worker::pause(SNAPSHOT_PIECE_PAUSE))?;
    let bytes = file::write(frozen, cluster, target)?.keep()?;
    // Old backups are removed last: a full disk costs none of them.
    let mut all = series(&dir)?;
    all.truncate(all.len().saturating_sub(keep));
    for (_, old) in &all {
        dir.remove(old)?;
    }
    dir.sync()?;
    Ok((name, bytes))
}

#[cfg(test)]
mod tests {
    use rowlock_state::Machine;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_backup_is_due_when_the_newest_is_old_and_older_ones_go() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let (folder, frozen) = (temp.path().join("backups"), Machine::new().freeze());
        let begun_ms = 1_790_000_000_000;
        assert!(is_due(&folder, HOUR, begun_ms).expect("is there"));
        for hour in 0..5 {
            let now_ms = begun_ms + hour * HOUR_MS;
            assert!(is_due(&folder, HOUR, now_ms).expect("is there"));
            let (name, bytes) = make(&folder, "my cluster", 3, now_ms, &frozen).expect("is written");
            assert_eq!(made_ms(&name), Some(now_ms), "{name}");
            assert!(name.starts_with("my-cluster_20") && bytes > 0, "{name}");
            assert!(!is_due(&folder, HOUR, now_ms + HOUR_MS - 1).expect("is there"));
        }
        let kept = series(&Dir::open(&folder).expect("is there")).expect("is read");
        let times: Vec<i64> = kept.iter().map(|(at_ms, _)| (at_ms - begun_ms) / HOUR_MS).collect();
        assert_eq!(times, [2, 3, 4]);
        assert!(is_due(&folder, HOUR, begun_ms).expect("is there"), "the clock was set back");
        #[expect(clippy::disallowed_methods, reason = "the test reads a file behind env's back")]
        let bytes = std::fs::read(folder.join(&kept[2].1)).expect("is there");
        let (header, machine) = file::read(&bytes[..]).expect("is whole");
        assert_eq!((header.cluster.as_str(), machine.digest()), ("my cluster", Machine::new().digest()));
    }

    #[test]
    fn other_files_in_the_folder_are_left_alone() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let (folder, frozen) = (temp.path().to_owned(), Machine::new().freeze());
        let dir = Dir::open(&folder).expect("is there");
        dir.write_atomic("notes_of_mine.backup", b"x").expect("is written");
        dir.write_atomic("c_2026.backup.part", b"x").expect("is written");
        make(&folder, "c", 1, 1_790_000_000_000, &frozen).expect("is written");
        make(&folder, "c", 1, 1_790_000_009_000, &frozen).expect("is written");
        assert_eq!(dir.list().expect("is read").len(), 3);
    }
}
