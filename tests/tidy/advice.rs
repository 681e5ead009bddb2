//! Advice to give up a data folder stands in one file, which gives it by what the node has heard. Followed on
//! every node, such advice loses everything.

use super::tree::{Tree, product_lines};

/// The file that writes the advice.
const WRITES_IT: &str = "coordinator/storage/wal/src/advice.rs";
/// Phrases of such advice, in lower case and without line breaks.
const PHRASES: &[&str] = &[
    "empty the folder",
    "empty this folder",
    "empty its folder",
    "with an empty folder",
    "with an emptied folder",
    "with empty folders",
    "remove the folder",
    "delete the folder",
    "put a new node",
    "by a new node",
    "put new nodes",
    "use a new node",
    "data folders of all nodes away",
];
/// Help for a member that is new, or of a cluster that is: nothing is given up.
const NEW_MEMBERS: &[(&str, &str)] = &[
    ("cli/src/recover.rs", "others join later with empty folders as learners"),
    ("cli/src/backup/restore.rs", "themselves with empty folders"),
    ("coordinator/storage/wal/src/error.rs", "do not empty this folder"),
    ("coordinator/storage/wal/src/error.rs", "voters with empty folders form an empty cluster"),
];

pub fn breaches(tree: &Tree) -> Vec<String> {
    let mut breaches = Vec::new();
    for (path, text) in tree.product().filter(|(path, _)| *path != WRITES_IT) {
        // A phrase may go over the end of a line, of a comment or of a text.
        let words = product_lines(text).flat_map(str::split_whitespace);
        let words = words.filter(|word| !matches!(*word, "\\" | "///" | "//!" | "//"));
        let mut text = words.collect::<Vec<_>>().join(" ").to_lowercase();
        for (_, known) in NEW_MEMBERS.iter().filter(|(of, _)| *of == path) {
            text = text.replace(known, "");
        }
        let found = PHRASES.iter().filter(|phrase| text.contains(*phrase));
        breaches.extend(found.map(|phrase| format!("{path}: \"{phrase}\": {WRITES_IT} writes such advice")));
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_to_give_up_a_folder_is_found_over_the_end_of_a_line() {
        let told = "fn f() { say(\"stop this node, empty the \\\n         folder, and start it\") }\n";
        assert_eq!(breaches(&Tree::with(&[("src/a.rs", told)])).len(), 1);
        assert_eq!(breaches(&Tree::with(&[(WRITES_IT, told)])), [] as [String; 0]);
    }
}
