//! Which module may import which: between crates by their manifests, inside the coordinator by its files'
//! imports.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, product_lines};

/// A crate's manifest and the crates of this workspace that it may depend on, as docs/architecture.md has it.
const CRATES: [(&str, &[&str]); 25] = [
    ("core/proto", &[]),
    ("core/env", &[]),
    ("core/tls", &["env"]),
    ("core/state", &["proto"]),
    ("coordinator/metrics", &["proto", "state"]),
    ("coordinator/access/history", &["env", "metrics", "proto", "state"]),
    ("coordinator/storage/wal", &["env", "metrics", "proto", "state"]),
    ("coordinator/storage/backup", &["env", "proto", "state", "wal"]),
    ("coordinator/raft/transport", &["env", "metrics", "proto", "state", "tls"]),
    ("coordinator/raft/consensus", &["env", "metrics", "proto", "state", "tls", "transport", "wal"]),
    ("coordinator/raft/sessions", &["consensus", "env", "proto", "state"]),
    (
        "coordinator",
        &["backup", "consensus", "env", "history", "metrics", "proto", "sessions", "state", "tls", "wal"],
    ),
    ("client/rust", &["env", "proto", "tls"]),
    ("client/testkit", &["client", "coordinator", "env", "proto", "transport", "wal"]),
    ("cli/terminal", &[]),
    ("sim/world", &["env"]),
    ("sim/designs", &["env", "world"]),
    ("sim/model", &["env"]),
    ("sim/oracle", &["proto", "state"]),
    (
        "sim",
        &[
            "backup",
            "client",
            "coordinator",
            "designs",
            "env",
            "frames",
            "history",
            "model",
            "oracle",
            "proto",
            "state",
            "terminal",
            "wal",
            "world",
        ],
    ),
    ("lab/frames", &["env", "proto", "stories"]),
    ("lab/stories", &[]),
    ("lab/bench", &["client", "env", "frames", "proto"]),
    ("lab/compat", &["env", "frames", "proto", "world"]),
    (
        "lab/fuzz",
        &["client", "consensus", "coordinator", "env", "proto", "state", "terminal", "transport", "wal"],
    ),
];

pub fn breaches(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (name, may) in CRATES {
        if let Some(manifest) = tree.get(&format!("{name}/Cargo.toml")) {
            let upward = dependencies(manifest).into_iter().filter(|one| !may.contains(&one.as_str()));
            found.extend(upward.map(|one| format!("{name}/Cargo.toml: must not know rowlock-{one}")));
        }
    }
    let imports = imports(tree);
    found.extend(imports.iter().filter_map(|(from, to)| climbs(from, to)));
    let circles = circles(&imports);
    found.extend(circles.iter().map(|(a, b)| format!("coordinator: {} and {} import each other", a.1, b.1)));
    found
}

/// The crates of this workspace in `[dependencies]`, without the prefix.
fn dependencies(manifest: &str) -> Vec<String> {
    let inside = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    inside
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.strip_prefix("rowlock-"))
        .map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned())
        .collect()
}

/// A floor of the coordinator and a module on it. `lib`, `assembly` and `config` are floors of their own.
type Module = (String, String);

/// The folders of floors with several modules. The heart is `node`; the others are features.
const FLOORS: [&str; 3] = ["node", "cluster", "access"];
/// A crate that belongs to the floor `access`.
const HISTORY: &str = "rowlock_history";

/// Refuses an import of a floor above: features know the heart and not each other; `assembly` knows all.
fn climbs((floor, module): &Module, (other, imported): &Module) -> Option<String> {
    let may = match other.as_str() {
        "assembly" => floor == "lib",
        "cluster" | "access" => [other.as_str(), "lib", "assembly"].contains(&floor.as_str()),
        _ => true,
    };
    (!may).then(|| format!("coordinator: {module} ({floor}) must not know {imported} ({other})"))
}

fn module_of(path: &str) -> Option<Module> {
    let mut parts = path.strip_prefix("coordinator/src/")?.split(['/', '.']);
    let floor = parts.next()?;
    let module = if FLOORS.contains(&floor) { parts.next().filter(|it| *it != "rs") } else { None };
    Some((floor.to_owned(), module.unwrap_or(floor).to_owned()))
}

/// (module, module that it imports) of the coordinator.
fn imports(tree: &Tree) -> BTreeSet<(Module, Module)> {
    let modules: BTreeMap<String, Module> =
        tree.sources().filter_map(|(path, _)| module_of(path)).map(|it| (it.1.clone(), it)).collect();
    let mut found = BTreeSet::new();
    for (path, text) in tree.product() {
        let Some(module) = module_of(path) else { continue };
        for line in product_lines(text).filter(|line| !line.trim_start().starts_with("//")) {
            let named = line.match_indices("crate::").map(|(at, _)| &line[at + 7..]);
            let named = named.map(|rest| {
                let inner = FLOORS.iter().find_map(|floor| rest.strip_prefix(floor)?.strip_prefix("::"));
                inner.and_then(|inner| modules.get(word(inner))).or_else(|| modules.get(word(rest)))
            });
            let history = line.contains(HISTORY).then(|| ("access".to_owned(), HISTORY.to_owned()));
            let others = named.flatten().cloned().chain(history);
            found.extend(others.filter(|other| *other != module).map(|other| (module.clone(), other)));
        }
    }
    found
}

fn word(text: &str) -> &str {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).next().unwrap_or_default()
}

/// Pairs in both directions, each once. `assembly` wires all others and `lib` names them: they do not count.
fn circles(imports: &BTreeSet<(Module, Module)>) -> BTreeSet<(Module, Module)> {
    let back = |(a, b): &(Module, Module)| imports.contains(&(b.clone(), a.clone()));
    let counts =
        |(a, b): &(Module, Module)| a < b && ![a, b].iter().any(|one| ["assembly", "lib"].contains(&&*one.0));
    imports.iter().filter(|pair| counts(pair) && back(pair)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_knows_one_above_it_is_found() {
        let manifest =
            "[dependencies]\nrowlock-env.workspace = true\nrowlock-client = { path = \"x\" }\n\n[lints]\n";
        let found = breaches(&Tree::with(&[("sim/world/Cargo.toml", manifest)]));
        assert_eq!(found, ["sim/world/Cargo.toml: must not know rowlock-client"]);
    }

    #[test]
    fn modules_that_import_each_other_are_found_and_their_tests_do_not_count() {
        let lower = "use crate::node::upper::Thing;\n";
        let upper =
            "use crate::node::lower;\n// crate::other\n#[cfg(test)]\nmod tests { use crate::other; }\n";
        let files = [
            ("coordinator/src/node/lower.rs", lower),
            ("coordinator/src/node/upper/mod.rs", upper),
            ("coordinator/src/node/other.rs", "use crate::node::upper;\n"),
        ];
        assert_eq!(breaches(&Tree::with(&files)), ["coordinator: lower and upper import each other"]);
    }

    #[test]
    fn an_import_of_a_floor_above_is_found() {
        let files = [
            ("coordinator/src/lib.rs", "pub use crate::assembly::Node;\n"),
            (
                "coordinator/src/assembly/mod.rs",
                "use crate::access::http::Http;\nuse crate::cluster::members::Members;\n",
            ),
            ("coordinator/src/config.rs", "use crate::assembly::Node;\n"),
            ("coordinator/src/node/apply.rs", "use crate::access::http;\nuse rowlock_history::Key;\n"),
            ("coordinator/src/node/zk/mod.rs", "use crate::cluster::members::Members;\n"),
            ("coordinator/src/cluster/members.rs", "use crate::node::apply::Observer;\n"),
            (
                "coordinator/src/access/http/mod.rs",
                "use crate::cluster::{members};\nuse rowlock_history::Key;\n",
            ),
            ("coordinator/src/cluster.rs", "pub mod members;\n"),
        ];
        let found = breaches(&Tree::with(&files));
        let wanted = [
            "http (access) must not know cluster (cluster)",
            "config (config) must not know assembly (assembly)",
            "apply (node) must not know http (access)",
            "apply (node) must not know rowlock_history (access)",
            "zk (node) must not know members (cluster)",
        ];
        assert_eq!(found, wanted.map(|rest| format!("coordinator: {rest}")));
    }
}
