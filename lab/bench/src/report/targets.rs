//! Required and desired figures of Rowlock, row by row, and the verdicts of a run.

use std::collections::BTreeMap;

use super::number;
use super::stats::{Figure, Spread, ratio, spread};
use crate::results::Results;
use crate::system::System;
use crate::workload::floor;

/// Row of the table of targets.
pub struct Target {
    pub title: &'static str,
    /// System of the figure.
    pub subject: System,
    pub figure: Figure<'static>,
    pub measure: Measure,
    pub more_is_better: bool,
    /// Bound beyond which the target is missed.
    pub must: Bound,
    pub aim: Bound,
}

/// Value that is compared with the bounds.
pub enum Measure {
    /// The figure divided by another system's figure in the same round.
    RatioTo(System),
    Value,
    /// The figure itself; the table also shows another system's figure.
    Beside(System),
    /// Ratio of the least to the largest figure over these sizes.
    FlatOver(&'static [u64]),
}

/// Bound of a figure.
#[derive(Clone, Copy)]
pub enum Bound {
    None,
    Of(f64),
    /// Two round trips on loopback and one flush, as measured in the same run.
    TwoRoundTripsAndAFlush,
}

/// Verdict about a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    NotAsked,
    Met,
    Missed,
    /// The run lacks the figure.
    Unmeasured,
}

/// Figures and verdicts of a run for one target.
pub struct Evaluation {
    pub subject: Option<Spread>,
    /// Figure of the compared system.
    pub other: Option<Spread>,
    /// Value that was compared with the bounds.
    pub measured: Option<Spread>,
    /// Verdict about the requirement.
    pub must: Verdict,
    /// Verdict about the aim.
    pub aim: Verdict,
}

impl Bound {
    fn value(self, results: &Results) -> Option<f64> {
        let of = |metric: &str| {
            Spread::of(results.floor.iter().filter_map(|floor| floor.get(metric).copied())).map(|s| s.median)
        };
        match self {
            Bound::None => None,
            Bound::Of(value) => Some(value),
            Bound::TwoRoundTripsAndAFlush => {
                Some(2.0 * of(floor::ECHO_P50_MS)? + of(floor::FLUSH_OVERWRITE_P50_MS)?)
            }
        }
    }

    fn verdict(self, measured: Option<Spread>, more_is_better: bool, results: &Results) -> Verdict {
        if matches!(self, Bound::None) {
            return Verdict::NotAsked;
        }
        let (Some(measured), Some(bound)) = (measured, self.value(results)) else {
            return Verdict::Unmeasured;
        };
        let reached = if more_is_better { measured.median >= bound } else { measured.median <= bound };
        if reached { Verdict::Met } else { Verdict::Missed }
    }

    /// Formats the bound as in the table: `2 ×` of a ratio.
    pub fn shown(self, measure: &Measure, results: &Results) -> String {
        let Some(value) = self.value(results) else { return "–".to_owned() };
        match measure {
            Measure::RatioTo(_) => format!("{} ×", number(value)),
            Measure::Value | Measure::Beside(_) | Measure::FlatOver(_) => number(value),
        }
    }
}

impl Target {
    /// Compares the run's figures with the bounds.
    pub fn evaluate(&self, results: &Results) -> Evaluation {
        let of = |system| spread(results, self.figure, system);
        let subject = of(self.subject);
        let (other, measured) = match self.measure {
            Measure::RatioTo(other) => (of(other), ratio(results, self.figure, self.subject, other)),
            Measure::Value => (None, subject),
            Measure::Beside(other) => (of(other), subject),
            Measure::FlatOver(sizes) => (None, self.flat(results, sizes)),
        };
        let verdict = |bound: Bound| bound.verdict(measured, self.more_is_better, results);
        Evaluation { subject, other, measured, must: verdict(self.must), aim: verdict(self.aim) }
    }

    /// Returns the least of the sizes by the largest. A round takes the sizes in sequence, so each size
    /// counts by its relation to the others of its round.
    fn flat(&self, results: &Results, sizes: &[u64]) -> Option<Spread> {
        let Figure { workload, metric, .. } = self.figure;
        let rounds = |size: &u64| results.values(self.subject, workload, *size, metric).collect();
        let by_size: Vec<BTreeMap<u32, f64>> = sizes.iter().map(rounds).collect();
        let sum = |round| by_size.iter().map(|values| values.get(round).copied()).sum::<Option<f64>>();
        let share = |(round, value)| Some(value / sum(round).filter(|sum| *sum > 0.0)?);
        let shares = by_size.iter().map(|values| Some(Spread::of(values.iter().filter_map(share))?.median));
        let all = Spread::of(shares.collect::<Option<Vec<f64>>>()?)?;
        Spread::of([all.min / all.max])
    }
}

pub fn all() -> Vec<Target> {
    let mut targets = cycles();
    targets.extend(light());
    targets.extend(handovers());
    targets.extend(herd());
    targets.extend(failures());
    targets.extend(idle());
    targets.extend(large());
    targets
}

const fn figure(workload: &'static str, size: u64, metric: &'static str) -> Figure<'static> {
    Figure { workload, size, metric }
}

fn cycles() -> Vec<Target> {
    let at = |title, size, other, must, aim| Target {
        title,
        subject: System::Rowlock,
        figure: figure("uncontended", size, "cycles_per_s"),
        measure: Measure::RatioTo(other),
        more_is_better: true,
        must,
        aim,
    };
    let p50 = |title, measure, must, aim| Target {
        title,
        subject: System::Rowlock,
        figure: figure("uncontended", 1, "acquire_p50_ms"),
        measure,
        more_is_better: false,
        must,
        aim,
    };
    let posted = |other| Target {
        figure: figure("posted", 256, "cycles_per_s"),
        ..at("cycles/s, no release waited for, N = 256", 256, other, Bound::None, Bound::None)
    };
    vec![
        at("uncontended cycles/s, N = 1", 1, System::Zookeeper, Bound::Of(2.0), Bound::Of(3.0)),
        at("uncontended cycles/s, N = 256", 256, System::Zookeeper, Bound::Of(4.0), Bound::None),
        at("uncontended cycles/s, N = 256", 256, System::Etcd, Bound::Of(9.0), Bound::None),
        at("uncontended cycles/s, N = 256", 256, System::Redlock, Bound::Of(3.0), Bound::None),
        at("uncontended cycles/s, N = 64", 64, System::RedisFsync, Bound::None, Bound::Of(1.0)),
        at("uncontended cycles/s, N = 64", 64, System::Redis, Bound::None, Bound::Of(1.0)),
        p50("acquire p50 (ms), N = 1", Measure::RatioTo(System::Zookeeper), Bound::Of(0.5), Bound::None),
        p50("acquire p50 (ms), N = 1", Measure::Value, Bound::None, Bound::TwoRoundTripsAndAFlush),
        Target {
            title: "plain ZooKeeper client, cycles/s, N = 256",
            subject: System::RowlockPlain,
            ..at("", 256, System::Zookeeper, Bound::Of(2.0), Bound::Of(3.0))
        },
        posted(System::Zookeeper),
        posted(System::Redlock),
        Target {
            title: "reads and writes 10:1 per second, N = 64",
            figure: figure("read-mostly", 64, "ops_per_s"),
            ..at("", 64, System::Zookeeper, Bound::None, Bound::None)
        },
    ]
}

fn light() -> Vec<Target> {
    let of = |title, metric, other| Target {
        title,
        subject: System::Rowlock,
        figure: figure("light", 100, metric),
        measure: Measure::RatioTo(other),
        more_is_better: false,
        must: Bound::None,
        aim: Bound::None,
    };
    let both = |other| {
        [
            of("servers' µs per cycle, 100 cycles/s", "servers_cpu_us_per_cycle", other),
            of("acquire p50 (ms), 100 cycles/s", "acquire_p50_ms", other),
        ]
    };
    [System::Zookeeper, System::Etcd].into_iter().flat_map(both).collect()
}

fn handovers() -> Vec<Target> {
    let of = |title, size, metric, measure, more_is_better, must, aim| Target {
        title,
        subject: System::Rowlock,
        figure: figure("contended", size, metric),
        measure,
        more_is_better,
        must,
        aim,
    };
    let mut targets = Vec::new();
    for (size, title) in
        [(10, "hand-overs/s, K = 10"), (100, "hand-overs/s, K = 100"), (1000, "hand-overs/s, K = 1000")]
    {
        let beside = Measure::RatioTo(System::Zookeeper);
        targets.push(of(title, size, "handovers_per_s", beside, true, Bound::Of(3.0), Bound::Of(4.0)));
    }
    let sizes = &[10, 100, 1000];
    let flat = Measure::FlatOver(sizes);
    let title = "hand-overs/s, least of K = 10 to 1000 by most";
    targets.push(of(title, 10, "handovers_per_s", flat, true, Bound::Of(0.85), Bound::None));
    for size in sizes {
        let (jain, beside) = ("fairness (Jain) of hand-overs", || Measure::Beside(System::Zookeeper));
        targets.push(of(jain, *size, "jain", beside(), true, Bound::Of(0.99), Bound::None));
        targets.push(of("overtakes", *size, "overtakes", beside(), false, Bound::Of(0.0), Bound::None));
    }
    targets
}

/// Returns a target of Rowlock for a figure of which less is better.
fn least(title: &'static str, figure: Figure<'static>, measure: Measure, must: Bound, aim: Bound) -> Target {
    Target { title, subject: System::Rowlock, figure, measure, more_is_better: false, must, aim }
}

fn herd() -> Vec<Target> {
    let of = |title, metric, most| {
        let (figure, bound) = (figure("herd", 1000, metric), Bound::Of(most));
        least(title, figure, Measure::Beside(System::Zookeeper), bound, bound)
    };
    let grant = least(
        "release until the grant (ms), 1,000 waiters",
        figure("herd", 1000, "release_to_grant_p50_ms"),
        Measure::RatioTo(System::Zookeeper),
        Bound::None,
        Bound::None,
    );
    vec![
        grant,
        of("messages to the servers per release, 1,000 waiters", "messages_in_per_release", 1.0),
        of("messages from the servers per release", "messages_out_per_release", 2.0),
    ]
}

fn failures() -> Vec<Target> {
    let crash = |title, metric, most| {
        let beside = Measure::Beside(System::Zookeeper);
        least(title, figure("crash", 4000, metric), beside, Bound::Of(most), Bound::None)
    };
    let kill = |measure, must, aim| {
        let title = "leader killed, until a lock is granted (ms)";
        least(title, figure("leader-kill", 1, "kill_to_acquire_ms"), measure, must, aim)
    };
    vec![
        crash("crash of the holder, timeout 4 s (s)", "crash_to_grant_max_s", 4.1),
        crash("the same with a disconnect grace of 1 s (s)", "crash_with_1_s_grace_to_grant_max_s", 1.1),
        kill(Measure::RatioTo(System::Zookeeper), Bound::Of(1.0), Bound::None),
        kill(Measure::RatioTo(System::Etcd), Bound::None, Bound::None),
        kill(Measure::Value, Bound::None, Bound::Of(300.0)),
    ]
}

fn idle() -> Vec<Target> {
    let of =
        |title, metric, measure, must, aim| least(title, figure("idle", 10_000, metric), measure, must, aim);
    let beside = || Measure::RatioTo(System::Zookeeper);
    let (memory, cpu) =
        ("10,000 sessions, resident memory (MB)", "10,000 sessions, CPU (µs per session and s)");
    vec![
        of(memory, "servers_resident_mb", beside(), Bound::Of(0.1), Bound::None),
        of(
            "the same, what the nodes share counted once (MB)",
            "servers_proportional_mb",
            beside(),
            Bound::None,
            Bound::None,
        ),
        of(
            "memory per session, all nodes (KB)",
            "servers_resident_kb_per_session",
            Measure::Value,
            Bound::None,
            Bound::Of(4.0),
        ),
        of(cpu, "servers_cpu_us_per_session_s", beside(), Bound::Of(0.5), Bound::None),
        of(cpu, "servers_cpu_us_per_session_s", Measure::Value, Bound::None, Bound::Of(10.0)),
    ]
}

/// Returns "no more than a few milliseconds" and "seconds" as numbers.
fn large() -> Vec<Target> {
    let of = |title, metric, most| {
        least(title, figure("snapshot", 1_000_000, metric), Measure::Value, Bound::Of(most), Bound::None)
    };
    vec![
        least(
            "longest cycle without snapshots (ms)",
            figure("snapshot", 1_000_000, "without_longest_ms"),
            Measure::Value,
            Bound::None,
            Bound::None,
        ),
        of("longest cycle beside snapshots of 10^6 znodes (ms)", "beside_longest_ms", 10.0),
        of("longest cycle beside a backup of 10^6 znodes (ms)", "backup_longest_ms", 10.0),
        of("restart with 10^6 znodes in the log (s)", "restart_from_log_s", 10.0),
        of("restart with 10^6 znodes in a snapshot (s)", "restart_from_snapshot_s", 10.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Trial;

    fn contended(size: u64, system: System, round: u32, handovers: f64) -> Trial {
        Trial::new(system, "contended", size, round).with("handovers_per_s", handovers)
    }

    #[test]
    fn a_target_is_met_by_the_ratio_and_missed_when_figures_bend() {
        let mut results = Results::default();
        for (size, ours) in [(10, 3100.0), (100, 3000.0), (1000, 2000.0)] {
            results.trials.push(contended(size, System::Rowlock, 0, ours));
            results.trials.push(contended(size, System::Zookeeper, 0, 1000.0));
        }
        let judged: Vec<_> = handovers().iter().map(|target| target.evaluate(&results)).collect();
        let verdicts: Vec<_> = judged.iter().map(|judged| (judged.must, judged.aim)).take(4).collect();
        let (met, missed) = (Verdict::Met, Verdict::Missed);
        assert_eq!(verdicts[..3], [(met, missed), (met, missed), (missed, missed)]);
        assert_eq!(verdicts[3], (missed, Verdict::NotAsked), "2000 of 3100 is not flat");
        assert_eq!(judged[4].must, Verdict::Unmeasured, "nothing is known of fairness");
    }

    #[test]
    fn a_round_in_which_the_machine_is_slow_bends_nothing() {
        let mut results = Results::default();
        for (round, speed) in [1.0, 0.5, 0.7].into_iter().enumerate() {
            for (size, ours) in [(10, 3000.0), (100, 2700.0), (1000, 2850.0)] {
                results.trials.push(contended(size, System::Rowlock, round as u32, speed * ours));
            }
        }
        let flat = &handovers()[3];
        let measured = flat.evaluate(&results).measured.expect("all sizes were measured").median;
        assert!((measured - 0.9).abs() < 1e-9, "{measured}");
        results.trials.retain(|trial| trial.size != 100);
        assert_eq!(flat.evaluate(&results).measured, None);
    }

    #[test]
    fn the_floor_of_the_run_is_the_aim_of_a_lone_acquire() {
        let mut results = Results::default();
        let floor = [(floor::ECHO_P50_MS.to_owned(), 0.05), (floor::FLUSH_OVERWRITE_P50_MS.to_owned(), 0.1)];
        results.floor.push(floor.into_iter().collect());
        let bound = Bound::TwoRoundTripsAndAFlush;
        assert_eq!(bound.shown(&Measure::Value, &results), "0.200");
        let took = |ms| bound.verdict(Spread::of([ms]), false, &results);
        assert_eq!((took(0.19), took(0.21)), (Verdict::Met, Verdict::Missed));
    }
}
