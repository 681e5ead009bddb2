//! Runs seeds with deliberate mistakes until each is noticed.
use rowlock_env::mutant::{self, Mutant};
use rowlock_sim::cluster::{Plan, run};
use rowlock_sim::fault::{Ground, Mix, generate};
use rowlock_world::time::Nanos;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args[at].parse::<u64>().expect("a number");
    let (seconds, from, to) = (number(0), number(1), number(2));
    let chosen: Vec<Option<Mutant>> = match args.get(3).map(String::as_str) {
        None | Some("all") => Mutant::ALL.iter().copied().map(Some).collect(),
        Some("none") => vec![None],
        Some(names) => names.split(',').map(|name| Some(name.parse().expect("a mutant"))).collect(),
    };
    let mix = |seed: u64| match args.get(4).map(String::as_str) {
        Some("network") => Mix::network(),
        Some("machines") => Mix::machines(),
        Some("members") => Mix::members(),
        Some("calm") => Mix::calm(),
        Some("turns") => [Mix::all(), Mix::network(), Mix::machines()][seed as usize % 3].clone(),
        _ => Mix::all(),
    };
    for mutant in chosen {
        let _made = mutant::with(mutant);
        let begun = std::time::Instant::now();
        let (mut found, mut simulated) = (0, 0);
        for seed in from..to {
            let ground =
                Ground { nodes: 3, clients: 4, begin: Nanos::from_millis(2_000), quiet: Nanos::from_millis(seconds * 1_000) };
            let script = generate(seed, &ground, &mix(seed));
            let outcome = run(&Plan { seed, seconds, script: Some(script), record: false });
            simulated += outcome.end.millis() / 1_000;
            if let Some(violation) = outcome.violation {
                found += 1;
                let mut text = violation.to_string();
                text.truncate(300);
                println!("{} seed {seed} at {}: {text}", mutant.map_or("none", Mutant::name), outcome.end);
                if mutant.is_some() {
                    break;
                }
            }
        }
        let name = mutant.map_or("none", Mutant::name);
        let verdict = if found == 0 { "SURVIVES" } else { "caught" };
        println!("== {name} {verdict} by {found} of {from}..{to}, {simulated} s in {:?}", begun.elapsed());
    }
}
