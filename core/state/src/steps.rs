//! Counts what the state does, in its own tests: so what the largest requests cost is asserted without a
//! clock.

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Adds a number of steps: a level walked, a key looked for, eight words hashed, an entry of an ACL compared,
/// a place in a queue looked at by the search for deadlocks. Nothing outside of tests.
#[inline(always)]
pub(crate) fn take(steps: usize) {
    #[cfg(test)]
    TAKEN.set(TAKEN.get() + steps as u64);
    #[cfg(not(test))]
    let _ = steps;
}

/// What `run` gives, without its steps: an assertion that looks again is no part of what a command costs.
#[inline(always)]
pub(crate) fn uncounted<R>(run: impl FnOnce() -> R) -> R {
    #[cfg(test)]
    let before = TAKEN.get();
    let result = run();
    #[cfg(test)]
    TAKEN.set(before);
    result
}

/// The steps that `run` takes in this thread.
#[cfg(test)]
pub(crate) fn taken_by<R>(run: impl FnOnce() -> R) -> (R, u64) {
    let before = TAKEN.get();
    let result = run();
    (result, TAKEN.get() - before)
}
