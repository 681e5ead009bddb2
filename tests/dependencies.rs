//! The dependencies: only crates of crates.io, only with licences that .cargo/deny.toml allows, none with a
//! known vulnerability.
//!
//! `cargo deny` checks more, but asks a database; this test needs no network and no tool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml::{Table, Value as Toml};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Packages of this repository that are not called rowlock: lab/third_party/README.md.
const COPIES: [&str; 1] = ["base2histogram"];

fn table(file: &str) -> Table {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn text<'a>(of: &'a Table, key: &str) -> &'a str {
    of.get(key).and_then(Toml::as_str).unwrap_or_default()
}

fn tables<'a>(of: &'a Table, key: &str) -> impl Iterator<Item = &'a Table> {
    of[key].as_array().unwrap().iter().map(|item| item.as_table().unwrap())
}

/// Without what follows `-` or `+`.
fn version(text: &str) -> [u64; 3] {
    let number = text.split(['-', '+']).next().unwrap();
    let mut parts = number.split('.').map(|part| part.parse().unwrap());
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// What is wrong with the packages of a Cargo.lock.
fn complaints(lock: &Table, known: &Table, ignored: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    for package in tables(lock, "package") {
        let (name, at) = (text(package, "name"), text(package, "version"));
        let is_ours = name == "rowlock" || name.starts_with("rowlock-") || COPIES.contains(&name);
        match text(package, "source") {
            "" if is_ours => continue,
            CRATES_IO if !text(package, "checksum").is_empty() => {}
            other => found.push(format!(
                "{name} {at} comes from \"{other}\", without a checksum or not from crates.io"
            )),
        }
        for hole in tables(known, "holes").filter(|hole| text(hole, "crate") == name) {
            let bound = |key: &str| hole.get(key).map(|of| version(of.as_str().unwrap()));
            let has_it = bound("from").is_none_or(|from| from <= version(at))
                && bound("below").is_none_or(|below| version(at) < below);
            let id = text(hole, "id");
            if has_it && !ignored.contains(id) {
                found.push(format!("{name} {at} has {id}; {} is right", text(hole, "below")));
            }
        }
    }
    found
}

/// What is wrong with the versions that a Cargo.toml permits: those who build a published crate take any of
/// them, and not the ones of our Cargo.lock.
fn loose(manifest: &Table, known: &Table, ignored: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, dependency) in manifest["workspace"]["dependencies"].as_table().unwrap() {
        let wanted = dependency.as_str().or_else(|| dependency.get("version")?.as_str()).unwrap();
        let name = dependency.get("package").and_then(Toml::as_str).unwrap_or(name);
        let (floor, end) = permitted(wanted);
        for hole in tables(known, "holes").filter(|hole| text(hole, "crate") == name) {
            let bound = |key: &str| hole.get(key).map(|of| version(of.as_str().unwrap()));
            let has_it = bound("from").is_none_or(|from| from < end)
                && bound("below").is_none_or(|below| floor < below);
            let id = text(hole, "id");
            if has_it && !ignored.contains(id) {
                found.push(format!(
                    "{name} = \"{wanted}\" permits versions with {id}: ask for {}",
                    text(hole, "below")
                ));
            }
        }
    }
    found
}

/// The first version that a requirement permits, and the first that it does not permit any more.
fn permitted(wanted: &str) -> ([u64; 3], [u64; 3]) {
    let exact = wanted.strip_prefix('=');
    let from = version(exact.unwrap_or(wanted));
    let end = match from {
        [major, minor, patch] if exact.is_some() => [major, minor, patch + 1],
        [0, 0, patch] if wanted.split('.').count() > 2 => [0, 0, patch + 1],
        [0, minor, _] => [0, minor + 1, 0],
        [major, ..] => [major + 1, 0, 0],
    };
    (from, end)
}

/// Whether what the licence asks for can be given: `AND` and `OR` with brackets; `/` is an old `OR`.
fn is_allowed(licence: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = licence.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let is = any_of(&mut words, allowed);
    assert!(words.is_empty(), "{licence} is not understood");
    is
}

fn any_of(words: &mut Vec<&str>, allowed: &BTreeSet<&str>) -> bool {
    let mut is = all_of(words, allowed);
    while words.pop_if(|word| *word == "OR").is_some() {
        is |= all_of(words, allowed);
    }
    is
}

fn all_of(words: &mut Vec<&str>, allowed: &BTreeSet<&str>) -> bool {
    let mut is = one(words, allowed);
    while words.pop_if(|word| *word == "AND").is_some() {
        is &= one(words, allowed);
    }
    is
}

fn one(words: &mut Vec<&str>, allowed: &BTreeSet<&str>) -> bool {
    let word = words.pop().expect("a licence");
    let is = if word == "(" {
        let is = any_of(words, allowed);
        assert_eq!(words.pop(), Some(")"));
        is
    } else {
        allowed.contains(word)
    };
    // A licence with an exception is another one.
    let has_exception = words.pop_if(|word| *word == "WITH").and_then(|_| words.pop()).is_some();
    is && !has_exception
}

fn ignored(deny: &Table) -> BTreeSet<&str> {
    tables(deny["advisories"].as_table().unwrap(), "ignore").map(|item| text(item, "id")).collect()
}

#[test]
fn every_crate_is_of_crates_io_and_without_a_known_hole() {
    let (known, deny) = (table(".cargo/advisories.toml"), table(".cargo/deny.toml"));
    let lock = table("Cargo.lock");
    assert_eq!(complaints(&lock, &known, &ignored(&deny)), [] as [String; 0]);
    // What is no longer there needs no excuse any more.
    let here: BTreeSet<&str> = tables(&lock, "package").map(|package| text(package, "name")).collect();
    for hole in tables(&known, "holes").filter(|hole| ignored(&deny).contains(text(hole, "id"))) {
        assert!(here.contains(text(hole, "crate")), "{hole:?} is ignored, and the crate is not used");
    }
    let named: BTreeSet<&str> = tables(&known, "holes").map(|hole| text(hole, "id")).collect();
    assert!(ignored(&deny).is_subset(&named), ".cargo/advisories.toml names what .cargo/deny.toml ignores");
    let ignores = tables(deny["advisories"].as_table().unwrap(), "ignore");
    assert!(ignores.into_iter().all(|item| !text(item, "reason").is_empty()), "each with its reason");
}

#[test]
fn no_crate_is_permitted_in_a_version_with_a_known_hole() {
    let (known, deny) = (table(".cargo/advisories.toml"), table(".cargo/deny.toml"));
    assert_eq!(loose(&table("Cargo.toml"), &known, &ignored(&deny)), [] as [String; 0]);
    let checked = text(&known, "checked");
    assert!(checked.len() == 10 && checked >= "2026-11-28", "it says when it was brought up to date");
}

#[test]
fn every_licence_is_one_that_we_may_use() {
    let deny = table(".cargo/deny.toml");
    let allowed = deny["licenses"]["allow"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let allowed: BTreeSet<&str> = allowed.collect();
    let metadata = metadata();
    let used: BTreeSet<&str> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["id"].as_str().unwrap())
        .collect();
    let mut seen = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        if used.contains(package["id"].as_str().unwrap()) {
            let licence = package["license"].as_str().unwrap_or("(none)");
            seen.entry(licence).or_insert_with(Vec::new).push(package["name"].as_str().unwrap());
        }
    }
    assert!(seen.values().map(Vec::len).sum::<usize>() > 100, "{seen:?}");
    seen.retain(|licence, _| !is_allowed(licence, &allowed));
    assert!(seen.is_empty(), "{seen:?}");
}

/// Of what is built on this machine. Its packages have been downloaded, or this test would not run; others of
/// the workspace may not have been.
fn metadata() -> Value {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let ask = |more: &[&str]| {
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        cargo
            .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform])
            .args(more);
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
    };
    let mut said = ask(&["--offline"]);
    if !said.status.success() {
        said = ask(&[]);
    }
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice(&said.stdout).unwrap()
}

#[test]
fn a_hole_another_source_and_another_licence_are_found() {
    let lock = |packages: &str| -> Table { packages.parse().unwrap() };
    let package = |name: &str, version: &str, rest: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n{rest}")
    };
    let right = format!("source = \"{CRATES_IO}\"\nchecksum = \"ab\"\n");
    let known = "holes = [{ crate = \"c\", id = \"X-1\", from = \"1.2.0\", below = \"1.4.2\" }, { crate = \"d\", id = \"X-2\" }]";
    let known: Table = known.parse().unwrap();
    for (name, at, source, complaint) in [
        ("c", "1.4.2", right.as_str(), None),
        ("c", "1.1.9", &right, None),
        ("c", "1.4.1+build", &right, Some("c 1.4.1+build has X-1; 1.4.2 is right")),
        ("d", "7.0.0-rc.1", &right, Some("d 7.0.0-rc.1 has X-2;")),
        ("c", "2.0.0", "source = \"git+https://example.org/c#1\"\n", Some("c 2.0.0 comes from \"git+https")),
        ("c", "2.0.0", &format!("source = \"{CRATES_IO}\"\n"), Some("c 2.0.0 comes from \"registry")),
        ("c", "2.0.0", "", Some("c 2.0.0 comes from \"\"")),
        ("rowlock-proto", "0.1.0", "", None),
    ] {
        let found = complaints(&lock(&package(name, at, source)), &known, &BTreeSet::new());
        assert_eq!(found.len(), usize::from(complaint.is_some()), "{name} {at}: {found:?}");
        assert!(found.iter().zip(complaint).all(|(found, wanted)| found.starts_with(wanted)), "{found:?}");
    }
    let with_d = lock(&package("d", "1.0.0", &right));
    assert!(complaints(&with_d, &known, &["X-2"].into()).is_empty(), "it is ignored, with a reason");

    for (wanted, complaint) in [
        ("\"1\"", true),
        ("\"1.4.2\"", false),
        ("\"1.4.1\"", true),
        ("\"=1.3.0\"", true),
        ("\"=1.1.0\"", false),
        ("\"2\"", false),
        ("{ version = \"1.2\", default-features = false }", true),
    ] {
        let manifest = lock(&format!("[workspace.dependencies]\nc = {wanted}\n"));
        assert_eq!(loose(&manifest, &known, &BTreeSet::new()).len(), usize::from(complaint), "{wanted}");
    }
    assert_eq!(permitted("0.23.45"), ([0, 23, 45], [0, 24, 0]));

    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].into();
    for (licence, is) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("Apache-2.0/MIT", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception OR MIT", true),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("MIT AND BSD-3-Clause OR GPL-3.0", false),
        ("none", false),
    ] {
        assert_eq!(is_allowed(licence, &allowed), is, "{licence}");
    }
}
