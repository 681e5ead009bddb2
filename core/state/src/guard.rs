//! Guards of the state, for simulations: `env/src/guard.rs` counts and flips their decisions. The state must
//! not know `env`, so a simulation passes the function here (docs/decisions/mutants.md).
//!
//! Without debug assertions and the cargo feature `mutants` a guard is its condition alone. Tests with that
//! feature flip the guard that the environment variable `ROWLOCK_FLIP` names.

use std::sync::atomic::AtomicU16;

/// Decides for a guard with this name and number.
pub type Decide = fn(&'static str, &AtomicU16, bool) -> bool;

#[cfg(any(debug_assertions, feature = "mutants"))]
thread_local! {
    static DECIDE: std::cell::Cell<Option<Decide>> = const { std::cell::Cell::new(None) };
}

/// Makes all guards of this thread's states decide by this function from now on.
#[cfg(any(debug_assertions, feature = "mutants"))]
pub fn decide_by(decide: Decide) {
    DECIDE.set(Some(decide));
}

/// Returns the opposite of the outcome if the environment names this guard.
#[cfg(feature = "mutants")]
fn decide_in_tests(name: &str, outcome: bool) -> bool {
    static FLIPPED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ROWLOCK_FLIP").ok());
    outcome != (FLIPPED.as_deref() == Some(name))
}

#[cfg(all(debug_assertions, not(feature = "mutants")))]
fn decide_in_tests(_: &str, outcome: bool) -> bool {
    outcome
}

/// Returns the decision of a guard: its outcome, unless a simulation or the environment flips the guard.
#[inline(always)]
pub(crate) fn decide(name: &'static str, number: &AtomicU16, outcome: bool) -> bool {
    #[cfg(any(debug_assertions, feature = "mutants"))]
    return DECIDE
        .try_with(std::cell::Cell::get)
        .ok()
        .flatten()
        .map_or_else(|| decide_in_tests(name, outcome), |decide| decide(name, number, outcome));
    #[cfg(not(any(debug_assertions, feature = "mutants")))]
    {
        let _ = (name, number);
        outcome
    }
}

/// Returns the outcome of a condition that is named as a guard.
macro_rules! decides {
    ($name:literal, $condition:expr) => {{
        static NUMBER: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
        let outcome: bool = $condition;
        $crate::guard::decide($name, &NUMBER, outcome)
    }};
}
pub(crate) use decides;
