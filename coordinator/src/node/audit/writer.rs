//! Writes the lines of the audit log to its file, and rotates full files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::disk::{Dir, File};
use rowlock_env::task::Shutdown;
use rowlock_env::{time, worker};
use rowlock_metrics::Metrics;
use tokio::sync::mpsc;

use crate::limits::AUDIT_QUEUE_MAX;

/// Pause after a write, in which further lines collect.
const COLLECT_FOR: Duration = Duration::from_millis(50);
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// Location, size limit and retention of the audit files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path of the current file. Older files carry the suffixes `.1`, `.2` and so on.
    pub file: PathBuf,
    /// Size limit. The line that reaches the limit still goes into the file.
    pub max_bytes: u64,
    /// Number of rotated files beside the current one.
    pub keep: u32,
}

/// Task that appends queued lines to the file; see the module.
pub struct AuditWriter {
    queue: mpsc::Receiver<String>,
    files: Files,
    metrics: Arc<Metrics>,
    /// Set while writes fail. The task logs only the first failure.
    is_failing: bool,
}

/// The current file and its rotated predecessors.
struct Files {
    dir: Dir,
    name: String,
    settings: Settings,
    /// The open file and its length. `None`: open the file before the next write.
    open: Option<(File, u64)>,
}

impl AuditWriter {
    pub(super) fn open(
        settings: Settings,
        queue: mpsc::Receiver<String>,
        metrics: Arc<Metrics>,
    ) -> io::Result<AuditWriter> {
        let path = settings.file.clone();
        let mut files = Files::of(settings)?;
        files.file().map_err(|e| named(&e, &format!("{} cannot be written", path.display())))?;
        Ok(AuditWriter { queue, files, metrics, is_failing: false })
    }

    /// Writes lines until `shutdown`, then the rest of the queue.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut lines = Vec::new();
        loop {
            tokio::select! {
                biased;
                count = self.queue.recv_many(&mut lines, AUDIT_QUEUE_MAX) => {
                    if count == 0 {
                        return;
                    }
                }
                () = shutdown.wait() => return self.end(lines).await,
            }
            self = self.write(std::mem::take(&mut lines)).await;
            let pause = if self.is_failing { RETRY } else { COLLECT_FOR };
            tokio::select! {
                biased;
                () = shutdown.wait() => {}
                () = time::sleep(pause) => {}
            }
        }
    }

    async fn end(mut self, mut lines: Vec<String>) {
        while let Ok(line) = self.queue.try_recv() {
            lines.push(line);
        }
        if !lines.is_empty() {
            self.write(lines).await;
        }
    }

    async fn write(mut self, lines: Vec<String>) -> Self {
        let count = lines.len() as u64;
        let mut files = self.files;
        let (files, written) = worker::run_blocking("audit", move || {
            let written = files.append(&lines);
            (files, written)
        })
        .await;
        self.files = files;
        let file = self.files.settings.file.display();
        match written {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::info!(%file, "the audit log is written again");
            }
            Ok(()) => {}
            Err((error, missing)) => {
                debug_assert!(missing <= count, "no more can be missing than were given");
                self.metrics.audit_dropped_total.add(missing);
                if !self.is_failing {
                    tracing::error!(%file, %error, "records are missing in the audit log: make room on its disk");
                }
                self.is_failing = true;
            }
        }
        self
    }
}

/// Prefixes an error with the failed action.
fn named(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl Files {
    fn of(settings: Settings) -> io::Result<Files> {
        let path = &settings.file;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str());
        let no_name = || {
            let what = format!("{} is not the name of a file", path.display());
            io::Error::new(io::ErrorKind::InvalidFilename, what)
        };
        let name = name.ok_or_else(no_name)?.to_owned();
        let dir = Dir::create(folder);
        let dir = dir.map_err(|e| named(&e, &format!("{} cannot be used", folder.display())))?;
        Ok(Files { dir, name, settings, open: None })
    }

    /// Returns the open file and its length. Completes a line cut off by a crash.
    fn file(&mut self) -> io::Result<&mut (File, u64)> {
        if self.open.is_none() {
            let exists = self.dir.exists(&self.name);
            let file =
                if exists { self.dir.open_file(&self.name)? } else { self.dir.create_new(&self.name)? };
            let mut len = file.len()?;
            let mut last = [b'\n'];
            if len > 0 {
                file.read_exact_at(&mut last, len - 1)?;
            }
            if last != *b"\n" {
                file.write_all_at(b"\n", len)?;
                len += 1;
            }
            self.open = Some((file, len));
        }
        Ok(self.open.as_mut().expect("it has just been opened"))
    }

    /// Appends all lines. On an error, returns also the number of missing lines.
    fn append(&mut self, lines: &[String]) -> Result<(), (io::Error, u64)> {
        let mut rest = lines;
        while !rest.is_empty() {
            let written = self.append_to_one(rest).map_err(|error| (error, rest.len() as u64))?;
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Appends lines until the file is full, then rotates the file. Returns the number of appended lines.
    fn append_to_one(&mut self, lines: &[String]) -> io::Result<usize> {
        let max_bytes = self.settings.max_bytes;
        let (file, end) = self.file()?;
        let mut text = String::new();
        let mut count = 0;
        for line in lines {
            text.push_str(line);
            count += 1;
            if *end + text.len() as u64 >= max_bytes {
                break;
            }
        }
        if let Err(error) = file.write_all_at(text.as_bytes(), *end) {
            // Half a line must not stay: the next write starts at the old end.
            let _ = file.set_len(*end);
            self.open = None;
            return Err(error);
        }
        *end += text.len() as u64;
        if *end >= max_bytes {
            self.rotate()?;
        }
        Ok(count)
    }

    fn rotate(&mut self) -> io::Result<()> {
        if let Some((file, _)) = self.open.take() {
            file.sync_all()?;
        }
        let old = |number: u32| format!("{}.{number}", self.name);
        let keep = self.settings.keep;
        if keep == 0 {
            self.dir.remove(&self.name)?;
            return self.dir.sync();
        }
        for number in (1..keep).rev() {
            if self.dir.exists(&old(number)) {
                self.dir.rename(&old(number), &old(number + 1))?;
            }
        }
        self.dir.rename(&self.name, &old(1))?;
        self.dir.sync()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the test's own files
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rowlock_env::task::spawn;

    use super::*;

    fn settings(folder: &Path, max_bytes: u64, keep: u32) -> Settings {
        Settings { file: folder.join("logs/audit.log"), max_bytes, keep }
    }

    fn line(n: usize) -> String {
        format!("{{\"n\":{n:06}}}\n")
    }

    #[test]
    fn files_are_turned_over_when_they_are_full_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let each = line(0).len() as u64;
        let mut files = Files::of(settings(folder.path(), 3 * each, 2)).unwrap();
        for first in [0, 5] {
            let lines: Vec<String> = (first..first + 5).map(line).collect();
            files.append(&lines).unwrap();
        }
        let read = |name: &str| fs::read_to_string(folder.path().join("logs").join(name)).unwrap();
        assert_eq!(read("audit.log"), line(9));
        assert_eq!(read("audit.log.1"), line(6) + &line(7) + &line(8));
        assert_eq!(read("audit.log.2"), line(3) + &line(4) + &line(5));
        assert_eq!(fs::read_dir(folder.path().join("logs")).unwrap().count(), 3);
        let mode = fs::metadata(folder.path().join("logs/audit.log")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_restart_keeps_old_lines_and_completes_half_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1 << 20, 1);
        fs::create_dir(folder.path().join("logs")).unwrap();
        fs::write(&settings.file, "{\"a\":1}\n{\"b\":").unwrap();
        Files::of(settings.clone()).unwrap().append(&[line(1)]).unwrap();
        assert_eq!(
            fs::read_to_string(&settings.file).unwrap(),
            format!("{{\"a\":1}}\n{{\"b\":\n{}", line(1))
        );
    }

    #[tokio::test]
    async fn the_writer_survives_a_failed_file_and_counts_lost_records() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1, 1);
        let (lines, queue) = mpsc::channel(4);
        let metrics: Arc<Metrics> = Arc::default();
        let mut writer = AuditWriter::open(settings.clone(), queue, metrics.clone()).unwrap();
        // A folder with the file's name blocks the next open.
        fs::remove_file(&settings.file).unwrap();
        fs::create_dir(&settings.file).unwrap();
        writer.files.open = None;
        writer = writer.write(vec![line(0), line(1)]).await;
        assert_eq!((metrics.audit_dropped_total.get(), writer.is_failing), (2, true));
        fs::remove_dir(&settings.file).unwrap();
        let shutdown = Shutdown::new();
        let task = spawn("audit", writer.run(shutdown.clone()));
        lines.send(line(2)).await.unwrap();
        shutdown.trigger();
        task.await.unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("logs/audit.log.1")).unwrap(), line(2));
        assert_eq!(metrics.audit_dropped_total.get(), 2);
    }
}
