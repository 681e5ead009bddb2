//! `rowlock sim compare`: common lock designs, and Rowlock, under the same faults.
//!
//! Prints a table of all designs in all scenarios, or a single run for a design, a scenario and a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowlock_designs::design::Design;
use rowlock_designs::scenario::Scenario;
use rowlock_designs::table::{Row, Table, compare};
use rowlock_designs::{recipes, stage};
use rowlock_env::{task, worker};
use rowlock_sim::cluster::Rowlock;
use rowlock_sim::report::{Heading, Verdict, html, story};
use rowlock_world::time::HostId;
use rowlock_world::trace::{Happening, What};
use tokio::sync::mpsc;

use super::{case_file, pool};
use crate::exit::{Failure, REFUSED, SOFTWARE, USAGE};
use crate::paint::{Paint, Progress};
use crate::print::{errln, print};

/// Disconnect grace of the Rowlock design that has one.
const GRACE: Duration = Duration::from_millis(500);

/// Compare the lock designs that people use: the same faults for Redis, databases, ZooKeeper recipes and
/// Rowlock
#[derive(clap::Args)]
pub struct Compare {
    /// Number of seeds for each design and scenario
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Run only the design with this ID
    #[arg(long, value_name = "ID")]
    design: Option<String>,
    /// Run only the scenario with this ID
    #[arg(long, value_name = "ID")]
    scenario: Option<String>,
    /// Show the run of this seed (with --design and --scenario)
    #[arg(long, value_name = "N", requires = "design", requires = "scenario")]
    seed: Option<u64>,
    /// Print the table as Markdown
    #[arg(long, conflicts_with_all = ["html", "seed"])]
    markdown: bool,
    /// Write the table, or the diagram of the run of --seed, to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// Creates all designs; each thread has designs of its own.
fn all() -> Vec<Box<dyn Design>> {
    let mut designs = recipes::all();
    designs.push(Box::new(Rowlock { disconnect_grace: None, is_fenced: false }));
    designs.push(Box::new(Rowlock { disconnect_grace: Some(GRACE), is_fenced: false }));
    designs.push(Box::new(Rowlock { disconnect_grace: None, is_fenced: true }));
    designs
}

impl Compare {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let designs = self.designs()?;
        let scenarios = self.scenarios()?;
        if let (Some(seed), [design], [scenario]) = (self.seed, &designs[..], &scenarios[..]) {
            return self.one(*design, *scenario, seed).await;
        }
        let table = self.table(designs, scenarios).await;
        match &self.html {
            Some(file) => {
                case_file::save(file, table.to_html().as_bytes())?;
                print(format!("written: {}\n", file.display()).as_bytes())?;
            }
            None if self.markdown => print(table.to_markdown().as_bytes())?,
            None => print(table.to_text().as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the chosen designs as places among [`all`].
    fn designs(&self) -> Result<Vec<usize>, Failure> {
        let all = all();
        let chosen: Vec<usize> = (0..all.len())
            .filter(|place| self.design.as_deref().is_none_or(|id| all[*place].id() == id))
            .collect();
        if chosen.is_empty() {
            let ids: Vec<&str> = all.iter().map(|design| design.id()).collect();
            return Err(Failure::new(USAGE, format!("no such design; there are {}", ids.join(", "))));
        }
        Ok(chosen)
    }

    fn scenarios(&self) -> Result<Vec<Scenario>, Failure> {
        let Some(id) = &self.scenario else { return Ok(Scenario::ALL.to_vec()) };
        let known = Scenario::from_id(id).ok_or_else(|| {
            let ids: Vec<&str> = Scenario::ALL.iter().map(|scenario| scenario.id()).collect();
            Failure::new(USAGE, format!("no such scenario; there are {}", ids.join(", ")))
        })?;
        Ok(vec![known])
    }

    /// Fills the table on several threads; each thread takes the next design. Rows are in the order of the
    /// designs, whichever thread finishes first.
    async fn table(&self, designs: Vec<usize>, scenarios: Vec<Scenario>) -> Table {
        let count = designs.len();
        let (sender, mut rows_come) = mpsc::channel::<(usize, Vec<Row>)>(count);
        let (designs, next) = (Arc::new(designs), Arc::new(AtomicUsize::new(0)));
        let mut threads = Vec::new();
        for _ in 0..pool::threads(self.jobs).min(count) {
            let (sender, designs, next) = (sender.clone(), designs.clone(), next.clone());
            let (scenarios, seeds) = (scenarios.clone(), self.seeds);
            let work = move || {
                let all = all();
                while let Some(place) = designs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let table = compare(&[&*all[*place]], &scenarios, seeds, |_| {});
                    if sender.blocking_send((*place, table.rows)).is_err() {
                        return;
                    }
                }
            };
            threads.push(task::spawn("comparison", worker::run_blocking("comparison", work)));
        }
        drop(sender);
        let mut progress = Progress::new(Paint::stdout());
        // The table goes to stdout, where a program may read it.
        let is_shown = !self.markdown && Paint::stdout().is_terminal();
        let mut show = |done: usize| {
            let line = format!("{done} of {count} designs, {} seeds for each scenario", self.seeds);
            if is_shown { progress.show(&line) } else { errln!("  {line}") }
        };
        let mut rows = Vec::new();
        show(0);
        while let Some((place, row)) = rows_come.recv().await {
            rows.push((place, row));
            show(rows.len());
        }
        progress.done();
        rows.sort_by_key(|(place, _)| *place);
        Table { rows: rows.into_iter().flat_map(|(_, rows)| rows).collect(), scenarios, seeds: self.seeds }
    }

    /// Runs one seed. Exit code 1: two clients held the lock, an update was lost, or no client got the lock
    /// any more.
    async fn one(&self, place: usize, scenario: Scenario, seed: u64) -> Result<ExitCode, Failure> {
        let work = move || {
            let all = all();
            let design = &all[place];
            let title = format!("{}: {}, seed {seed}", design.name(), scenario.story());
            (title, stage::run(&**design, scenario, seed, true))
        };
        let (title, outcome) = worker::run_blocking("comparison", work).await;
        let mut outcome =
            outcome.map_err(|halt| Failure::new(SOFTWARE, format!("a model has a bug: {halt}")))?;
        let end = outcome.record.last().map(|happening| happening.at).unwrap_or_default();
        mark_two_holders(&mut outcome.record);
        let measured = &outcome.measured;
        let facts = vec![
            ("two holders".to_owned(), format!("{} times, {:?}", measured.windows, measured.overlap)),
            ("updates lost, plain store".to_owned(), outcome.losses.plain.to_string()),
            ("updates lost, fenced store".to_owned(), outcome.losses.fenced.to_string()),
            ("stuck".to_owned(), if measured.is_stuck { "yes" } else { "no" }.to_owned()),
        ];
        let bad = measured.windows > 0 || outcome.losses.plain > 0 || measured.is_stuck;
        let verdict = if bad {
            let figures: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            Verdict::Broken(figures.join("; "))
        } else {
            Verdict::Held
        };
        let paint = Paint::stdout();
        let mut text = paint.bold(&format!("{title}\n"));
        story::condensed(&outcome.record, end, &verdict)
            .iter()
            .for_each(|line| text.push_str(&format!("{line}\n")));
        print(text.as_bytes())?;
        if let Some(file) = &self.html {
            let reproduce = self.command(seed, file);
            let heading = Heading { title, verdict, facts, reproduce };
            case_file::save(file, html::page(&heading, &outcome.record, end).as_bytes())?;
            print(format!("drawn: {}\n", file.display()).as_bytes())?;
        }
        Ok(if bad { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
    }

    fn command(&self, seed: u64, file: &Path) -> String {
        let (design, scenario) = (self.design.as_deref(), self.scenario.as_deref());
        format!(
            "rowlock sim compare --design {} --scenario {} --seed {seed} --html {}",
            design.unwrap_or_default(),
            scenario.unwrap_or_default(),
            file.display()
        )
    }
}

/// Marks in the trace the moments at which a second client begins to believe that it holds a lock.
fn mark_two_holders(record: &mut Vec<Happening>) {
    let mut names: BTreeMap<HostId, String> = BTreeMap::new();
    let mut holders: BTreeSet<(String, HostId)> = BTreeSet::new();
    let mut marked = Vec::with_capacity(record.len());
    for happening in record.drain(..) {
        let mut mark = None;
        match &happening.what {
            What::Host { host, name, .. } => drop(names.insert(*host, name.clone())),
            What::Holds { host, lock, .. } => {
                let others: Vec<&str> = holders
                    .iter()
                    .filter(|(held, other)| held == lock && other != host)
                    .map(|(_, other)| names.get(other).map_or("", String::as_str))
                    .collect();
                if !others.is_empty() {
                    let who = names.get(host).map_or("", String::as_str);
                    mark = Some(format!("{who} and {} both hold {lock}", others.join(", ")));
                }
                holders.insert((lock.clone(), *host));
            }
            What::LetGo { host, lock, .. } => drop(holders.remove(&(lock.clone(), *host))),
            What::Down { host, .. } => holders.retain(|(_, holder)| holder != host),
            _ => {}
        }
        let at = happening.at;
        marked.push(happening);
        marked.extend(mark.map(|text| Happening { at, what: What::Violation { text } }));
    }
    *record = marked;
}

#[cfg(test)]
mod tests {
    use rowlock_world::time::Nanos;

    use super::*;

    #[test]
    fn a_second_holder_is_marked_and_a_successor_is_not() {
        let at = |millis, what| Happening { at: Nanos::from_millis(millis), what };
        let holds = |host| What::Holds { host: HostId(host), lock: "a".into(), token: 1 };
        let lets_go = |host| What::LetGo { host: HostId(host), lock: "a".into(), token: 1 };
        let mut record = vec![
            at(0, What::Host { host: HostId(1), name: "one".into(), kind: "client" }),
            at(0, What::Host { host: HostId(2), name: "two".into(), kind: "client" }),
            at(1, holds(1)),
            at(2, lets_go(1)),
            at(3, holds(2)),
            at(4, holds(1)),
        ];
        mark_two_holders(&mut record);
        let marks: Vec<&Happening> =
            record.iter().filter(|h| matches!(h.what, What::Violation { .. })).collect();
        assert_eq!(marks, [&at(4, What::Violation { text: "one and two both hold a".into() })]);
    }
}
