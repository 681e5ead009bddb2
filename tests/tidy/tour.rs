//! The tour of the code: what a section names stands in the files that it names.

use super::docs::paths;
use super::tree::Tree;

const PAGE: &str = "docs/tour.md";

pub fn breaches(tree: &Tree) -> Vec<String> {
    let sections = tree.get(PAGE).unwrap_or_default().split("\n## ").skip(1);
    sections.flat_map(|section| of_section(tree, section)).collect()
}

fn of_section(tree: &Tree, section: &str) -> Vec<String> {
    let heading = section.lines().next().unwrap_or_default();
    let texts: Vec<&str> = section.lines().flat_map(paths).filter_map(|path| tree.get(path)).collect();
    let stands = |name: &str| texts.iter().any(|text| words(text).any(|word| word == name));
    let joined = section.replace('\n', " ");
    let names = joined.split('`').skip(1).step_by(2).filter(|span| span.split("::").all(is_name));
    let gone = names.flat_map(|span| span.split("::")).filter(|name| !stands(name));
    gone.map(|name| format!("{PAGE}: {name} is not in {heading}")).collect()
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_gone_from_its_file_is_found() {
        let page = "# T\n\n`nothing`\n\n## 1. `state/src/a.rs`\n\n`Here::stays`, `Here::went`, `--flag`.\n\n\
                    ## 2. `state/src/b.rs`\n\n`stays`\n";
        let files = [
            (PAGE, page),
            ("state/src/a.rs", "impl Here { fn stays() {} }"),
            ("state/src/b.rs", "fn other() {}"),
        ];
        let wanted = ["went is not in 1. `state/src/a.rs`", "stays is not in 2. `state/src/b.rs`"];
        assert_eq!(breaches(&Tree::with(&files)), wanted.map(|rest| format!("{PAGE}: {rest}")));
    }
}
