//! How many assertions the product has: the number only grows.

use super::tree::{Tree, product_lines};

/// Assertions of a crate's product code at least. Raise it when some were added.
const AT_LEAST: [(&str, usize); 9] = [
    ("coordinator/types", 1),
    ("coordinator/history", 2),
    ("coordinator/wal", 3),
    ("coordinator/transport", 2),
    ("coordinator", 13),
    ("client", 65),
    ("client/testkit", 3),
    ("proto", 0),
    ("state", 30),
];

pub fn breaches(tree: &Tree) -> Vec<String> {
    AT_LEAST
        .iter()
        .filter_map(|&(name, least)| {
            let have = count(tree, name);
            (have < least).then(|| format!("{name}: {have} assertions, there were {least}"))
        })
        .collect()
}

fn count(tree: &Tree, name: &str) -> usize {
    let inside = format!("{name}/src/");
    let files = tree.product().filter(|(path, _)| path.starts_with(&inside));
    files.flat_map(|(_, text)| product_lines(text)).filter(|line| asserts(line)).count()
}

fn asserts(line: &str) -> bool {
    let line = line.trim_start();
    let words = [
        "assert!(",
        "assert_eq!(",
        "assert_ne!(",
        "debug_assert!(",
        "debug_assert_eq!(",
        "debug_assert_ne!(",
        "unreachable!(",
    ];
    words.iter().any(|word| line.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_of_the_product_count_and_those_of_tests_do_not() {
        let text = "fn a() {\n    assert!(true);\n    // assert!(true);\n}\n#[cfg(test)]\nmod tests { \n    assert!(true);\n}\n";
        let tree = Tree::with(&[("state/src/a.rs", text), ("state/src/tests/b.rs", "assert!(true);\n")]);
        assert_eq!(count(&tree, "state"), 1);
    }
}
