//! Benchmark harness: counts instructions and allocations per operation with valgrind's callgrind, and
//! compares the counts with stored figures. A regression shows even on a noisy machine. Included by the
//! `benches/instructions.rs` of several crates.
//!
//! The bench binary starts itself again under valgrind. There each case prepares its data, uncounted, and
//! runs its operations inside [`measured`], where callgrind counts; after each case callgrind writes a
//! profile.
//!
//! `cargo bench -p <crate> --bench instructions [-- [--keep] [NAME]]` runs the cases whose names contain
//! NAME; `--keep` writes the figures into the table `lab/instructions/<suite>.txt`. Fails if a case needs
//! more than the stored figures.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Smallest difference reported: compilers and libraries differ.
const TOLERANCE_PERCENT: f64 = 2.0;
/// Flag of the binary under valgrind: runs the cases themselves.
const CASES_FLAG: &str = "--run-cases";
/// Allocation functions in a profile.
const ALLOCATORS: [&str; 4] = ["malloc", "calloc", "realloc", "posix_memalign"];

pub struct Case {
    pub name: &'static str,
    /// Prepares, runs the operations, each inside [`measured`], and returns their number.
    pub run: fn() -> u64,
    /// True for a slow case, which runs only if NAME is its whole name.
    pub on_request: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Figures {
    instructions: f64,
    allocations: f64,
}

/// Runs a counted operation. The caller drops the result, uncounted.
#[inline(never)]
pub fn measured<R>(operation: impl FnOnce() -> R) -> R {
    // The black box prevents a tail call: callgrind must see the return.
    black_box(operation())
}

/// Makes callgrind write a profile.
#[inline(never)]
fn end_of_case(name: &str) {
    black_box(name);
}

/// Runs the benches' `main`. `dir` receives the profiles, `table` is the file of stored figures.
pub fn run(suite: &str, cases: &[Case], dir: &Path, table: &Path) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let wanted = arguments.iter().find(|argument| !argument.starts_with("--"));
    let chosen: Vec<&Case> = cases.iter().filter(|case| is_chosen(case, wanted)).collect();
    if arguments.iter().any(|argument| argument == CASES_FLAG) {
        for case in chosen {
            println!("{}", (case.run)());
            end_of_case(case.name);
        }
        return ExitCode::SUCCESS;
    }
    let keep = arguments.iter().any(|argument| argument == "--keep");
    match count(suite, &chosen, wanted, dir).and_then(|counted| compare(&chosen, &counted, table, keep)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{suite}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_chosen(case: &Case, wanted: Option<&String>) -> bool {
    match wanted {
        Some(part) if case.on_request => case.name == part,
        Some(part) => case.name.contains(part.as_str()),
        None => !case.on_request,
    }
}

/// Runs the cases under callgrind, one profile each.
#[expect(clippy::disallowed_methods, reason = "a tool beside the nodes, with files of its own")]
fn count(suite: &str, cases: &[&Case], wanted: Option<&String>, dir: &Path) -> Result<Vec<Figures>> {
    let dir = dir.join(format!("instructions-{suite}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    let profile = dir.join("profile");
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--dump-instr=yes", "--compress-pos=no"])
        .args(["--toggle-collect=*harness::measured*", "--dump-after=*harness::end_of_case*"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .arg(CASES_FLAG)
        .args(wanted)
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("valgrind, which counts the instructions, does not start: {error}"))?;
    if !ran.status.success() {
        return Err(format!("failed under valgrind: {}", String::from_utf8_lossy(&ran.stderr)).into());
    }
    let operations = String::from_utf8(ran.stdout)?;
    let mut counted = Vec::new();
    for (at, line) in operations.lines().enumerate() {
        counted.push(figures(&PathBuf::from(format!("{}.{}", profile.display(), at + 1)), line.parse()?)?);
    }
    if counted.len() != cases.len() {
        return Err(format!("{} cases were to run and {} did", cases.len(), counted.len()).into());
    }
    println!("{suite}: profiles are {}.N, in order; see callgrind_annotate", profile.display());
    Ok(counted)
}

#[expect(clippy::disallowed_methods, reason = "a tool beside the nodes, with files of its own")]
fn figures(profile: &Path, operations: u64) -> Result<Figures> {
    let text = std::fs::read_to_string(profile).map_err(|error| format!("{}: {error}", profile.display()))?;
    let mut instructions = None;
    let mut allocators = BTreeMap::new();
    let mut current = None;
    let mut is_of_call = false;
    for line in text.lines() {
        if let Some(total) = line.strip_prefix("totals: ") {
            instructions = Some(total.trim().parse::<u64>()?);
        } else if let Some((of, function)) = line.split_once("fn=").filter(|(of, _)| ["", "c"].contains(of)) {
            // A name appears once, after its number, for a caller or a callee; later only the number appears.
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if ALLOCATORS.contains(&name) {
                allocators.insert(number, BTreeMap::<u64, u64>::new());
            }
            current = if of.is_empty() { Some(number) } else { current };
        } else if line.starts_with("calls=") {
            is_of_call = true;
        } else if let Some(address) = line.strip_prefix("0x") {
            let executed = allocators.get_mut(current.unwrap_or_default()).filter(|_| !is_of_call);
            let mut fields = address.split(' ');
            if let (Some(executed), Some(address), Some(cost)) = (executed, fields.next(), fields.nth(1)) {
                *executed.entry(u64::from_str_radix(address, 16)?).or_default() += cost.parse::<u64>()?;
            }
            is_of_call = false;
        }
    }
    // Calls are counted even while nothing is collected; executions of the first instruction are not.
    let allocations = allocators.values().filter_map(|executed| Some(executed.first_key_value()?.1)).sum();
    let per_operation = |count: u64| count as f64 / operations as f64;
    let instructions = instructions.ok_or("a profile without a total")?;
    Ok(Figures { instructions: per_operation(instructions), allocations: per_operation(allocations) })
}

/// Prints the figures beside the stored ones. Returns false if a case needs more than stored.
#[expect(clippy::disallowed_methods, reason = "a tool beside the nodes, with files of its own")]
fn compare(cases: &[&Case], counted: &[Figures], table: &Path, keep: bool) -> Result<bool> {
    let mut kept = parse(&std::fs::read_to_string(table).unwrap_or_default())?;
    let mut is_good = true;
    println!("{:<52} {:>13} {:>11} {:>13}", "per operation", "instructions", "allocations", "kept");
    for (case, now) in cases.iter().zip(counted) {
        let (mut before, mut verdict) = (String::from("-"), "new: keep it with --keep".to_owned());
        if let Some(known) = kept.get(case.name) {
            let percent = (now.instructions / known.instructions - 1.0) * 100.0;
            let more_allocations = now.allocations > known.allocations + 0.05;
            let is_worse = percent > TOLERANCE_PERCENT || more_allocations;
            is_good &= !is_worse || keep;
            before = format!("{:.0}", known.instructions);
            verdict = if is_worse {
                format!("{percent:+.1} %, {:.1} allocations before: WORSE", known.allocations)
            } else if percent < -TOLERANCE_PERCENT {
                format!("{percent:+.1} %: better, keep it with --keep")
            } else {
                format!("{percent:+.1} %")
            };
        }
        let Figures { instructions, allocations } = now;
        println!("{:<52} {instructions:>13.0} {allocations:>11.1} {before:>13}  {verdict}", case.name);
        kept.insert(case.name.to_owned(), *now);
    }
    if keep {
        std::fs::write(table, format(&kept))?;
        println!("kept in {}", table.display());
    }
    Ok(is_good)
}

/// Parses a line per case: name, tab, instructions, tab, allocations.
fn parse(table: &str) -> Result<BTreeMap<String, Figures>> {
    let mut kept = BTreeMap::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split('\t');
        let (Some(name), Some(instructions), Some(allocations)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err(format!("not a line of a table: {line}").into());
        };
        let figures = Figures { instructions: instructions.parse()?, allocations: allocations.parse()? };
        kept.insert(name.to_owned(), figures);
    }
    Ok(kept)
}

fn format(kept: &BTreeMap<String, Figures>) -> String {
    let mut table = String::from(
        "# Per operation: instructions and allocations. Written by `just instructions --keep`.\n",
    );
    for (name, Figures { instructions, allocations }) in kept {
        let _ = writeln!(table, "{name}\t{instructions:.0}\t{allocations:.1}");
    }
    table
}
