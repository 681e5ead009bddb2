//! Generator of a script from a seed.
//!
//! The generator has its own stream of random numbers, so a run with a shortened script still has the same
//! workload and the same network (except for the effects of the faults). `crate::shrink` depends on that.
//!
//! Invariant: every temporary fault has ended when [`Ground::quiet`] begins, and no damage exceeds `budget`
//! unless the mix is over budget.

use std::time::Duration;

use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use super::budget::Budget;
use super::cuts;
use super::draw::{Draw, MOVE};
use super::kind::Kind;
use super::mix::{Mix, PACES, Pace};
use super::script::{CrashPoint, Down, Fault, Moment, NEW_CLUSTER, Script, Step, Target};

/// XORed into the seed of the faults' stream, which differs from the world's stream.
const STREAM: u64 = 0xfa17_5eed_0000_0001;

/// Time from the loss of a disk to its replacement, in milliseconds, in a mix with membership changes.
const REPLACED_AFTER: (u64, u64) = (1_000, 6_000);

/// Cluster and time span for the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// Voters at the beginning.
    pub nodes: usize,
    /// Learners at the beginning, numbered after the voters.
    pub learners: usize,
    /// Minimum of voters that the leader's own removals leave; `None`: the leader removes no voter.
    pub least_voters: Option<usize>,
    pub clients: usize,
    /// Start of the first fault, except for faults of a forming cluster.
    pub begin: Nanos,
    /// End of every temporary fault.
    pub quiet: Nanos,
}

pub fn generate(seed: u64, ground: &Ground, mix: &Mix) -> Script {
    assert!(ground.nodes > 0 && ground.clients > 0, "faults need nodes and clients");
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
    let budget = budget.with_removals(ground.least_voters);
    let mut draw = Draw { rng, budget, clients: ground.clients, quiet: ground.quiet, odds: mix.odds };
    let mut steps = rebirths(&mut draw, ground, &kinds);
    let alone = alone(&mut draw, ground, &kinds);
    // The world owes most while nothing else changes.
    let begins = alone.first().filter(|_| draw.rng.chance(70)).map(|first| first.at);
    let is_left_alone =
        |at: Nanos| begins.is_some_and(|from| at + Duration::from_secs(5) >= from && at <= from + ALONE);
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
    steps.extend(forgets(&mut draw, ground));
    steps.extend(in_grace(&mut draw, ground));
    steps.extend(founding(&mut draw, ground, &kinds));
    if begins.is_none() {
        steps.extend(cuts_that_last(&mut draw, ground));
    }
    steps.extend(alone);
    let changes = changes(&mut draw, ground, &steps);
    steps.extend(changes);
    Script::new(steps).with_over_budget(mix.over_budget)
}

/// Draws the loss of entries on one of two connected nodes, and a cut of the other one soon after: the first
/// node and a node without the entries elect a leader. The first node dies again before its admission.
fn forgets(draw: &mut Draw, ground: &Ground) -> Vec<Step> {
    let span_ms = (ground.quiet - ground.begin).as_millis() as u64;
    if draw.odds.forgets == 0 || ground.nodes < 3 || span_ms < 9_000 || !draw.rng.chance(draw.odds.forgets) {
        return Vec::new();
    }
    let at = ground.begin + draw.between_ms(1_000, span_ms - 8_000);
    let first = draw.rng.below(ground.nodes);
    let [behind, forgetful, with_all] = [0, 1, 2].map(|n| Target::Node((first + n) % ground.nodes + 1));
    let (is_power, down) = (draw.rng.chance(70), |ms| Down::For(Duration::from_millis(ms)));
    let loses = if is_power {
        Fault::PowerLoss { target: forgetful, point: CrashPoint::AtOnce, down: down(60) }
    } else {
        Fault::SyncFailure { target: forgetful, down: down(60) }
    };
    let isolate = |target, ms| Fault::Isolate { target, lasts: Duration::from_millis(ms) };
    let mut steps = vec![
        (0, isolate(behind, 1_500)),
        (1_300, loses),
        (if is_power { 1_365 } else { 1_500 }, isolate(with_all, 4_000)),
    ];
    if is_power && draw.rng.chance(50) {
        steps.push((1_420, Fault::Kill { target: forgetful, down: down(10) }));
    }
    steps.into_iter().map(|(ms, fault)| Step { at: at + Duration::from_millis(ms), fault }).collect()
}

/// Draws a power loss of all nodes, and the loss of the next leader while clients may still believe in their
/// sessions of the time before.
fn in_grace(draw: &mut Draw, ground: &Ground) -> Vec<Step> {
    let span_ms = (ground.quiet - ground.begin).as_millis() as u64;
    if draw.odds.in_grace == 0 || span_ms < 9_000 || !draw.rng.chance(draw.odds.in_grace) {
        return Vec::new();
    }
    let at = ground.begin + draw.between_ms(1_000, span_ms - 8_000);
    let down = Down::For(draw.between_ms(10, 200));
    let later = at + draw.between_ms(400, 1_600);
    let (target, away) = (Target::Leader, draw.between_ms(20, 2_000));
    let lost = match draw.rng.below(4) {
        0 => Fault::Kill { target, down: Down::For(away) },
        1 => Fault::Isolate { target, lasts: away },
        2 => Fault::PowerLoss { target, point: CrashPoint::AtOnce, down: Down::For(away) },
        _ => Fault::Transfer { to: draw.follower() },
    };
    let all = Fault::PowerLoss { target: Target::AllNodes, point: CrashPoint::AtOnce, down };
    vec![Step { at, fault: all }, Step { at: later, fault: lost }]
}

/// Draws one shape of lasting cuts, at any time.
fn cuts_that_last(draw: &mut Draw, ground: &Ground) -> Vec<Step> {
    if draw.odds.lasting == 0 || !draw.rng.chance(draw.odds.lasting) {
        return Vec::new();
    }
    let at = ground.begin + draw.between_ms(0, 5_000);
    let lasts = cuts::lasting(&mut draw.rng, ground, at);
    lasts.map_or(Vec::new(), |lasts| cuts::shape(&mut draw.rng, ground, at, lasts))
}

/// Draws faults of a forming cluster, before other faults begin: the links between nodes are slow, and a node
/// dies and comes back soon.
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

/// Draws new clusters in sequence, each with time to open sessions before the next cluster and before the
/// quiet. Later faults destroy nothing for good: no budget counts the disks of the new clusters.
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

/// Draws the nodes that an operator adds to the last node after a recovery.
fn companions(draw: &mut Draw, from: Nanos) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..draw.rng.below(3) {
        let at = from + draw.between_ms(200, 6_000);
        steps.extend(draw.budget.add_learner().map(|node| Step { at, fault: Fault::AddVoter { node } }));
    }
    steps
}

/// Returns half of the mix, or all kinds for a mix without subsets.
fn choose_kinds(rng: &mut Rng, mix: &Mix) -> Vec<Kind> {
    if !mix.subset || mix.kinds.is_empty() {
        return mix.kinds.clone();
    }
    let chosen: Vec<Kind> = mix.kinds.iter().copied().filter(|_| rng.chance(50)).collect();
    if chosen.is_empty() { vec![rng.pick(&mix.kinds)] } else { chosen }
}

/// Draws a time without any node for a client that has lost its connections.
fn away(draw: &mut Draw, mix: &Mix, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::Disconnect { client } = fault else { return None };
    if mix.odds.away == 0 || !draw.rng.chance(mix.odds.away) {
        return None;
    }
    // Mostly shorter than a session, now and then about as long as a session.
    let (least, most) = draw.rng.pick(&[(300, 3_000), (300, 3_000), (300, 3_000), (1_300, 8_200)]);
    let lasts = draw.between_ms(least, most).min(draw.quiet - at);
    let (from, to) = (vec![Target::Client(*client)], vec![Target::AllNodes]);
    Some(Step { at, fault: Fault::OneWay { from, to, lasts } })
}

/// Draws late answers around the start of a pause: the paused client or node reads them when it continues.
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

/// Draws slow links, or links already cut in one direction, before a partition, and broken connections at its
/// start, as with a firewall that begins to refuse: messages under way are lost, and both sides notice.
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
    // The minority still hears the leader, so its nodes wait, and nothing that they report arrives.
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

/// Draws a power loss after the loss of a leader: another node loses power at one of the next flushes or
/// messages, which belong to an election, and is back at once.
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
    // Without its moment the power loss happens anyway, some seconds later.
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

/// Time without other faults around the steps of [`alone`].
const ALONE: Duration = Duration::from_secs(16);

/// Draws what the world otherwise hides by another change: the loss of a leader while all disks are slow, a
/// planned stop of a leader, or connections of all clients that break again and again.
fn alone(draw: &mut Draw, ground: &Ground, kinds: &[Kind]) -> Vec<Step> {
    if !draw.rng.chance(draw.odds.alone) {
        return Vec::new();
    }
    let at = ground.begin + draw.between_ms(0, 4_000);
    match draw.rng.below(3) {
        0 if at + ALONE <= ground.quiet => slow_election(draw, at),
        1 if kinds.contains(&Kind::Reset) => storm(draw, at),
        _ => stop_of_a_leader(draw, at).into_iter().collect(),
    }
}

fn slow_election(draw: &mut Draw, at: Nanos) -> Vec<Step> {
    let times = draw.rng.pick(&[200, 700, 2_500]);
    let lost = at + draw.between_ms(500, 3_000);
    let away = draw.between_ms(11_000, 12_500);
    let loss = match draw.rng.below(2) {
        0 => Fault::Kill { target: Target::Leader, down: Down::For(away) },
        _ => Fault::Pause { target: Target::Leader, lasts: away },
    };
    let slow = Fault::SlowDisk { target: Target::AllNodes, times, lasts: ALONE };
    vec![Step { at, fault: slow }, Step { at: lost, fault: loss }]
}

fn storm(draw: &mut Draw, at: Nanos) -> Vec<Step> {
    let (count, every) = (10 + draw.rng.below(20), draw.between_ms(150, 400));
    let begins = at + Duration::from_secs(4);
    let reset = || Fault::Reset { from: vec![Target::AllNodes], to: vec![Target::AllClients] };
    let steps = (0..count as u32).map(|nth| Step { at: begins + every * nth, fault: reset() });
    steps.filter(|step| step.at < draw.quiet).collect()
}

fn stop_of_a_leader(draw: &mut Draw, at: Nanos) -> Option<Step> {
    let (at, lasts) = (at + Duration::from_secs(5), draw.between_ms(500, 3_000));
    let is_free = draw.budget.is_settled(at) && draw.budget.voters().len() > 2 && at + lasts <= draw.quiet;
    is_free.then(|| {
        draw.budget.down(at + lasts);
        draw.budget.unsettle(at + lasts + MOVE);
        Step { at, fault: Fault::Readdress { target: Target::Leader, lasts } }
    })
}

/// Draws slow processors during a flood: the overload depends on the processor.
fn slow_in_flood(draw: &mut Draw, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::Flood { lasts, .. } = *fault else { return None };
    let times = draw.rng.pick(&[3, 10, 10]);
    draw.rng
        .chance(draw.odds.slow_in_flood)
        .then_some(Step { at, fault: Fault::SlowProcessor { target: Target::AllNodes, times, lasts } })
}

/// Draws a restart of a node with a rotten disk, for an early read of the disk.
fn rot_found(draw: &mut Draw, at: Nanos, fault: &Fault) -> Option<Step> {
    let Fault::BitRot { target, .. } = fault else { return None };
    let at = at + draw.between_ms(1, 1_500);
    let down = Down::For(draw.between_ms(1, 300));
    if !draw.rng.chance(draw.odds.rot_found) || at + Duration::from_millis(300) > draw.quiet {
        return None;
    }
    Some(Step { at, fault: Fault::Kill { target: *target, down } })
}

/// Draws the other faults around a wipe of one node of three. The wiped node has acknowledged entries unknown
/// to the second node, isolated before; the third node has these entries and is down until the other two
/// might have elected a leader.
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

/// Draws a change of members beside the other faults: a new node joins, lags, and becomes a voter, and the
/// leader is lost in the middle of that. Drawn last, so that the other faults of a seed stay the same.
fn changes(draw: &mut Draw, ground: &Ground, steps: &[Step]) -> Vec<Step> {
    let is_apart = |step: &Step| {
        use Kind::{Flood, Recover, Restore, RestoreBackup, SlowProcessor};
        matches!(step.fault.kind(), Flood | Recover | Restore | RestoreBackup | SlowProcessor)
    };
    let (odds, latest) = (draw.odds.changes, (ground.quiet - ground.begin).as_millis() as u64 / 2);
    if latest < 3_000 || steps.is_empty() || steps.iter().any(is_apart) || !draw.rng.chance(odds) {
        return Vec::new();
    }
    let joins = ground.begin + draw.between_ms(0, latest);
    let votes = joins + draw.between_ms(700, 5_000);
    let Some(node) = draw.budget.is_settled(joins).then(|| draw.budget.add_voter()).flatten() else {
        return Vec::new();
    };
    let step = |at, fault| Step { at, fault };
    let mut changes = vec![
        step(joins, Fault::AddLearner { node }),
        step(votes.min(ground.quiet), Fault::AddVoter { node }),
    ];
    let (at, target) = (joins + draw.between_ms(50, 2_000), Target::Node(node));
    let lasts = draw.between_ms(1_000, 9_000).min(ground.quiet - at);
    changes.extend(match draw.rng.below(4) {
        0 => Some(step(at, Fault::SlowDisk { target, times: draw.rng.pick(&[200, 3_000, 12_000]), lasts })),
        1 => {
            let least = draw.between_ms(0, 2_000);
            let most = least + draw.between_ms(1, 2_000);
            let (from, to) = (vec![Target::AllNodes], vec![target]);
            Some(step(at, Fault::Clog { from, to, least, most, lasts }))
        }
        2 => Some(step(at, Fault::Isolate { target, lasts })),
        _ => None,
    });
    if draw.rng.chance(60) {
        let (kills, copies) = (draw.rng.chance(50), 1 + draw.rng.below(3));
        let lasts = draw.between_ms(300, 12_000).min(ground.quiet - joins);
        changes.push(step(joins, Fault::Depose { kills, copies, lasts }));
    }
    changes
}

/// Draws an operator's reaction to a lost disk: another node instead of the lost node.
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
