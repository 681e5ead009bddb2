//! Checks that a node under attack still works: `ruok`, a real session, memory, connections, log.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use rowlock_env::disk::Dir;
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::request::{Create, PathWatch, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{Acl, Request, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clean::Cleaner;

/// Znode of the real session, kept when the sweep deletes all other znodes.
const ZNODE: &str = "vigil";
/// Longest wait for a reply; a slower node fails the check.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Number of checks until memory has reached its level: sessions of attackers live up to 40 s, and the
/// allocator fills its pools.
const WARM_UP_CHECKS: u64 = 90;
/// Maximum growth of memory above the level.
const GROWTH_MAX_MIB: u64 = 192;
/// Number of checks between two deletions of the attackers' znodes.
const CHECKS_PER_SWEEP: u64 = 5;
/// Longest deletion: a tree may need many requests.
const SWEEP_MAX: Duration = Duration::from_secs(60);

pub struct Vigil {
    target: String,
    pid: Option<u32>,
    log: Option<PathBuf>,
    session: Cleaner,
    checks: u64,
    slowest: Duration,
    connections: u64,
    baseline: u64,
    rss_first: u64,
    rss_level: u64,
    rss_max: u64,
    rss: u64,
}

impl Vigil {
    /// Opens the real session and measures the idle node.
    pub async fn begin(target: &str, pid: Option<u32>, log: Option<PathBuf>) -> anyhow::Result<Self> {
        let mut session = Cleaner::connect(target).await?;
        let (path, acl) = (format!("/{ZNODE}"), Some(Acl::shared_open()));
        session.call(&[Request::Create(Create { path, data: None, acl, flags: 0 })]).await;
        let mut vigil = Vigil {
            target: target.to_owned(),
            pid,
            log,
            session,
            checks: 0,
            slowest: Duration::ZERO,
            connections: 0,
            baseline: 0,
            rss_first: 0,
            rss_level: 0,
            rss_max: 0,
            rss: 0,
        };
        vigil.baseline = vigil.count_connections().await?;
        vigil.rss_first = vigil.rss_mib()?.unwrap_or(0);
        Ok(vigil)
    }

    /// Checks the node once; an error describes the failure.
    pub async fn check(&mut self) -> anyhow::Result<()> {
        let began = time::now();
        ensure!(self.word("ruok").await? == "imok", "ruok is not answered with imok");
        self.connections = self.count_connections().await?;
        time::timeout(ANSWER_MAX, self.work()).await.context("the real session waits too long")??;
        self.slowest = self.slowest.max(began.elapsed());
        self.check_memory()?;
        self.checks += 1;
        if self.checks.is_multiple_of(CHECKS_PER_SWEEP) {
            self.check_log()?;
            let sweep = self.session.sweep(&[ZNODE, "zookeeper"]);
            time::timeout(SWEEP_MAX, sweep).await.context("sweeping takes too long")?;
        }
        Ok(())
    }

    /// Waits until the attackers' connections are closed.
    pub async fn wait_for_disconnects(&mut self, at_most: Duration) -> anyhow::Result<()> {
        let deadline = time::now() + at_most;
        loop {
            self.check().await?;
            if self.connections <= self.baseline {
                break;
            }
            ensure!(time::now() < deadline, "{} connections are stuck", self.connections - self.baseline);
            time::sleep(Duration::from_millis(500)).await;
        }
        self.session.sweep(&[ZNODE, "zookeeper"]).await;
        self.check_log()
    }

    /// Writes a value and reads the value back, like a client.
    async fn work(&mut self) -> anyhow::Result<()> {
        let (path, data) = (format!("/{ZNODE}"), Some(Bytes::from(self.checks.to_string())));
        let set = SetData { path: path.clone(), data: data.clone(), version: Version::ANY };
        let get = Request::GetData(PathWatch { path, watch: false });
        match self.session.call(&[Request::SetData(set), get]).await.as_deref() {
            Some([Some(Response::Stat(_)), Some(Response::Data(read, _))]) if *read == data => Ok(()),
            other => bail!("the real session gets wrong answers: {other:?}"),
        }
    }

    async fn word(&self, word: &str) -> anyhow::Result<String> {
        let mut text = String::new();
        let conversation = async {
            let mut stream = Stream::connect(&self.target, ANSWER_MAX).await?;
            stream.write_all(word.as_bytes()).await?;
            stream.read_to_string(&mut text).await
        };
        time::timeout(ANSWER_MAX, conversation)
            .await
            .with_context(|| format!("{word} is not answered"))?
            .with_context(|| format!("{word} fails"))?;
        Ok(text)
    }

    /// Returns the number of other connections.
    async fn count_connections(&self) -> anyhow::Result<u64> {
        let text = self.word("mntr").await?;
        let line = text.lines().find_map(|line| line.strip_prefix("zk_num_alive_connections"));
        let count: u64 = line.context("mntr has no number of connections")?.trim().parse()?;
        Ok(count.saturating_sub(1))
    }

    fn check_memory(&mut self) -> anyhow::Result<()> {
        let Some(rss) = self.rss_mib()? else { return Ok(()) };
        self.rss = rss;
        self.rss_max = self.rss_max.max(rss);
        if self.checks <= WARM_UP_CHECKS {
            self.rss_level = self.rss_level.max(rss);
        }
        ensure!(
            rss <= self.rss_level + GROWTH_MAX_MIB,
            "memory grows: {rss} MiB, the level was {}",
            self.rss_level
        );
        Ok(())
    }

    fn rss_mib(&self) -> anyhow::Result<Option<u64>> {
        let Some(pid) = self.pid else { return Ok(None) };
        let status = Dir::open(Path::new(&format!("/proc/{pid}")))
            .and_then(|dir| dir.read("status"))
            .with_context(|| format!("the node, process {pid}, is gone"))?;
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib =
            line.and_then(|line| line.split_whitespace().next()).context("no VmRSS: the node is a zombie")?;
        Ok(Some(kib.parse::<u64>()? / 1024))
    }

    fn check_log(&self) -> anyhow::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str()))
        else {
            bail!("{} is not a file", log.display());
        };
        let text = Dir::open(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
            .and_then(|dir| dir.read(name))
            .with_context(|| format!("cannot read {}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        match text.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("the node panicked: {line}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} checks, slowest {:?}; {} connections (idle {}); memory {} MiB (idle {}, level {}, most {})",
            self.checks,
            self.slowest,
            self.connections,
            self.baseline,
            self.rss,
            self.rss_first,
            self.rss_level,
            self.rss_max
        )
    }
}
