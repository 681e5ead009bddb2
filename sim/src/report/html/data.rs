//! Data of the page as JSON. Times are microseconds since the start; hosts and labels are indices into the
//! lists of lanes and labels. `page.js` reads exactly this format.

use std::collections::BTreeMap;

use rowlock_world::time::Nanos;

use super::json::{Array, array, text};
use super::thin::thinned;
use super::{MESSAGES_MAX, SPELLS_MAX};
use crate::report::scene::{Being, FaultSpell, Lane, Message, Region, Scene};
use crate::report::story::Line;

pub(super) fn of(scene: &Scene, lines: &[Line]) -> String {
    let violations: Vec<Nanos> = scene.violations.iter().map(|(at, _)| *at).collect();
    let messages = thinned(&scene.messages, &violations, MESSAGES_MAX);
    let (labels, messages) = of_messages(&messages);
    let locks = lock_names(scene);
    let spells: Vec<String> =
        scene.lanes.iter().enumerate().flat_map(|(index, lane)| of_spells(index, lane, &locks)).collect();
    let left_out = spells.len().saturating_sub(SPELLS_MAX) + scene.regions.len().saturating_sub(SPELLS_MAX);
    let lost = scene.messages.iter().filter(|message| message.lost).count();
    let fields = [
        ("end", micros(scene.end).to_string()),
        (
            "lanes",
            array(
                scene
                    .lanes
                    .iter()
                    .map(|l| Array::new().text(&l.name).text(l.kind).number(micros(l.born)).end()),
            ),
        ),
        ("locks", array(locks.keys().map(|lock| text(lock)))),
        ("spells", array(spells.into_iter().take(SPELLS_MAX))),
        ("regions", array(scene.regions.iter().take(SPELLS_MAX).map(of_region))),
        ("faults", array(scene.faults.iter().take(SPELLS_MAX).map(of_fault))),
        (
            "violations",
            array(
                scene.violations.iter().map(|(at, what)| Array::new().number(micros(*at)).text(what).end()),
            ),
        ),
        ("labels", labels),
        ("messages", messages),
        ("sent", scene.messages.len().to_string()),
        ("lost", lost.to_string()),
        ("leftOut", left_out.to_string()),
        (
            "story",
            array(lines.iter().map(|line| {
                Array::new().number(micros(line.at)).text(line.tone.name()).text(&line.text).end()
            })),
        ),
    ];
    let fields: Vec<String> = fields.into_iter().map(|(name, json)| format!("\"{name}\":{json}")).collect();
    format!("{{{}}}", fields.join(",\n"))
}

fn micros(at: Nanos) -> u64 {
    at.0 / 1_000
}

/// Returns a number for each lock; the number determines the lock's color.
fn lock_names(scene: &Scene) -> BTreeMap<&str, usize> {
    let mut names: BTreeMap<&str, usize> = scene
        .lanes
        .iter()
        .flat_map(|lane| &lane.spells)
        .filter_map(|spell| match &spell.what {
            Being::Holds { lock, .. } | Being::Waits { lock } => Some((lock.as_str(), 0)),
            _ => None,
        })
        .collect();
    names.values_mut().enumerate().for_each(|(index, number)| *number = index);
    names
}

/// Encodes spans as `[lane, from, until, word, ...]`.
fn of_spells(index: usize, lane: &Lane, locks: &BTreeMap<&str, usize>) -> Vec<String> {
    let number = |lock: &String| locks.get(lock.as_str()).copied().unwrap_or_default() as u64;
    lane.spells
        .iter()
        .map(|spell| {
            let head =
                Array::new().number(index as u64).number(micros(spell.from)).number(micros(spell.until));
            match &spell.what {
                Being::Down { how } => head.text("down").text(how),
                Being::Paused => head.text("paused"),
                Being::Leads { term } => head.text("leads").number(*term),
                Being::Holds { lock, token } => head.text("holds").number(number(lock)).number(*token),
                Being::Waits { lock } => head.text("waits").number(number(lock)),
            }
            .end()
        })
        .collect()
}

/// Encodes a region as `[from, until, [side of each lane or -1], [[from, to, both], ...]]`.
fn of_region(region: &Region) -> String {
    let sides = region.sides.iter().map(|side| side.map_or(-1, |side| side as i128).to_string());
    let walls = region.walls.iter().map(|wall| {
        Array::new().number(wall.from as u64).number(wall.to as u64).number(u64::from(wall.both)).end()
    });
    Array::new()
        .number(micros(region.from))
        .number(micros(region.until))
        .raw(&array(sides))
        .raw(&array(walls))
        .end()
}

/// Encodes a fault as `[from, until or -1, text, [lanes]]`.
fn of_fault(fault: &FaultSpell) -> String {
    Array::new()
        .number(micros(fault.from))
        .number(fault.until.map_or(-1, |until| i128::from(micros(until))))
        .text(&fault.text)
        .raw(&array(fault.lanes.iter().map(usize::to_string)))
        .end()
}

/// Encodes the labels, and each message as `[from, to, sent, ended or -1, 1 if lost, label, bytes]`.
fn of_messages(messages: &[&Message]) -> (String, String) {
    let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
    for message in messages {
        let next = labels.len();
        labels.entry(&message.label).or_insert(next);
    }
    let rows = messages.iter().map(|message| {
        Array::new()
            .number(message.from as u64)
            .number(message.to as u64)
            .number(micros(message.sent))
            .number(message.ended.map_or(-1, |ended| i128::from(micros(ended))))
            .number(u64::from(message.lost))
            .number(labels[message.label.as_str()] as u64)
            .number(message.bytes as u64)
            .end()
    });
    let rows = array(rows);
    let mut names: Vec<(&str, &str, usize)> =
        messages.iter().map(|m| (m.label.as_str(), m.kind(), labels[m.label.as_str()])).collect();
    names.sort_unstable_by_key(|(_, _, number)| *number);
    names.dedup_by_key(|(_, _, number)| *number);
    (array(names.into_iter().map(|(label, kind, _)| Array::new().text(label).text(kind).end())), rows)
}
