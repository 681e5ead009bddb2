//! `rowlock import`: copies the tree of a ZooKeeper (a snapshot file, or live) into this cluster, and can be
//! run again after any interruption.
//!
//! Steps: compare the source with the target (`plan`) and refuse conflicts, try the ACLs, create what is
//! missing (`create`), compare again and raise the next sequential numbers. Must never overwrite or delete a
//! znode.

mod create;
mod job;
mod limits;
mod pairs;
mod plan;
pub mod record;
mod show;
pub mod snapshot;
mod target;
mod trouble;
mod walk;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_client::{Client, ClientBuilder};
use rowlock_env::disk::Dir;

use crate::cluster::{Cluster, PLAINTEXT_PASSWORDS};
use crate::exit::{Failure, UNAVAILABLE, USAGE};
use crate::print::errln;
use crate::signals::Stop;

use self::limits::VERSIONS_DEFAULT;
use self::show::Progress;
use self::snapshot::Snapshot;
use self::trouble::ImportError;

/// Import a ZooKeeper's tree; run it again after an interruption
///
/// Creates what is missing. A znode that exists with other data or another ACL is a conflict: then nothing is
/// created. Nothing is ever overwritten.
///
/// Kept: data, ACLs, containers and times to live (from a snapshot; a live ZooKeeper does not show them),
/// and, by extra creates, the next sequential numbers. Left out: ephemeral znodes and /zookeeper.
///
/// Fencing tokens go on from this cluster's own count, so they start again for resources that have seen those
/// of the source: set --token-floor to the largest token that a resource may have seen.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["from_snapshot", "from"])))]
pub struct Import {
    /// Snapshot file of Apache ZooKeeper, named snapshot.ZXID
    #[arg(long, value_name = "FILE")]
    from_snapshot: Option<PathBuf>,
    /// Servers of a live ZooKeeper or Rowlock, host:port,host:port[/path]
    #[arg(long, value_name = "HOSTS")]
    from: Option<String>,
    /// Credential for the source, SCHEME:SECRET
    #[arg(long, value_name = "AUTH", env = "ROWLOCK_FROM_AUTH", hide_env_values = true, requires = "from")]
    from_auth: Option<String>,
    /// Import below this path, which is created if its parent exists
    #[arg(long, value_name = "PATH", default_value = "/")]
    under: String,
    /// Show what would be imported and what cannot be kept; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Repeat sets until data versions match those of the source, up to MAX [default MAX: 1000]
    #[arg(long, value_name = "MAX", num_args = 0..=1, require_equals = true,
          default_missing_value = VERSIONS_DEFAULT, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    keep_versions: Option<i32>,
    /// Maximum number of creates spent on one znode's next sequential number
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(i64).range(0..=i64::from(i32::MAX)))]
    counter_steps: i64,
    /// Let this cluster's fencing tokens be larger than N from now on (needs a superuser)
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(i64).range(0..=rowlock_state::TOKEN_FLOOR_MAX))]
    token_floor: Option<i64>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: crate::znode::Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Import {
    /// Exits with 0 only if everything exists and was read back.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        if let Err(e) = rowlock_proto::path::validate(&self.under) {
            return Err(Failure::new(USAGE, format!("--under {}: {e}", self.under)));
        }
        let mut stop = Stop::listen()?;
        let source = tokio::select! {
            opened = self.source() => opened?,
            signal = stop.signal() => return Err(ImportError::Interrupted(signal).failure()),
        };
        let client = self.connect().await?;
        job::ImportJob::new(&self, source, client).run(&mut stop).await
    }

    async fn connect(&self) -> Result<Client, Failure> {
        let endpoints = self.cluster.endpoints()?;
        if endpoints.contains('/') {
            return Err(Failure::new(USAGE, "--endpoints has a path; name it with --under instead"));
        }
        let config = self.cluster.defaults()?.endpoints(&endpoints).chroot("");
        self.open(config).await
    }

    async fn open(&self, mut config: ClientBuilder) -> Result<Client, Failure> {
        if let Some(timeout) = self.cluster.session_timeout {
            config = config.session_timeout(timeout);
        }
        if let Some(timeout) = self.cluster.connect_timeout {
            config = config.connect_timeout(timeout);
        }
        config.connect().await.map_err(|e| Failure::new(UNAVAILABLE, e))
    }

    /// Opens the source; returns its tree.
    async fn source(&self) -> Result<Snapshot, Failure> {
        if let Some(path) = &self.from_snapshot {
            let snapshot = Snapshot::open(path)
                .map_err(|e| Failure::new(trouble::exit_code(&e), format!("{} {e}", path.display())))?;
            warn_of_newer_logs(path);
            return Ok(snapshot);
        }
        let hosts = self.from.as_deref().unwrap_or_default();
        // All further variables concern the target cluster.
        let var = |name: &str| (name == PLAINTEXT_PASSWORDS).then(|| self.cluster.tls.var(name)).flatten();
        let config = ClientBuilder::from_vars(var).map_err(|e| Failure::new(USAGE, e))?;
        let mut config = config.endpoints(hosts);
        if let Some(auth) = &self.from_auth {
            let split = auth.split_once(':');
            let (scheme, secret) =
                split.ok_or_else(|| Failure::new(USAGE, "--from-auth: use SCHEME:SECRET"))?;
            config = config.auth(scheme, secret.as_bytes().to_vec());
        }
        let client = self.open(config).await?;
        let mut progress = Progress::new("read", None);
        let walked = walk::walk(&client, &mut progress).await;
        let _ = client.close().await;
        progress.done();
        errln!(
            "rowlock: note: a live server does not show which znodes are containers or have a time to live; they are \
             imported as persistent ones. Use --from-snapshot to keep them"
        );
        walked.map_err(|error| error.failure())
    }
}

/// Warns about later changes: those are in the transaction logs, which are not read.
fn warn_of_newer_logs(path: &Path) {
    let Ok((folder, name)) = snapshot::split(path) else { return };
    let hex = |name: &str, prefix: &str| u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
    let Some(zxid) = hex(name, "snapshot.") else { return };
    let names = Dir::open(folder).and_then(|dir| dir.list()).unwrap_or_default();
    let newer =
        |prefix| names.iter().filter(move |name| hex(name, prefix).is_some_and(|other| other > zxid)).count();
    for (count, kind) in
        [(newer("snapshot."), "newer snapshots"), (newer("log."), "transaction logs with later changes")]
    {
        if count > 0 {
            errln!(
                "rowlock: note: {count} {kind} beside {name} are not read; restart that ZooKeeper to make it write a \
                 snapshot of its last state"
            );
        }
    }
}
