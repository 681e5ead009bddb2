//! Import job from the plan to the verdict, or to the rollback after a failure.

use std::process::ExitCode;

use rowlock_client::{Children, Client, Error, ErrorCode};
use rowlock_env::disk::Dir;
use rowlock_env::{rng, time};
use rowlock_proto::path as paths;

use super::create::Creator;
use super::journal::{self, Header};
use super::limits::RECORDS_PER_TURN;
use super::plan::{Counting, Issues, Plan};
use super::retry::retry;
use super::show::{self, Progress};
use super::snapshot::Snapshot;
use super::target::Target;
use super::tokens;
use super::trial::{TrialResult, try_acls};
use super::trouble::ImportError;
use super::undo::{Rollback, roll_back};
use super::verify::{Verified, Verifier};
use super::window::Window;
use super::{Import, check_kept, describe, wait_for_end};
use crate::cluster::failed;
use crate::exit::{Failure, LOST, REFUSED};
use crate::print::{errln, print};
use crate::signals::Stop;
use crate::znode::{Output, print_json};

pub struct ImportJob<'a> {
    options: &'a Import,
    name: String,
    source: Snapshot,
    client: Client,
    target: Target,
}

impl<'a> ImportJob<'a> {
    /// Creates the job for a source that was read or opened.
    pub fn new(options: &'a Import, name: String, source: Snapshot, client: Client) -> Self {
        let target = Target { under: options.under.clone(), versions_max: options.keep_versions };
        ImportJob { options, name, source, client, target }
    }

    pub async fn run(self, stop: &mut Stop) -> Result<ExitCode, Failure> {
        let outcome = self.run_inner(stop).await;
        // Without an answer the session ends by itself.
        let _ = self.client.close().await;
        outcome
    }

    async fn run_inner(&self, stop: &mut Stop) -> Result<ExitCode, Failure> {
        let prepared = tokio::select! {
            prepared = self.prepare() => prepared?,
            signal = stop.signal() => return Err(ImportError::Interrupted(signal).failure()),
        };
        let Some((plan, counting)) = prepared else { return Ok(ExitCode::SUCCESS) };
        if let Some(floor) = self.options.token_floor {
            let document = tokens::raise(&self.client, floor).await?;
            if let Some(text) = tokens::kept_tokens(&document) {
                errln!("rowlock: note: {text}");
            }
        }
        let header = Header {
            id: format!("{:016x}", rng::u64()),
            by: user_and_process(),
            source: self.name.clone(),
            started_ms: time::wall_ms(),
            is_done: false,
        };
        let started = journal::begin(&self.client, &header).await;
        if !started.map_err(|e| failed(journal::JOURNAL, &e))? {
            return Err(self.occupied().await);
        }
        let imported = tokio::select! {
            outcome = self.import(&plan, counting, &header) => outcome,
            signal = stop.signal() => Err(ImportError::Interrupted(signal).failure()),
        };
        match imported {
            Ok(verified) => self.report(&plan, &verified).await,
            Err(failure) => Err(self.fail(failure, stop).await),
        }
    }

    /// Reads the source once and checks for conflicts; returns `None` after a dry run.
    async fn prepare(&self) -> Result<Option<(Plan, Counting)>, Failure> {
        let under = &self.options.under;
        retry(|| self.client.sync("/")).await.map_err(|e| failed(under, &e))?;
        let existing = match retry(|| self.client.get_children(under)).await {
            Ok(Children { names, stat }) => {
                let creates = (i64::from(stat.cversion.0) + i64::from(stat.num_children)) / 2;
                Some((names, creates))
            }
            Err(Error::Rejected(ErrorCode::NoNode)) => None,
            Err(e) => return Err(failed(under, &e)),
        };
        let parent = paths::parent(under).filter(|_| existing.is_none());
        if let Some(parent) = parent
            && retry(|| self.client.exists(parent)).await.map_err(|e| failed(parent, &e))?.is_none()
        {
            return Err(Failure::new(REFUSED, format!("{parent} does not exist; create it first")));
        }
        let root_creates = existing.as_ref().map(|(_, creates)| *creates);
        let counting = Counting { steps_max: self.options.counter_steps, root_creates };
        let plan = self.plan(counting).await.map_err(|error| error.failure())?;
        let floor = self.options.token_floor;
        let conflicts = conflicts(&plan, existing.map(|(names, _)| names).unwrap_or_default(), &self.target);
        if self.options.dry_run {
            match self.options.output {
                Output::Json => print_json(&show::plan_json(&plan, &conflicts, floor))?,
                Output::Simple => print(show::plan_lines(&plan, &conflicts, floor, true).as_bytes())?,
            }
        } else {
            errln!("{}", show::plan_lines(&plan, &conflicts, floor, false).trim_end());
        }
        refusal(&plan, &conflicts).map_or(Ok(()), Err)?;
        Ok((!self.options.dry_run).then_some((plan, counting)))
    }

    async fn plan(&self, counting: Counting) -> Result<Plan, ImportError> {
        let mut plan = Plan::new(counting);
        let mut records = self.source.records();
        let mut count = 0_usize;
        while let Some(record) = records.next()? {
            count += 1;
            if count.is_multiple_of(RECORDS_PER_TURN) {
                tokio::task::yield_now().await;
            }
            plan.add(&record, &self.target);
        }
        plan.finish(&self.target);
        Ok(plan)
    }

    async fn occupied(&self) -> Failure {
        match journal::find(&self.client).await {
            Ok(Some(found)) if found.marker.is_some() => {
                Failure::new(REFUSED, format!("{} is under way; wait for its end", describe(&found)))
            }
            Ok(Some(found)) => {
                let problem = describe(&found);
                Failure::new(REFUSED, format!("{problem} failed; take it back with rowlock import --undo"))
            }
            Ok(None) => Failure::new(REFUSED, "another import has just ended; try again"),
            Err(e) => failed(journal::JOURNAL, &e),
        }
    }

    async fn import(&self, plan: &Plan, counting: Counting, header: &Header) -> Result<Verified, Failure> {
        let work = async {
            if let TrialResult::Rejected(failure) = try_acls(&self.client, plan).await? {
                return Ok(Err(failure));
            }
            let mut progress = Progress::new("created", Some(plan.znodes));
            let mut window = Window::new(self.client.clone());
            let creator = Creator::new(&self.target, counting, &header.id);
            creator.run(&self.source, &mut window, &mut progress).await?;
            progress.done();
            let mut progress = Progress::new("read back", Some(plan.znodes));
            let verifier = Verifier::new(&self.client, &self.target, counting);
            let verified = verifier.run(&self.source, &mut progress).await?;
            progress.done();
            journal::complete(&self.client, header).await.map_err(ImportError::at(journal::JOURNAL))?;
            Ok(Ok(verified))
        };
        work.await.unwrap_or_else(|error: ImportError| Err(error.failure()))
    }

    async fn report(&self, plan: &Plan, verified: &Verified) -> Result<ExitCode, Failure> {
        // The import is complete even if printing fails.
        let printed = match self.options.output {
            Output::Json => print(
                format!("{}\n", show::verdict_json(plan, verified, self.options.token_floor)).as_bytes(),
            ),
            Output::Simple => print(show::verdict_line(plan, verified).as_bytes()),
        };
        if let Err(e) = journal::remove(&self.client).await {
            errln!("rowlock: the journal stays ({e}); remove it with rowlock import --undo, the data stays");
        }
        printed.map(|()| ExitCode::SUCCESS)
    }

    /// Rolls back after a failure, and adds the result to the failure. A second signal leaves the rollback to
    /// `--undo`.
    async fn fail(&self, failure: Failure, stop: &mut Stop) -> Failure {
        errln!("rowlock: the import failed; removing the created znodes");
        let outcome = tokio::select! {
            outcome = self.roll_back() => outcome,
            signal = stop.signal() => Err(ImportError::Interrupted(signal).failure()),
        };
        let Failure { code, message } = failure;
        match outcome {
            Ok(None) => {
                Failure::new(code, format!("{message}; the import was complete before that, and stays"))
            }
            Ok(Some(rollback)) => {
                let removed = rollback.deleted;
                match check_kept(&rollback) {
                    Ok(_) => Failure::new(
                        code,
                        format!("{message}; nothing was imported ({removed} znodes removed again)"),
                    ),
                    Err(kept) => Failure::new(code, format!("{message}; taken back, but {kept}")),
                }
            }
            Err(again) => Failure::new(
                LOST,
                format!(
                    "{message}; and removing the created znodes failed ({again}): run rowlock import --undo"
                ),
            ),
        }
    }

    /// Rolls back on our own session while the session lives: pending transactions come first. Returns `None`
    /// if the import was complete.
    async fn roll_back(&self) -> Result<Option<Rollback>, Failure> {
        let client = match journal::find(&self.client).await {
            Ok(_) => self.client.clone(),
            Err(e) if e.is_session_end() => {
                let fresh = self.client.renew().await.map_err(|e| Failure::new(LOST, e))?;
                // Until the servers end the old session, its transactions may still arrive.
                wait_for_end(&fresh).await?;
                fresh
            }
            Err(e) => return Err(failed(journal::JOURNAL, &e)),
        };
        let found = journal::find(&client).await.map_err(|e| failed(journal::JOURNAL, &e))?;
        let Some(found) = found else { return Ok(Some(Rollback::default())) };
        if found.header.is_done {
            journal::remove(&client).await.map_err(|e| failed(journal::JOURNAL, &e))?;
            return Ok(None);
        }
        let mut progress = Progress::new("removed", None);
        let rollback = roll_back(&client, &mut progress).await.map_err(|error| error.failure())?;
        progress.done();
        Ok(Some(rollback))
    }
}

fn conflicts(plan: &Plan, mut existing: Vec<String>, target: &Target) -> Issues {
    existing.sort_unstable();
    let mut notes = Issues::default();
    for name in plan.top.iter().filter(|name| existing.binary_search(name).is_ok()) {
        notes.add(format!("{} exists", target.path(&paths::join("/", name))));
    }
    notes
}

fn refusal(plan: &Plan, conflicts: &Issues) -> Option<Failure> {
    if let Some(first) = plan.obstacles.first.first() {
        return Some(Failure::new(
            REFUSED,
            format!("{}; nothing was imported", with_more(first, &plan.obstacles)),
        ));
    }
    let first = conflicts.first.first()?;
    let first = with_more(first, conflicts);
    let text = format!("{first}; nothing is overwritten: remove it, or choose another place with --under");
    Some(Failure::new(REFUSED, text))
}

fn with_more(first: &str, notes: &Issues) -> String {
    match notes.count - 1 {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more like it)"),
    }
}

/// Identifies user, host and process to readers of the marker.
fn user_and_process() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    let host =
        Dir::open("/proc/sys/kernel".as_ref()).and_then(|dir| dir.read("hostname")).unwrap_or_default();
    let host = String::from_utf8_lossy(&host).trim().to_owned();
    format!("{user}@{host}, process {}", std::process::id())
}
