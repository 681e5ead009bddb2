//! How much there is to read, with a ceiling for each figure: lines, words, empty comments, names that mean
//! several things. `just weight` prints the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::docs::GOLDEN;
use super::tree::{Tree, product_lines};

/// The crates that `cargo build` builds.
const SHIPPED: [&str; 4] = ["core", "coordinator", "client", "cli"];
/// A doc comment of at most this many words says what the name says.
const EMPTY_WORDS: usize = 3;
/// A type name may be defined this often in the product.
const SAME_NAME: usize = 3;
/// Words of riddles: a noun is missing, see CONTRIBUTING.md, "Words".
const RIDDLES: [&str; 11] = [
    "nobody",
    "somebody",
    "whoever",
    "whose turn",
    "so many",
    "in vain",
    "anew",
    "as it is",
    "such a one",
    "has it that",
    "the word",
];

/// What is counted, and the most that is allowed. A ceiling is only ever lowered; one that is raised needs a
/// sentence in its commit that says for what.
const CEILINGS: [(&str, usize); 7] = [
    ("lines of Rust, all", 229_400),
    ("lines of Rust that ship, without tests", 103_230),
    ("doc comments of three words or fewer", 0),
    ("names of types defined more than three times", 0),
    ("riddle words in Rust", 8),
    ("riddle words in pages", 0),
    ("words in pages", 46_690),
];

pub fn breaches(tree: &Tree) -> Vec<String> {
    let counted = count(tree);
    let over = CEILINGS.iter().filter(|(what, most)| counted[what] > *most);
    over.map(|(what, most)| format!("{}: {what}, at most {most}", counted[what])).collect()
}

/// The table that `just weight` prints.
pub fn table(tree: &Tree) -> String {
    let counted = count(tree);
    let mut table = String::from("| what | now | at most |\n|---|---|---|\n");
    for (what, most) in CEILINGS {
        let _ = writeln!(table, "| {what} | {} | {most} |", counted[what]);
    }
    let names = names(tree);
    let mut names: Vec<_> = names.iter().filter(|(_, count)| **count > SAME_NAME).collect();
    names.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
    let named: Vec<String> = names.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let _ = writeln!(table, "\nNames: {}", named.join(", "));
    table
}

fn count(tree: &Tree) -> BTreeMap<&'static str, usize> {
    let rust: Vec<(&str, &str)> =
        tree.sources().filter(|(path, _)| !path.starts_with("lab/third_party")).collect();
    let pages = tree.of_kind("md").filter(|(path, _)| !path.ends_with(GOLDEN));
    let pages: Vec<&str> = pages.map(|(_, text)| text).collect();
    let shipped = tree.product().filter(|(path, _)| ships(path));
    let figures = [
        rust.iter().map(|(_, text)| text.lines().count()).sum(),
        shipped.map(|(_, text)| product_lines(text).count()).sum(),
        rust.iter().map(|(_, text)| empty_comments(text)).sum(),
        names(tree).values().filter(|count| **count > SAME_NAME).count(),
        rust.iter()
            .map(|(_, text)| text.lines().filter(|line| is_comment(line)).map(riddles).sum::<usize>())
            .sum(),
        pages.iter().map(|text| riddles(text)).sum(),
        pages.iter().map(|text| text.split_whitespace().count()).sum(),
    ];
    CEILINGS.iter().map(|(what, _)| *what).zip(figures).collect()
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// How often riddle words occur in a text.
fn riddles(text: &str) -> usize {
    let text = text.to_lowercase();
    let text = text.replace(|letter: char| !letter.is_alphanumeric(), " ");
    let text = format!(" {} ", text.split_whitespace().collect::<Vec<_>>().join(" "));
    RIDDLES.iter().map(|riddle| text.matches(&format!(" {riddle} ")).count()).sum()
}

/// Doc comments that are one short line.
fn empty_comments(text: &str) -> usize {
    let doc = |line: &str| line.trim_start().strip_prefix("/// ").map(|said| said.split_whitespace().count());
    let lines: Vec<Option<usize>> = text.lines().map(doc).collect();
    let alone = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| lines[before]);
        before.is_none() && lines.get(at + 1).copied().flatten().is_none()
    };
    (0..lines.len()).filter(|at| lines[*at].is_some_and(|words| words <= EMPTY_WORDS) && alone(*at)).count()
}

fn ships(path: &str) -> bool {
    SHIPPED.iter().any(|part| path.starts_with(&format!("{part}/")))
}

/// How often each name of a type is defined in what ships.
fn names(tree: &Tree) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    for (_, text) in tree.product().filter(|(path, _)| ships(path)) {
        for line in product_lines(text) {
            let line = line.trim_start();
            let line = line.strip_prefix("pub").map_or(line, |rest| {
                rest.strip_prefix('(').and_then(|inner| inner.split_once(')')).map_or(rest, |(_, rest)| rest)
            });
            let mut words = line.split_whitespace();
            if !matches!(words.next(), Some("struct" | "enum" | "trait" | "union")) {
                continue;
            }
            let name = words.next().unwrap_or_default();
            let end = name.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
            *found.entry(&name[..end.unwrap_or(name.len())]).or_default() += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_comments_riddles_and_names_are_counted() {
        let text = "/// The least.\npub struct Place;\n/// Two\n/// lines.\nfn f() {}\n// Nobody waits in vain.\n\
                    pub(crate) struct Place<T>(T);\nenum Place {}\n    trait Place {}\n#[cfg(test)]\nmod tests {\n\
                    struct Place; }\n";
        let tree = Tree::with(&[("cli/src/a.rs", text), ("docs/a.md", "So  many\nwords, anew.\n")]);
        let counted = count(&tree);
        let figures: Vec<usize> = CEILINGS.iter().map(|(what, _)| counted[what]).collect();
        assert_eq!(figures, [12, 9, 1, 1, 2, 2, 4]);
        assert_eq!(names(&tree)["Place"], 4);
    }
}
