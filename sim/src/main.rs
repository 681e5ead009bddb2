//! `rowlock-sim`: runs seeds and gives a verdict. Exit code 0: all promises held; 1: one was broken (with one
//! line that reproduces it); 2: bad arguments.

use std::process::ExitCode;

use anyhow::{Context, bail};
use rowlock_sim::names;
use rowlock_sim::state::{MUTANTS, Mutant, Plan, Stats, run};

const USAGE: &str = "usage: rowlock-sim [--seeds N | --seed N] [--steps M] [--mutant NAME] [--trace]
  --seeds N      run seeds 0 to N-1 (default 200)
  --seed N       run one seed
  --steps M      steps of a run before its faults end (default 8000)
  --mutant NAME  run with a deliberate mistake, which the run should catch
  --trace        print every step";

struct Arguments {
    seeds: std::ops::Range<u64>,
    steps: u64,
    mutant: Option<Mutant>,
    print: bool,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => verdict(&arguments),
        Ok(None) => {
            println!("{USAGE}\nmutants: {MUTANTS:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rowlock-sim: {error:#}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn verdict(arguments: &Arguments) -> ExitCode {
    let Arguments { seeds, steps, mutant, print } = arguments;
    let mut total = Stats::default();
    let mut hashes = 0u64;
    for seed in seeds.clone() {
        let mutant_option = mutant.map(|mutant| format!(" --mutant {mutant:?}")).unwrap_or_default();
        let reproduce = format!(
            "reproduce: cargo run -q -p rowlock-sim -- --seed {seed} --steps {steps}{mutant_option} --trace"
        );
        print_on_panic(reproduce.clone());
        let outcome = run(Plan { seed, steps: *steps, mutant: *mutant, print: *print });
        total += &outcome.stats;
        hashes = hashes.rotate_left(1) ^ outcome.hash;
        if let Some(violation) = outcome.violation {
            println!("FAIL seed {seed} after {} steps: {violation}", outcome.stats.steps);
            println!(
                "reproduce: cargo run -q -p rowlock-sim -- --seed {seed} --steps {steps}{mutant_option} --trace"
            );
            return ExitCode::FAILURE;
        }
    }
    println!("PASS {} seeds, trace {hashes:016x}", seeds.end - seeds.start);
    println!("held: {}", names().join(", "));
    println!("{total}");
    ExitCode::SUCCESS
}

/// A failed assertion of the state machine is a finding too, and must not cost its seed.
fn print_on_panic(reproduce: String) {
    std::panic::set_hook(Box::new(move |panic| println!("FAIL {panic}\n{reproduce}")));
}

/// `None`: help is wanted.
fn parse(mut given: impl Iterator<Item = String>) -> anyhow::Result<Option<Arguments>> {
    let mut arguments = Arguments { seeds: 0..200, steps: 8_000, mutant: None, print: false };
    while let Some(option) = given.next() {
        let mut value = || given.next().with_context(|| format!("{option} needs a value"));
        match option.as_str() {
            "--seeds" => arguments.seeds = 0..number(&value()?)?,
            "--seed" => {
                let seed = number(&value()?)?;
                arguments.seeds = seed..seed.checked_add(1).context("the seed is too large")?;
            }
            "--steps" => arguments.steps = number(&value()?)?,
            "--mutant" => {
                let name = value()?;
                let known = MUTANTS.into_iter().find(|mutant| format!("{mutant:?}") == name);
                arguments.mutant =
                    Some(known.with_context(|| format!("no mutant {name}; there are {MUTANTS:?}"))?);
            }
            "--trace" => arguments.print = true,
            "-h" | "--help" => return Ok(None),
            _ => bail!("unknown option {option}"),
        }
    }
    Ok(Some(arguments))
}

fn number(text: &str) -> anyhow::Result<u64> {
    text.parse().with_context(|| format!("{text} is not a number"))
}
