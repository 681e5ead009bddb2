//! Counts steps of the state's operations in the crate's own tests: tests assert the cost of the largest
//! requests without a clock.

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Adds steps: a level walked, a key searched, eight words hashed, an ACL entry compared, or a queue position
/// visited by the deadlock search. Does nothing outside of tests.
#[inline(always)]
pub(crate) fn take(steps: usize) {
    #[cfg(test)]
    TAKEN.set(TAKEN.get() + steps as u64);
    #[cfg(not(test))]
    let _ = steps;
}

/// Runs `run` without counting its steps: assertions are no part of a command's cost.
#[inline(always)]
pub(crate) fn uncounted<R>(run: impl FnOnce() -> R) -> R {
    #[cfg(test)]
    let before = TAKEN.get();
    let result = run();
    #[cfg(test)]
    TAKEN.set(before);
    result
}

/// Returns the steps taken by `run` in this thread.
#[cfg(test)]
pub(crate) fn taken_by<R>(run: impl FnOnce() -> R) -> (R, u64) {
    let before = TAKEN.get();
    let result = run();
    (result, TAKEN.get() - before)
}
