//! Test that the docs match this program: every command line of `rowlock` in a fenced block, every flag in
//! the text, and every piece of `cluster.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;
use rowlock_coordinator::config::ClusterConfig;

use crate::Cli;

/// Tokens that end a command in a shell.
const OPERATORS: [&str; 7] = ["|", "&&", "||", ";", ">", "2>&1", "&"];

struct DocPage {
    name: String,
    text: String,
}

#[expect(clippy::disallowed_methods, reason = "the pages of the repository, in a test")]
fn pages() -> Vec<DocPage> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut files = vec![root.join("README.md")];
    for folder in [
        "docs",
        "client",
        "client/go",
        "client/java",
        "client/python",
        "client/typescript",
        "client/rust",
        "coordinator",
        "deploy",
    ] {
        files.extend(fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    files.sort();
    files.iter().map(|path| DocPage { name: name(path), text: fs::read_to_string(path).unwrap() }).collect()
}

impl DocPage {
    /// Returns the fenced blocks: language, and lines without their numbers.
    fn blocks(&self) -> Vec<(&str, String)> {
        let mut found = Vec::new();
        for (at, part) in self.text.split("\n```").enumerate() {
            let Some((language, block)) = part.split_once('\n') else { continue };
            if at % 2 == 1 {
                found.push((language, format!("{block}\n")));
            }
        }
        found
    }

    /// Returns the text in single backticks outside of fenced blocks.
    fn spans(&self) -> Vec<String> {
        let prose: Vec<&str> = self.text.split("\n```").step_by(2).collect();
        let joined = prose.join("\n").replace('\n', " ");
        joined.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }
}

/// Returns the arguments of a line that runs `rowlock`, without the shell's text around the command.
fn arguments(line: &str) -> Option<Vec<String>> {
    let words = shlex::split(line.trim_start_matches("$ "))?;
    let is_setting = |word: &&String| word.contains('=') && !word.starts_with('-');
    let words: Vec<String> = words.iter().skip_while(is_setting).cloned().collect();
    let from = match words.first()?.as_str() {
        "rowlock" => 1,
        // The simulator checks the pages against its own commands.
        "cargo" if words.iter().any(|word| word == "rowlock-sim") => return None,
        "cargo" => words.iter().position(|word| word == "--").filter(|_| words[1] == "run")? + 1,
        _ => return None,
    };
    let ours = words[from..].iter().take_while(|word| !OPERATORS.contains(&word.as_str()));
    Some(std::iter::once("rowlock".to_owned()).chain(ours.cloned()).collect())
}

#[test]
fn every_command_line_of_the_pages_parses() {
    let (mut tried, mut refused) = (0, Vec::new());
    for page in pages() {
        for (language, block) in page.blocks() {
            if !["", "sh", "bash", "console"].contains(&language) {
                continue;
            }
            for line in block.replace("\\\n", " ").lines() {
                let Some(words) = arguments(line) else { continue };
                if words.get(1).is_some_and(|word| word.contains("example")) {
                    continue;
                }
                tried += 1;
                if let Err(e) = Cli::try_parse_from(&words)
                    && !matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
                {
                    refused.push(format!("{}: {line}\n{e}", page.name));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tried > 40, "only {tried} were found");
}

#[test]
fn every_flag_and_subcommand_of_the_pages_exists() {
    let (mut tried, mut refused) = (0, Vec::new());
    for page in pages() {
        for span in page.spans() {
            let is_pattern = span.contains(['|', '[', '…', '<', '*']) || span.contains("..");
            if !span.starts_with("rowlock ") || is_pattern {
                continue;
            }
            let Some(words) = arguments(&span) else { continue };
            tried += 1;
            let Err(e) = Cli::try_parse_from(&words) else { continue };
            // The text may omit required arguments, and have N for a number.
            if matches!(e.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
                refused.push(format!("{}: `{span}`\n{e}", page.name));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tried > 60, "only {tried} were found");
}

const NODES: &str = r#"
[[node]]
id = 1
client = "127.0.0.1:2181"
peer = "127.0.0.1:2281"
http = "127.0.0.1:8081"
"#;

/// Merges `piece` into `base`: tables are merged, all else is replaced.
fn merge(base: &mut toml::Table, piece: toml::Table) {
    for (key, value) in piece {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            // A piece about one node extends the last node.
            (Some(toml::Value::Array(old)), toml::Value::Array(mut new)) if new.len() == 1 => {
                match (old.last_mut(), new.pop()) {
                    (Some(toml::Value::Table(old)), Some(toml::Value::Table(new))) => merge(old, new),
                    (_, new) => *old = new.into_iter().collect(),
                }
            }
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// Returns an error unless `piece` is a `cluster.toml`, if need be with one node or with earlier pieces of
/// the page.
fn accepted(piece: &toml::Table, before: &mut toml::Table) -> Result<(), String> {
    let path = Path::new("cluster.toml");
    let mut alone: toml::Table = toml::from_str(NODES).unwrap();
    merge(&mut alone, piece.clone());
    merge(before, piece.clone());
    let parsed = |table: &toml::Table| ClusterConfig::parse(&toml::to_string(table).unwrap(), path);
    match parsed(&alone) {
        Ok(_) => Ok(()),
        Err(e) => parsed(before).map(drop).map_err(|_| e.to_string()),
    }
}

#[test]
fn every_piece_of_a_configuration_in_the_pages_is_accepted() {
    let (mut tried, mut refused) = (0, Vec::new());
    for page in pages() {
        let mut before: toml::Table = toml::from_str(NODES).unwrap();
        for (_, block) in page.blocks().into_iter().filter(|(language, _)| *language == "toml") {
            if block.contains("dependencies]") {
                continue;
            }
            tried += 1;
            let piece = toml::from_str(&block).map_err(|e| e.to_string());
            if let Err(e) = piece.and_then(|piece| accepted(&piece, &mut before)) {
                refused.push(format!("{}:\n{block}{e}", page.name));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tried > 5, "only {tried} were found");
}
