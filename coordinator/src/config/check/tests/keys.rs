//! Tests that the configuration's type, `cluster.toml` and the reference have the same keys.

use std::collections::{BTreeMap, BTreeSet};

use super::parse;

/// Returns the keys of a section, as the refusal of an unknown key lists them; empty if there is no such
/// section.
fn keys_of(section: &str) -> Vec<String> {
    let head = match section {
        "" => String::new(),
        "node" => "[[node]]\n".to_owned(),
        _ => format!("[{section}]\n"),
    };
    let said = parse(&format!("{head}__ = 1\n")).expect_err("an unknown key");
    let is_section = said.contains("unknown field `__`");
    said.split('`').skip(3).step_by(2).map(str::to_owned).filter(|_| is_section).collect()
}

#[test]
fn cluster_toml_and_the_reference_have_exactly_the_known_keys() {
    let (file, page) =
        (include_str!("../../../../../cluster.toml"), include_str!("../../../../../docs/configuration.md"));
    let words =
        |text: &'static str| text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let (in_file, in_page): (BTreeSet<_>, BTreeSet<_>) = (words(file).collect(), words(page).collect());
    let sections: Vec<String> = keys_of("").into_iter().chain([String::new()]).collect();
    let real: BTreeMap<&str, Vec<String>> =
        sections.iter().map(|section| (section.as_str(), keys_of(section))).collect();
    assert!(real["raft"].contains(&"heartbeat_ms".to_owned()), "{real:?}");
    for key in real.values().flatten() {
        assert!(in_file.contains(key.as_str()), "cluster.toml lacks {key}");
        assert!(in_page.contains(key.as_str()), "docs/configuration.md lacks {key}");
    }
    let mut section = "";
    // Names of users are no keys.
    for line in
        file.lines().map(|line| line.trim_start_matches("# ")).take_while(|it| *it != "[client.sasl_users]")
    {
        if line.starts_with('[') {
            section = line.trim_start_matches('[').split(']').next().unwrap();
            assert!(real.get(section).is_some_and(|keys| !keys.is_empty()), "no section {section}");
        }
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        if !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            assert!(real[section].contains(&key.to_owned()), "[{section}] has no key {key}");
        }
    }
}
