//! Space-time diagram of a run: one self-contained HTML file, for a reader who has never seen the code.
//!
//! Hosts are side by side, time runs downwards. The page contains its data; `page.js` draws the visible part
//! and `page.css` gives the colors. The page loads nothing from elsewhere.
//!
//! Invariant: the file's size is bounded for any trace. The page shows how much is left out.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_world::time::Nanos;
use rowlock_world::trace::Happening;

use super::{Heading, Verdict, story};
use crate::report::scene::{Being, FaultSpell, Lane, Message, Region, Scene};
use crate::report::story::Line;

/// Largest number of drawn messages.
pub const MESSAGES_MAX: usize = 20_000;
/// Lines of a story beyond which the page has the condensed story.
const STORY_MAX: usize = 3_000;
/// Largest number of spans, and of regions, on a page.
const SPELLS_MAX: usize = 8_000;

pub fn page(heading: &Heading, record: &[Happening], end: Nanos) -> String {
    let scene = Scene::of(record, end);
    let mut lines = story::in_full(record);
    if lines.len() > STORY_MAX {
        lines = story::condensed(record, end, &heading.verdict);
        lines.truncate(STORY_MAX);
    }
    let data = of(&scene, &lines);
    let (tone, verdict) = match &heading.verdict {
        Verdict::Held => ("held", "Every promise held.".to_owned()),
        Verdict::Broken(promise) => ("broken", format!("A promise was broken: {}", escaped(promise))),
    };
    let facts: String = heading
        .facts
        .iter()
        .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value)))
        .collect();
    let parts = [
        ("{{title}}", escaped(&heading.title)),
        ("{{style}}", include_str!("page.css").to_owned()),
        ("{{tone}}", tone.to_owned()),
        ("{{verdict}}", verdict),
        ("{{facts}}", facts),
        ("{{reproduce}}", escaped(&heading.reproduce)),
        ("{{script}}", include_str!("page.js").to_owned()),
        ("{{data}}", data),
    ];
    filled(include_str!("page.html"), &parts)
}

/// Replaces each place of the template with its part, in one pass: the content of a part is never taken for a
/// place.
fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut page =
        String::with_capacity(template.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        page.push_str(&rest[..start]);
        rest = &rest[start..];
        let (place, part) = parts
            .iter()
            .find(|(place, _)| rest.starts_with(place))
            .expect("every place of the template has its part");
        page.push_str(part);
        rest = &rest[place.len()..];
    }
    page.push_str(rest);
    page
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the data of the page as JSON. Times are microseconds since the start; hosts and labels are indices
/// into the lists of lanes and labels. `page.js` reads exactly this format.
fn of(scene: &Scene, lines: &[Line]) -> String {
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

struct Array(String);

impl Array {
    fn new() -> Self {
        Array("[".to_owned())
    }

    fn number(mut self, n: impl Into<i128>) -> Self {
        self.next();
        self.0.push_str(&n.into().to_string());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.next();
        push_text(&mut self.0, text);
        self
    }

    fn raw(mut self, json: &str) -> Self {
        self.next();
        self.0.push_str(json);
        self
    }

    fn end(mut self) -> String {
        self.0.push(']');
        self.0
    }

    fn next(&mut self) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
    }
}

fn array(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(",\n"))
}

fn text(text: &str) -> String {
    let mut json = String::new();
    push_text(&mut json, text);
    json
}

fn push_text(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            // The HTML parser interprets `</script>` and `<!--`; old parsers interpret the two separators.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => json.push_str(&format!("\\u{:04x}", c as u32)),
            c if c.is_control() => json.push_str(&format!("\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json.push('"');
}

/// Messages this close to a broken promise are drawn first.
const CLOSE: Duration = Duration::from_secs(1);

/// Returns at most `most` of `messages`, in their order.
fn thinned<'a>(messages: &'a [Message], violations: &[Nanos], most: usize) -> Vec<&'a Message> {
    if messages.len() <= most {
        return messages.iter().collect();
    }
    let close = |at: Nanos| violations.iter().any(|violation| at <= *violation && at + CLOSE >= *violation);
    let class = |message: &Message| match (message.lost, close(message.sent)) {
        (_, true) => 0,
        (true, false) => 1,
        (false, false) => 2,
    };
    let mut chosen = vec![false; messages.len()];
    let mut left = most;
    for wanted in 0..=2 {
        let members: Vec<usize> =
            (0..messages.len()).filter(|index| class(&messages[*index]) == wanted).collect();
        let take = members.len().min(left);
        // Takes every n-th message, so that no period and no host is left out.
        (0..take).for_each(|n| chosen[members[n * members.len() / take]] = true);
        left -= take;
    }
    messages.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(message, _)| message).collect()
}
