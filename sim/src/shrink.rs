//! Finds the smallest script of faults that still fails.
//!
//! Delta debugging (Zeller and Hildebrandt, 2002) removes steps. The remaining steps are then simplified:
//! fewer targets, shorter times, rounder times. The caller's test decides what fails and runs the script.
//!
//! Invariant: every script that is kept has failed; so has the one that is returned.

mod simpler;
#[cfg(test)]
mod tests;

use crate::fault::{Script, Step};

use simpler::simpler;

/// Makes `script`, which fails, smaller, asking `still_fails` at most `budget` times.
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
    /// Keeps `steps` if they fail.
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

    /// First everything, then halves, quarters, single steps: whatever the failure does without goes.
    fn take_steps_away(&mut self) {
        let mut size = self.best.len();
        while size > 0 && self.left > 0 {
            let mut at = 0;
            while at < self.best.len() && self.left > 0 {
                let mut steps = self.best.clone();
                steps.drain(at..(at + size).min(steps.len()));
                // What follows has moved to `at`.
                if !self.try_steps(steps) {
                    at += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }

    /// Each step in turn, as far as it goes. A step that is moved may change places with others; the next
    /// round of `shrink` comes back to those that were passed over by that.
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
