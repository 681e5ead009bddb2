//! Traits of a run that its seed decides in advance: members, work and faults. Two runs with few traits in
//! common find different mistakes.

use std::collections::BTreeSet;

use super::membership::Membership;
use super::releases::Releases;
use super::run::{CLIENTS, SPARES, theme_stream};
use super::scenario::Scenario;
use super::shape::Shape;
use super::workload::{Theme, Work};
use crate::fault::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trait {
    Voters(usize),
    Learner,
    /// A snapshot every few entries.
    ShortLog,
    History,
    Readmits,
    TwoReleases,
    Fault(Kind),
    Work(Work),
}

/// Returns the traits of a run without running it.
pub fn traits_of(seed: u64, seconds: u64, scenario: Scenario) -> BTreeSet<Trait> {
    let shape = Shape::of_run(seed, scenario);
    let script = scenario.script(seed, seconds, &shape, CLIENTS);
    let theme = Theme::of(&mut theme_stream(seed), Membership::new(&shape, SPARES));
    let is_so = [
        (shape.learners > 0, Trait::Learner),
        (shape.is_short(), Trait::ShortLog),
        (shape.history_bytes.is_some(), Trait::History),
        (shape.readmits, Trait::Readmits),
        (Releases::of(seed, seconds).are_two(), Trait::TwoReleases),
    ];
    let of_shape =
        is_so.into_iter().filter_map(|(is, so)| is.then_some(so)).chain([Trait::Voters(shape.voters)]);
    let kinds = script.steps().iter().map(|step| step.fault.kind()).filter(|kind| *kind != Kind::Flood);
    let faults = kinds.map(Trait::Fault);
    of_shape.chain(faults).chain(theme.works().into_iter().map(Trait::Work)).collect()
}
