//! Random histories of everything that touches locks: acquires of all kinds, plain clients that create,
//! delete, resize and replace the locks' own znodes, delays, longest holds, numbered writes that come again,
//! sessions that move and end.
//!
//! Several replicas apply each history, one from the first command on and others from snapshots that were
//! taken on the way ([`replicas`]). After every command they must agree with each other and with the oracle,
//! and answers stay within their bounds ([`bounds`]). The power is cut now and then ([`restart`]).
//!
//! `ROWLOCK_SEEDS=10000 cargo test -p rowlock-state --test it histories` runs that many; `ROWLOCK_FIRST_SEED`
//! begins elsewhere.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod bounds;
mod chance;
mod replicas;
mod restart;
mod steps;

use std::panic::AssertUnwindSafe;

use chance::Chance;
use replicas::Replicas;
use restart::PowerLoss;
use steps::Generator;

/// Seeds of an ordinary run.
const SEEDS: u64 = 300;
const COMMANDS: usize = 120;
/// Commands that a failure shows.
const SHOWN: usize = 10;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn restored_replicas_agree_and_keep_all_promises() {
    let first = number("ROWLOCK_FIRST_SEED", 1);
    for seed in first..first + number("ROWLOCK_SEEDS", SEEDS) {
        let mut latest = Vec::new();
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| run(seed, &mut latest)));
        let what = match run {
            Ok(Ok(())) => continue,
            Ok(Err(what)) => what,
            Err(panic) => format!("panicked: {:?}", panic.downcast_ref::<String>()),
        };
        let from = latest.len().saturating_sub(SHOWN);
        panic!(
            "{what}\nafter:\n{}\nROWLOCK_FIRST_SEED={seed} ROWLOCK_SEEDS=1 repeats it",
            latest[from..].join("\n")
        );
    }
}

fn run(seed: u64, latest: &mut Vec<String>) -> Result<(), String> {
    let mut chance = Chance::new(seed);
    let mut generator = Generator::new(&mut chance);
    let (mut replicas, mut power_loss) = (Replicas::new(), PowerLoss::new(seed));
    for _ in 0..COMMANDS {
        let (stamp, proposal) = generator.next(&mut chance, replicas.first());
        let mut text = format!("{stamp:?} {} {:?}", proposal.session, proposal.command);
        text.truncate(600);
        latest.push(text);
        let applied = replicas.apply(stamp, &proposal)?;
        generator.learn(&proposal, &applied);
        power_loss.follow((stamp, &proposal), replicas.first())?;
        if chance.one_in(8) {
            replicas.restore_one()?;
        }
    }
    Ok(())
}
