//! Which module may import which: between crates by their manifests, inside the coordinator by its files'
//! imports.

use std::collections::BTreeSet;

use super::tree::{Tree, product_lines};

/// A crate's manifest and the crates of this workspace that it may depend on, as docs/architecture.md has it.
const CRATES: [(&str, &[&str]); 23] = [
    ("core/proto", &[]),
    ("core/env", &[]),
    ("core/tls", &["env"]),
    ("core/state", &["proto"]),
    ("coordinator/types", &["proto", "state"]),
    ("coordinator/access/history", &["env", "proto", "state", "types"]),
    ("coordinator/storage/wal", &["env", "proto", "state", "types"]),
    ("coordinator/storage/backup", &["env", "proto", "state", "types", "wal"]),
    ("coordinator/raft/transport", &["env", "proto", "tls", "types"]),
    ("coordinator/raft/consensus", &["env", "proto", "state", "tls", "transport", "types", "wal"]),
    ("coordinator/raft/sessions", &["consensus", "env", "proto", "state", "types"]),
    (
        "coordinator",
        &["backup", "consensus", "env", "history", "proto", "sessions", "state", "tls", "types", "wal"],
    ),
    ("client/rust", &["env", "proto", "tls"]),
    ("client/testkit", &["client", "coordinator", "env", "proto", "transport", "types", "wal"]),
    ("cli/terminal", &[]),
    ("sim/world", &["env"]),
    ("sim/designs", &["env", "world"]),
    ("sim/model", &["env"]),
    (
        "sim",
        &[
            "backup",
            "client",
            "coordinator",
            "designs",
            "env",
            "frames",
            "model",
            "proto",
            "state",
            "terminal",
            "types",
            "world",
        ],
    ),
    ("lab/frames", &["env", "proto"]),
    ("lab/bench", &["client", "env", "frames", "proto"]),
    ("lab/compat", &["env", "frames", "proto", "world"]),
    (
        "lab/fuzz",
        &["client", "consensus", "coordinator", "env", "proto", "state", "transport", "types", "wal"],
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
    let wires = imports.iter().filter(|(module, other)| other == "node" && module != "lib");
    found.extend(
        wires.map(|(module, _)| format!("coordinator: {module} must not know node, which wires all")),
    );
    let circles = circles(&imports);
    found.extend(circles.iter().map(|(a, b)| format!("coordinator: {a} and {b} import each other")));
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

/// (module, module that it imports) of the coordinator's top modules.
fn imports(tree: &Tree) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for (path, text) in tree.product() {
        let Some(inside) = path.strip_prefix("coordinator/src/") else { continue };
        let module = inside.split(['/', '.']).next().unwrap();
        for line in product_lines(text).filter(|line| !line.trim_start().starts_with("//")) {
            for (at, _) in line.match_indices("crate::") {
                let word = line[at + 7..].split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
                let other = word.into_iter().next().unwrap();
                let is_module = tree.has(&format!("coordinator/src/{other}.rs"))
                    || tree.has(&format!("coordinator/src/{other}"));
                if is_module && !other.is_empty() && other != module {
                    found.insert((module.to_owned(), other.to_owned()));
                }
            }
        }
    }
    found
}

/// Pairs in both directions, each once. `node` wires all others and `lib` names them: they do not count.
fn circles(imports: &BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    let back = |(a, b): &(String, String)| imports.contains(&(b.clone(), a.clone()));
    let counts =
        |(a, b): &(String, String)| a < b && ![a, b].iter().any(|one| *one == "node" || *one == "lib");
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
        let lower = "use crate::upper::Thing;\n";
        let upper = "use crate::lower;\n// crate::other\n#[cfg(test)]\nmod tests { use crate::other; }\n";
        let files = [
            ("coordinator/src/lower.rs", lower),
            ("coordinator/src/upper/mod.rs", upper),
            ("coordinator/src/other.rs", "use crate::upper;\n"),
        ];
        assert_eq!(breaches(&Tree::with(&files)), ["coordinator: lower and upper import each other"]);
    }

    #[test]
    fn a_module_that_knows_the_node_is_found() {
        let files = [
            ("coordinator/src/lib.rs", "pub use crate::node::Node;\n"),
            ("coordinator/src/node/mod.rs", "use crate::part::Part;\n"),
            ("coordinator/src/part.rs", "use crate::node::Node;\n"),
        ];
        let found = breaches(&Tree::with(&files));
        assert_eq!(found, ["coordinator: part must not know node, which wires all"]);
    }
}
