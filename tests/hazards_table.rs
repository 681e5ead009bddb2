//! The tables of docs/testing.md name tests and mutants that exist. Every mutant and rare branch is used in
//! the code.

use std::fs;
use std::path::Path;

use rowlock_env::mutant::Mutant;
use rowlock_env::rare::Rare;

/// Where no test is.
const SKIPPED: &[&str] = &["target", "fuzz", ".git"];

#[test]
fn every_test_in_the_tables_exists() {
    assert_eq!(rows_of("## Hazards"), 27);
    assert_eq!(rows_of("## The life of a cluster"), 9);
    assert_eq!(rows_of("## Bugs of other systems"), 12);
}

/// How many rows the table below this heading has. Each names tests or mutants that exist.
fn rows_of(heading: &str) -> usize {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let (_, table) = text.split_once(heading).expect("the table");
    let (table, _) = table.split_once("\n## ").unwrap();
    let mut code = String::new();
    collect(root, &mut code);
    let hazards = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |"));
    let mut count = 0;
    for (line, number) in hazards.zip(1..) {
        assert!(line.starts_with(&format!("| {number} |")), "{number} is missing: {line}");
        count = number;
        let names: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{line}");
        for name in names {
            // A function, or the title of a story.
            let is_test =
                [format!("fn {name}("), format!("\n== {name}\n")].iter().any(|at| code.contains(at));
            let exists = is_test || name.parse::<Mutant>().is_ok();
            assert!(exists, "{heading} {number}: there is no test or mutant {name}");
        }
    }
    count
}

#[test]
fn every_mutant_and_every_rare_branch_stands_somewhere_in_nodes_and_clients() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut code = String::new();
    collect(&root.join("client/rust/src"), &mut code);
    // Where turns are counted, for both.
    code.push_str(&fs::read_to_string(root.join("core/env/src/busy.rs")).unwrap());
    // The node, and the crates below it.
    collect(&root.join("coordinator"), &mut code);
    let stands = |name: &str| {
        let mut behind = code.split(name).skip(1);
        behind.any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    for mutant in Mutant::ALL {
        assert!(stands(&format!("Mutant::{mutant:?}")), "{mutant}");
    }
    for branch in Rare::ALL {
        assert!(stands(&format!("Rare::{branch:?}")), "{}", branch.name());
    }
}

fn collect(folder: &Path, code: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.contains(&&*name.to_string_lossy()) {
                collect(&path, code);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "txt") {
            code.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
