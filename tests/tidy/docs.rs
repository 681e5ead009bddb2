//! Links, paths and tests that the documentation names.

use std::collections::BTreeSet;

use super::tree::Tree;

/// What a report should look like: its plots are not there.
pub const GOLDEN: &str = "/golden.md";
const CONTENTS: &str = "docs/SUMMARY.md";
/// A decision is one page: the most words beside its tables and code.
const DECISIONS: &str = "docs/decisions/";
const DECISION_WORDS: usize = 300;
/// Least number of words in the name of a test: names of settings and metrics are shorter, or begin with
/// `rowlock_`.
const TEST_WORDS: usize = 5;

pub fn breaches(tree: &Tree) -> Vec<String> {
    let mut found = absent_from_the_site(tree);
    found.extend(long_decisions(tree));
    found.extend(absent_tests(tree));
    for (path, text) in tree.of_kind("md").filter(|(path, _)| !path.ends_with(GOLDEN)) {
        let mut fenced = false;
        for (at, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            let broken =
                links(line).filter(|link| !leads_somewhere(tree, path, link)).map(|link| ("link", link));
            let missing = |named: &&str| !exists(tree, path, named);
            let gone = paths(line).filter(missing).map(|named| ("path", named));
            let all = broken.chain(gone);
            found.extend(all.map(|(what, to)| format!("{path}:{}: no such {what}: {to}", at + 1)));
        }
    }
    found
}

/// Pages that the contents do not name: a reader of the site would not find them.
fn absent_from_the_site(tree: &Tree) -> Vec<String> {
    let Some(contents) = tree.get(CONTENTS) else { return Vec::new() };
    let pages = tree.of_kind("md").map(|(path, _)| path).filter(|path| *path != CONTENTS);
    let absent = pages.filter_map(|path| Some((path, path.strip_prefix("docs/")?)));
    let absent = absent.filter(|(_, page)| !contents.contains(&format!("]({page})")));
    absent.map(|(path, _)| format!("{CONTENTS}: {path} is not in it")).collect()
}

fn long_decisions(tree: &Tree) -> Vec<String> {
    let decisions = tree.of_kind("md").filter(|(path, _)| path.starts_with(DECISIONS));
    let counts = decisions.map(|(path, text)| (path, prose(text)));
    counts
        .filter(|(_, words)| *words > DECISION_WORDS)
        .map(|(path, words)| format!("{path}: {words} words beside its tables, at most {DECISION_WORDS}"))
        .collect()
}

fn snake_case(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_lowercase()
}

/// Finds tests that pages name, without a function or a case of a story of that name.
fn absent_tests(tree: &Tree) -> Vec<String> {
    let functions = tree.sources().flat_map(|(_, text)| text.split("fn ").skip(1));
    let functions = functions.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned);
    let titles =
        tree.of_kind("txt").flat_map(|(_, text)| text.lines().filter_map(|it| it.strip_prefix("== ")));
    let known: BTreeSet<String> = functions.chain(titles.map(snake_case)).collect();
    let named = tree.of_kind("md").flat_map(|(path, text)| tests(text).map(move |name| (path, name)));
    let absent = named.filter(|(_, name)| !known.contains(*name));
    absent.map(|(path, name)| format!("{path}: no such test: {name}")).collect()
}

/// Returns the names of tests between backticks, also over the end of a line.
fn tests(page: &str) -> impl Iterator<Item = &str> {
    let spans = page.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2));
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let is_test = move |span: &&str| {
        span.chars().all(plain)
            && span.split('_').filter(|word| !word.is_empty()).count() >= TEST_WORDS
            && !span.starts_with("rowlock_")
    };
    spans.filter(is_test)
}

/// Words outside of tables and fenced blocks.
fn prose(page: &str) -> usize {
    let outside = page.split("```").step_by(2).flat_map(str::lines);
    outside.filter(|line| !line.starts_with('|')).map(|line| line.split_whitespace().count()).sum()
}

/// The targets of `[text](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split(')').next())
}

/// What stands between backticks and is meant as a file: it has a folder and one of our kinds.
pub fn paths(line: &str) -> impl Iterator<Item = &str> {
    // What a build makes is not there yet.
    let ours = |word: &&str| !word.starts_with("target/");
    let plain =
        |word: &&str| word.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter));
    let is_file =
        |word: &&str| word.contains('/') && [".rs", ".md", ".toml"].iter().any(|kind| word.ends_with(kind));
    line.split('`').skip(1).step_by(2).filter(ours).filter(plain).filter(is_file)
}

fn leads_somewhere(tree: &Tree, from: &str, link: &str) -> bool {
    if link.contains("://") || link.starts_with("mailto:") {
        return true;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let file = if file.is_empty() { from.to_owned() } else { joined(from, file) };
    tree.has(&file)
        && (anchor.is_empty() || tree.get(&file).is_some_and(|text| headings(text).any(|one| one == anchor)))
}

fn exists(tree: &Tree, from: &str, named: &str) -> bool {
    resolved(tree, from, named).is_some()
}

/// What a page names, from the root of the repository. The page of a crate names files of the crate.
pub fn resolved(tree: &Tree, from: &str, named: &str) -> Option<String> {
    let is_of_a_crate = from.contains('/') && tree.has(&joined(from, "Cargo.toml"));
    Some(if is_of_a_crate { joined(from, named) } else { named.to_owned() }).filter(|path| tree.has(path))
}

/// `path`, seen from the folder of `from`.
fn joined(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => (),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings, as they are made of them by the usual viewers.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        title.chars().filter(kept).collect::<String>().replace(' ', "-")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_nothing_and_paths_of_nothing_are_found() {
        let page = "[a](b.md#the-end) [b](b.md#gone) [c](c.md) [d](https://x.y) [e](../README.md)\n\
                    `b.md` `state/src/gone.rs` `state/src/locks/mod.rs` `locks/mod.rs`\n```\n[f](f.md)\n```\n";
        let files = [
            ("docs/a.md", page),
            ("docs/b.md", "# The end\n"),
            ("README.md", ""),
            ("state/src/locks/mod.rs", ""),
        ];
        let found = breaches(&Tree::with(&files));
        let wanted = [
            "1: no such link: b.md#gone",
            "1: no such link: c.md",
            "2: no such path: state/src/gone.rs",
            "2: no such path: locks/mod.rs",
        ];
        assert_eq!(found, wanted.map(|rest| format!("docs/a.md:{rest}")));
    }

    #[test]
    fn a_test_that_no_function_is_named_after_is_found() {
        let page = "`a_test_that_is_there`, `a_test_that_is_gone`, `a_case_that_is_told_here`, \
                    `a_setting_of_four`, `rowlock_metric_of_five_words`\n";
        let story = "== A case, that is told here\nget /a\n";
        let files = [("a.md", page), ("src/a.rs", "fn a_test_that_is_there() {}"), ("testdata/a.txt", story)];
        assert_eq!(breaches(&Tree::with(&files)), ["a.md: no such test: a_test_that_is_gone"]);
    }

    #[test]
    fn the_page_of_a_crate_names_files_of_the_crate() {
        let page = ("state/README.md", "`src/a.rs` `state/src/a.rs`\n");
        let files = [page, ("state/src/a.rs", ""), ("state/Cargo.toml", "")];
        assert_eq!(breaches(&Tree::with(&files)), ["state/README.md:1: no such path: state/src/a.rs"]);
    }

    #[test]
    fn a_page_that_the_contents_of_the_site_leave_out_is_found() {
        let tree = Tree::with(&[("docs/SUMMARY.md", "[a](a.md)\n"), ("docs/a.md", ""), ("docs/b.md", "")]);
        assert_eq!(breaches(&tree), ["docs/SUMMARY.md: docs/b.md is not in it"]);
    }

    #[test]
    fn a_decision_of_too_many_words_is_found_and_its_tables_do_not_count() {
        let row = "| ten words of a table do not count as prose |\n";
        let page = |words: usize| format!("{}\n{row}```\n{row}```\n", "word ".repeat(words));
        let (long, short) = (page(301), page(300));
        let found = breaches(&Tree::with(&[("docs/decisions/a.md", &long), ("docs/decisions/b.md", &short)]));
        assert_eq!(found, ["docs/decisions/a.md: 301 words beside its tables, at most 300"]);
    }
}
