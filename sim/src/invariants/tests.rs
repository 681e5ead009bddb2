//! The checkers' cases, as text: `sim/testdata/checkers`, a file for each checker, named after its type.
//!
//! A paragraph is a history in the words of [`crate::history::text`], with the checker's verdict. `==
//! TITLE` begins a case, and the history in that paragraph begins all histories of the case. `terms` sets
//! the demands of the run: `faults=no`, `history=no`, `room=no`, `clocks=unbounded|true`, `starts=wrong`,
//! `hang-ups=heard`, `owes=no`, `removes-to=VOTERS`,
//! `disturbed=FROM-TO`.
//!
//! `ROWLOCK_UPDATE=1 cargo test -p rowlock-sim --lib invariants` rewrites the verdicts; review the
//! difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use rowlock_stories::{Words, parse};
use rowlock_world::time::Nanos;

use super::{Disturbances, Invariant, Invariants, Lives, Terms, Violation};
use crate::history::text::history;

/// Returns the names of all checkers of a cluster.
fn checkers() -> Vec<String> {
    let lives = Invariants::of_a_life(&Terms::default());
    let all = lives.into_iter().chain(Invariants::of_a_cluster().lifelong);
    let mut names: Vec<String> = all.map(|checker| name_of(&*checker)).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the checkers of a run with these demands, without all but one.
fn only(checker: &str, terms: Terms) -> Invariants {
    let mut all = Invariants::of_a_cluster_on(terms.clone());
    all.lifelong.retain(|it| name_of(&**it) == checker);
    let name = checker.to_owned();
    let of_a_life = move || {
        let mut checkers = Invariants::of_a_life(&terms);
        checkers.retain(|it| name_of(&**it) == name);
        checkers
    };
    Invariants { lives: Lives::of(of_a_life), ..all }
}

/// Returns the name of the checker's type in the case of files.
fn name_of(checker: &dyn Invariant) -> String {
    let letters = checker.type_name().chars().flat_map(|letter| {
        let separator = letter.is_ascii_uppercase().then_some('_');
        separator.into_iter().chain([letter.to_ascii_lowercase()])
    });
    letters.collect::<String>().trim_start_matches('_').to_owned()
}

fn terms(words: &Words<'_>) -> Terms {
    let disturbed = words.option("disturbed").map(|times| {
        let (from, to) = times.split_once('-').expect("disturbed=FROM-TO");
        (Nanos::from_millis(parse(from)), Nanos::from_millis(parse(to)))
    });
    Terms {
        has_bounded_clocks: words.option("clocks") != Some("unbounded"),
        has_true_clocks: words.option("clocks") == Some("true"),
        starts_with_right_clocks: words.option("starts") != Some("wrong"),
        has_faults: words.option("faults") != Some("no"),
        has_history: words.option("history") != Some("no"),
        has_room: words.option("room") != Some("no"),
        hears_of_hang_ups: words.option("hang-ups") == Some("heard"),
        owes_service: words.option("owes") != Some("no"),
        disturbances: Disturbances::new(
            disturbed.into_iter().collect(),
            words.option("reset").map(|at| Nanos::from_millis(parse(at))).into_iter().collect(),
        ),
        swept_within: None,
        removes_down_to: words.option("removes-to").map(parse),
        forgets: words.option("forgets") == Some("yes"),
    }
}

/// Returns the verdict of the checker on a history, or nothing for a history without facts.
fn verdict(checker: &str, text: &str) -> String {
    let (demands, facts): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("terms "));
    let facts = history(&facts.join("\n"));
    if facts.is_empty() {
        return String::new();
    }
    let mut checker = only(checker, terms(&Words::new(&demands.join(" "))));
    for (number, fact) in (1..).zip(&facts) {
        if let Err(Violation { what, .. }) = checker.observe(fact) {
            let early = if number < facts.len() { format!(" at fact {number}") } else { String::new() };
            return format!("broken{early}: {}", shortened(&what));
        }
    }
    "kept".to_owned()
}

/// Leaves out the fields of long values: a new field of a value changes no verdict.
fn shortened(message: &str) -> String {
    let (mut short, mut rest) = (String::new(), message);
    while let Some(begin) = rest.find('{') {
        let mut depth = 0;
        let end = rest.find(|letter| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            letter == '}' && depth == 0
        });
        let end = end.map_or(rest.len(), |end| end + 1);
        short.push_str(&rest[..begin]);
        short.push_str(if end - begin > 50 { "{..}" } else { &rest[begin..end] });
        rest = &rest[end..];
    }
    short + rest
}

/// Plays the cases of a checker. Each checker has a history that breaks the promise: a checker that cannot
/// fail proves nothing. And a history that keeps the promise.
fn play(checker: &str, path: &Path) -> Result<(), String> {
    let (mut begin, mut kept, mut broken) = (Some(String::new()), 0, 0);
    rowlock_stories::play(path, |paragraph| {
        let (history, is_begin) = match paragraph.strip_prefix("== ") {
            Some(case) => (case.split_once('\n').map_or("", |(_, history)| history).to_owned(), true),
            None => match &begin {
                Some(begin) => (format!("{begin}\n{paragraph}"), false),
                None => return "nothing: the case begins with a broken history".to_owned(),
            },
        };
        let verdict = verdict(checker, history.trim());
        if is_begin {
            begin = (!verdict.starts_with("broken")).then_some(history);
        }
        kept += usize::from(verdict == "kept");
        broken += usize::from(verdict.starts_with("broken"));
        verdict
    })?;
    if kept > 0 && broken > 0 { Ok(()) } else { Err(format!("{checker}: {kept} kept, {broken} broken")) }
}

#[test]
fn every_checker_finds_the_broken_histories_and_no_others() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/checkers");
    let path = |checker: &String| folder.join(format!("{checker}.txt"));
    let checkers = checkers();
    let found: Vec<String> =
        checkers.iter().filter_map(|checker| play(checker, &path(checker)).err()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(rowlock_stories::files(&folder), checkers.iter().map(path).collect::<Vec<_>>());
}

/// Writes `calls` calls of clients that write and read a few znodes, and three nodes that apply the calls.
fn long_history(calls: u32) -> Result<String, std::fmt::Error> {
    let mut text = "n1 started; n2 started; n3 started; n1 voted 1 1; n1 leads 1".to_owned();
    text.push_str("\nfor 1..4: c# session timeout=4000\n");
    let mut znodes: BTreeMap<String, (u32, u32, u32, String)> = BTreeMap::new();
    let mut entry = 0;
    for call in 1..=calls {
        let (who, path) = (1 + call % 4, format!("/data/znode{}", call % 7));
        if call % 3 == 0 {
            let Some((czxid, mzxid, version, data)) = znodes.get(&path) else { continue };
            let synced = if call % 2 == 0 { " synced" } else { "" };
            writeln!(text, "c{who} call {call} get {path}{synced} -> data {data} {czxid}/{mzxid}/{version}")?;
            continue;
        }
        let (op, answer, change) = match znodes.remove(&path) {
            Some(_) if call % 31 == 0 => {
                (format!("delete {path}"), "deleted".to_owned(), "deleted".to_owned())
            }
            Some((czxid, _, version, _)) => {
                znodes.insert(path.clone(), (czxid, call, version + 1, call.to_string()));
                let stat = format!("{czxid}/{call}/{}", version + 1);
                (format!("set {path} {call}"), format!("set {stat}"), format!("data {call} {stat}"))
            }
            None => {
                znodes.insert(path.clone(), (call, call, 0, "new".to_owned()));
                let created = format!("created {path} {call}/{call}/0");
                (format!("create {path}"), created, format!("created new {call}/{call}/0"))
            }
        };
        entry += 1;
        writeln!(text, "c{who} invokes {call} {op}")?;
        writeln!(text, "for 1..3: n# appended 1.1.{entry} {call}\nn1 applied 1.1.{entry} {call}")?;
        writeln!(text, "logged {who} {call} {op} -> {answer}\nznode {call} {path} {change}")?;
        writeln!(text, "c{who} returns {call} {answer}\nfor 2..3: n# applied 1.1.{entry} {call}")?;
    }
    text.push_str("settled");
    Ok(text)
}

#[test]
fn a_long_and_right_history_passes_all_checkers() {
    let mut all = Invariants::of_a_cluster();
    for fact in &history(&long_history(10_000).expect("a text")) {
        assert_eq!(all.observe(fact), Ok(()), "{fact:?}");
    }
}

#[test]
fn every_checker_of_a_cluster_is_named_in_the_guarantees() {
    let guarantees = include_str!("../../../docs/guarantees.md");
    for name in Invariants::of_a_cluster().names() {
        let is_named = [format!("\n### {name}\n"), format!("**{name}**")];
        assert!(is_named.iter().any(|words| guarantees.contains(words)), "{name}");
    }
}
