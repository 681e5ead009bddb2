//! Parts of pages that the code defines: settings with their defaults, metrics, requests by HTTP. A part
//! stands between `<!--generated:NAME-->` and `<!--end-->`. `ROWLOCK_UPDATE=1 cargo test --test tidy
//! generated` writes all parts again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use rowlock_coordinator::config::ClusterConfig;
use serde_json::Value;

use super::names;
use super::tree::Tree;

const BEGIN: &str = "<!--generated:";
const END: &str = "<!--end-->\n";
const CONFIG: &str = "coordinator/src/config.rs";
/// Section of `cluster.toml`, with the file and the type of its settings. The empty name is the top level.
const SECTIONS: [(&str, &str, &str); 18] = [
    ("", CONFIG, "ClusterConfig"),
    ("node", CONFIG, "NodeEntry"),
    ("log", "coordinator/src/config/node.rs", "LogConfig"),
    ("session", CONFIG, "SessionConfig"),
    ("raft", "coordinator/raft/consensus/src/config.rs", "RaftConfig"),
    ("tls", "core/tls/src/files.rs", "Files"),
    ("peer", "coordinator/src/config/security.rs", "PeerConfig"),
    ("client", CONFIG, "ClientConfig"),
    ("znodes", CONFIG, "ZnodesConfig"),
    ("locks", "coordinator/src/config/node.rs", "LocksConfig"),
    ("limits", "coordinator/src/config/node.rs", "LimitsConfig"),
    ("history", "coordinator/src/config/node.rs", "HistoryConfig"),
    ("http", CONFIG, "HttpConfig"),
    ("audit", "coordinator/src/config/node.rs", "AuditConfig"),
    ("backup", "coordinator/src/config/cluster.rs", "BackupConfig"),
    ("upgrade", "coordinator/src/config/cluster.rs", "UpgradeConfig"),
    ("autopilot", "coordinator/src/config/cluster.rs", "AutopilotConfig"),
    ("cluster", "coordinator/src/config/cluster.rs", "Discovery"),
];
/// Keys of the top level that are no sections.
const TOP_KEYS: [&str; 2] = ["name", "data"];
/// Types of settings that a file must have unless they have a default.
const REQUIRED_KINDS: [&str; 5] = ["PathBuf,", "String,", "Vec<String>,", "u64,", "NodeId,"];
/// File with only the required keys.
const LEAST: &str = "[[node]]\nid = 1\nclient = \"127.0.0.1:2181\"\npeer = \"127.0.0.1:2281\"\n";
const OPENAPI: &str = "coordinator/src/access/http/api/openapi/openapi.json";

pub fn breaches(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, page) in tree.of_kind("md").filter(|(_, page)| page.contains(BEGIN)) {
        match updated(tree, page, &mut seen) {
            Ok(wanted) if wanted != page => {
                let lines = wanted.lines().zip(page.lines());
                let line = lines.into_iter().position(|(wanted, is)| wanted != is).unwrap_or_default() + 1;
                found.push(format!(
                    "{path}:{line}: differs from the code; ROWLOCK_UPDATE=1 cargo test --test tidy generated \
                     writes it again"
                ));
            }
            Ok(_) => (),
            Err(problem) => found.push(format!("{path}: {problem}")),
        }
    }
    found.extend(required(tree).difference(&seen).map(|name| format!("no page has the part {name}")));
    found
}

/// Returns the pages with generated parts, each part as the code defines it.
pub fn pages(tree: &Tree) -> Vec<(String, String)> {
    let marked = tree.of_kind("md").filter(|(_, page)| page.contains(BEGIN));
    marked.map(|(path, page)| (path.to_owned(), updated(tree, page, &mut BTreeSet::new()).unwrap())).collect()
}

/// Returns the page with its parts as the code defines them, and adds the names of these parts to `seen`.
fn updated(tree: &Tree, page: &str, seen: &mut BTreeSet<String>) -> Result<String, String> {
    let mut pieces = page.split(BEGIN);
    let mut wanted = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("-->\n").ok_or("a mark has no end")?;
        let (_, rest) = rest.split_once(END).ok_or_else(|| format!("the part {name} has no end"))?;
        let part = part(tree, name, seen).ok_or_else(|| format!("the code defines no part {name}"))?;
        let _ = write!(wanted, "{BEGIN}{name}-->\n{part}{END}{rest}");
    }
    Ok(wanted)
}

/// Returns the names of the parts that some page must have.
fn required(tree: &Tree) -> BTreeSet<String> {
    let sections = tree.get(CONFIG).map(|_| SECTIONS.map(|(section, ..)| format!("settings:{section}")));
    let metrics = tree.get(names::METRICS).map(|_| "metrics".to_owned());
    let tags = openapi(tree).map(|document| {
        let operations = operations(&document);
        operations.into_iter().map(|it| format!("requests:{}", it.tag)).collect::<BTreeSet<_>>()
    });
    sections.into_iter().flatten().chain(metrics).chain(tags.into_iter().flatten()).collect()
}

/// Returns the text of a part, or `None` if the code defines no such part.
fn part(tree: &Tree, name: &str, seen: &mut BTreeSet<String>) -> Option<String> {
    let (kind, what) = name.split_once(':').unwrap_or((name, ""));
    let text = match kind {
        "settings" => {
            let sections: Vec<&str> = what.split(',').collect();
            seen.extend(sections.iter().map(|section| format!("settings:{section}")));
            settings(tree, &sections)?
        }
        "metrics" => {
            let rows = names::declared(tree.get(names::METRICS)?);
            block(&rows.iter().map(|(name, help)| format!("{name}  {help}\n")).collect::<String>())
        }
        "requests" => requests(&openapi(tree)?, what)?,
        "fields" => fields(&openapi(tree)?, what)?,
        _ => return None,
    };
    seen.insert(name.to_owned());
    Some(text)
}

fn block(lines: &str) -> String {
    format!("```text\n{lines}```\n")
}

/// Returns the list of the settings of some sections.
fn settings(tree: &Tree, sections: &[&str]) -> Option<String> {
    let defaults = defaults(tree);
    let mut text = String::new();
    for section in sections {
        let (_, file, name) = SECTIONS.iter().find(|(one, ..)| one == section)?;
        let is_key = |setting: &Setting| !section.is_empty() || TOP_KEYS.contains(&setting.key);
        for Setting { key, help, is_required } in declared(tree.get(file)?, name).into_iter().filter(is_key) {
            let default = match defaults.get(&((*section).to_owned(), key.to_owned())) {
                Some(value) => format!(" (`{value}`)"),
                None if is_required => " (required)".to_owned(),
                None => String::new(),
            };
            let _ = writeln!(text, "- `{key}`{default}: {help}");
        }
    }
    Some(text)
}

struct Setting<'a> {
    key: &'a str,
    help: String,
    is_required: bool,
}

/// Returns the fields of a type as keys of `cluster.toml`, with their doc comments.
fn declared<'a>(code: &'a str, name: &str) -> Vec<Setting<'a>> {
    let head = format!("pub struct {name} {{");
    let body = code.lines().skip_while(|line| *line != head).skip(1).take_while(|line| *line != "}");
    let (mut help, mut renamed, mut is_hidden) = (Vec::new(), None, false);
    let mut found = Vec::new();
    for line in body.map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            help.push(text);
        } else if line.starts_with("#[") {
            let name = line.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
            renamed = renamed.or(name);
            is_hidden |= ["#[serde(skip,", "#[serde(skip)"].iter().any(|skip| line.starts_with(skip));
        } else if let Some((field, kind)) = line.split_once(": ").filter(|_| line.starts_with("pub")) {
            let key = renamed.take().or(field.rsplit(' ').next()).unwrap_or(field);
            let help = std::mem::take(&mut help).join(" ");
            let is_required = REQUIRED_KINDS.contains(&kind);
            if !std::mem::take(&mut is_hidden) {
                found.push(Setting { key, help, is_required });
            }
        }
    }
    found
}

/// Returns (section, key) and default of each setting that has one: the settings of a node in a file with
/// only the required keys. The parser resolves `data` of the top level, so `cluster.toml` has its default.
fn defaults(tree: &Tree) -> BTreeMap<(String, String), String> {
    let config = ClusterConfig::parse(LEAST, Path::new("cluster.toml")).unwrap().to_toml();
    let shown = tree.get("cluster.toml").unwrap_or_default().lines();
    let shown = shown.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(" = "));
    let shown = shown.filter_map(|(key, value)| Some((key, value.split("  ").next()?)));
    let own = |section: &str, key: &str, value: &str| {
        ((section.to_owned(), key.to_owned()), value.trim().to_owned())
    };
    let mut found: BTreeMap<_, _> = shown.map(|(key, value)| own("", key, value)).collect();
    let mut section = "";
    for line in config.lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        } else if let Some((key, value)) = line.split_once(" = ").filter(|_| !LEAST.contains(line)) {
            found.extend([own(section, key, value)]);
        }
    }
    found
}

/// Request of the OpenAPI document.
struct Operation {
    tag: String,
    request: String,
    summary: String,
}

fn openapi(tree: &Tree) -> Option<Value> {
    serde_json::from_str(tree.get(OPENAPI)?).ok()
}

fn operations(document: &Value) -> Vec<Operation> {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().replace('\n', " ");
    let operation = |path: &str, method: &str, operation: &Value| Operation {
        tag: text(&operation["tags"][0]),
        request: format!("{} {path}", method.to_uppercase()),
        summary: text(&operation["summary"]),
    };
    let mut found = Vec::new();
    for (path, item) in object(&document["paths"]) {
        found.extend(object(&item).iter().map(|(method, it)| operation(&path, method, it)));
    }
    found
}

/// Returns the list of the requests with a tag.
fn requests(document: &Value, tag: &str) -> Option<String> {
    let rows = operations(document).into_iter().filter(|operation| operation.tag == tag);
    let rows: String = rows.map(|it| format!("{}  {}\n", it.request, it.summary)).collect();
    (!rows.is_empty()).then(|| block(&rows))
}

/// Returns the list of the fields of a document in a request.
fn fields(document: &Value, schema: &str) -> Option<String> {
    let fields = document["components"]["schemas"][schema]["properties"].as_object()?;
    let line = |(name, field): (&String, &Value)| {
        let help = field["description"].as_str().unwrap_or_default().replace('\n', " ");
        format!("- `{name}`: {help}\n")
    };
    Some(fields.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRIC: (&str, &str) =
        (names::METRICS, "metrics! {\n    /// Open sessions.\n    sessions: Gauge,\n}\n");

    #[test]
    fn a_part_that_differs_from_the_code_is_found_and_written_again() {
        let page = |help: &str| {
            format!("# M\n{BEGIN}metrics-->\n```text\nrowlock_sessions  {help}\n```\n{END}\nEnd.\n")
        };
        let (old, new) = (page("Sessions."), page("Open sessions."));
        let tree = Tree::with(&[METRIC, ("docs/m.md", &old)]);
        assert_eq!(breaches(&tree).len(), 1, "{:?}", breaches(&tree));
        assert!(breaches(&tree)[0].starts_with("docs/m.md:4: differs from the code"));
        assert_eq!(pages(&tree), [("docs/m.md".to_owned(), new.clone())]);
        assert_eq!(breaches(&Tree::with(&[METRIC, ("docs/m.md", &new)])), Vec::<String>::new());
    }

    #[test]
    fn a_part_that_no_page_has_and_one_that_the_code_lacks_are_found() {
        let page = format!("{BEGIN}settings:gone-->\n{END}");
        let found = breaches(&Tree::with(&[METRIC, ("docs/m.md", &page)]));
        assert_eq!(
            found,
            ["docs/m.md: the code defines no part settings:gone", "no page has the part metrics"]
        );
    }

    #[test]
    fn settings_have_their_keys_defaults_and_comments() {
        let code = "pub struct RaftConfig {\n    /// Beat of the\n    /// leader.\n    pub heartbeat_ms: u64,\n    \
                    #[serde(rename = \"every\", with = \"x\")]\n    pub every_ms: Option<u64>,\n    \
                    #[serde(skip)]\n    pub hidden: u64,\n    pub seeds: Vec<String>,\n}\n";
        let list = settings(&Tree::with(&[("coordinator/raft/consensus/src/config.rs", code)]), &["raft"]);
        let wanted = "- `heartbeat_ms` (`128`): Beat of the leader.\n- `every`: \n- `seeds` (required): \n";
        assert_eq!(list.unwrap(), wanted);
    }

    #[test]
    fn requests_have_their_summary() {
        let lease = serde_json::json!({"post": {"tags": ["leases"], "summary": "Opens a lease"}});
        let document = serde_json::json!({"paths": {"/v1/leases": lease}});
        let list = block("POST /v1/leases  Opens a lease\n");
        assert_eq!((requests(&document, "leases"), requests(&document, "locks")), (Some(list), None));
    }
}
