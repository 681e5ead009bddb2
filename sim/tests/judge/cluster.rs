//! A cluster that works while its nodes are killed, and its folders afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rowlock_client::Client;
use rowlock_coordinator::NodeConfig;
use rowlock_env::task::{self, Task};
use rowlock_env::time::{self, Instant};
use rowlock_testkit::Cluster;
use tempfile::TempDir;

/// Time of a cluster under load.
const LOAD: Duration = Duration::from_secs(14);
/// Kills of the leader, early: nodes compare digests only after some quiet seconds.
const KILLS: usize = 3;
const KILL_EVERY: Duration = Duration::from_millis(1_500);

/// A cluster after its work.
pub struct Recorded {
    cluster: Cluster,
    copies: TempDir,
}

impl Recorded {
    /// Runs three nodes under load, and kills the leader from time to time.
    pub async fn under_kills(configure: impl Fn(&mut NodeConfig)) -> Recorded {
        let cluster = Cluster::start_with(3, |config| {
            config.history.enabled = true;
            configure(config);
        });
        let cluster = cluster.await;
        let work = work(&cluster, Instant::now() + LOAD).await;
        for _ in 0..KILLS {
            time::sleep(KILL_EVERY).await;
            let leader = cluster.leader().await;
            cluster.kill(leader).await;
            time::sleep(Duration::from_millis(300)).await;
            cluster.restart(leader).await;
        }
        for one in work {
            one.await.unwrap();
        }
        Recorded { cluster, copies: tempfile::tempdir().unwrap() }
    }

    /// Puts the cluster under the same load for a time.
    pub async fn work(&self, time: Duration) {
        for one in work(&self.cluster, Instant::now() + time).await {
            one.await.unwrap();
        }
    }

    pub async fn stop(&mut self) {
        for node in 0..self.cluster.nodes() {
            self.cluster.stop(node).await;
        }
    }

    pub fn path(&self) -> &Path {
        self.copies.path()
    }

    /// Returns the folders of the nodes, running or not.
    pub fn live_folders(&self) -> Vec<PathBuf> {
        (0..self.cluster.nodes()).map(|node| self.cluster.data_dir(node).to_owned()).collect()
    }

    /// Returns all files and folders of the nodes with length and time of the last change.
    pub fn files(&self) -> Vec<(PathBuf, u64, SystemTime)> {
        let (mut files, mut left) = (Vec::new(), self.live_folders());
        while let Some(path) = left.pop() {
            let found = fs::metadata(&path).unwrap();
            if found.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            files.push((path, found.len(), found.modified().unwrap()));
        }
        files.sort();
        files
    }

    /// Copies the folders of all nodes.
    pub fn copy(&self) -> Vec<PathBuf> {
        let to = tempfile::tempdir_in(self.copies.path()).unwrap().keep();
        let folders = self.live_folders().into_iter().enumerate();
        folders
            .map(|(nth, from)| {
                let to = to.join(format!("node-{}", nth + 1));
                copy(&from, &to);
                to
            })
            .collect()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Starts five clients that take and release locks until a time.
async fn work(cluster: &Cluster, until: Instant) -> Vec<Task<()>> {
    let mut work = Vec::new();
    for nth in 0..5 {
        let client = cluster.client().await;
        work.push(task::spawn("work", work_until(client, nth, until)));
    }
    work
}

/// Takes and releases locks until a time; errors while nodes are down do not matter.
async fn work_until(client: Client, nth: usize, until: Instant) {
    let mut turn = 0;
    while Instant::now() < until {
        turn += 1;
        match turn % 3 {
            0 => {
                if let Ok(guard) = client.mutex("a").lock().await {
                    time::sleep(Duration::from_millis(3)).await;
                    let _ = guard.release().await;
                }
            }
            1 => {
                if let Ok(permits) = client.semaphore("s", 2).acquire().await {
                    time::sleep(Duration::from_millis(2)).await;
                    let _ = permits.release().await;
                }
            }
            _ => {
                if let Ok(guard) = client.mutex(format!("b{}", nth % 2)).lock().await {
                    time::sleep(Duration::from_millis(1)).await;
                    drop(guard);
                }
            }
        }
        time::sleep(Duration::from_millis(10)).await;
    }
}
