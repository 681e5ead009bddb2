//! Import job from the plan to the verdict.

use std::process::ExitCode;

use rowlock_client::{Client, ErrorCode};
use rowlock_env::time;
use rowlock_proto::path as paths;
use serde_json::Value;

use super::Import;
use super::create::try_acls;
use super::create::{Amount, Creator};
use super::limits::NAMED;
use super::pairs::Pairs;
use super::plan::{Issues, Pass, Plan};
use super::record::{Selection, select};
use super::show::{self, Progress};
use super::snapshot::Snapshot;
use super::target::Target;
use super::trouble::{ImportError, retry};
use crate::cluster::{LEAVING_MAX, failed};
use crate::exit::{Failure, REFUSED};
use crate::operate::{OperateError, operate};
use crate::print::{count, errln, print};
use crate::signals::Stop;
use crate::znode::{Output, print_json};

pub struct ImportJob<'a> {
    options: &'a Import,
    source: Snapshot,
    client: Client,
    target: Target,
}

impl<'a> ImportJob<'a> {
    /// Creates the job for a source that was read or opened.
    pub fn new(options: &'a Import, source: Snapshot, client: Client) -> Self {
        let target = Target { under: options.under.clone(), versions_max: options.keep_versions };
        ImportJob { options, source, client, target }
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
        let Some(plan) = prepared else { return Ok(ExitCode::SUCCESS) };
        if let Some(floor) = self.options.token_floor {
            let document = raise_tokens(&self.client, floor).await?;
            if let Some(text) = kept_tokens(&document) {
                errln!("rowlock: note: {text}");
            }
        }
        if plan.is_complete() {
            return self.report(&plan, &plan);
        }
        let mut creator = Creator::new(&self.client, &self.target);
        let copied = tokio::select! {
            outcome = self.copy(&plan, &mut creator) => outcome,
            signal = stop.signal() => Err(ImportError::Interrupted(signal)),
        };
        match copied {
            Ok(read_back) => self.report(&plan, &read_back),
            Err(error) => {
                // The count below should include what is on its way.
                let _ = time::timeout(LEAVING_MAX, creator.wait_for_sent()).await;
                Err(self.unfinished(error.failure(), &plan, creator.created))
            }
        }
    }

    /// Compares source and target and refuses conflicts; returns `None` after a dry run.
    async fn prepare(&self) -> Result<Option<Plan>, Failure> {
        let mut progress = Progress::new("compared", None);
        let plan = self.compare(Pass::Before, None, &mut progress).await.map_err(|error| error.failure())?;
        if plan.existing > 0 {
            progress.done();
        }
        let under = &self.options.under;
        if let Some(parent) = paths::parent(under)
            && retry(|| self.client.exists(parent)).await.map_err(|e| failed(parent, &e))?.is_none()
        {
            return Err(Failure::new(REFUSED, format!("{parent} does not exist; create it first")));
        }
        let floor = self.options.token_floor;
        if self.options.dry_run {
            match self.options.output {
                Output::Json => print_json(&show::plan_json(&plan, floor))?,
                Output::Simple => print(show::plan_lines(&plan, floor, true).as_bytes())?,
            }
        } else {
            errln!("{}", show::plan_lines(&plan, floor, false).trim_end());
        }
        self.refusal(&plan).map_or(Ok(()), Err)?;
        Ok((!self.options.dry_run).then_some(plan))
    }

    /// Reads the source beside the target. With a creator, raises the next sequential numbers.
    async fn compare(
        &self,
        pass: Pass,
        mut creator: Option<&mut Creator<'_>>,
        progress: &mut Progress,
    ) -> Result<Plan, ImportError> {
        let mut plan = Plan::new(pass, self.options.counter_steps);
        let mut pairs = Pairs::new(&self.client, &self.target, &self.source).await?;
        loop {
            let next = pairs.next().await?;
            match &next {
                Some((record, found)) => plan.add(record, found.as_ref(), &self.target),
                None => plan.finish(&self.target),
            }
            for raise in std::mem::take(&mut plan.raises) {
                if let Some(creator) = creator.as_mut() {
                    creator.raise(raise).await?;
                }
            }
            progress.show(Amount { znodes: plan.znodes, bytes: plan.bytes });
            if next.is_none() {
                return Ok(plan);
            }
        }
    }

    /// Creates what the target lacks, and reads everything back.
    async fn copy(&self, plan: &Plan, creator: &mut Creator<'_>) -> Result<Plan, ImportError> {
        try_acls(&self.client, plan).await?;
        let mut progress = Progress::new("created", Some(plan.znodes - plan.existing));
        let mut pairs = Pairs::new(&self.client, &self.target, &self.source).await?;
        while let Some((record, found)) = pairs.next().await? {
            if select(&record) == Selection::Taken {
                creator.create(record, found.as_ref()).await?;
                progress.show(creator.created);
            }
        }
        creator.finish().await?;
        progress.show(creator.created);
        progress.done();
        let mut progress = Progress::new("read back", Some(plan.znodes));
        let read_back = self.compare(Pass::After, Some(creator), &mut progress).await?;
        creator.finish().await?;
        progress.done();
        let differences = read_back.differences();
        if differences.is_empty() { Ok(read_back) } else { Err(ImportError::Different(differences)) }
    }

    fn report(&self, plan: &Plan, read_back: &Plan) -> Result<ExitCode, Failure> {
        let floor = self.options.token_floor;
        let printed = match self.options.output {
            Output::Json => {
                let verdict = show::verdict_json(plan, read_back, floor);
                print(format!("{verdict}\n").as_bytes())
            }
            Output::Simple => print(show::verdict_line(plan, read_back).as_bytes()),
        };
        printed.map(|()| ExitCode::SUCCESS)
    }

    fn refusal(&self, plan: &Plan) -> Option<Failure> {
        if let Some(first) = plan.obstacles.first.first() {
            let text = format!("{}; nothing was created", with_more(first, &plan.obstacles));
            return Some(Failure::new(REFUSED, text));
        }
        let first = with_more(plan.conflicts.first.first()?, &plan.conflicts);
        let changed = if self.options.from.is_some() && plan.existing > 0 {
            " (the source may have changed since an earlier import)"
        } else {
            ""
        };
        Some(Failure::new(
            REFUSED,
            format!(
                "{first}{changed}; nothing is overwritten: remove it, or choose another place with --under"
            ),
        ))
    }

    /// Adds to the failure of an import that may have created something how to continue and how to remove it.
    fn unfinished(&self, failure: Failure, plan: &Plan, created: Amount) -> Failure {
        let Failure { code, message } = failure;
        let exist = plan.existing + created.znodes;
        if exist == 0 {
            return Failure::new(code, format!("{message}; no znode is known to have been created"));
        }
        let remove = if plan.root_is_shared {
            let named: Vec<String> =
                plan.top.iter().take(NAMED).map(|name| self.target.path(&paths::join("/", name))).collect();
            let more = plan.top.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("rowlock delete -r for each of {}{more}", named.join(", "))
        } else {
            format!("rowlock delete -r {}", self.options.under)
        };
        Failure::new(
            code,
            format!(
                "{message}; {exist} of {} exist: run the same command again to continue, or remove them with \
                 {remove}",
                count(plan.znodes, "znode")
            ),
        )
    }
}

fn with_more(first: &str, notes: &Issues) -> String {
    match notes.count - 1 {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more like it)"),
    }
}

/// Raises the fencing tokens of the cluster. If the import fails, the raised tokens do no harm.
///
/// # Errors
/// The cluster refused, or the outcome is unknown.
async fn raise_tokens(client: &Client, floor: i64) -> Result<Value, Failure> {
    operate(client, &format!("/v1/raise-tokens?above={floor}")).await.map_err(|error| match error {
        OperateError::Code(ErrorCode::NoAuth) => {
            let problem = "--token-floor needs a superuser: set ROWLOCK_AUTH; nothing was created";
            Failure::new(REFUSED, problem)
        }
        other => other.into(),
    })
}

/// Describes queue positions that keep smaller tokens, if any.
fn kept_tokens(document: &Value) -> Option<String> {
    let positions = document["places"].as_u64().filter(|positions| *positions > 0)?;
    Some(format!(
        "{} of this cluster's queues, taken before the floor, keep the smaller tokens; request these locks again for \
         larger ones",
        count(positions, "position")
    ))
}
