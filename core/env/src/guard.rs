//! Guards: decisions of nodes and clients whose opposite breaks a promise.
//!
//! The code writes `decides!("grant-to-first-waiter", condition)` in place of the condition. A simulated run
//! counts the outcomes of each guard on its thread, and may flip a guard: then each decision is the opposite
//! one. So a single build contains a deliberate mistake per guard, and the counts name the guards out of the
//! simulator's reach. In a production build (neither debug assertions nor the feature `mutants`) the macro is
//! the condition alone. See docs/decisions/mutants.md.
//!
//! `guards.txt` lists all guards, since code that never runs cannot register itself. `ROWLOCK_UPDATE=1 cargo
//! test --test tidy guards` writes the list; a guard that the list lacks is neither counted nor flipped.
//!
//! Invariant: no guard decides about a recursion. Its flip would overflow the stack, which ends the search.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::AddAssign;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Lines with name and file of a guard, in the order of the names.
const LIST: &str = include_str!("guards.txt");
/// Largest number of guards: each thread has two counters per guard.
pub const GUARDS_MAX: usize = 512;
/// Passes of a flipped guard in one run, after which the run fails: the flip has made an endless loop.
const FLIPPED_PASSES_MAX: u64 = 20_000_000;
/// Environment variable with the name of a guard. Read only with the feature `mutants`.
const FLIP_VARIABLE: &str = "ROWLOCK_FLIP";
/// Number of a guard that the list lacks.
const UNLISTED: u16 = u16::MAX;

/// True if this build counts decisions.
pub const WATCHED: bool = cfg!(any(debug_assertions, feature = "mutants"));

static NAMES: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let names: Vec<_> = LIST.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(names.len() <= GUARDS_MAX && names.is_sorted(), "guards.txt is too long or not sorted");
    names
});

/// The guard that an environment variable flips in all threads of a test.
static FLIPPED_IN_TESTS: LazyLock<Option<Guard>> = LazyLock::new(|| {
    let name = std::env::var(FLIP_VARIABLE).ok()?;
    Some(Guard::find(&name).unwrap_or_else(|| panic!("{FLIP_VARIABLE}: no guard is named {name}")))
});

/// Position of a guard in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guard(u16);

impl Guard {
    /// Returns all guards in the order of their names.
    pub fn all() -> impl Iterator<Item = Guard> {
        (0..NAMES.len()).map(|at| Guard(at as u16))
    }

    /// Returns the guard with this name.
    pub fn find(name: &str) -> Option<Guard> {
        NAMES.binary_search_by_key(&name, |(known, _)| known).ok().map(|at| Guard(at as u16))
    }

    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)].0
    }

    /// Returns the path of the source file.
    pub fn file(self) -> &'static str {
        NAMES[usize::from(self.0)].1
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

thread_local! {
    static OUTCOMES: [Cell<[u64; 2]>; GUARDS_MAX] = const { [const { Cell::new([0; 2]) }; GUARDS_MAX] };
    static FLIPPED: Cell<Option<Guard>> = const { Cell::new(None) };
}

/// Restores the previously flipped guard on a drop.
#[must_use]
pub struct Flipped {
    before: Option<Guard>,
    // Not `Send`: the flip belongs to the current thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Flipped {
    fn drop(&mut self) {
        FLIPPED.set(self.before);
    }
}

/// Makes a guard of this thread decide the opposite, or no guard for `None`.
pub(crate) fn flip(guard: Option<Guard>) -> Flipped {
    Flipped { before: FLIPPED.replace(guard), _here: PhantomData }
}

fn is_flipped(guard: Guard) -> bool {
    FLIPPED.try_with(Cell::get) == Ok(Some(guard)) || *FLIPPED_IN_TESTS == Some(guard)
}

/// Counts the outcome of a guard, and returns the decision: the opposite if this thread or the environment
/// has flipped the guard. `number` belongs to this guard alone, and is 0 at first.
///
/// # Panics
/// If a flipped guard decides too often: a flip may turn a condition of a loop.
pub fn decide(name: &'static str, number: &AtomicU16, outcome: bool) -> bool {
    let guard = match number.load(Ordering::Relaxed) {
        0 => {
            let found = Guard::find(name);
            number.store(found.map_or(UNLISTED, |guard| guard.0 + 1), Ordering::Relaxed);
            found
        }
        UNLISTED => None,
        number => Some(Guard(number - 1)),
    };
    let Some(guard) = guard else { return outcome };
    // Counts nothing at the end of a thread.
    let passes = OUTCOMES.try_with(|outcomes| {
        let cell = &outcomes[usize::from(guard.0)];
        let mut counts = cell.get();
        counts[usize::from(outcome)] += 1;
        cell.set(counts);
        counts[0] + counts[1]
    });
    if cfg!(feature = "mutants") && is_flipped(guard) {
        let passes = passes.unwrap_or_default();
        assert!(passes <= FLIPPED_PASSES_MAX, "the flipped guard {name} decides without end");
        return !outcome;
    }
    outcome
}

/// Returns the outcome of a condition that is named as a guard: see the module [`guard`](crate::guard).
#[macro_export]
macro_rules! decides {
    ($name:literal, $condition:expr) => {{
        let outcome: bool = $condition;
        if $crate::guard::WATCHED {
            static NUMBER: ::std::sync::atomic::AtomicU16 = ::std::sync::atomic::AtomicU16::new(0);
            $crate::guard::decide($name, &NUMBER, outcome)
        } else {
            outcome
        }
    }};
}

/// Counts of the outcomes false and true of each guard, before any flip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(Vec<[u64; 2]>);

impl Outcomes {
    /// Returns and resets the counts of this thread.
    pub fn take() -> Outcomes {
        Outcomes(OUTCOMES.with(|outcomes| outcomes.iter().map(Cell::take).collect()))
    }

    /// Returns how often a guard was false and true.
    pub fn of(&self, guard: Guard) -> [u64; 2] {
        self.0.get(usize::from(guard.0)).copied().unwrap_or_default()
    }
}

impl AddAssign<&Outcomes> for Outcomes {
    fn add_assign(&mut self, other: &Outcomes) {
        self.0.resize(GUARDS_MAX, [0; 2]);
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum = [sum[0] + more[0], sum[1] + more[1]];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decides by the first guard of the list.
    fn decide_first(outcome: bool) -> bool {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        decide(first().name(), &NUMBER, outcome)
    }

    fn first() -> Guard {
        Guard::all().next().unwrap()
    }

    #[test]
    fn every_guard_is_found_by_its_name() {
        for guard in Guard::all() {
            assert_eq!(Guard::find(guard.name()), Some(guard));
            assert!(guard.file().ends_with(".rs"), "{guard}");
        }
        assert!(Guard::all().count() > 100 && Guard::find("perfection").is_none());
    }

    #[test]
    fn outcomes_are_counted_by_thread_and_reset_when_taken() {
        let _ = Outcomes::take();
        assert!(decide_first(true) && !decide_first(false) && decide_first(true));
        std::thread::scope(|scope| drop(scope.spawn(|| decide_first(true))));
        let mut sum = Outcomes::take();
        assert_eq!(sum.of(first()), [1, 2]);
        assert_eq!(Outcomes::take().of(first()), [0, 0]);
        sum += &sum.clone();
        assert_eq!(sum.of(first()), [2, 4]);
    }

    #[test]
    fn an_unlisted_guard_is_its_condition() {
        assert!(crate::decides!("perfection", 1 < 2) && !crate::decides!("perfect", 1 > 2));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_flipped_guard_decides_the_opposite_until_the_flip_ends() {
        {
            let _flipped = flip(Some(first()));
            assert!(decide_first(false) && !decide_first(true));
            let _inner = flip(None);
            assert!(decide_first(true));
        }
        assert!(decide_first(true) && !decide_first(false));
    }

    #[cfg(feature = "mutants")]
    #[test]
    #[should_panic(expected = "decides without end")]
    fn a_loop_that_a_flip_keeps_going_fails() {
        let _flipped = flip(Some(first()));
        while decide_first(false) {}
    }
}
