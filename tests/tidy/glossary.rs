//! The glossary: a type that it names is in one of the files that its row names.

use super::docs::resolved;
use super::tree::Tree;

const PAGE: &str = "docs/glossary.md";

pub fn breaches(tree: &Tree) -> Vec<String> {
    let page = tree.get(PAGE).unwrap_or_default();
    let rows = page.lines().enumerate().filter(|(_, line)| line.starts_with("| "));
    rows.flat_map(|(at, row)| of_row(tree, row).into_iter().map(move |it| format!("{PAGE}:{}: {it}", at + 1)))
        .collect()
}

/// `| term | meaning | types | files |`, or `| types | meaning | files |`.
fn of_row(tree: &Tree, row: &str) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
    let (types, files) = match cells[..] {
        [_, _, types, files] | [types, _, files] => (types, files),
        _ => return Vec::new(),
    };
    let texts: Vec<&str> = quoted(files)
        .filter_map(|file| resolved(tree, PAGE, file))
        .filter(|path| path.ends_with(".rs"))
        .map(|path| tree.get(&path).unwrap_or_default())
        .collect();
    let is_there = |name: &&str| texts.iter().any(|text| words(text).any(|word| word == *name));
    let gone = quoted(types).flat_map(words).filter(|name| is_type(name) && !is_there(name));
    if texts.is_empty() { Vec::new() } else { gone.map(|name| format!("no {name} in {files}")).collect() }
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
}

fn is_type(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_is_gone_from_its_file_is_found() {
        let page = "| a | b | `Here`, `Gone` | `state/src/a.rs`, `b.rs` |\n| `Old` | b | `state/src/a.rs` |\n\
                    | a | b | `no_type` | `state/src/a.rs` |\n| a | b | `Gone` | nowhere |\n";
        let files = [(PAGE, page), ("state/src/a.rs", "struct Here;"), ("state/src/b.rs", "enum Old {}")];
        let wanted = ["1: no Gone in `state/src/a.rs`, `b.rs`", "2: no Old in `state/src/a.rs`"];
        assert_eq!(breaches(&Tree::with(&files)), wanted.map(|rest| format!("{PAGE}:{rest}")));
    }
}
