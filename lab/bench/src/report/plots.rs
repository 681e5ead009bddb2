//! Charts of a run: one per workload and metric with several measured sizes.

use std::collections::BTreeSet;

use super::stats::{Figure, spread};
use super::svg::{Chart, Point, Series};
use crate::results::Results;
use crate::system::System;

struct Plot {
    file: &'static str,
    workload: &'static str,
    metric: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    more_is_better: bool,
}

const PLOTS: [Plot; 21] = [
    Plot {
        file: "throughput.svg",
        workload: "uncontended",
        metric: "cycles_per_s",
        title: "Uncontended: acquire and release, a lock per client",
        x: "clients",
        y: "cycles per second",
        more_is_better: true,
    },
    Plot {
        file: "acquire-p50.svg",
        workload: "uncontended",
        metric: "acquire_p50_ms",
        title: "Uncontended: time to acquire, median",
        x: "clients",
        y: "milliseconds",
        more_is_better: false,
    },
    Plot {
        file: "acquire-p99.svg",
        workload: "uncontended",
        metric: "acquire_p99_ms",
        title: "Uncontended: time to acquire, 99th percentile",
        x: "clients",
        y: "milliseconds",
        more_is_better: false,
    },
    Plot {
        file: "handovers.svg",
        workload: "contended",
        metric: "handovers_per_s",
        title: "Contended: all clients want one lock",
        x: "clients",
        y: "hand-overs per second",
        more_is_better: true,
    },
    Plot {
        file: "scale-sessions-cpu.svg",
        workload: "scale-sessions",
        metric: "full_servers_cpu_us_per_cycle",
        title: "Beside many sessions: servers' CPU per cycle under full load",
        x: "sessions",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-sessions-light-cpu.svg",
        workload: "scale-sessions",
        metric: "light_servers_cpu_us_per_cycle",
        title: "Beside many sessions: servers' CPU per cycle at 400 cycles/s",
        x: "sessions",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-sessions-p50.svg",
        workload: "scale-sessions",
        metric: "light_p50_ms",
        title: "Beside many sessions: a cycle at 400 cycles/s, median",
        x: "sessions",
        y: "milliseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-znodes-cpu.svg",
        workload: "scale-znodes",
        metric: "full_servers_cpu_us_per_cycle",
        title: "Beside many znodes: servers' CPU per cycle under full load",
        x: "znodes",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-znodes-light-cpu.svg",
        workload: "scale-znodes",
        metric: "light_servers_cpu_us_per_cycle",
        title: "Beside many znodes: servers' CPU per cycle at 400 cycles/s",
        x: "znodes",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-znodes-p50.svg",
        workload: "scale-znodes",
        metric: "light_p50_ms",
        title: "Beside many znodes: a cycle at 400 cycles/s, median",
        x: "znodes",
        y: "milliseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-watches-cpu.svg",
        workload: "scale-watches",
        metric: "full_servers_cpu_us_per_cycle",
        title: "Beside many watches: servers' CPU per cycle under full load",
        x: "watches",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-watches-light-cpu.svg",
        workload: "scale-watches",
        metric: "light_servers_cpu_us_per_cycle",
        title: "Beside many watches: servers' CPU per cycle at 400 cycles/s",
        x: "watches",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-watches-p50.svg",
        workload: "scale-watches",
        metric: "light_p50_ms",
        title: "Beside many watches: a cycle at 400 cycles/s, median",
        x: "watches",
        y: "milliseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-queue-cpu.svg",
        workload: "scale-queue",
        metric: "servers_cpu_us_per_handover",
        title: "In a long queue: servers' CPU per hand-over",
        x: "clients that want the lock",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-queue-p50.svg",
        workload: "scale-queue",
        metric: "handover_p50_ms",
        title: "In a long queue: from release to grant, median",
        x: "clients that want the lock",
        y: "milliseconds",
        more_is_better: false,
    },
    Plot {
        file: "shared.svg",
        workload: "shared",
        metric: "cycles_per_s",
        title: "Tasks that share one client: acquire and release, a lock per task",
        x: "tasks",
        y: "cycles per second",
        more_is_better: true,
    },
    Plot {
        file: "shared-cpu.svg",
        workload: "shared",
        metric: "servers_cpu_us_per_cycle",
        title: "Tasks that share one client: servers' CPU per cycle",
        x: "tasks",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-locks-cpu.svg",
        workload: "scale-locks",
        metric: "servers_cpu_us_per_cycle",
        title: "Any of many locks in one folder: servers' CPU per cycle",
        x: "locks",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-paths-cpu.svg",
        workload: "scale-paths",
        metric: "servers_cpu_us_per_cycle",
        title: "Locks with long paths: servers' CPU per cycle",
        x: "bytes of a path",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-depth-cpu.svg",
        workload: "scale-depth",
        metric: "servers_cpu_us_per_cycle",
        title: "Locks with deep paths: servers' CPU per cycle",
        x: "levels of a path",
        y: "microseconds",
        more_is_better: false,
    },
    Plot {
        file: "scale-places-cpu.svg",
        workload: "scale-places",
        metric: "servers_cpu_us_per_cycle",
        title: "A session that holds many locks: servers' CPU per cycle",
        x: "other locks that it holds",
        y: "microseconds",
        more_is_better: false,
    },
];

/// Returns file names and charts.
pub fn all(results: &Results) -> Vec<(String, String)> {
    PLOTS.iter().filter_map(|plot| Some((plot.file.to_owned(), plot.chart(results)?.render()))).collect()
}

impl Plot {
    /// Returns the chart, `None` if no line would have two points.
    fn chart(&self, results: &Results) -> Option<Chart> {
        let systems = System::ALL.into_iter().enumerate();
        let series: Vec<Series> = systems
            .map(|(colour, system)| Series {
                name: results.label(system),
                colour,
                points: self.points(results, system),
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        series.iter().any(|series| series.points.len() > 1).then(|| Chart {
            title: self.title.to_owned(),
            subtitle: format!(
                "{} is better; median, least and most of the rounds; {} cores, {}",
                if self.more_is_better { "higher" } else { "lower" },
                results.about.cores,
                results.about.date
            ),
            x_label: self.x.to_owned(),
            y_label: self.y.to_owned(),
            series,
        })
    }

    fn points(&self, results: &Results, system: System) -> Vec<Point> {
        let of = |trial: &&crate::results::Trial| trial.workload == self.workload && trial.system == system;
        let sizes: BTreeSet<u64> = results.trials.iter().filter(of).map(|trial| trial.size).collect();
        let point = |size: u64| {
            let figure = Figure { workload: self.workload, size, metric: self.metric };
            let spread = spread(results, figure, system)?;
            Some(Point { x: size as f64, y: spread.median, low: spread.min, high: spread.max })
        };
        sizes.into_iter().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::svg::tests::check_well_formed;
    use crate::results::Trial;

    #[test]
    fn a_workload_at_two_sizes_has_a_line_per_system() {
        let mut results = Results::default();
        for system in [System::Rowlock, System::Etcd] {
            results.trials.push(Trial::new(system, "contended", 10, 0).with("handovers_per_s", 5.0));
            for size in [1, 64] {
                let trial =
                    Trial::new(system, "uncontended", size, 0).with("cycles_per_s", 100.0 + size as f64);
                results.trials.push(trial);
            }
        }
        let plots = all(&results);
        assert_eq!(plots.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["throughput.svg"]);
        check_well_formed(&plots[0].1);
        assert_eq!(plots[0].1.matches("<circle").count(), 4);
    }
}
