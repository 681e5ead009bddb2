//! `rowlock terraform run`: runs Terraform or OpenTofu under the lock of a state.
//!
//! The lock is that of `/v1/terraform/{name}`, held by a session that gives signs of life for as long as the
//! command runs: it cannot be left behind. The command's own requests for the lock, and with `--state` for
//! the state, are answered on loopback: its backend "http" finds the addresses in the environment. The state
//! is a znode that is written only while the lock is held.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::{Acl, Client, CreateMode, Error, Transaction};
use rowlock_env::net::Listener;
use rowlock_env::{rng, task};
use rowlock_proto::ErrorCode;
use serde_json::Value;

use super::http_server::{self, Incoming, Outgoing};
use super::options::{Asking, ask_on_terms};
use super::queued::Queued;
use super::under::Around;
use crate::exit::{Failure, UNAVAILABLE, USAGE};
use crate::name::Name;
use crate::znode::tree;

/// Where states are kept.
const FOLDER: &str = "/terraform";
/// For an answer, which may wait for a change of the leader.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);
/// More than a znode takes.
const STATE_MAX_BYTES: usize = 4 << 20;

/// Run Terraform or OpenTofu under the lock of a state
#[derive(clap::Args)]
pub struct Terraform {
    #[command(subcommand)]
    command: TerraformCommand,
}

#[derive(clap::Subcommand)]
enum TerraformCommand {
    Run(TerraformRun),
}

/// Run a command under the lock of a state, and serve its backend "http" on loopback
#[derive(clap::Args)]
pub struct TerraformRun {
    /// Name of the state, as in /v1/terraform/NAME
    name: String,
    /// Keep the state in the cluster, too (up to 1 MB): it is written only while the lock is held
    #[arg(long)]
    state: bool,
    #[command(flatten)]
    queued: Queued,
}

impl Terraform {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let TerraformCommand::Run(run) = self.command;
        if !run.queued.has_command() {
            return Err(Failure::new(USAGE, "no command is given; add -- tofu apply, or another one"));
        }
        if run.name.contains('/') {
            return Err(Failure::new(USAGE, format!("{}: the name of a state has no slash", run.name)));
        }
        let lock = Name::of(format!("@terraform/{}", run.name));
        let ask = async |client: &Client, owner, asking: &Asking| {
            ask_on_terms!(lock.mutex(client).request(), run.queued.terms, owner, asking)
        };
        let around = Around::Terraform { keeps_state: run.state };
        run.queued.run_around(&lock, run.queued.waiting.begin(false), ask, around).await
    }
}

/// What answers a command that runs under the lock. It ends with the process.
struct Backend {
    client: Client,
    /// Of our place in the queue of the lock.
    key: String,
    /// Of the state's znode.
    state: String,
    /// Other users of this machine do not know it.
    secret: String,
    /// By what the command holds the lock.
    info: Mutex<Option<Bytes>>,
}

/// Answers on loopback from now on; what the environment tells the command of it.
///
/// # Errors
/// There is no free port.
pub async fn serve(
    client: &Client,
    key: String,
    keeps_state: bool,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let listener = Listener::bind("127.0.0.1:0").await;
    let listener =
        listener.map_err(|e| Failure::new(UNAVAILABLE, format!("cannot listen on loopback: {e}")))?;
    let mut secret = [0; 16];
    rng::fill(&mut secret);
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let lock = key.rsplit_once('/').map_or("", |(lock, _)| lock);
    let name = lock.rsplit('/').next().unwrap_or_default();
    let address = format!("http://{}/{secret}", listener.local_addr());
    let mut environment = vec![
        ("TF_HTTP_LOCK_ADDRESS", format!("{address}/lock")),
        ("TF_HTTP_UNLOCK_ADDRESS", format!("{address}/lock")),
        ("TF_HTTP_LOCK_METHOD", "LOCK".to_owned()),
        ("TF_HTTP_UNLOCK_METHOD", "UNLOCK".to_owned()),
    ];
    if keeps_state {
        environment.push(("TF_HTTP_ADDRESS", format!("{address}/state")));
        environment.push(("TF_HTTP_UPDATE_METHOD", "POST".to_owned()));
    }
    let state = format!("{FOLDER}/{name}");
    let backend = Backend { client: client.clone(), key, state, secret, info: Mutex::new(None) };
    let backend = Arc::new(backend);
    let answer = move |asked: Incoming| {
        let backend = backend.clone();
        async move { backend.answer(asked).await }
    };
    task::spawn("terraform-backend", http_server::serve(listener, (EXCHANGE_MAX, STATE_MAX_BYTES), answer));
    Ok(environment)
}

impl Backend {
    async fn answer(&self, asked: Incoming) -> Outgoing {
        let path = asked.path.strip_prefix('/').and_then(|path| path.strip_prefix(&*self.secret));
        match (asked.method.as_str(), path) {
            ("LOCK", Some("/lock")) => self.lock(asked.body),
            ("UNLOCK", Some("/lock")) => self.unlock(&asked.body),
            ("GET", Some("/state")) => self.read().await,
            ("POST", Some("/state")) => self.write(asked.body).await,
            ("DELETE", Some("/state")) => self.delete().await,
            (_, Some("/lock" | "/state")) => Outgoing::not_allowed("LOCK, UNLOCK, GET, POST, DELETE"),
            _ => Outgoing::text(404, "there is no such address"),
        }
    }

    /// The lock is ours already; here the programs of one run are kept apart.
    fn lock(&self, info: Bytes) -> Outgoing {
        if id_of(&info).is_none() {
            return Outgoing::text(400, "the body is not a JSON object with an ID");
        }
        let mut held = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_ref() {
            Some(other) if id_of(other) != id_of(&info) => Outgoing::new(423, other.clone()),
            _ => {
                *held = Some(info);
                Outgoing::text(200, "")
            }
        }
    }

    /// Without a body it is `force-unlock` of a program that does not say by which ID.
    fn unlock(&self, info: &[u8]) -> Outgoing {
        let mut held = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_ref() {
            Some(other) if !info.is_empty() && id_of(other) != id_of(info) => {
                Outgoing::new(409, other.clone())
            }
            _ => {
                *held = None;
                Outgoing::text(200, "")
            }
        }
    }

    /// After a sync: another node may have taken the last write.
    async fn read(&self) -> Outgoing {
        let read = match self.client.sync(&self.state).await {
            Ok(()) => self.client.get(&self.state).await,
            Err(e) => Err(e),
        };
        match read {
            Ok(znode) => Outgoing::new(200, znode.data.unwrap_or_default()),
            Err(Error::Rejected(ErrorCode::NoNode)) => Outgoing::text(404, "there is no state yet"),
            Err(e) => self.refused(&e),
        }
    }

    async fn write(&self, body: Bytes) -> Outgoing {
        let set = self.guarded().set(&*self.state, Some(body.clone()), None);
        let mut written = self.client.commit(set).await;
        if let Err(Error::TransactionRejected { index: 1, code: ErrorCode::NoNode }) = written {
            let acl = Acl::open();
            let create = self.guarded().create(&*self.state, Some(body), CreateMode::Persistent, acl);
            written = match tree::make_parents(&self.client, &self.state).await {
                Ok(()) => self.client.commit(create).await,
                Err(e) => Err(e),
            };
        }
        written.map_or_else(|e| self.refused(&e), |_| Outgoing::text(200, ""))
    }

    async fn delete(&self) -> Outgoing {
        match self.client.commit(self.guarded().delete(&*self.state, None)).await {
            Ok(_) | Err(Error::TransactionRejected { index: 1, code: ErrorCode::NoNode }) => {
                Outgoing::text(200, "")
            }
            Err(e) => self.refused(&e),
        }
    }

    /// Takes effect only while our place, which no later holder has, is in the queue.
    fn guarded(&self) -> Transaction {
        Transaction::new().check(&*self.key, None)
    }

    fn refused(&self, e: &Error) -> Outgoing {
        match e {
            Error::TransactionRejected { index: 0, .. } => {
                Outgoing::text(409, "the lock of this run is lost: the state was not written")
            }
            Error::TooLarge { .. } => {
                Outgoing::text(413, &format!("{e}; keep this state elsewhere (without --state)"))
            }
            e => Outgoing::text(503, &format!("{}: {e}", self.state)),
        }
    }
}

fn id_of(info: &[u8]) -> Option<String> {
    let info: Value = serde_json::from_slice(info).ok()?;
    info.get("ID")?.as_str().map(str::to_owned)
}
