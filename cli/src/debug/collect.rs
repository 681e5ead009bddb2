//! Collector of a bundle's parts. A missing part is listed with the reason and never ends the work: a bundle
//! is created when something is wrong.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rowlock_coordinator::ClusterConfig;
use rowlock_env::disk::Dir;
use rowlock_env::time;
use rowlock_proto::report::in_query;
use serde_json::{Value, json};

use super::redact::Redactor;
use super::{Archive, PART_MAX};
use crate::cluster::Cluster;
use crate::http_get;
use crate::http_get::Addresses;
use crate::{doctor, wal};

const ANSWER_DEADLINE: Duration = Duration::from_secs(3);
const JOURNAL_DEADLINE: Duration = Duration::from_secs(10);
/// Lines of the journal, and number of locks with queues.
const JOURNAL_LINES: &str = "5000";
const QUEUES: usize = 10;
const UNITS: &str = "rowlock*";
/// Largest log inspected: a larger one takes long to read, and its last segments alone do not suffice.
const LOG_MAX_BYTES: u64 = 2 << 30;

pub(super) struct Collector {
    pub(super) archive: Archive,
    pub(super) redactor: Redactor,
    pub(super) missing: Vec<(String, String)>,
}

impl Collector {
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.archive.add(name, &self.redactor.text(text))
    }

    pub(super) fn lacks(&mut self, part: &str, why: &str) {
        self.missing.push((part.to_owned(), self.redactor.text(why)));
    }

    fn add_document(&mut self, name: &str, mut document: Value) -> io::Result<()> {
        self.redactor.document(&mut document);
        self.add(name, &format!("{document:#}\n"))
    }

    async fn fetch(
        &mut self,
        addresses: &Addresses,
        addr: &str,
        path: &str,
        name: &str,
    ) -> io::Result<Option<String>> {
        match http_get::answer(addr, path, &addresses.access, ANSWER_DEADLINE).await {
            // A node that is not ready explains with another status.
            Ok(answer) if answer.status == "200" || path.starts_with("/readyz") => Ok(Some(answer.body)),
            Ok(answer) => {
                self.lacks(name, &answer.reason());
                Ok(None)
            }
            Err(why) => {
                self.lacks(name, &why.to_string());
                Ok(None)
            }
        }
    }

    pub(super) async fn metrics(&mut self, addresses: &Addresses, file: &str) -> io::Result<()> {
        for (nth, addr) in addresses.all.iter().enumerate() {
            let name = format!("nodes/{}/{file}", nth + 1);
            if let Some(text) = self.fetch(addresses, addr, "/metrics", &name).await? {
                self.add(&name, &text)?;
            }
        }
        Ok(())
    }

    /// Adds status and readiness of all nodes.
    pub(super) async fn nodes(&mut self, addresses: &Addresses) -> io::Result<()> {
        for (nth, addr) in addresses.all.iter().enumerate() {
            let folder = format!("nodes/{}", nth + 1);
            self.add(&format!("{folder}/address.txt"), &format!("{addr}\n"))?;
            let name = format!("{folder}/status.json");
            if let Some(text) = self.fetch(addresses, addr, "/v1/status", &name).await? {
                self.add_text_of_document(&name, &text)?;
            }
            let name = format!("{folder}/readyz.txt");
            if let Some(text) = self.fetch(addresses, addr, "/readyz?verbose", &name).await? {
                self.add(&name, &text)?;
            }
        }
        Ok(())
    }

    fn add_text_of_document(&mut self, name: &str, text: &str) -> io::Result<Option<Value>> {
        match serde_json::from_str::<Value>(text) {
            Ok(document) => {
                self.add_document(name, document.clone())?;
                Ok(Some(document))
            }
            Err(why) => {
                self.lacks(name, &format!("not JSON: {why}"));
                Ok(None)
            }
        }
    }

    /// Adds locks, queues and history of each node: a diverged node differs.
    pub(super) async fn reports(&mut self, addresses: &Addresses) -> io::Result<()> {
        let mut queues_are_there = false;
        for (nth, addr) in addresses.all.iter().enumerate() {
            let folder = format!("nodes/{}", nth + 1);
            let name = format!("{folder}/history.json");
            if let Some(text) = self.fetch(addresses, addr, "/v1/history?limit=500", &name).await? {
                self.add_text_of_document(&name, &text)?;
            }
            let name = format!("{folder}/locks.json");
            let text = self.fetch(addresses, addr, "/v1/locks?limit=100", &name).await?;
            let locks = match text {
                Some(text) => self.add_text_of_document(&name, &text)?,
                None => None,
            };
            if let Some(locks) = locks.filter(|_| !queues_are_there) {
                queues_are_there = true;
                self.queues(addresses, addr, &locks).await?;
            }
        }
        Ok(())
    }

    async fn queues(&mut self, addresses: &Addresses, addr: &str, locks: &Value) -> io::Result<()> {
        let all = locks["locks"].as_array().map_or(&[][..], Vec::as_slice);
        for (nth, lock) in all.iter().filter_map(|lock| lock["lock"].as_str()).take(QUEUES).enumerate() {
            let name = format!("queues/{}.json", nth + 1);
            let path = format!("/v1/queue?lock={}&limit=100", in_query(lock));
            if let Some(text) = self.fetch(addresses, addr, &path, &name).await? {
                self.add_text_of_document(&name, &text)?;
            }
        }
        Ok(())
    }

    pub(super) async fn doctor(&mut self, cluster: &Cluster) -> io::Result<()> {
        match doctor::document(cluster).await {
            Ok(document) => self.add_document("doctor.json", document),
            Err(failure) => {
                self.lacks("doctor.json", &failure.message);
                Ok(())
            }
        }
    }

    /// Adds the headers of the logs on this machine.
    pub(super) async fn folders(&mut self, file: &ClusterConfig) -> io::Result<()> {
        for node in &file.nodes {
            let name = format!("wal/node-{}.json", node.id);
            let log = node.data_dir.join("wal");
            match bytes_in(&log) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    self.lacks(&name, "its data folder is not on this machine");
                }
                Err(e) => self.lacks(&name, &format!("{}: {e}", log.display())),
                Ok(bytes) if bytes > LOG_MAX_BYTES => {
                    self.lacks(&name, &format!("{bytes} bytes take long to read; use `rowlock wal inspect`"));
                }
                Ok(_) => match wal::document(&node.data_dir) {
                    Ok(document) => self.add_document(&name, document)?,
                    Err(failure) => self.lacks(&name, &failure.message),
                },
            }
        }
        Ok(())
    }

    /// Adds the last log lines of nodes: from named files, from files beside data folders as in `rowlock up`,
    /// and from the journal.
    pub(super) async fn logs(&mut self, named: &[PathBuf], file: Option<&ClusterConfig>) -> io::Result<()> {
        let up_log =
            |folder: &Path| Some(folder.parent()?.join(format!("{}.log", folder.file_name()?.to_str()?)));
        let beside = file.into_iter().flat_map(|file| &file.nodes).filter_map(|node| up_log(&node.data_dir));
        let beside: Vec<PathBuf> = beside.filter(|path| path.exists()).collect();
        for (nth, path) in named.iter().chain(&beside).enumerate() {
            let name = format!("logs/{}-{}", nth + 1, path.file_name().unwrap_or_default().to_string_lossy());
            match end_of_file(path) {
                Ok(text) => self.add(&name, &text)?,
                Err(e) => self.lacks(&name, &format!("{}: {e}", path.display())),
            }
        }
        match journal().await {
            Ok(text) if text.contains("-- No entries --") || text.trim().is_empty() => {
                if named.is_empty() && beside.is_empty() {
                    self.lacks("logs", "no log is in the journal or beside a data folder; use --log-file");
                }
                Ok(())
            }
            Ok(text) => self.add("logs/journal.txt", &text),
            Err(why) => {
                self.lacks("logs/journal.txt", &why);
                Ok(())
            }
        }
    }

    /// Writes the description of the bundle and ends the file. Returns the size in bytes.
    pub(super) fn finish(self, time: &str) -> io::Result<u64> {
        let system = rustix::system::uname();
        let string = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let parts: Vec<Value> = self
            .archive
            .parts()
            .iter()
            .map(|(name, remark)| json!({ "file": name, "remark": remark }))
            .collect();
        let missing: Vec<Value> =
            self.missing.iter().map(|(part, why)| json!({ "part": part, "why": why })).collect();
        let about = json!({
            "made": time,
            "rowlock": env!("CARGO_PKG_VERSION"),
            "host": string(system.nodename()),
            "system": format!("{} {} {}", string(system.sysname()), string(system.release()), string(system.machine())),
            "processors": std::thread::available_parallelism().map_or(0, usize::from),
            "memory_bytes": rowlock_env::process::memory_bytes(),
            "removed": "passwords, tokens, digests, and what clients have written (labels, data of znodes)",
            "parts": parts,
            "missing": missing,
        });
        self.archive.finish("about.json", &format!("{about:#}\n"))
    }
}

fn bytes_in(folder: &Path) -> io::Result<u64> {
    let dir = Dir::open(folder)?;
    let mut bytes = 0;
    for name in dir.list()? {
        bytes += dir.open_to_read(&name).and_then(|file| file.len()).unwrap_or_default();
    }
    Ok(bytes)
}

/// Returns the end of a file, at most one part, from the start of a line.
fn end_of_file(path: &Path) -> io::Result<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let file = Dir::open(folder)?.open_to_read(name)?;
    let len = file.len()?;
    let from = len.saturating_sub(PART_MAX as u64);
    let mut bytes = vec![0; usize::try_from(len - from).unwrap_or(PART_MAX)];
    let read = file.read_at(&mut bytes, from)?;
    bytes.truncate(read);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if from == 0 {
        text
    } else {
        text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned())
    })
}

/// Returns the lines of systemd's journal about our units.
async fn journal() -> Result<String, String> {
    let mut command = tokio::process::Command::new("journalctl");
    command.args([
        "--unit",
        UNITS,
        "--lines",
        JOURNAL_LINES,
        "--no-pager",
        "--quiet",
        "--output",
        "short-iso",
    ]);
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = time::timeout(JOURNAL_DEADLINE, command.output()).await;
    let output = output.map_err(|_| "journalctl did not answer in time".to_owned())?;
    match output {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(format!("journalctl: {e}")),
        Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}
