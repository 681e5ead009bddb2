//! The table promise × fault × workload × checker × mutant. Each promise of docs/guarantees.md has all four,
//! or a hole with its reason. `just promises` prints it.
//!
//! Promises and their checkers are read from that page (and the oracle's predicates), mutants from
//! `core/env/src/mutant.rs`, faults from the mixes that show the mutants. Only workloads and holes are
//! declared, here.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, product_lines};

const HERE: &str = "tests/tidy/promises.rs";
const PAGE: &str = "docs/guarantees.md";
const MUTANTS: &str = "core/env/src/mutant.rs";
const SCENARIOS: &str = "sim/src/cluster/scenario.rs";
const MIXES: &str = "sim/src/fault/mix.rs";
/// The scenario `Cuts` draws its faults here.
const CUTS: &str = "sim/src/fault/cuts.rs";
const CHECKERS: &str = "sim/src/invariants/";
/// Promises that the oracle checks, by name.
const ORACLE: &str = "sim/oracle/src/promises.rs";
const RUNS: &str = "sim/src/cluster/";

/// The workloads that exercise promises: files below [`RUNS`].
const WORK: &[(&str, &[&str])] = &[
    (
        "workload/life",
        &["ephemeral-lifetime", "session-moves", "restored-cluster", "progress", "stops-with-cause"],
    ),
    ("workload/life", &["one-leader-per-term", "votes-never-go-back"]),
    ("workload/section", &["mutual-exclusion", "fencing-monotonic", "linearizable-verify"]),
    ("workload/operations/locks", &["mutual-exclusion", "fencing-monotonic", "fifo", "no-lost-wakeup"]),
    ("workload/operations/locks", &["no-deadlock", "log-time", "minimum-hold", "questions"]),
    ("workload/operations/locks", &["unwaited-release", "forgotten-locks"]),
    ("workload/operations/sessions", &["ephemeral-lifetime", "mutual-exclusion", "reports"]),
    ("workload/operations/upgrades", &["log-time"]),
    ("workload/operations/watching", &["event-before-reply"]),
    (
        "workload/operations/znodes",
        &["linearizable-writes", "session-order", "monotonic-reads", "read-your-writes"],
    ),
    ("workload/operations/znodes", &["synced-reads", "ephemeral-lifetime", "exactly-once", "durable"]),
    ("workload/operations/znodes", &["replica-equality", "logs-never-go-back", "log-matching"]),
    ("workload/operations/znodes", &["leader-completeness", "committed-never-changes"]),
    ("workload/plain/queues", &["fifo"]),
    ("workload/plain/follow", &["persistent-watches"]),
    ("workload/plain/session", &["session-moves"]),
    ("workload/plain/access", &["may-do", "may-see"]),
    ("workload/plain/frames", &["bounded"]),
    ("workload/plain/flood", &["bounded", "fair-service", "no-election-by-load"]),
    ("workload/plain/bystander", &["fair-service"]),
    ("workload/rest/attempt", &["no-lost-wakeup", "minimum-hold", "exactly-once", "linearizable-verify"]),
    ("workload/rest/attempt", &["fair-service"]),
    ("workload/rest/events", &["lock-events", "reports"]),
    ("workload/operations/locks", &["the-oracle-agrees"]),
    ("workload/rest/lease", &["mutual-exclusion", "ephemeral-lifetime"]),
    ("workload/rest/znodes", &["exactly-once", "linearizable-writes", "fencing-monotonic", "synced-reads"]),
    ("workload/rest/state", &["mutual-exclusion", "linearizable-verify", "exactly-once"]),
    ("flood", &["no-election-by-load"]),
    ("operator", &["voters-have-the-log", "changes-end", "deposed-leader-admits-none"]),
    ("probe", &["serves-while-a-quorum-is-connected"]),
    ("revenant", &["restored-cluster"]),
];

/// Missing parts, and why.
const HOLES: &[(&str, &str, &str)] = &[
    ("no-deadlock", "fault", PURE),
    ("no-deadlock", "mutant", PURE),
    ("one-wake", "fault", PURE),
    ("one-wake", "workload", "simulated queues are short: the test's has a thousand places"),
    ("one-wake", "mutant", PURE),
    (
        "unwaited-release",
        "fault",
        "a release that never leaves the queue breaks no-lost-wakeup: ghost-waiter",
    ),
    (
        "unwaited-release",
        "mutant",
        "a release that never leaves the queue breaks no-lost-wakeup: ghost-waiter",
    ),
    ("minimum-hold", "fault", "its deadline is in the log, and only a release can end it early"),
    ("monotonic-reads", "fault", ATTACH),
    ("monotonic-reads", "mutant", ATTACH),
    ("read-your-writes", "fault", ATTACH),
    ("read-your-writes", "mutant", ATTACH),
    ("need-to-know", "fault", PURE),
    ("need-to-know", "workload", "simulated clients ask nothing of strangers: tests do, one per operation"),
    ("need-to-know", "mutant", PURE),
    ("the-oracle-agrees", "fault", PURE),
    ("may-do", "fault", CALM),
    ("may-see", "fault", CALM),
    ("bounded", "fault", "the load is the fault"),
    ("voters-have-the-log", "fault", FLIPPED),
    ("voters-have-the-log", "mutant", FLIPPED),
    ("deposed-leader-admits-none", "fault", OPENRAFT),
    ("deposed-leader-admits-none", "mutant", OPENRAFT),
    ("lock-events", "fault", NEW),
    ("lock-events", "mutant", NEW),
    ("reports", "fault", NEW),
    ("reports", "mutant", NEW),
    ("bounded", "mutant", "three of a hundred runs send the largest frames: tests send them all"),
];
const NEW: &str = "the checker is new: a mutant of it is still to be planted";
const FLIPPED: &str = "flips of `round-is-short` and `change-was-interrupted` break it";
const OPENRAFT: &str = "kept by openraft; a request without an answer ends before the next election";
const CALM: &str = "its mutants show without faults; runs with faults have the workload, too";
const PURE: &str = "kept in pure code of `state`, where mistakes were planted by hand";

const ATTACH: &str = "kept twice: a session comes to a node by a log entry, behind all that it has seen";

const PARTS: [&str; 4] = ["fault", "workload", "checker", "mutant"];

/// A promise with its [`PARTS`].
struct Row<'a> {
    promise: &'a str,
    parts: BTreeMap<&'static str, BTreeSet<&'a str>>,
}

/// A deliberate mistake in a whole node or client.
struct Mutant<'a> {
    name: &'a str,
    /// The promises that it breaks, or the checkers.
    breaks: Vec<&'a str>,
    /// What shows it soonest.
    faults: &'a str,
}

pub fn breaches(tree: &Tree) -> Vec<String> {
    let (rows, checkers, mut found) = (rows(tree), checkers(tree), Vec::new());
    for Row { promise, parts } in &rows {
        for part in PARTS {
            match (parts[part].is_empty(), hole(promise, part)) {
                (true, None) => {
                    found.push(format!("{PAGE}: {promise} has no {part}, and {HERE} no reason for it"))
                }
                (false, Some(_)) => {
                    found.push(format!("{HERE}: {promise} has a {part}, so there is no hole"))
                }
                _ => {}
            }
        }
    }
    let is_promise = |name: &str| rows.iter().any(|row| row.promise == name);
    for Mutant { name, breaks, .. } in mutants(tree) {
        let is_known = |one: &&str| is_promise(one) || checkers.iter().any(|(checker, _)| checker == one);
        let unknown = breaks.iter().filter(|one| !is_known(one));
        found
            .extend(unknown.map(|one| format!("{MUTANTS}: {name} breaks {one}: no promise, and no checker")));
    }
    let is_named = |file: &str| rows.iter().any(|row| row.parts["checker"].contains(file));
    let idle = checkers.iter().filter(|(_, file)| !is_named(file));
    found.extend(idle.map(|(_, file)| format!("{PAGE}: no promise names the checker {file}")));
    let worked = WORK.iter().flat_map(|(_, promises)| promises.iter());
    let gone = worked.chain(HOLES.iter().map(|(promise, ..)| promise)).filter(|promise| !is_promise(promise));
    found.extend(gone.map(|promise| format!("{HERE}: no promise {promise}")));
    let files = WORK.iter().map(|(file, _)| format!("{RUNS}{file}.rs")).filter(|file| !tree.has(file));
    found.extend(files.map(|file| format!("{HERE}: no workload {file}")));
    found
}

/// The table that `just promises` prints.
pub fn table(tree: &Tree) -> String {
    let mut table = format!("| promise | {} |\n|---|---|---|---|---|\n", PARTS.join(" | "));
    for Row { promise, parts } in rows(tree) {
        let there = |part: &str| parts[part].iter().copied().collect::<Vec<_>>().join(", ");
        let cell =
            |part: &str| hole(promise, part).map_or_else(|| there(part), |why| format!("*none: {why}*"));
        table.push_str(&format!("| {promise} | {} |\n", PARTS.map(cell).join(" | ")));
    }
    table
}

fn hole(promise: &str, part: &str) -> Option<&'static str> {
    HOLES.iter().find(|(of, what, _)| (*of, *what) == (promise, part)).map(|(.., why)| *why)
}

/// Whether docs/guarantees.md has this promise.
pub fn is_promise(tree: &Tree, name: &str) -> bool {
    promises(tree).iter().any(|(promise, _)| *promise == name)
}

fn rows(tree: &Tree) -> Vec<Row<'_>> {
    let (checkers, mutants, promises) = (checkers(tree), mutants(tree), promises(tree));
    let is_promise = |name: &str| promises.iter().any(|(promise, _)| *promise == name);
    let mut rows = Vec::new();
    for (promise, checked) in &promises {
        let named: BTreeSet<String> = words(checked).map(|word| word.replace('_', "-")).collect();
        let is_own = |name: &str, file: &str| {
            name == *promise || [name, file].iter().any(|it| named.contains(&it.replace('_', "-")))
        };
        let own: Vec<_> = checkers.iter().filter(|(name, file)| is_own(name, file)).collect();
        // What another promise is called breaks that one.
        let breaks =
            |one: &&str| one == promise || !is_promise(one) && own.iter().any(|(name, _)| name == one);
        let mutants: Vec<_> = mutants.iter().filter(|mutant| mutant.breaks.iter().any(&breaks)).collect();
        let work = WORK
            .iter()
            .filter(|(_, of)| of.contains(promise))
            .map(|(file, _)| file.trim_start_matches("workload/"));
        let tests = checked.split('`').skip(1).step_by(2).filter(|span| is_test(tree, span));
        let sim = own.iter().map(|(_, file)| *file);
        let parts = [
            ("fault", mutants.iter().flat_map(|mutant| faults(tree, mutant.faults)).collect()),
            ("workload", work.collect()),
            ("checker", if own.is_empty() { tests.collect() } else { sim.collect() }),
            ("mutant", mutants.iter().map(|mutant| mutant.name).collect()),
        ];
        rows.push(Row { promise, parts: parts.into() });
    }
    rows
}

/// The page's promises, each with what stands there of its checks.
fn promises(tree: &Tree) -> Vec<(&str, &str)> {
    let page = tree.get(PAGE).unwrap_or_default();
    let is_name = |name: &str| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
    let sections = page.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    let mut found = Vec::new();
    for (name, text) in sections.filter(|(name, _)| is_name(name)) {
        let text = text.split("\n## ").next().unwrap_or_default();
        found.push((name, text.split_once("hecked: ").map_or("", |(_, checked)| checked)));
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| **")?.split_once("**"));
    found.extend(rows);
    found
}

/// The simulator's checkers: what a violation is called, and the file without folder and kind.
fn checkers(tree: &Tree) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (path, text) in tree.product() {
        let (judges, runs) = (path.starts_with(CHECKERS), path.starts_with(RUNS));
        let file =
            path.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or(path);
        let mut lines = product_lines(text).map(str::trim);
        while let Some(line) = lines.next() {
            if judges && line == "fn name(&self) -> &'static str {" {
                let name = lines.next().and_then(|line| line.strip_prefix('"')?.strip_suffix('"'));
                found.extend(name.map(|name| (name, file)));
            } else if let Some((_, name)) = line.split_once("break_promise(\"").filter(|_| runs) {
                found.extend(name.split_once('"').map(|(name, _)| (name, file)));
            }
        }
    }
    let named = product_lines(tree.get(ORACLE).unwrap_or_default()).map(str::trim);
    let names = named.filter_map(|line| line.trim_start_matches('(').strip_prefix('"')?.split_once('"'));
    found.extend(names.map(|(name, _)| (name, "promises")));
    found
}

/// `Variant = "name", by ["promise", ...], when ...`, and the arm of the variant in `that_show`.
fn mutants(tree: &Tree) -> Vec<Mutant<'_>> {
    let shows =
        tree.get(SCENARIOS).and_then(|text| text.split_once("fn that_show(")).map_or("", |(_, text)| text);
    let mut found = Vec::new();
    for line in tree.get(MUTANTS).unwrap_or_default().lines() {
        let Some((variant, rest)) = line.trim().split_once(" = \"") else { continue };
        let Some((name, by)) = rest.split_once("\", by [") else { continue };
        let by = by.split(']').next().unwrap_or_default();
        let mut arms = shows.split("M::").skip_while(|arm| words(arm).next() != Some(variant));
        let faults = arms.find_map(|arm| arm.split('"').nth(1)).unwrap_or_default();
        found.push(Mutant { name, breaks: by.split('"').skip(1).step_by(2).collect(), faults });
    }
    found
}

/// The kinds of faults of a scenario or a mix.
fn faults<'a>(tree: &'a Tree, name: &'a str) -> BTreeSet<&'a str> {
    if name == "all" {
        return ["every kind"].into();
    }
    let kinds =
        |text: &'a str, of: &str| text.split(of).skip(1).filter_map(|rest| words(rest).next()).collect();
    if name == "cuts" {
        let cuts = tree.get(CUTS).unwrap_or_default();
        return kinds(&cuts[..product_lines(cuts).map(|line| line.len() + 1).sum()], "Fault::");
    }
    let start = format!(" fn {name}() ");
    let mixes = tree.get(MIXES).unwrap_or_default();
    let own =
        mixes.split_once(&*start).map_or("", |(_, rest)| rest.split("\n    }").next().unwrap_or_default());
    kinds(own, "Kind::")
}

/// Whether it is a file of tests, a test, or a story of the state.
fn is_test(tree: &Tree, span: &str) -> bool {
    let start = format!("fn {span}(");
    tree.has(span)
        || tree.has(&format!("core/state/testdata/{span}.txt"))
        || tree.sources().any(|(_, text)| text.contains(&start))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "_-".contains(letter)))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_without_a_checker_and_a_mutant_of_no_promise_are_found() {
        let page = "\n### fifo\n\n- Kept: `a`.\n- Checked: `sim` fifo, late; **on-time**.\n\n### no-deadlock\n\n\
                    - Checked: by hand.\n\n## Raft\n| **bounded** | us |\n";
        let checker = |name: &str| format!("fn name(&self) -> &'static str {{\n    \"{name}\"\n}}\n");
        let mutants = "A = \"one\", by [\"on-time\"], when \"\";\nB = \"two\", by [\"raft\", \"bounded\"], when \"\";\n";
        let files = [
            (PAGE, page),
            (MUTANTS, mutants),
            (SCENARIOS, "fn that_show(\nM::A | M::B => \"power\","),
            (MIXES, "pub fn power() {\n Kind::Kill, Kind::Wipe\n    }\n pub fn x() { Kind::Clog }"),
            ("sim/src/invariants/fifo.rs", &checker("fifo")),
            ("sim/src/invariants/late.rs", &checker("fifo")),
            ("sim/src/invariants/cluster/on_time.rs", &checker("on-time")),
            ("sim/src/invariants/cluster/idle.rs", &checker("idle")),
        ];
        let tree = Tree::with(&files);
        let fifo = &rows(&tree)[0];
        let parts = PARTS.map(|part| fifo.parts[part].iter().copied().collect::<Vec<_>>().join(" "));
        assert_eq!(parts, ["Kill Wipe", "operations/locks plain/queues", "fifo late on_time", "one"]);
        let found = breaches(&tree);
        let is_found = |text: &str| found.iter().any(|breach| breach.contains(text));
        assert!(is_found("no-deadlock has no checker") && is_found("bounded has no checker"), "{found:?}");
        assert!(is_found("two breaks raft:") && is_found("names the checker idle"), "{found:?}");
        assert!(
            is_found("no promise questions") && is_found("no workload sim/src/cluster/flood.rs"),
            "{found:?}"
        );
        assert!(is_found("bounded has a mutant, so there is no hole") && !is_found("fifo has"), "{found:?}");
    }
}
