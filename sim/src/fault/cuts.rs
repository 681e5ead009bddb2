//! Shapes of lasting faults: a cluster neither whole nor in two halves, long enough to show whether
//! the cluster serves.
//!
//! Most shapes leave a quorum fully connected, and let the other nodes disturb the quorum. The shapes are the
//! cases of openraft's issue 2080 and of OmniPaxos (quorum loss, constrained election, chain), cuts of one
//! direction, any graph around a connected quorum, and nodes that are slow but not dead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use super::generate::Ground;
use super::script::{Down, Fault, Script, Step, Target};

/// XORed into the seed of this stream, which differs from the streams of other faults and of the world.
const STREAM: u64 = 0xfa17_5eed_0000_0002;
/// Duration of a shape, in milliseconds, if the time suffices.
const LASTS_MS: (u64, u64) = (8_000, 20_000);
/// Longest calm between two shapes, in milliseconds.
const BETWEEN_MS: u64 = 3_000;
/// Share of scripts in which some clients reach only some nodes.
const CLIENTS_PERCENT: usize = 40;

/// Link in one direction between nodes, by their position: the leader, then the other nodes.
type Cut = (usize, usize);

/// Returns the script of `seed`: shapes in sequence until the quiet.
pub fn generate_cuts(seed: u64, ground: &Ground) -> Script {
    let mut rng = Rng::new(seed ^ STREAM);
    let (mut steps, mut at) = (Vec::new(), ground.begin);
    while let Some(lasts) = lasting(&mut rng, ground, at) {
        steps.extend(shape(&mut rng, ground, at, lasts));
        at = at + lasts + Duration::from_millis(rng.below(BETWEEN_MS as usize) as u64);
    }
    Script::new(steps)
}

/// Draws the duration of a shape that begins at `at`; `None` if the remaining time is too short.
pub(super) fn lasting(rng: &mut Rng, ground: &Ground, at: Nanos) -> Option<Duration> {
    let (least, most) = LASTS_MS;
    let lasts = Duration::from_millis(least + rng.below((most - least) as usize) as u64);
    let left = Duration::from_nanos(ground.quiet.0.saturating_sub(at.0));
    (left >= Duration::from_millis(least)).then(|| lasts.min(left))
}

/// Draws faults that begin and end together.
pub(super) fn shape(rng: &mut Rng, ground: &Ground, at: Nanos, lasts: Duration) -> Vec<Step> {
    let nodes = ground.nodes + ground.learners;
    if ground.nodes < 3 {
        return Vec::new();
    }
    let mut faults = match rng.below(8) {
        0 | 1 => quorum_loss(rng, ground.nodes, lasts),
        2 | 3 => one_way_steps(&around_a_core(rng, ground.nodes, nodes), lasts),
        4 => one_way_steps(&star(rng.below(nodes), nodes), lasts),
        5 => one_way_steps(&chain(&shuffled(rng, nodes)), lasts),
        6 => half_deaf(rng, nodes, lasts),
        _ => slow(rng, ground.nodes, lasts),
    };
    if rng.chance(CLIENTS_PERCENT) {
        faults.extend((1..=ground.clients).filter_map(|client| partly_away(rng, client, nodes, lasts)));
    }
    faults.into_iter().map(|fault| Step { at, fault }).collect()
}

fn target(position: usize) -> Target {
    if position == 0 { Target::Leader } else { Target::Follower(position) }
}

fn targets(positions: impl IntoIterator<Item = usize>) -> Vec<Target> {
    positions.into_iter().map(target).collect()
}

fn shuffled(rng: &mut Rng, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        all.swap(last, rng.below(last + 1));
    }
    all
}

/// Returns faults that leave the leader a link to a single node of a connected quorum. All other nodes are
/// cut off, or down.
fn quorum_loss(rng: &mut Rng, voters: usize, lasts: Duration) -> Vec<Fault> {
    let quorum = voters / 2 + 1;
    let (left, middle) = (targets([0]), target(1));
    let mut faults = vec![Fault::Bridge { left, middle, right: targets(2..=quorum), lasts }];
    let is_down = rng.chance(50);
    faults.extend((quorum + 1..voters).map(target).map(|target| match is_down {
        true => Fault::Kill { target, down: Down::For(lasts) },
        false => Fault::Isolate { target, lasts },
    }));
    faults
}

/// Returns cuts around a connected quorum with or without the leader. Every other link works, or works in one
/// direction, or not at all.
fn around_a_core(rng: &mut Rng, voters: usize, nodes: usize) -> BTreeSet<Cut> {
    let least = voters / 2 + 1;
    let mut core = shuffled(rng, voters);
    core.truncate(least + rng.below(voters - least));
    let mut cuts = BTreeSet::new();
    for one in 0..nodes {
        for other in one + 1..nodes {
            if core.contains(&one) && core.contains(&other) {
                continue;
            }
            let ways = rng.below(4);
            cuts.extend((ways & 1 > 0).then_some((one, other)));
            cuts.extend((ways & 2 > 0).then_some((other, one)));
        }
    }
    cuts
}

/// Returns cuts that leave only the links of one node, the middle of a star.
fn star(middle: usize, nodes: usize) -> BTreeSet<Cut> {
    let all = (0..nodes).flat_map(|one| (0..nodes).map(move |other| (one, other)));
    all.filter(|(one, other)| one != other && *one != middle && *other != middle).collect()
}

/// Returns cuts that leave only the links between neighbors in `order`.
fn chain(order: &[usize]) -> BTreeSet<Cut> {
    let places = || order.iter().enumerate();
    let all = places().flat_map(|one| places().map(move |other| (one, other)));
    all.filter(|(one, other)| one.0.abs_diff(other.0) > 1).map(|(one, other)| (*one.1, *other.1)).collect()
}

/// Returns a cut between the leader and some nodes, in one direction.
fn half_deaf(rng: &mut Rng, nodes: usize, lasts: Duration) -> Vec<Fault> {
    let mut others = shuffled(rng, nodes - 1);
    others.truncate(1 + rng.below(nodes - 1));
    let (leader, others) = (targets([0]), targets(others.into_iter().map(|other| other + 1)));
    let (from, to) = if rng.chance(50) { (leader, others) } else { (others, leader) };
    vec![Fault::OneWay { from, to, lasts }]
}

/// Returns faults in which a minority of the nodes has slow disks or slow links.
fn slow(rng: &mut Rng, voters: usize, lasts: Duration) -> Vec<Fault> {
    let mut few = shuffled(rng, voters);
    few.truncate(1 + rng.below(voters - voters / 2 - 1));
    let times = rng.pick(&[20, 200]);
    let (least, most) = (Duration::from_millis(50), Duration::from_millis(rng.pick(&[100, 800])));
    let has_slow_disks = rng.chance(50);
    let of = |target| match has_slow_disks {
        true => vec![Fault::SlowDisk { target, times, lasts }],
        false => {
            let (one, all) = (vec![target], vec![Target::AllNodes]);
            let sends = Fault::Clog { from: one.clone(), to: all.clone(), least, most, lasts };
            vec![sends, Fault::Clog { from: all, to: one, least, most, lasts }]
        }
    };
    few.into_iter().map(target).flat_map(of).collect()
}

/// Returns a cut between the client and some nodes.
fn partly_away(rng: &mut Rng, client: usize, nodes: usize, lasts: Duration) -> Option<Fault> {
    let mut cut = shuffled(rng, nodes);
    cut.truncate(1 + rng.below(nodes - 1));
    let groups = vec![vec![Target::Client(client)], targets(cut)];
    rng.chance(60).then_some(Fault::Partition { groups, lasts })
}

/// Returns the cuts as faults, one per sender.
fn one_way_steps(cuts: &BTreeSet<Cut>, lasts: Duration) -> Vec<Fault> {
    let mut from: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    cuts.iter().for_each(|(one, other)| from.entry(*one).or_default().push(*other));
    let fault = |(one, others)| Fault::OneWay { from: targets([one]), to: targets(others), lasts };
    from.into_iter().map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn every_shape_lasts_ends_in_time_and_survives_its_text_form() {
        let (mut kinds, mut counts): (BTreeMap<Kind, u32>, BTreeMap<usize, u32>) = Default::default();
        for seed in 0..400 {
            let nodes = [3, 5, 7][seed as usize % 3];
            let (begin, quiet) = (Nanos::from_millis(2_000), Nanos::from_millis(25_000));
            let ground = Ground { nodes, learners: 0, least_voters: None, clients: 4, begin, quiet };
            let script = generate_cuts(seed, &ground);
            assert_eq!(script, generate_cuts(seed, &ground));
            assert_eq!(script.to_string().parse(), Ok(script.clone()));
            let begins: BTreeSet<Nanos> = script.steps().iter().map(|step| step.at).collect();
            *counts.entry(begins.len()).or_default() += 1;
            for step in script.steps() {
                *kinds.entry(step.fault.kind()).or_default() += 1;
                let ends = step.ends().expect("it ends");
                assert!(ends - step.at >= Duration::from_secs(8) && ends <= quiet, "seed {seed}: {step}");
            }
        }
        assert!(counts.keys().all(|shapes| (1..=2).contains(shapes)) && counts.len() == 2, "{counts:?}");
        for kind in [Kind::Bridge, Kind::OneWay, Kind::Isolate, Kind::Kill, Kind::SlowDisk, Kind::Clog] {
            assert!(kinds[&kind] > 20, "{kinds:?}");
        }
    }

    #[test]
    fn the_links_of_a_core_stay() {
        for seed in 0..50 {
            let cuts = around_a_core(&mut Rng::new(seed), 5, 6);
            let joined =
                |one: usize, other: usize| !cuts.contains(&(one, other)) && !cuts.contains(&(other, one));
            let is_core = |nodes: &[usize]| {
                nodes.iter().all(|one| nodes.iter().all(|other| one == other || joined(*one, *other)))
            };
            let all = (0..5).flat_map(|a| (0..a).flat_map(move |b| (0..b).map(move |c| [a, b, c])));
            assert!(all.into_iter().any(|nodes| is_core(&nodes)), "seed {seed}: {cuts:?}");
        }
        assert_eq!(chain(&[1, 0, 2]), BTreeSet::from([(1, 2), (2, 1)]));
        assert_eq!(star(1, 3), BTreeSet::from([(0, 2), (2, 0)]));
    }
}
