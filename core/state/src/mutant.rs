//! Deliberate mistakes in decisions about locks, by their names in `env/src/mutant.rs`: the state must not
//! know `env`, so a simulation chooses them here as well (docs/decisions/mutants.md).
//!
//! Without the cargo feature `mutants` no mistake can be chosen.

#[cfg(feature = "mutants")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Makes all states of this thread make the mistake with this name from now on, or none.
#[cfg(feature = "mutants")]
pub fn choose(name: Option<&'static str>) {
    CHOSEN.set(name);
}

/// Returns whether this thread's states make the mistake with this name.
#[inline(always)]
pub(crate) fn is(name: &str) -> bool {
    #[cfg(feature = "mutants")]
    return CHOSEN.get() == Some(name);
    #[cfg(not(feature = "mutants"))]
    {
        let _ = name;
        false
    }
}
