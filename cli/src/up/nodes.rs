//! Nodes as child processes: started, killed, restarted, and ended with this process.
//!
//! Invariant: no node outlives `up`. Dropping a handle kills the node, and each node asks the kernel for
//! SIGTERM when this process ends without dropping anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rowlock_env::time;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::exit::{Failure, IO, SOFTWARE};
use crate::lock::SELF_EXE;

/// Time for a node to transfer its leadership and to flush; then the node is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

pub struct Nodes {
    config: PathBuf,
    log_level: String,
    running: BTreeMap<u64, Child>,
}

impl Nodes {
    /// Creates the handle of the nodes in `config`, none started yet.
    pub fn new(config: PathBuf, log_level: String) -> Self {
        Nodes { config, log_level, running: BTreeMap::new() }
    }

    /// Starts node `id`, with its log appended to `log`. Must be called on the main thread: the kernel ties
    /// the child to the thread that started the child.
    pub fn start(&mut self, id: u64, log: &Path) -> Result<(), Failure> {
        let log =
            append_to(log).map_err(|e| Failure::new(IO, format!("cannot write {}: {e}", log.display())))?;
        let copy = log.try_clone().map_err(|e| Failure::new(IO, format!("cannot share the log: {e}")))?;
        let child = Command::new(SELF_EXE)
            .arg0("rowlock")
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .args(["--node", &id.to_string(), "--log", &self.log_level, "--log-format", "text"])
            .args(["--parent", &std::process::id().to_string()])
            // A data folder in our environment was meant for another command.
            .env_remove("ROWLOCK_DATA")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            // Ctrl-C goes to this process only, which stops the nodes in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot start {SELF_EXE} as node {id}: {e}")))?;
        self.running.insert(id, child);
        Ok(())
    }

    /// Returns the process id of node `id`.
    pub fn pid(&self, id: u64) -> Option<u32> {
        self.running.get(&id).and_then(Child::id)
    }

    pub fn ended(&mut self) -> Option<(u64, ExitStatus)> {
        self.running.iter_mut().find_map(|(id, child)| Some((*id, child.try_wait().ok().flatten()?)))
    }

    /// Sends SIGKILL to node `id` and waits for its end.
    pub async fn kill(&mut self, id: u64) -> Result<(), Failure> {
        let Some(mut child) = self.running.remove(&id) else { return Ok(()) };
        child.kill().await.map_err(|e| Failure::new(SOFTWARE, format!("cannot kill node {id}: {e}")))
    }

    /// Sends SIGTERM to all nodes, and SIGKILL to nodes that do not end in time.
    pub async fn stop(&mut self) {
        let deadline = time::now() + STOP_DEADLINE;
        for child in self.running.values() {
            if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
                // The process may have ended already.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for (_, mut child) in std::mem::take(&mut self.running) {
            if time::timeout_at(deadline, child.wait()).await.is_err() {
                // Dropping the child would kill it later.
                let _ = child.kill().await;
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a child process needs a descriptor of the system; no node code runs here"
)]
fn append_to(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create(true).append(true).open(path)
}
