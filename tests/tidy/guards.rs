//! The list of all guards, `core/env/src/guards.txt`, names the guards of the code, each once.

use std::fmt::Write;

use super::tree::{Tree, product_lines};

/// The file that `env` includes.
pub const LIST: &str = "core/env/src/guards.txt";
const CALL: &str = "decides!(";

pub fn breaches(tree: &Tree) -> Vec<String> {
    let found = guards(tree);
    let twice = found.windows(2).filter(|two| two[0].0 == two[1].0);
    let mut breaches: Vec<String> = twice
        .map(|two| format!("{} and {}: two guards are called {}", two[0].1, two[1].1, two[0].0))
        .collect();
    let is_name = |name: &str| name.split('-').all(|word| !word.is_empty() && word.chars().all(is_plain));
    let wrong = found.iter().filter(|(name, _)| !is_name(name));
    breaches.extend(
        wrong.map(|(name, path)| format!("{path}: {name:?} is no name of a guard: use words-like-this")),
    );
    if tree.get(LIST) != Some(&*list(tree)) {
        breaches.push(format!(
            "{LIST} differs from the code; ROWLOCK_UPDATE=1 cargo test --test tidy guards writes it"
        ));
    }
    breaches
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit()
}

/// Returns the text of the list.
pub fn list(tree: &Tree) -> String {
    guards(tree).iter().fold(String::new(), |mut list, (name, path)| {
        let _ = writeln!(list, "{name} {path}");
        list
    })
}

/// Returns names and files of all guards in the order of the names.
fn guards(tree: &Tree) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, text) in tree.product().filter(|(_, text)| text.contains(CALL)) {
        let code: Vec<&str> =
            product_lines(text).map(str::trim_start).filter(|line| !line.starts_with("//")).collect();
        for call in code.join("\n").split(CALL).skip(1) {
            let name = call.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
            found.push((name.unwrap_or_default().to_owned(), path.to_owned()));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: (&str, &str) = (
        "core/state/src/a.rs",
        "if decides!(\n    \"lock-is-free\",\n    x\n) {}\n// decides!(\"comment\", y)\n",
    );

    #[test]
    fn a_list_that_lacks_a_guard_is_found_and_written_again() {
        let tree = Tree::with(&[CODE, (LIST, "gone core/state/src/a.rs\n")]);
        assert_eq!(breaches(&tree).len(), 1, "{:?}", breaches(&tree));
        assert_eq!(list(&tree), "lock-is-free core/state/src/a.rs\n");
        assert_eq!(breaches(&Tree::with(&[CODE, (LIST, &list(&tree))])), Vec::<String>::new());
    }

    #[test]
    fn two_guards_of_one_name_and_a_guard_without_a_name_are_found() {
        let other = ("core/state/src/b.rs", "decides!(\"lock-is-free\", x); decides!(name, y)\n");
        let tree = Tree::with(&[CODE, other]);
        let tree = Tree::with(&[CODE, other, (LIST, &list(&tree))]);
        let found = breaches(&tree);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("two guards are called lock-is-free") && found[1].contains("\"\" is no name")
        );
    }
}
