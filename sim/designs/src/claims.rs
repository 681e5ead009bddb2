//! Claims about lock designs, and the verdicts of the runs. Ids refer to the notes at the start of this
//! project (S: a claim of the notes; E: an error that we see in the notes), to Kleppmann's argument (K), to
//! findings made here (N), and to the promises of docs/guarantees.md, if the table has Rowlock's rows.
//!
//! `claims.txt` has the claims: each names its cells of the table, the condition under which it holds, the
//! evidence and the run that shows it. This module reads the file; a few claims about all designs are
//! functions here.

use crate::condition::{Cell, Condition, Value, figure, named};
use crate::scenario::Scenario;
use crate::table::{Row, Summary, Table};
use crate::zk::core::{Core, Reply, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Confirmed,
    Partly,
    Refuted,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Confirmed => "confirmed",
            Verdict::Partly => "partly",
            Verdict::Refuted => "refuted",
        }
    }
}

/// Run that serves as evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub design: &'static str,
    pub scenario: Scenario,
    pub seed: u64,
}

impl Shown {
    /// Returns the command that repeats the run.
    pub fn command(&self) -> String {
        let scenario = self.scenario.id();
        format!("rowlock sim compare --design {} --scenario {scenario} --seed {}", self.design, self.seed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgment {
    pub id: &'static str,
    pub claim: &'static str,
    pub verdict: Verdict,
    pub evidence: String,
    pub shown: Option<Shown>,
}

/// Verdict, evidence, and the run that shows it.
type Finding = (Verdict, String, Option<Shown>);

/// Test of a claim about the whole table.
type Test = fn(&Table) -> Option<Finding>;

/// Tests every claim for which the table has the needed rows.
///
/// # Panics
/// `claims.txt` does not follow its grammar: a test reads all claims.
pub fn evaluate(table: &Table) -> Vec<Judgment> {
    let evaluated = |claim: Claim| {
        let (verdict, evidence, shown) = match claim.function {
            Some(function) => function(table)?,
            None => claim.finding(table)?,
        };
        Some(Judgment { id: claim.id, claim: claim.text, verdict, evidence, shown })
    };
    claims().into_iter().filter_map(evaluated).collect()
}

fn claims() -> Vec<Claim> {
    let parse = |block: &'static str| {
        Claim::parse(block).unwrap_or_else(|error| panic!("claims.txt: {error} in\n{block}"))
    };
    include_str!("claims.txt").split("\n\n").filter(|block| !block.starts_with("--")).map(parse).collect()
}

/// Claim as a block of `claims.txt` describes it.
#[derive(Default)]
struct Claim {
    id: &'static str,
    text: &'static str,
    /// Name, design, and scenarios of each cell; no scenario means all.
    cells: Vec<(&'static str, &'static str, Vec<Scenario>)>,
    verdicts: Vec<(Verdict, Condition)>,
    otherwise: Option<Verdict>,
    evidence: &'static str,
    /// Name of the cell, and the choice of the seed.
    run: Option<(&'static str, &'static str)>,
    function: Option<Test>,
}

impl Claim {
    fn parse(block: &'static str) -> Result<Claim, String> {
        let mut lines = block.trim_end().lines();
        let (id, text) = lines.next().and_then(|line| line.split_once(": ")).ok_or("no claim")?;
        let mut claim = Claim { id, text, ..Claim::default() };
        for line in lines.map(str::trim) {
            claim.line(line)?;
        }
        Ok(claim)
    }

    fn line(&mut self, line: &'static str) -> Result<(), String> {
        if let Some(evidence) = line.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            self.evidence = evidence;
        } else if let Some((verdict, condition)) = line.split_once(" if ") {
            self.verdicts.push((verdict_of(verdict)?, Condition::parse(condition)?));
        } else if let Some(verdict) = line.strip_prefix("else ") {
            self.otherwise = Some(verdict_of(verdict)?);
        } else if let Some(run) = line.strip_prefix("run ") {
            self.run = Some(run.split_once(' ').ok_or(format!("no seed in {line:?}"))?);
        } else if let Some(name) = line.strip_prefix("by ") {
            let found = FUNCTIONS.iter().find(|(known, _)| *known == name);
            self.function = Some(found.ok_or(format!("no function {name}"))?.1);
        } else {
            let (name, cell) = line.split_once(": ").ok_or(format!("{line:?} is not a line of a claim"))?;
            let (design, scenarios) = cell.split_once(' ').ok_or(format!("no scenario in {line:?}"))?;
            let scenario = |id: &str| Scenario::from_id(id).ok_or(format!("no scenario {id:?}"));
            let scenarios = scenarios.split(' ').filter(|id| *id != "*").map(scenario);
            self.cells.push((name, design, scenarios.collect::<Result<_, _>>()?));
        }
        Ok(())
    }

    /// Returns the figures of a cell; `None`: the table lacks some.
    fn cell<'a>(&self, table: &'a Table, name: &str) -> Option<Cell<'a>> {
        let (_, design, scenarios) = self.cells.iter().find(|(known, ..)| *known == name)?;
        if scenarios.is_empty() {
            let row = table.rows.iter().find(|row| row.about.id == *design)?;
            return Some(table.scenarios.iter().filter_map(|scenario| row.summary(*scenario)).collect());
        }
        scenarios.iter().map(|scenario| table.summary(design, *scenario)).collect()
    }

    fn finding(&self, table: &Table) -> Option<Finding> {
        if self.cells.iter().any(|(name, ..)| self.cell(table, name).is_none()) {
            return None;
        }
        let mut verdict = self.otherwise.unwrap_or(Verdict::Refuted);
        for (possible, condition) in self.verdicts.iter().rev() {
            if condition.holds(|name| self.cell(table, name))? {
                verdict = *possible;
            }
        }
        let evidence = fill(self.evidence, |name| self.cell(table, name))?;
        Some((verdict, evidence, self.shown(table)))
    }

    fn shown(&self, table: &Table) -> Option<Shown> {
        let (name, choice) = self.run?;
        let (_, design, scenarios) = self.cells.iter().find(|(known, ..)| *known == name)?;
        let scenario = *scenarios.first()?;
        let seed = seed_of(table.summary(design, scenario)?, choice)?;
        Some(Shown { design, scenario, seed })
    }
}

fn verdict_of(word: &str) -> Result<Verdict, String> {
    let all = [Verdict::Confirmed, Verdict::Partly, Verdict::Refuted];
    all.into_iter().find(|verdict| verdict.word() == word).ok_or(format!("no verdict {word:?}"))
}

/// Returns the first seed with a failure, or the first seed of all.
fn seed_of(m: &Summary, choice: &str) -> Option<u64> {
    match choice {
        "first" => Some(1),
        "overlap" => m.overlap_seed,
        "overlap or first" => m.overlap_seed.or(Some(1)),
        "loss" => m.loss_seed,
        "stuck" => m.stuck_seed,
        "starved" => m.starved_seed,
        _ => None,
    }
}

/// Replaces the figures in braces by their values. `None`: the text names an unknown figure.
fn fill<'a>(text: &str, cell: impl Fn(&str) -> Option<Cell<'a>>) -> Option<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        filled.push_str(before);
        let (name, form) = name.split_once(':').unwrap_or((name, "0"));
        let (of, name) = named(name);
        filled.push_str(&match name.as_str() {
            "two" => two(cell(&of)?.first()?),
            name => written(figure(&cell(&of)?, name)?, form)?,
        });
        rest = after;
    }
    Some(filled + rest)
}

/// Writes a figure: with a number of decimals, or a time in seconds or `ms`.
fn written(value: Value, form: &str) -> Option<String> {
    Some(match (value, form) {
        (Value::Number(number), _) => format!("{number:.*}", form.parse().ok()?),
        (Value::Time(None), _) => "never".to_owned(),
        (Value::Time(Some(time)), "ms") => time.as_millis().to_string(),
        (Value::Time(Some(time)), _) => format!("{:.1} s", time.as_secs_f64()),
    })
}

fn two(m: &Summary) -> String {
    format!("{} times two holders, {} ms, in {} runs", m.windows, m.overlap.as_millis(), m.runs)
}

fn holds_if(is_so: bool) -> Verdict {
    if is_so { Verdict::Confirmed } else { Verdict::Refuted }
}

/// Claims that a condition on some cells cannot express.
const FUNCTIONS: [(&str, Test); 5] = [
    ("late_writes", late_writes),
    ("tokens", tokens),
    ("names_under_one_parent", |_| Some(names_under_one_parent())),
    ("delete_by_another", |_| Some(delete_by_another())),
    ("false_releases", false_releases),
];

fn late_writes(t: &Table) -> Option<Finding> {
    let scenario = Scenario::HolderPause;
    let losing = |row: &&Row| row.summary(scenario).is_some_and(|m| m.lost_plain > 0);
    let rows = || t.rows.iter().filter(|row| !row.about.is_fenced);
    let tried = rows().filter(|row| row.summary(scenario).is_some()).count();
    let lost = rows().filter(losing).count();
    let run = rows().rfind(losing)?;
    let shown = |seed| Shown { design: run.about.id, scenario, seed };
    let text = format!("{lost} of {tried} designs lose updates on a store that accepts every write");
    Some((holds_if(lost + 1 >= tried), text, run.summary(scenario)?.loss_seed.map(shown)))
}

fn tokens(t: &Table) -> Option<Finding> {
    let rows = || t.rows.iter().filter(|row| row.about.has_tokens && !row.about.is_fenced);
    let all = || rows().flat_map(|row| t.scenarios.iter().filter_map(|s| row.summary(*s)));
    let (plain, fenced) = all().fold((0, 0), |(p, f), m| (p + m.lost_plain, f + m.lost_fenced));
    let count = rows().count();
    let text = format!("{count} designs with tokens: {plain} updates lost without looking, {fenced} with");
    Some((holds_if(fenced == 0), text, None))
}

fn false_releases(t: &Table) -> Option<Finding> {
    let rows = t.rows.iter().filter(|row| row.about.id.starts_with("redisson"));
    let all = rows.flat_map(|row| t.scenarios.iter().map(move |s| (row.about.id, *s)));
    let with = all.filter_map(|(id, s)| Some((t.summary(id, s)?.false_releases, id, s)));
    let (most, design, scenario) = with.max_by_key(|(n, ..)| *n)?;
    let seed = t.summary(design, scenario)?.false_release_seed;
    let text = format!("{most} such releases in scenario {}", scenario.id());
    Some((holds_if(most > 0), text, seed.map(|seed| Shown { design, scenario, seed })))
}

/// E4 and E5 need no run: one request to the service shows each.
fn names_under_one_parent() -> Finding {
    let mut core = Core::default();
    let session = core.open(0);
    for product in ["1", "10", "1"] {
        core.run(session, Request::Create { path: format!("/locks/{product}"), is_sequential: true });
    }
    let listed = core.run(session, Request::Children { parent: "/locks".to_owned() });
    let names = if let Reply::Children(names) = listed { names } else { Vec::new() };
    let is_mixed = names.get(1).is_some_and(|name| name.len() == 12);
    let text = format!("three clients, of products 1, 10 and 1, are listed as {}", names.join(", "));
    (holds_if(is_mixed), text, None)
}

fn delete_by_another() -> Finding {
    let mut core = Core::default();
    let (holder, other) = (core.open(0), core.open(0));
    core.run(holder, Request::Create { path: "/locks/stock".to_owned(), is_sequential: false });
    let is_done = core.run(other, Request::Delete { path: "/locks/stock".to_owned() }) == Reply::Done;
    (holds_if(is_done), "another session's delete of the holder's znode succeeds".to_owned(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes;

    #[test]
    fn every_claim_names_known_designs_cells_and_figures() {
        let designs = recipes::all();
        let one = Summary::default();
        for claim in claims().iter().filter(|claim| claim.function.is_none()) {
            let id = claim.id;
            for (_, design, _) in &claim.cells {
                let is_known = designs.iter().any(|known| known.id() == *design);
                assert!(is_known || design.starts_with("rowlock"), "{id}: no design {design}");
            }
            let cell = |name: &str| claim.cells.iter().any(|(known, ..)| *known == name).then(|| vec![&one]);
            for (_, condition) in &claim.verdicts {
                assert!(condition.holds(cell).is_some(), "{id}: unknown figure in {condition:?}");
            }
            assert!(!claim.verdicts.is_empty(), "{id} has no condition");
            assert!(
                fill(claim.evidence, cell).is_some_and(|text| !text.is_empty()),
                "{id}: {}",
                claim.evidence
            );
            if let Some((name, choice)) = claim.run {
                assert!(cell(name).is_some(), "{id}: no cell {name}");
                let failing = Summary {
                    overlap_seed: Some(2),
                    loss_seed: Some(2),
                    stuck_seed: Some(2),
                    starved_seed: Some(2),
                    ..Summary::default()
                };
                assert!(seed_of(&failing, choice).is_some(), "{id}: no choice {choice:?}");
            }
        }
        assert_eq!(claims().len(), 44);
    }
}
