//! `rowlock debug bundle`: collects diagnostics of nodes, cluster and machine in one archive, a compressed
//! tar file with bounds: parts that do not fit are cut, and marked as cut.

mod collect;
mod redact;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rowlock_backup::file::Target;
use rowlock_env::time;

use self::collect::Collector;
use self::redact::Redactor;
use crate::cluster::Cluster;
use crate::exit::{DATA_FOLDER, Failure, IO};
use crate::http_get::HttpNodes;
use crate::moment::duration;
use crate::print::print;
use crate::{help, moment};

/// Collect diagnostics of nodes and cluster
#[derive(clap::Args)]
pub struct Debug {
    #[command(subcommand)]
    command: DebugCommand,
}

#[derive(clap::Subcommand)]
enum DebugCommand {
    #[command(after_help = help::BUNDLE)]
    Bundle(Bundle),
}

impl Debug {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            DebugCommand::Bundle(bundle) => bundle.run().await,
        }
    }
}

/// Collect diagnostics into one archive, without secrets
///
/// Status and metrics (twice) of each node, cluster.toml, the most contended queues, the end of the history,
/// findings of `rowlock doctor`; of nodes on this machine also the headers of their write-ahead logs and the
/// last log lines. Run it on each machine.
#[derive(clap::Args)]
struct Bundle {
    /// Output file, e.g. bundle.tar.gz, created with mode 0600
    file: PathBuf,
    /// Seconds between the two samples of the metrics
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    interval: Duration,
    /// Log file of a node that logs neither to the journal (units rowlock*) nor to the folder of `rowlock
    /// up`
    #[arg(long, value_name = "FILE")]
    log_file: Vec<PathBuf>,
    #[command(flatten)]
    nodes: HttpNodes,
    #[command(flatten)]
    cluster: Cluster,
}

impl Bundle {
    async fn run(self) -> Result<ExitCode, Failure> {
        let (file, addresses) = (self.cluster.file()?, self.nodes.find(&self.cluster)?);
        let now_ms = time::wall_ms();
        let time_s = u64::try_from(now_ms / 1_000).unwrap_or_default();
        let folder = format!("rowlock-debug-{time_s}");
        let archive = Archive::create(&self.file, &folder, time_s).map_err(|e| {
            let hint = if e.kind() == ErrorKind::AlreadyExists { "; name another" } else { "" };
            Failure::new(DATA_FOLDER, format!("{}: {e}{hint}", self.file.display()))
        })?;
        let environment =
            ["ROWLOCK_AUTH", "ROWLOCK_TOKEN"].map(|name| std::env::var(name).unwrap_or_default());
        let known = file.iter().flat_map(|file| file.secrets());
        let redactor = Redactor::new(known.chain(environment.iter().map(String::as_str)));
        let mut collector = Collector { archive, redactor, missing: Vec::new() };
        let done = self.collect(&mut collector, file.as_ref(), addresses.as_ref()).await;
        let disk = |e| Failure::new(IO, format!("{}: {e}", self.file.display()));
        done.map_err(disk)?;
        let missing = collector.missing.clone();
        let bytes = collector.finish(&moment::rfc3339(now_ms)).map_err(disk)?;
        let mut summary = format!("{} ({} KiB)\n", self.file.display(), bytes.div_ceil(1 << 10));
        for (part, why) in &missing {
            summary.push_str(&format!("without {part}: {why}\n"));
        }
        print(summary.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn collect(
        &self,
        to: &mut Collector,
        file: Option<&rowlock_coordinator::ClusterConfig>,
        addresses: Option<&crate::http_get::Addresses>,
    ) -> std::io::Result<()> {
        match file {
            Some(file) => to.add("cluster.toml", &file.clone().without_secrets().to_toml())?,
            None => to.lacks("cluster.toml", "no file was named, and there is none here"),
        }
        match addresses {
            Some(addresses) => {
                to.metrics(addresses, "metrics-1.txt").await?;
                to.nodes(addresses).await?;
                to.reports(addresses).await?;
                time::sleep(self.interval).await;
                to.metrics(addresses, "metrics-2.txt").await?;
            }
            None => to.lacks("status, metrics, queues, history", "no HTTP addresses; use --http or --config"),
        }
        to.doctor(&self.cluster).await?;
        if let Some(file) = file {
            to.folders(file).await?;
        }
        to.logs(&self.log_file, file).await
    }
}

const PART_MAX: usize = 2 << 20;
const ALL_MAX: usize = 48 << 20;

struct Archive {
    tar: tar::Builder<GzEncoder<Target>>,
    folder: String,
    left: usize,
    time_s: u64,
    parts: Vec<(String, Option<&'static str>)>,
}

impl Archive {
    /// Creates a new file for its owner alone; the file appears under its name when finished. All parts are
    /// in `folder`; `time_s` counts from 1970.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    fn create(path: &Path, folder: &str, time_s: u64) -> io::Result<Archive> {
        let target = Target::create(path, false)?;
        let tar = tar::Builder::new(GzEncoder::new(target, Compression::default()));
        Ok(Archive { tar, folder: folder.to_owned(), left: ALL_MAX, time_s, parts: Vec::new() })
    }

    /// Adds a part. Keeps the end of a part that is too large, the newest text.
    fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let room = PART_MAX.min(self.left);
        let kept = end_of(text, room);
        let remark = (kept.len() < text.len()).then_some("its beginning is cut off");
        self.left -= kept.len();
        self.parts.push((name.to_owned(), remark));
        self.write(name, kept.as_bytes())
    }

    /// Returns the names of the parts with their remarks.
    fn parts(&self) -> &[(String, Option<&'static str>)] {
        &self.parts
    }

    /// Adds the last part without a limit; returns the size of the file.
    fn finish(mut self, name: &str, text: &str) -> io::Result<u64> {
        self.write(name, text.as_bytes())?;
        self.tar.into_inner()?.finish()?.keep()
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time_s);
        self.tar.append_data(&mut header, format!("{}/{name}", self.folder), bytes)
    }
}

/// Returns the last bytes of a text, from the start of a line if possible.
fn end_of(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let from = (text.len() - bytes..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let tail = &text[from..];
    tail.split_once('\n').map_or(tail, |(_, lines)| lines)
}

#[cfg(test)]
mod tests {
    use rowlock_backup::file::Source;

    use super::*;

    #[test]
    fn a_text_that_is_too_long_keeps_whole_lines_of_its_end() {
        assert_eq!(end_of("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(end_of("one\ntwo\nthree\n", 9), "three\n");
        assert_eq!(end_of("ééé", 3), "é");
    }

    #[test]
    fn parts_are_bounded_and_existing_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        let mut archive = Archive::create(&path, "it", 7).unwrap();
        let part = "a line of some length\n".repeat(PART_MAX / 10);
        for n in 0..ALL_MAX / PART_MAX + 5 {
            archive.add(&format!("{n}"), &part).unwrap();
        }
        assert!(archive.parts().iter().all(|(_, remark)| remark.is_some()));
        archive.finish("about", "x").unwrap();
        let again = Archive::create(&path, "it", 7).err().unwrap();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let unpacked = flate2::read::GzDecoder::new(Source::open(&path).unwrap());
        let mut tar = tar::Archive::new(unpacked);
        let sizes: Vec<u64> = tar.entries().unwrap().map(|entry| entry.unwrap().size()).collect();
        assert_eq!(sizes.len(), ALL_MAX / PART_MAX + 6);
        assert!(sizes.iter().sum::<u64>() <= (ALL_MAX + 1) as u64);
    }
}
