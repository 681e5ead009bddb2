//! Ends of faults, either recorded in the trace or given by the fault's text (`... for 4s`).

use std::collections::BTreeSet;

use rowlock_world::time::Nanos;
use rowlock_world::trace::{Happening, What};

use crate::fault::Step;

/// Returns the ends, as `(time, text)`, that the trace lacks and the faults' texts give, up to the end of the
/// trace.
pub(super) fn unrecorded(record: &[Happening]) -> Vec<(Nanos, String)> {
    let recorded: BTreeSet<&String> = record
        .iter()
        .filter_map(|happening| match &happening.what {
            What::Healed { text, .. } => Some(text),
            _ => None,
        })
        .collect();
    let last = record.iter().map(|happening| happening.at).max().unwrap_or_default();
    let mut ends: Vec<(Nanos, String)> = record
        .iter()
        .filter_map(|happening| match &happening.what {
            What::Fault { text, .. } if !recorded.contains(text) => {
                Some((by_text(text, happening.at).filter(|end| *end <= last)?, text.clone()))
            }
            _ => None,
        })
        .collect();
    ends.sort_by_key(|(at, _)| *at);
    ends
}

/// Returns the end of a fault that began at `at`, as given by its text.
pub(super) fn by_text(text: &str, at: Nanos) -> Option<Nanos> {
    let step: Step = format!("0s {text}").parse().ok()?;
    Some(at + step.fault.lasts()?)
}
