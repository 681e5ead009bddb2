//! Finds the smallest script of faults that still fails.
//!
//! Delta debugging (Zeller and Hildebrandt, 2002) removes steps. Then each remaining step becomes simpler:
//! fewer targets, shorter times, rounder times. The caller's test runs a script and decides whether the run
//! fails.
//!
//! Invariant: every kept script has failed, and so has the returned script.
//!
//! Invariant: simplifying ends, because each candidate is smaller in some order without endless descent:
//! durations become shorter, times get fewer digits, targets fewer, numbers smaller, and a kind becomes a
//! kind listed earlier.

#[cfg(test)]
mod tests;

use std::time::Duration;

use rowlock_world::time::Nanos;

use crate::fault::{CrashPoint, Down, Fault, Script, Step, Target};

/// Shrinks the failing `script`, with at most `budget` calls of `still_fails`.
pub fn shrink(script: Script, still_fails: impl FnMut(&Script) -> bool, budget: usize) -> Script {
    let over_budget = script.is_over_budget();
    let mut search = Search { best: script.steps().to_vec(), over_budget, still_fails, left: budget };
    loop {
        let before = search.best.clone();
        search.take_steps_away();
        search.simplify_steps();
        if search.best == before || search.left == 0 {
            return Script::new(search.best).with_over_budget(over_budget);
        }
    }
}

struct Search<F> {
    best: Vec<Step>,
    over_budget: bool,
    still_fails: F,
    left: usize,
}

impl<F: FnMut(&Script) -> bool> Search<F> {
    /// Keeps `steps` if they fail. Returns whether they fail.
    fn try_steps(&mut self, steps: Vec<Step>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let script = Script::new(steps).with_over_budget(self.over_budget);
        let fails = (self.still_fails)(&script);
        if fails {
            self.best = script.steps().to_vec();
        }
        fails
    }

    /// Removes steps that the failure does not need: first all steps at once, then halves, quarters, single
    /// steps.
    fn take_steps_away(&mut self) {
        let mut size = self.best.len();
        while size > 0 && self.left > 0 {
            let mut at = 0;
            while at < self.best.len() && self.left > 0 {
                let mut steps = self.best.clone();
                steps.drain(at..(at + size).min(steps.len()));
                // The next steps are now at `at`.
                if !self.try_steps(steps) {
                    at += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }

    /// Simplifies each step in turn, as far as possible. A moved step may change places with its neighbors;
    /// the next round of `shrink` tries the steps that were passed over.
    fn simplify_steps(&mut self) {
        for index in 0..self.best.len() {
            while self.left > 0 && self.simplify(index) {}
        }
    }

    fn simplify(&mut self, index: usize) -> bool {
        let step = self.best[index].clone();
        simpler(&step).into_iter().any(|candidate| {
            let mut steps = self.best.clone();
            steps[index] = candidate;
            self.try_steps(steps)
        })
    }
}

/// Shortest duration of a fault; a shorter fault has no effect.
const SHORTEST: Duration = Duration::from_millis(1);

/// Returns candidates, the simplest first.
fn simpler(step: &Step) -> Vec<Step> {
    let mut steps: Vec<Step> =
        simpler_faults(&step.fault).into_iter().map(|fault| Step { at: step.at, fault }).collect();
    steps.extend(shorter(step));
    steps.extend(rounder(step));
    steps
}

/// Returns steps that end earlier, or begin later and end at the same time.
fn shorter(step: &Step) -> Vec<Step> {
    let Some(lasts) = step.fault.lasts().filter(|lasts| *lasts > SHORTEST) else { return Vec::new() };
    let mut steps = Vec::new();
    for divisor in [16, 4, 2] {
        let less = (lasts / divisor).max(SHORTEST);
        steps.push(Step { at: step.at, fault: step.fault.clone().lasting(less) });
        steps.push(Step { at: step.at + (lasts - less), fault: step.fault.clone().lasting(less) });
    }
    // An eighth less may still fail where a half less does not.
    let less = lasts - lasts / 8;
    steps.push(Step { at: step.at, fault: step.fault.clone().lasting(less) });
    steps.push(Step { at: step.at + (lasts - less), fault: step.fault.clone().lasting(less) });
    steps
}

/// Returns steps whose time, or duration, has fewer digits.
fn rounder(step: &Step) -> Vec<Step> {
    let mut steps = Vec::new();
    for unit_ms in [1_000, 100, 10, 1] {
        let unit = unit_ms * 1_000_000;
        if !step.at.0.is_multiple_of(unit) {
            steps.push(Step { at: Nanos(step.at.0 / unit * unit), fault: step.fault.clone() });
        }
        let Some(lasts) = step.fault.lasts() else { continue };
        let round = Duration::from_millis(lasts.as_millis() as u64 / unit_ms * unit_ms);
        if round < lasts && round >= SHORTEST {
            steps.push(Step { at: step.at, fault: step.fault.clone().lasting(round) });
        }
    }
    steps
}

fn simpler_faults(fault: &Fault) -> Vec<Fault> {
    match fault {
        Fault::Partition { groups, lasts } => {
            let mut faults = Vec::new();
            for index in 0..groups.len() {
                let mut fewer = groups.clone();
                fewer.remove(index);
                if fewer.len() >= 2 {
                    faults.push(Fault::Partition { groups: fewer, lasts: *lasts });
                }
                for group in fewer_targets(&groups[index]) {
                    let mut groups = groups.clone();
                    groups[index] = group;
                    faults.push(Fault::Partition { groups, lasts: *lasts });
                }
            }
            faults
        }
        Fault::Readdress { target, lasts } => vec![Fault::Kill { target: *target, down: Down::For(*lasts) }],
        Fault::Bridge { left, middle, right, lasts } => {
            let groups = vec![[left.clone(), vec![*middle]].concat(), right.clone()];
            vec![Fault::Partition { groups, lasts: *lasts }]
        }
        Fault::OneWay { from, to, lasts } => {
            ways(from, to, |from, to| Fault::OneWay { from, to, lasts: *lasts })
        }
        Fault::Distrust { from, to, lasts } => {
            ways(from, to, |from, to| Fault::Distrust { from, to, lasts: *lasts })
        }
        Fault::Reset { from, to } => ways(from, to, |from, to| Fault::Reset { from, to }),
        Fault::Clog { from, to, least, most, lasts } => {
            let (least, most, lasts) = (*least, *most, *lasts);
            let mut faults = ways(from, to, |from, to| Fault::Clog { from, to, least, most, lasts });
            if least < most {
                let (from, to) = (from.clone(), to.clone());
                faults.push(Fault::Clog { from, to, least, most: least, lasts });
            }
            faults
        }
        Fault::Lose { from, to, percent, lasts } => {
            let (percent, lasts) = (*percent, *lasts);
            let mut faults = ways(from, to, |from, to| Fault::Lose { from, to, percent, lasts });
            if percent > 1 {
                let (from, to) = (from.clone(), to.clone());
                faults.push(Fault::Lose { from, to, percent: percent / 2, lasts });
            }
            faults
        }
        fault => simpler_machines(fault),
    }
}

fn simpler_machines(fault: &Fault) -> Vec<Fault> {
    match fault {
        Fault::PowerLoss { target, point, down } => {
            let mut faults = vec![Fault::Kill { target: *target, down: *down }];
            if matches!(point, CrashPoint::At(..)) {
                faults.push(Fault::PowerLoss { target: *target, point: CrashPoint::AtOnce, down: *down });
            }
            faults.extend(one(*target).map(|target| Fault::PowerLoss { target, point: *point, down: *down }));
            faults
        }
        Fault::Kill { target, down } => {
            one(*target).map(|target| Fault::Kill { target, down: *down }).into_iter().collect()
        }
        Fault::Pause { target, lasts } => {
            one(*target).map(|target| Fault::Pause { target, lasts: *lasts }).into_iter().collect()
        }
        Fault::ClockRate { target, ppm, lasts } if ppm.unsigned_abs() > 1_000 => {
            vec![Fault::ClockRate { target: *target, ppm: ppm / 2, lasts: *lasts }]
        }
        Fault::ClockJump { target, by_ms } if by_ms.unsigned_abs() > 1 => [by_ms / 10, by_ms / 2]
            .into_iter()
            .filter(|by_ms| *by_ms != 0)
            .map(|by_ms| Fault::ClockJump { target: *target, by_ms })
            .collect(),
        Fault::Flood { target, torrent, connections, lasts } if *connections > 1 => {
            let (target, torrent, lasts) = (*target, *torrent, *lasts);
            vec![Fault::Flood { target, torrent, connections: connections / 2, lasts }]
        }
        Fault::SlowProcessor { target, times, lasts } if *times > 2 => {
            vec![Fault::SlowProcessor { target: *target, times: times / 2, lasts: *lasts }]
        }
        Fault::SlowDisk { target, times, lasts } if *times > 2 => {
            vec![Fault::SlowDisk { target: *target, times: times / 2, lasts: *lasts }]
        }
        Fault::BitRot { target, bits } if *bits > 1 => {
            vec![Fault::BitRot { target: *target, bits: bits / 2 }]
        }
        Fault::DiskFull { target, leaves_kib, lasts } => {
            let of = |target, leaves_kib| Fault::DiskFull { target, leaves_kib, lasts: *lasts };
            let fewer = one(*target).map(|target| of(target, *leaves_kib));
            fewer.into_iter().chain((*leaves_kib > 0).then(|| of(*target, 0))).collect()
        }
        Fault::FallBehind { target, lasts } => vec![Fault::Isolate { target: *target, lasts: *lasts }],
        Fault::Replace { target, .. } => vec![Fault::LoseDisk { target: *target }],
        Fault::DieWaiting { client, down } => {
            vec![Fault::Kill { target: Target::Client(*client), down: *down }]
        }
        Fault::RestoreBackup { from, after, lasts } if *after > SHORTEST => {
            let after = (*after / 2).max(SHORTEST);
            vec![Fault::RestoreBackup { from: *from, after, lasts: *lasts }]
        }
        _ => Vec::new(),
    }
}

/// Returns faults with fewer targets at one end of the link.
fn ways(from: &[Target], to: &[Target], fault: impl Fn(Vec<Target>, Vec<Target>) -> Fault) -> Vec<Fault> {
    let fewer_from = fewer_targets(from).into_iter().map(|from| fault(from, to.to_vec()));
    fewer_from.chain(fewer_targets(to).into_iter().map(|to| fault(from.to_vec(), to))).collect()
}

/// Returns lists without one target, or with one target in place of a group.
fn fewer_targets(targets: &[Target]) -> Vec<Vec<Target>> {
    let mut lists = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let mut fewer = targets.to_vec();
        match one(*target) {
            Some(one) => fewer[index] = one,
            None if targets.len() > 1 => drop(fewer.remove(index)),
            None => continue,
        }
        lists.push(fewer);
    }
    lists
}

fn one(target: Target) -> Option<Target> {
    match target {
        Target::AllNodes => Some(Target::Leader),
        Target::AllClients => Some(Target::Client(1)),
        _ => None,
    }
}
