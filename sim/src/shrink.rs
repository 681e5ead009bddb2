//! Finds the smallest script of faults that still fails.
//!
//! Delta debugging (Zeller and Hildebrandt, 2002) removes steps. Then each remaining step becomes simpler:
//! fewer targets, shorter times, rounder times. The caller's test runs a script and decides whether the run
//! fails.
//!
//! Invariant: every kept script has failed, and so has the returned script.

mod simpler;
#[cfg(test)]
mod tests;

use crate::fault::{Script, Step};

use simpler::simpler;

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
