//! Space-time diagram of a run: one self-contained HTML file, for a reader who has never seen the code.
//!
//! Hosts are side by side, time runs downwards. The page contains its data; `page.js` draws the visible part
//! and `page.css` gives the colors. The page loads nothing from elsewhere.
//!
//! Invariant: the file's size is bounded for any trace. The page shows how much is left out.

mod data;
mod json;
#[cfg(test)]
mod tests;
mod thin;

use rowlock_world::time::Nanos;
use rowlock_world::trace::Happening;

use super::scene::Scene;
use super::{Heading, Verdict, story};

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
    let data = data::of(&scene, &lines);
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
