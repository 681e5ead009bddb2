//! Metrics, config keys and exit codes: what the documentation names exists, and what exists is documented.
//! That `cluster.toml` has the keys of the configuration's type is a test of the coordinator.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::Tree;

pub const METRICS: &str = "coordinator/metrics/src/lib.rs";
const KEYS_FILE: &str = "cluster.toml";
const KEYS_PAGE: &str = "docs/configuration.md";
const CODES: &str = "cli/terminal/src/exit.rs";
/// Where a code must be explained.
const CODES_PAGES: [&str; 2] = ["README.md", "docs/cli.md"];
/// Names of crates and files, which look like metrics.
const NO_METRICS: [&str; 17] = [
    "rowlock_bench",
    "rowlock_client",
    "rowlock_consensus",
    "rowlock_sessions",
    "rowlock_coordinator",
    "rowlock_env",
    "rowlock_history",
    "rowlock_metrics",
    "rowlock_oracle",
    "rowlock_proto",
    "rowlock_sim",
    "rowlock_state",
    "rowlock_terminal",
    "rowlock_testkit",
    "rowlock_transport",
    "rowlock_wal",
    "rowlock_world",
];
/// A metric that is not in the list of metrics, and what Prometheus adds to the names of histograms.
const BUILD_INFO: &str = "rowlock_build_info";
const OF_HISTOGRAMS: [&str; 3] = ["_bucket", "_sum", "_count"];

pub fn breaches(tree: &Tree) -> Vec<String> {
    let mut found = metrics(tree);
    found.extend(reference(tree));
    found.extend(codes(tree));
    found
}

fn metrics(tree: &Tree) -> Vec<String> {
    let Some(code) = tree.get(METRICS) else { return Vec::new() };
    let real: Vec<(String, &str)> = declared(code);
    let mut found = Vec::new();
    let is_real = |name: &str| {
        let plain = OF_HISTOGRAMS.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        name == BUILD_INFO || real.iter().any(|(one, _)| one == name || one == plain)
    };
    let pages = tree.of_kind("md").filter(|(path, _)| *path != "CHANGELOG.md");
    // Dashboards and alerts.
    let deployed = ["yml", "json"].into_iter().flat_map(|kind| tree.of_kind(kind));
    for (path, text) in pages.chain(deployed.filter(|(path, _)| path.starts_with("deploy/"))) {
        for name in words(text).filter(|word| word.starts_with("rowlock_") && !NO_METRICS.contains(word)) {
            if !is_real(name) {
                found.push(format!("{path}: no such metric: {name}"));
            }
        }
    }
    found
}

/// (exported name, first line of help) of every field in the list of metrics.
pub fn declared(code: &str) -> Vec<(String, &str)> {
    let list = code.lines().skip_while(|line| !line.starts_with("metrics! {")).skip(1);
    let mut help = None;
    let mut found = Vec::new();
    for line in list.take_while(|line| !line.starts_with('}')).map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            help.get_or_insert(text);
        } else if let Some((name, _)) = line.split_once(": ") {
            found.push((format!("rowlock_{name}"), help.take().unwrap()));
        }
    }
    found
}

/// The reference of the configuration has a line for each key of the file, under the heading of its section,
/// and the default that the file shows.
fn reference(tree: &Tree) -> Vec<String> {
    let (Some(file), Some(page)) = (tree.get(KEYS_FILE), tree.get(KEYS_PAGE)) else { return Vec::new() };
    let rows = rows(page);
    let mut section = "";
    let mut found = Vec::new();
    for line in file.lines().take_while(|line| *line != "# [client.sasl_users]") {
        let bare = line.trim_start_matches("# ");
        if bare.starts_with('[') {
            section = bare.trim_matches(['[', ']']);
        }
        for name in key(bare) {
            let Some(default) = rows.get(&(section, name)) else {
                found.push(format!("{KEYS_PAGE}: lacks a line for {name} of [{section}]"));
                continue;
            };
            let shown = bare.split_once(" = ").and_then(|(_, value)| value.split("  ").next());
            let shown = shown.map(str::trim_end).unwrap_or_default();
            let is_example = line.starts_with('#') || section == "node";
            if !is_example && *default != shown {
                found.push(format!(
                    "{KEYS_PAGE}: the default of {name} of [{section}] is {default}, not {shown}"
                ));
            }
        }
    }
    found
}

/// (section, key) and default of the lines below headings like `## [a] and [b]`.
fn rows(page: &str) -> BTreeMap<(&str, &str), &str> {
    let mut sections = Vec::new();
    let mut found = BTreeMap::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let named = heading.split('[').skip(1).filter_map(|rest| rest.split(']').next());
            sections = named.filter(|name| !name.is_empty()).collect();
            if sections.is_empty() {
                sections.push("");
            }
        } else if let Some((name, rest)) = line.strip_prefix("- `").and_then(|line| line.split_once('`')) {
            let default = rest.strip_prefix(" (`").and_then(|rest| rest.split("`)").next());
            found.extend(sections.iter().map(|section| ((*section, name), default.unwrap_or_default())));
        }
    }
    found
}

/// The key of `key = value`.
fn key(line: &str) -> Vec<&str> {
    let plain =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    line.split_once(" = ").map(|(name, _)| name).filter(plain).into_iter().collect()
}

fn codes(tree: &Tree) -> Vec<String> {
    let Some(code) = tree.get(CODES) else { return Vec::new() };
    let value = |line: &str| {
        line.strip_prefix("pub const ")?.split_once(": u8 = ")?.1.strip_suffix(';')?.parse().ok()
    };
    let real: BTreeSet<u8> = code.lines().filter_map(value).chain([0]).collect();
    let pages: Vec<(&str, &str)> =
        CODES_PAGES.iter().map(|page| (*page, tree.get(page).unwrap_or_default())).collect();
    let explained =
        |code: &u8| pages.iter().any(|(_, text)| words(text).any(|word| word == code.to_string()));
    let mut found: Vec<String> = real
        .iter()
        .filter(|code| !explained(code))
        .map(|code| format!("exit code {code} is in no page"))
        .collect();
    for (path, text) in tree.of_kind("md").filter(|(path, _)| *path != "CHANGELOG.md") {
        for (at, start) in text.match_indices("exit code ") {
            let number =
                text[at + start.len()..].split(|letter: char| !letter.is_ascii_digit()).next().unwrap();
            if number.parse().is_ok_and(|number: u8| !real.contains(&number)) {
                found.push(format!("{path}: no such exit code: {number}"));
            }
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_that_does_not_exist_is_found() {
        let code = "metrics! {\n    /// Open sessions.\n    /// More.\n    sessions: Gauge,\n    /// Waits.\n    wait_seconds: Histogram,\n}\n";
        let page = "`rowlock_sessions` `rowlock_wait_seconds_sum` `rowlock_gone` rowlock_client\n";
        let rule = ("deploy/alerts.yml", "expr: rate(rowlock_lost_total[5m]) > 0 and rowlock_sessions == 0");
        let found = breaches(&Tree::with(&[(METRICS, code), ("docs/metrics.md", page), rule]));
        let wanted = [
            "docs/metrics.md: no such metric: rowlock_gone",
            "deploy/alerts.yml: no such metric: rowlock_lost_total",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_key_without_a_row_and_a_row_with_another_default_are_found() {
        let file = "name = \"a\"\n[raft]\nlimit = 1   # why\n# other = 5\n[http]\ntls = false\n";
        let page = "## Top level\n- `name` (`\"a\"`): x\n## [raft] and [tls]\n- `limit` (`2`): x\n- `tls` (`false`): x\n";
        let wanted = [
            "docs/configuration.md: the default of limit of [raft] is 2, not 1",
            "docs/configuration.md: lacks a line for other of [raft]",
            "docs/configuration.md: lacks a line for tls of [http]",
        ];
        assert_eq!(breaches(&Tree::with(&[(KEYS_FILE, file), (KEYS_PAGE, page)])), wanted);
    }

    #[test]
    fn an_exit_code_that_no_page_explains_and_one_that_is_none_are_found() {
        let code = "pub const USAGE: u8 = 64;\npub const BUG: u8 = 70;\n";
        let page = "| 64 | wrong usage |\nexit code 65; 0\n";
        let found = breaches(&Tree::with(&[(CODES, code), ("README.md", page)]));
        assert_eq!(found, ["exit code 70 is in no page", "README.md: no such exit code: 65"]);
    }
}
