//! Runs seeds of whole clusters, for a look by hand.
use rowlock_sim::cluster::{Plan, run};
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect();
    let (from, to, seconds, record) = (args[0], args[1], args[2], args.get(3).is_some());
    let begun = std::time::Instant::now();
    let mut simulated = 0;
    for seed in from..to {
        let outcome = run(&Plan { seed, seconds, scenario: std::env::var("SCENARIO").unwrap_or("all".into()).parse().expect("a scenario"), script: None, mutant: None, record });
        simulated += outcome.end.millis();
        println!("{seed} {:016x} end {} {:?}", outcome.fingerprint, outcome.end, outcome.stats);
        for h in outcome.record.iter().filter(|h| !matches!(h.what, rowlock_world::trace::What::Sent{..}|rowlock_world::trace::What::Arrived{..})) { println!("{} {:?}", h.at, h.what); }
        if let Some(v) = outcome.violation { println!("  VIOLATION {v}"); }
    }
    println!("{:.1} simulated s per s", simulated as f64 / 1000.0 / begun.elapsed().as_secs_f64());
}
