//! The lists of docs/testing.md name tests and mutants that exist. Every mutant and rare branch is used in
//! the code.

use std::fs;
use std::path::Path;

use rowlock_env::mutant::{Mistake, Mutant};
use rowlock_env::rare::Rare;

/// Where no test is.
const SKIPPED: &[&str] = &["target", "fuzz", ".git"];

#[test]
fn every_test_in_the_lists_exists() {
    assert_eq!(items_of("## Hazards"), 27);
    assert_eq!(items_of("## The life of a cluster"), 9);
    assert_eq!(items_of("## Bugs of other systems"), 12);
}

/// Counts the items of the list below this heading. Each names tests or mutants that exist.
fn items_of(heading: &str) -> usize {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let (_, list) = text.split_once(heading).expect("the list");
    let (mut rest, _) = list.split_once("\n## ").unwrap();
    let mut code = String::new();
    collect(root, &mut code);
    let mut count = 0;
    while let Some((_, from)) = rest.split_once(&format!("\n{}. ", count + 1)) {
        count += 1;
        let item = from.split(&format!("\n{}. ", count + 1)).next().unwrap();
        let names: Vec<&str> = item.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{heading} {count} names no test: {item}");
        for name in names {
            let exists =
                code.contains(&format!("fn {}(", snake_case(name))) || name.parse::<Mistake>().is_ok();
            assert!(exists, "{heading} {count}: there is no test or mutant {name}");
        }
        rest = from;
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
    let mut state = String::new();
    collect(&root.join("core/state/src"), &mut state);
    for mutant in Mutant::ALL {
        let is_in_state = state.contains(&format!("mutant::is(\"{mutant}\")"));
        assert!(stands(&format!("Mutant::{mutant:?}")) || is_in_state, "{mutant}");
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
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&fs::read_to_string(&path).unwrap());
        } else if path.extension().is_some_and(|extension| extension == "txt") {
            // The title of a case of a story is a test's name.
            let story = fs::read_to_string(&path).unwrap();
            let titles = story.lines().filter_map(|line| line.strip_prefix("== "));
            titles.for_each(|title| code.push_str(&format!("fn {}(\n", snake_case(title))));
        }
    }
}

fn snake_case(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_lowercase()
}
