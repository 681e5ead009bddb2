//! `rowlock terraform run`: runs Terraform or OpenTofu under the lock of a state.
//!
//! The lock is the same as that of `/v1/terraform/{name}`, held by a session kept alive until the command
//! ends: no lock is left behind. The command's own requests for the lock, and with `--state` for the state,
//! are served on loopback: the backend "http" reads the addresses from the environment. The state is a znode,
//! written only while the lock is held.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::{Acl, Client, CreateMode, Error, Transaction};
use rowlock_env::net::Listener;
use rowlock_env::{rng, task};
use rowlock_proto::ErrorCode;
use serde_json::Value;

use super::Queued;
use super::http_server::{self, Limits, Request, Response};
use super::options::{TimeLimit, request_on_terms};
use super::under::CommandMode;
use crate::exit::{Failure, UNAVAILABLE, USAGE};
use crate::name::Name;
use crate::znode::tree;

const FOLDER: &str = "/terraform";
/// Time for a response, which may wait for a change of the leader.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);
/// Longest body; more than a znode holds.
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
            return Err(Failure::new(USAGE, "no command is given; add a command, for example -- tofu apply"));
        }
        if run.name.contains('/') {
            return Err(Failure::new(USAGE, format!("{}: the name of a state has no slash", run.name)));
        }
        let lock = Name::of(format!("@terraform/{}", run.name));
        let acquire = async |client: &Client, owner, limit: &TimeLimit| {
            request_on_terms!(lock.mutex(client).request(), run.queued.terms, owner, limit)
        };
        let mode = CommandMode::Terraform { keeps_state: run.state };
        run.queued.run_with_mode(&lock, run.queued.waiting.begin(false), acquire, mode).await
    }
}

/// HTTP backend of the command under the lock. Ends with the process.
struct Backend {
    client: Client,
    /// Own queue znode of the lock.
    key: String,
    state: String,
    /// Secret path segment, unknown to other users of this machine.
    secret: String,
    /// Lock info of the program that holds the lock inside the run.
    info: Mutex<Option<Bytes>>,
}

/// Starts the backend on loopback; returns the environment variables for the command.
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
    let answer = move |request: Request| {
        let backend = backend.clone();
        async move { backend.answer(request).await }
    };
    let limits = Limits { exchange_max: EXCHANGE_MAX, body_max_bytes: STATE_MAX_BYTES };
    task::spawn("terraform-backend", http_server::serve(listener, limits, answer));
    Ok(environment)
}

impl Backend {
    async fn answer(&self, request: Request) -> Response {
        let path = request.path.strip_prefix('/').and_then(|path| path.strip_prefix(&*self.secret));
        match (request.method.as_str(), path) {
            ("LOCK", Some("/lock")) => self.lock(request.body),
            ("UNLOCK", Some("/lock")) => self.unlock(&request.body),
            ("GET", Some("/state")) => self.read().await,
            ("POST", Some("/state")) => self.write(request.body).await,
            ("DELETE", Some("/state")) => self.delete().await,
            (_, Some("/lock" | "/state")) => Response::not_allowed("LOCK, UNLOCK, GET, POST, DELETE"),
            _ => Response::text(404, "there is no such address"),
        }
    }

    /// Locks among the programs of one run; the lock itself is already held.
    fn lock(&self, info: Bytes) -> Response {
        if id_of(&info).is_none() {
            return Response::text(400, "the body is not a JSON object with an ID");
        }
        let mut held = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_ref() {
            Some(other) if id_of(other) != id_of(&info) => Response::new(423, other.clone()),
            _ => {
                *held = Some(info);
                Response::text(200, "")
            }
        }
    }

    /// Unlocks. A request without a body is `force-unlock` by a program that does not send the ID.
    fn unlock(&self, info: &[u8]) -> Response {
        let mut held = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_ref() {
            Some(other) if !info.is_empty() && id_of(other) != id_of(info) => {
                Response::new(409, other.clone())
            }
            _ => {
                *held = None;
                Response::text(200, "")
            }
        }
    }

    /// Reads after a sync: the last write may have gone through another node.
    async fn read(&self) -> Response {
        let read = match self.client.sync(&self.state).await {
            Ok(()) => self.client.get(&self.state).await,
            Err(e) => Err(e),
        };
        match read {
            Ok(znode) => Response::new(200, znode.data.unwrap_or_default()),
            Err(Error::Rejected(ErrorCode::NoNode)) => Response::text(404, "there is no state yet"),
            Err(e) => self.refused(&e),
        }
    }

    async fn write(&self, body: Bytes) -> Response {
        let set = self.guarded().set(&*self.state, Some(body.clone()), None);
        let mut written = self.client.commit(set).await;
        if let Err(Error::TransactionRejected { index: 1, code: ErrorCode::NoNode }) = written {
            let acl = Acl::open();
            let create = self.guarded().create(&*self.state, Some(body), CreateMode::Persistent, acl);
            written = match tree::create_parents(&self.client, &self.state).await {
                Ok(()) => self.client.commit(create).await,
                Err(failed) => Err(failed.error),
            };
        }
        written.map_or_else(|e| self.refused(&e), |_| Response::text(200, ""))
    }

    async fn delete(&self) -> Response {
        match self.client.commit(self.guarded().delete(&*self.state, None)).await {
            Ok(_) | Err(Error::TransactionRejected { index: 1, code: ErrorCode::NoNode }) => {
                Response::text(200, "")
            }
            Err(e) => self.refused(&e),
        }
    }

    /// Returns a transaction that takes effect only while the own queue znode exists, which no later holder
    /// has.
    fn guarded(&self) -> Transaction {
        Transaction::new().check(&*self.key, None)
    }

    fn refused(&self, e: &Error) -> Response {
        match e {
            Error::TransactionRejected { index: 0, .. } => {
                Response::text(409, "the lock of this run is lost: the state was not written")
            }
            Error::TooLarge { .. } => {
                Response::text(413, &format!("{e}; keep this state elsewhere (without --state)"))
            }
            e => Response::text(503, &format!("{}: {e}", self.state)),
        }
    }
}

fn id_of(info: &[u8]) -> Option<String> {
    let info: Value = serde_json::from_slice(info).ok()?;
    info.get("ID")?.as_str().map(str::to_owned)
}
