//! The rules of the repository that no compiler checks: the size of files and functions, the layering, and
//! that the documentation names what exists. A check takes the text of all files and returns a line for each
//! breach. Each check has a test that catches a breach.
//!
//! The tests read the files of the repository directly: nothing here is simulated.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod advice;
mod assertions;
mod circles;
mod docs;
mod generated;
mod glossary;
mod guards;
mod layers;
mod names;
mod packages;
mod promises;
mod rest;
mod sizes;
mod tour;
mod tree;
mod voice;
mod weight;

use tree::Tree;

/// Fails with all breaches at once.
fn holds(breaches: Vec<String>) {
    assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn no_file_function_or_line_is_too_long() {
    holds(sizes::breaches(&Tree::of_the_repository()));
}

#[test]
fn crates_and_modules_import_downward() {
    holds(layers::breaches(&Tree::of_the_repository()));
}

#[test]
fn circles_of_files_that_import_each_other_stay_short() {
    let tree = Tree::of_the_repository();
    println!("{}", circles::table(&tree));
    holds(circles::breaches(&tree));
}

#[test]
fn only_one_file_advises_to_give_up_a_data_folder() {
    holds(advice::breaches(&Tree::of_the_repository()));
}

#[test]
fn links_and_paths_of_the_documentation_lead_somewhere() {
    holds(docs::breaches(&Tree::of_the_repository()));
}

#[test]
fn metrics_config_keys_and_exit_codes_are_documented_and_exist() {
    holds(names::breaches(&Tree::of_the_repository()));
}

#[test]
fn generated_parts_of_the_pages_are_those_of_the_code() {
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        for (path, page) in generated::pages(&Tree::of_the_repository()) {
            std::fs::write(tree::root().join(path), page).unwrap();
        }
    }
    holds(generated::breaches(&Tree::of_the_repository()));
}

#[test]
fn guards_are_listed_once() {
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        let tree = Tree::of_the_repository();
        std::fs::write(tree::root().join(guards::LIST), guards::list(&tree)).unwrap();
    }
    holds(guards::breaches(&Tree::of_the_repository()));
}

#[test]
fn published_crates_are_built_on_published_ones() {
    holds(packages::breaches(&Tree::of_the_repository()));
}

#[test]
fn types_of_the_glossary_are_where_it_says() {
    holds(glossary::breaches(&Tree::of_the_repository()));
}

#[test]
fn names_of_the_tour_stand_in_its_files() {
    holds(tour::breaches(&Tree::of_the_repository()));
}

#[test]
fn each_promise_has_a_fault_a_workload_a_checker_and_a_mutant() {
    let tree = Tree::of_the_repository();
    println!("{}", promises::table(&tree));
    holds(promises::breaches(&tree));
    holds(rest::breaches(&tree));
}

#[test]
fn assertions_do_not_become_fewer() {
    holds(assertions::breaches(&Tree::of_the_repository()));
}

#[test]
fn comments_are_sentences_and_functions_say_what_they_do() {
    holds(voice::breaches(&Tree::of_the_repository()));
}

#[test]
fn there_is_no_more_to_read_than_before() {
    let tree = Tree::of_the_repository();
    println!("{}", weight::table(&tree));
    holds(weight::breaches(&tree));
}
