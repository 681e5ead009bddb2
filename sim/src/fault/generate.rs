//! A script from a seed.
//!
//! It has its own stream of random numbers, so a run whose script is shortened still has the same workload
//! and the same network (as far as the faults left them alone). `crate::shrink` depends on that.
//!
//! Invariant: every fault that ends has ended when [`Ground::quiet`] begins, and nothing is broken beyond
//! `budget` unless the mix is over budget.

use std::time::Duration;

use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use super::budget::Budget;
use super::cuts;
use super::draw::Draw;
use super::kind::Kind;
use super::mix::{Mix, PACES, Pace};
use super::script::{CrashPoint, Down, Fault, Moment, NEW_CLUSTER, Script, Step, Target};

/// Mixed into the seed, so that the stream of faults is another than the world's.
const STREAM: u64 = 0xfa17_5eed_0000_0001;

/// How long after its loss a disk is replaced, if members are changed at all.
const REPLACED_AFTER: (u64, u64) = (1_000, 6_000);

/// The cluster and the time on which the faults fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// Voters at the beginning.
    pub nodes: usize,
    /// Learners at the beginning, numbered after the voters.
    pub learners: usize,
    pub clients: usize,
    /// No fault begins before, but those of a cluster that forms.
    pub begin: Nanos,
    /// From here on nothing is broken but what is gone for good.
    pub quiet: Nanos,
}

pub fn generate(seed: u64, ground: &Ground, mix: &Mix) -> Script {
    assert!(ground.nodes > 0 && ground.clients > 0, "faults need somebody to fall on");
    let mut rng = Rng::new(seed ^ STREAM);
    let kinds = choose_kinds(&mut rng, mix);
    let pace = match mix.pace {
        Pace::BySeed => rng.pick(&PACES),
        Pace::PerMinute(pace) => pace,
    };
    let span_ms = (ground.quiet - ground.begin).as_millis() as usize;
    let count = if kinds.is_empty() { 0 } else { span_ms * pace / 60_000 };
    let mut times: Vec<Nanos> =
        (0..count).map(|_| ground.begin + Duration::from_millis(rng.below(span_ms.max(1)) as u64)).collect();
    times.sort_unstable();

    let budget = Budget::new((ground.nodes, ground.learners), ground.clients, mix.over_budget);
    let mut draw = Draw { rng, budget, clients: ground.clients, quiet: ground.quiet, odds: mix.odds };
    let mut steps = rebirths(&mut draw, ground, &kinds);
    let slow = slow_election(&mut draw, ground);
    // A leader is owed only after ten seconds in which nothing else changes.
    let alone = slow.first().filter(|_| draw.rng.chance(70)).map(|first| first.at);
    let is_left_alone = |at: Nanos| {
        alone.is_some_and(|from| at + Duration::from_secs(5) >= from && at <= from + SLOW_ELECTION)
    };
    for at in times.into_iter().filter(|at| !is_left_alone(*at)) {
        let kind = draw.rng.pick(&kinds);
        let Some(fault) = draw.fault(kind, at) else { continue };
        let replacement = replacement(&mut draw, &kinds, at, &fault);
        steps.extend(breaks(&mut draw, ground, at, &fault));
        steps.extend(in_election(&mut draw, &kinds, at, &fault));
        steps.extend(slow_in_flood(&mut draw, at, &fault));
        steps.extend(rot_found(&mut draw, at, &fault));
        steps.extend(wiped_alone(&mut draw, ground, at, &fault));
        steps.extend(away(&mut draw, mix, at, &fault));
        steps.extend(late_before_pause(&mut draw, mix, ground, at, &fault));
        steps.push(Step { at, fault });
        steps.extend(replacement);
    }
    steps.extend(founding(&mut draw, ground, &kinds));
    if alone.is_none() {
        steps.extend(cuts_that_last(&mut draw, ground));
    }
    steps.extend(slow);
    Script::new(steps).with_over_budget(mix.over_budget)
}

/// One shape of cuts that last, at any time.
fn cuts_that_last(draw: &mut Draw, ground: &Ground) -> Vec<Step> {
    if draw.odds.lasting == 0 || !draw.rng.chance(draw.odds.lasting) {
        return Vec::new();
    }
    let at = ground.begin + draw.between_ms(0, 5_000);
    let lasts = cuts::lasting(&mut draw.rng, ground, at);
    lasts.map_or(Vec::new(), |lasts| cuts::shape(&mut draw.rng, ground, at, lasts))
}

/// While the cluster forms, before other faults begin: the ways between its nodes are slow, and one of the
/// nodes dies and is back soon.
fn founding(draw: &mut Draw, ground: &Ground, kinds: &[Kind]) -> Vec<Step> {
    let mut steps = Vec::new();
    if kinds.contains(&Kind::Clog) && draw.rng.chance(draw.odds.founding) {
        let (nodes, least) = (|| vec![Target::AllNodes], Duration::ZERO);
        let most = draw.rng.pick(&[30, 400]);
        let (most, lasts) = (draw.between_ms(1, most), draw.between_ms(100, 4_000));
        let lasts = lasts.min(ground.quiet - Nanos(0));
        steps.push(Step {
            at: Nanos(0),
            fault: Fault::Clog { from: nodes(), to: nodes(), least, most, lasts },
        });
    }
    if kinds.contains(&Kind::Kill) && draw.rng.chance(draw.odds.founding) {
        let (node, at) = (1 + draw.rng.below(ground.nodes), Nanos(0) + draw.between_ms(1, 1_000));
        let down = Down::For(draw.between_ms(1, 2_000));
        steps.push(Step { at, fault: Fault::Kill { target: Target::Node(node), down } });
    }
    steps
}

/// New clusters, one after another, each with time to open sessions before the next one and before the quiet.
/// Later nothing is lost for good: no budget counts what the new clusters have.
fn rebirths(draw: &mut Draw, ground: &Ground, kinds: &[Kind]) -> Vec<Step> {
    let ways: Vec<Kind> =
        kinds.iter().copied().filter(|kind| matches!(kind, Kind::RestoreBackup | Kind::Recover)).collect();
    let (mut steps, mut free) = (Vec::new(), ground.begin);
    while !ways.is_empty() {
        let at = free + draw.between_ms(800, 4_000);
        let (after, lasts) = (draw.between_ms(1_000, 3_300), draw.between_ms(50, 1_500));
        if at + after + lasts + NEW_CLUSTER > ground.quiet {
            break;
        }
        draw.budget.keep_all();
        let fault = match draw.rng.pick(&ways) {
            Kind::Recover => Fault::Recover { target: draw.some_node(), lasts },
            _ => Fault::RestoreBackup { from: draw.some_node(), after, lasts },
        };
        let step = Step { at, fault };
        if matches!(step.fault, Fault::Recover { .. }) {
            steps.extend(companions(draw, at + lasts));
        }
        free = step.ends().unwrap_or(at);
        steps.push(step);
    }
    steps
}

/// After a recovery an operator adds nodes to the last one.
fn companions(draw: &mut Draw, from: Nanos) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..draw.rng.below(3) {
        let at = from + draw.between_ms(200, 6_000);
        steps.extend(draw.budget.add_learner().map(|node| Step { at, fault: Fault::AddVoter { node } }));
    }
    steps
}

/// Half of the mix, or all of it.
fn choose_kinds(rng: &mut Rng, mix: &Mix) -> Vec<Kind> {
    if !mix.subset || mix.kinds.is_empty() {
        return mix.kinds.clone();
    }
    let chosen: Vec<Kind> = mix.kinds.iter().copied().filter(|_| rng.chance(50)).collect();
    if chosen.is_empty() { vec![rng.pick(&mix.kinds)] } else { chosen }
}

/// After the loss of its connections a client reaches no node for a while.
fn away(draw: &mut Draw, mix: &Mix, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::Disconnect { client } = fault else { return None };
    if mix.odds.away == 0 || !draw.rng.chance(mix.odds.away) {
        return None;
    }
    // Mostly shorter than a session, now and then about as long as one.
    let (least, most) = draw.rng.pick(&[(300, 3_000), (300, 3_000), (300, 3_000), (1_300, 8_200)]);
    let lasts = draw.between_ms(least, most).min(draw.quiet - at);
    let (from, to) = (vec![Target::Client(*client)], vec![Target::AllNodes]);
    Some(Step { at, fault: Fault::OneWay { from, to, lasts } })
}

/// Late answers at the time at which a client or a node begins to stand still: it finds them when it goes on.
fn late_before_pause(draw: &mut Draw, mix: &Mix, ground: &Ground, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::Pause { target, .. } = fault else { return None };
    let (odds, before) = (mix.odds.late_before_pause, Duration::from_millis(700));
    if odds == 0 || !draw.rng.chance(odds) || at < ground.begin + before || at + before > ground.quiet {
        return None;
    }
    // Late for a leader, and still in time for its followers.
    let (least, most) = if matches!(target, Target::Client(_)) { (200, 900) } else { (30, 200) };
    let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
    let (from, to) = (vec![Target::AllNodes], vec![*target]);
    let at = Nanos(at.0 - before.as_nanos() as u64);
    Some(Step { at, fault: Fault::Clog { from, to, least, most, lasts: before + before / 2 } })
}

/// Slow links before a cut, or links of which one way is cut already, and connections that break with it, as
/// with a firewall that begins to refuse: what was on its way is lost at that moment, and both sides know.
fn breaks(draw: &mut Draw, ground: &Ground, at: Nanos, fault: &Fault) -> Vec<Step> {
    let (groups, before) = match fault {
        Fault::Partition { groups, .. } => (groups.clone(), Duration::from_millis(900)),
        _ => return Vec::new(),
    };
    if !draw.rng.chance(draw.odds.breaks) || at < ground.begin + before || at + before > ground.quiet {
        return Vec::new();
    }
    let nodes = |group: &[Target]| -> Vec<Target> {
        group.iter().copied().filter(|target| matches!(target, Target::Node(_))).collect()
    };
    let (mut few, mut many) = (nodes(&groups[0]), nodes(&groups[1]));
    if few.len() > many.len() {
        std::mem::swap(&mut few, &mut many);
    }
    // The few still hear of the leader, so they wait for it, and nothing that they report arrives.
    let one_way = Fault::OneWay { from: few.clone(), to: many.clone(), lasts: before };
    let (least, most) = (Duration::from_millis(10), Duration::from_millis(60));
    let everywhere = || vec![Target::AllNodes];
    let slow = Fault::Clog { from: everywhere(), to: everywhere(), least, most, lasts: before };
    let first = if draw.rng.chance(80) { one_way } else { slow };
    let reset = |from: &[Target], to: &[Target]| Fault::Reset { from: from.to_vec(), to: to.to_vec() };
    vec![
        Step { at: Nanos(at.0 - before.as_nanos() as u64), fault: first },
        Step { at, fault: reset(&few, &many) },
        Step { at, fault: reset(&many, &few) },
    ]
}

/// After the loss of a leader: another node loses its power at one of the next flushes or messages, which are
/// those of an election, and is back at once.
fn in_election(draw: &mut Draw, kinds: &[Kind], at: Nanos, fault: &Fault) -> Option<Step> {
    let leader_is_lost = match fault {
        Fault::Kill { target, .. } | Fault::Isolate { target, .. } | Fault::Pause { target, .. } => {
            *target == Target::Leader
        }
        Fault::PowerLoss { target, .. } => matches!(target, Target::Leader | Target::AllNodes),
        _ => false,
    };
    if !leader_is_lost || !kinds.contains(&Kind::PowerLoss) || !draw.rng.chance(draw.odds.in_election) {
        return None;
    }
    let at = at + draw.between_ms(1, 400);
    let down = draw.between_ms(1, 300);
    // If its moment does not come, the power goes all the same, some seconds later.
    if at + Duration::from_secs(4) > draw.quiet {
        return None;
    }
    let target = draw.follower();
    let point = match draw.moment(&[Moment::Flush, Moment::Message]) {
        CrashPoint::At(moment, nth) => CrashPoint::At(moment, 1 + nth / 3),
        CrashPoint::AtOnce => CrashPoint::AtOnce,
    };
    Some(Step { at, fault: Fault::PowerLoss { target, point, down: Down::For(down) } })
}

/// Longer than the checker waits for a leader after the loss.
const SLOW_ELECTION: Duration = Duration::from_secs(16);

/// Makes all disks slow for a while in which the leader is lost.
fn slow_election(draw: &mut Draw, ground: &Ground) -> Vec<Step> {
    let (lasts, latest) = (SLOW_ELECTION, ground.quiet - ground.begin);
    if draw.odds.slow_election == 0 || latest < lasts + Duration::from_secs(5) {
        return Vec::new();
    }
    if !draw.rng.chance(draw.odds.slow_election) {
        return Vec::new();
    }
    let at = ground.begin + draw.between_ms(0, 4_000);
    let times = draw.rng.pick(&[200, 700, 2_500]);
    let lost = at + draw.between_ms(500, 3_000);
    let away = draw.between_ms(11_000, 12_500);
    let loss = match draw.rng.below(2) {
        0 => Fault::Kill { target: Target::Leader, down: Down::For(away) },
        _ => Fault::Pause { target: Target::Leader, lasts: away },
    };
    let slow = Fault::SlowDisk { target: Target::AllNodes, times, lasts };
    vec![Step { at, fault: slow }, Step { at: lost, fault: loss }]
}

/// What is too much for a processor depends on the processor.
fn slow_in_flood(draw: &mut Draw, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::Flood { lasts, .. } = *fault else { return None };
    let times = draw.rng.pick(&[3, 10, 10]);
    draw.rng
        .chance(draw.odds.slow_in_flood)
        .then_some(Step { at, fault: Fault::SlowProcessor { target: Target::AllNodes, times, lasts } })
}

/// A disk that rots is read soon: its node is started again.
fn rot_found(draw: &mut Draw, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::BitRot { target, .. } = fault else { return None };
    let at = at + draw.between_ms(1, 1_500);
    let down = Down::For(draw.between_ms(1, 300));
    if !draw.rng.chance(draw.odds.rot_found) || at + Duration::from_millis(300) > draw.quiet {
        return None;
    }
    Some(Step { at, fault: Fault::Kill { target: *target, down } })
}

/// The one of three that is wiped has acknowledged what the second lacks, which was away; and the third,
/// which has it as well, is down until the other two might have elected a leader without it.
fn wiped_alone(draw: &mut Draw, ground: &Ground, at: Nanos, fault: &Fault) -> Vec<Step> {
    let Fault::Wipe { target: Target::Node(wiped), .. } = fault else { return Vec::new() };
    let mut others: Vec<usize> = draw.budget.voters().into_iter().filter(|node| node != wiped).collect();
    let (away, down) = (draw.between_ms(300, 1_500), draw.between_ms(500, 3_000));
    if others.len() != 2 || !draw.rng.chance(draw.odds.wiped_alone) {
        return Vec::new();
    }
    if at < ground.begin + away || at + down > ground.quiet {
        return Vec::new();
    }
    if draw.rng.chance(50) {
        others.reverse();
    }
    draw.budget.cut(at);
    draw.budget.down(at + down);
    let [lags, dies] = [0, 1].map(|which| Target::Node(others[which]));
    let begins = Nanos(at.0 - away.as_nanos() as u64);
    vec![
        Step { at: begins, fault: Fault::Isolate { target: lags, lasts: away } },
        Step { at, fault: Fault::Kill { target: dies, down: Down::For(down) } },
    ]
}

/// What an operator does after a disk was lost: another node in its place.
fn replacement(draw: &mut Draw, kinds: &[Kind], at: Nanos, fault: &Fault) -> Vec<Step> {
    let lost = match fault {
        Fault::LoseDisk { target: Target::Node(node) } => *node,
        _ => return Vec::new(),
    };
    let changes = kinds.contains(&Kind::Remove) || kinds.contains(&Kind::AddVoter);
    let removed_at = at + draw.between_ms(REPLACED_AFTER.0, REPLACED_AFTER.1);
    let added_at = removed_at + draw.between_ms(REPLACED_AFTER.0, REPLACED_AFTER.1);
    if !changes || added_at >= draw.quiet || !draw.budget.is_settled(at) {
        return Vec::new();
    }
    let mut steps = Vec::new();
    if draw.budget.remove(lost) {
        steps.push(Step { at: removed_at, fault: Fault::Remove { target: Target::Node(lost) } });
    }
    if let Some(node) = draw.budget.add_voter() {
        steps.push(Step { at: added_at, fault: Fault::AddVoter { node } });
    }
    draw.budget.unsettle(added_at);
    steps
}
