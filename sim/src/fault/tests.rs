//! The text form of scripts, written and read.

use std::time::Duration;

use super::*;
use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

#[test]
fn the_example_of_every_kind_is_read_and_written_back_as_it_was() {
    for kind in Kind::ALL {
        let step: Step = kind.example().parse().unwrap();
        assert_eq!(step.fault.kind(), kind);
        assert_eq!(step.to_string(), kind.example());
    }
}

#[test]
fn every_script_is_read_as_it_was_written() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let steps = (0..rng.below(12)).map(|_| any_step(&mut rng)).collect();
        let script = Script::new(steps).with_over_budget(rng.chance(50));
        let text = script.to_string();
        assert_eq!(text.parse::<Script>(), Ok(script), "seed {seed}: {text}");
    }
}

#[test]
fn a_disk_may_have_a_little_room_left() {
    let step: Step = "3s disk-full nodes but 64KiB for 4s".parse().unwrap();
    let (target, lasts) = (Target::AllNodes, Duration::from_secs(4));
    assert_eq!(step.fault, Fault::DiskFull { target, leaves_kib: 64, lasts });
    assert_eq!(step.to_string(), "3s disk-full nodes but 64KiB for 4s");
}

#[test]
fn comments_and_empty_lines_mean_nothing_and_steps_are_sorted() {
    let script: Script =
        "# a story\n\n 2s kill leader for 1s   # twice\n1s disconnect client1\nover-budget\n"
            .parse()
            .unwrap();
    assert_eq!(script.to_string(), "over-budget\n1s disconnect client1\n2s kill leader for 1s\n");
    assert_eq!(script.healed_at(), Nanos::from_millis(3_000));
}

#[test]
fn errors_name_the_line_what_is_wrong_and_what_to_write() {
    let wrong = |text: &str| text.parse::<Script>().unwrap_err().to_string();
    let cases = [
        ("1s disconnect client1\n2s frob node1", "line 2: `frob` is no fault; there are partition, one-way"),
        ("soon kill node1 for 2s", "line 1: `soon` is no length of time; write for example 4s"),
        ("1s kill nobody for 2s", "`nobody` is no target; write node1, leader"),
        ("1s kill node0 for 2s", "`node0` is no target"),
        ("1s kill node1", "the line ends where `for` should stand; for example: 3s kill leader for 2s"),
        ("1s kill node1 for 2s 3s", "`3s` is too much"),
        ("1s partition node1 node2 for 2s", "there is one group only; put `|` between groups"),
        ("1s clog node1 -> node2 by 4ms..1ms for 2s", "ends before it begins"),
        ("1s clock-rate node1 fast for 2s", "`fast` stands where a number like +50000ppm should"),
        ("1s clock-rate node1 +200000ppm for 2s", "200000 millionths are too many"),
        ("1s lose node1 -> node2 101% for 2s", "101 of a hundred are too many"),
        ("1s die-waiting leader for 2s", "`leader` stands where a client's number should"),
        ("1s add-voter leader", "`leader` stands where a node's number should"),
        ("0.0000000001s disconnect client1", "is no length of time"),
    ];
    for (text, part) in cases {
        let message = wrong(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn times_are_exact_and_short() {
    for (nanos, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5us"),
        (400_000_000, "400ms"),
        (12_500_000_000, "12.5s"),
        (1_000_000_001, "1.000000001s"),
    ] {
        assert_eq!(show_span(Duration::from_nanos(nanos)), text);
        assert_eq!(read_span(text), Ok(Duration::from_nanos(nanos)));
    }
    assert_eq!(read_span("10m"), Ok(Duration::from_secs(600)));
}

/// A random step of any kind: the example of a kind with other numbers.
fn any_step(rng: &mut Rng) -> Step {
    let kind = rng.pick(&Kind::ALL);
    let step: Step = kind.example().parse().unwrap();
    let at = Nanos(rng.u64() % 1_000_000_000_000);
    let fault = step.fault.lasting(Duration::from_nanos(rng.u64() % 100_000_000_000));
    let targets = |rng: &mut Rng| (0..1 + rng.below(3)).map(|_| any_target(rng)).collect::<Vec<_>>();
    let fault = match fault {
        Fault::Partition { lasts, .. } => {
            Fault::Partition { groups: (0..2 + rng.below(2)).map(|_| targets(rng)).collect(), lasts }
        }
        Fault::OneWay { lasts, .. } => Fault::OneWay { from: targets(rng), to: targets(rng), lasts },
        Fault::Distrust { lasts, .. } => Fault::Distrust { from: targets(rng), to: targets(rng), lasts },
        Fault::Lose { lasts, .. } => {
            Fault::Lose { from: targets(rng), to: targets(rng), percent: rng.below(101) as u8, lasts }
        }
        Fault::Kill { .. } => Fault::Kill { target: any_target(rng), down: Down::ForGood },
        Fault::ClockJump { .. } => {
            Fault::ClockJump { target: any_target(rng), by_ms: rng.below(100_000) as i64 - 50_000 }
        }
        Fault::NewChoices { .. } => Fault::NewChoices { seed: rng.u64() },
        Fault::PowerLoss { down, .. } => {
            let point = CrashPoint::At(rng.pick(&Moment::ALL), 1 + rng.below(1_000) as u32);
            let point = if rng.chance(50) { point } else { CrashPoint::AtOnce };
            Fault::PowerLoss { target: any_target(rng), point, down }
        }
        other => other,
    };
    Step { at, fault }
}

fn any_target(rng: &mut Rng) -> Target {
    let n = 1 + rng.below(9);
    rng.pick(&[
        Target::Node(n),
        Target::Leader,
        Target::Follower(n),
        Target::Client(n),
        Target::AllNodes,
        Target::AllClients,
    ])
}
