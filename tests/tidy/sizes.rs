//! Files of at most 500 lines, functions of at most 70, comments and the text of pages within 110 columns.

use super::docs::GOLDEN;
use super::tree::Tree;

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 110;
/// Between these lines of a page stands what a command has made.
const GENERATED: &str = "<!--generated";
const GENERATED_END: &str = "<!--end-->";

pub fn breaches(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.sources() {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            found.push(format!("{path}: {lines} lines, at most {FILE_LINES}"));
        }
        found.extend(long_functions(path, text));
        found.extend(wide_comments(path, text));
    }
    for (path, text) in tree.of_kind("md").filter(|(path, _)| !path.ends_with(GOLDEN)) {
        found.extend(wide_lines(path, text));
    }
    found
}

/// Counts from the line with `fn` to the closing brace at its indentation: the tree is formatted by rustfmt.
fn long_functions<'a>(path: &'a str, text: &'a str) -> impl Iterator<Item = String> + 'a {
    let lines: Vec<&str> = text.lines().collect();
    let starts = (0..lines.len()).filter_map({
        let lines = lines.clone();
        move |at| function_name(lines[at]).map(|name| (at, name))
    });
    starts.filter_map(move |(at, name)| {
        let indentation = &lines[at][..lines[at].len() - lines[at].trim_start().len()];
        let end = lines[at..].iter().position(|line| {
            let rest = line.strip_prefix(indentation).filter(|rest| !rest.starts_with(' '));
            rest.is_some_and(|rest| rest.starts_with('}') || rest.ends_with([';', '}']))
        });
        let count = end? + 1;
        (count > FUNCTION_LINES)
            .then(|| format!("{path}:{}: {name} has {count} lines, at most {FUNCTION_LINES}", at + 1))
    })
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if first.starts_with("//") || first.contains('"') {
        return None;
    }
    let before = ["pub", "async", "const", "unsafe", "extern"];
    let known = |word: &str| before.contains(&word) || word.starts_with("pub(");
    let mut rest = std::iter::once(first).chain(words).skip_while(|word| known(word));
    if rest.next()? != "fn" {
        return None;
    }
    rest.next()?.split(['(', '<']).next()
}

fn wide_comments<'a>(path: &'a str, text: &'a str) -> impl Iterator<Item = String> + 'a {
    let wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > COLUMNS;
    text.lines().enumerate().filter(move |(_, line)| wide(line) && !unbreakable(line)).map(
        move |(at, line)| {
            format!("{path}:{}: a comment of {} columns, at most {COLUMNS}", at + 1, line.chars().count())
        },
    )
}

/// Of a page. Code, tables and what is generated are as wide as they are; the target of a link takes no room.
fn wide_lines(path: &str, text: &str) -> Vec<String> {
    let (mut is_code, mut is_generated, mut found) = (false, false, Vec::new());
    for (at, line) in text.lines().enumerate() {
        let words = line.trim_start();
        is_code ^= words.starts_with("```");
        is_generated = (is_generated || words.starts_with(GENERATED)) && !words.starts_with(GENERATED_END);
        let columns = line.chars().count() - link_targets(line);
        if columns > COLUMNS && !is_code && !is_generated && !words.starts_with('|') {
            found.push(format!("{path}:{}: a line of {columns} columns, at most {COLUMNS}", at + 1));
        }
    }
    found
}

/// Columns of the targets of `[text](target)`.
fn link_targets(line: &str) -> usize {
    let targets = line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split(')').next());
    targets.map(|target| target.chars().count()).sum()
}

/// A link, a command, a row of a table: it cannot be broken.
fn unbreakable(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches('/').trim_start_matches('!').trim();
    text.starts_with('|') || text.split_whitespace().count() < 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        breaches(&Tree::with(&[("a.rs", text)]))
    }

    #[test]
    fn what_is_short_passes() {
        assert_eq!(found("// A comment.\nfn short() {\n}\n"), [] as [&str; 0]);
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(found(&"\n".repeat(501)), ["a.rs: 501 lines, at most 500"]);
    }

    #[test]
    fn a_long_function_is_found_and_the_next_one_counts_for_itself() {
        let body = "        step();\n".repeat(69);
        let text = format!(
            "impl A {{\n    pub(crate) async fn long<T>() {{\n{body}    }}\n\n    fn short() {{}}\n}}\n"
        );
        assert_eq!(found(&text), ["a.rs:2: long has 71 lines, at most 70"]);
    }

    #[test]
    fn a_wide_comment_is_found() {
        let text = format!("    /// {}\n", "word ".repeat(25));
        assert_eq!(found(&text).len(), 1);
    }
    #[test]
    fn a_wide_line_of_a_page_is_found_but_for_code_tables_links_and_what_is_generated() {
        let wide = "word ".repeat(25);
        let page = format!(
            "{wide}\n```\n{wide}\n```\n | {wide}\n[a](https://{})\n<!--generated:by-a-command-->\n{wide}\n\
             <!--end-->\n- {wide}\n",
            "x".repeat(120)
        );
        let found = breaches(&Tree::with(&[("docs/a.md", &page)]));
        let wanted = ["1: a line of 125", "10: a line of 127"];
        assert_eq!(found, wanted.map(|rest| format!("docs/a.md:{rest} columns, at most 110")));
    }
}
