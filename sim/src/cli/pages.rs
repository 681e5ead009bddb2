//! Checks that the simulator accepts each of its command lines in README and docs.

use std::fs;
use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;

use super::Sim;

/// Returns the arguments of a line that runs the simulator, by cargo or as `rowlock sim`.
fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.split(" #").next().unwrap_or(line);
    let words = shlex::split(line.trim_start_matches("$ "))?;
    let from = if words.starts_with(&["rowlock".to_owned(), "sim".to_owned()]) {
        2
    } else {
        let is_ours = words.starts_with(&["cargo".to_owned(), "run".to_owned()])
            && words.iter().any(|word| word == "rowlock-sim");
        words.iter().position(|word| word == "--").filter(|_| is_ours)? + 1
    };
    let ours = words[from..].iter().take_while(|word| !["|", ">", "&&"].contains(&word.as_str()));
    Some(std::iter::once("rowlock-sim".to_owned()).chain(ours.cloned()).collect())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the pages of the repository, in a test")]
fn the_simulator_accepts_every_command_line_of_the_pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = vec![root.join("README.md"), root.join("justfile")];
    pages.extend(fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.retain(|path| path.is_file());
    let (mut tried, mut refused) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap_or_default();
        let in_prose = text.split('`').skip(1).step_by(2).filter(|span| !span.contains('\n'));
        for line in text.lines().map(str::trim).chain(in_prose) {
            if line.contains(['…', '<', '*']) || line.contains("{{") && !line.contains("{{seeds}}") {
                continue;
            }
            let line = line.replace("{{seeds}}", "1").replace("{{seconds}}", "9").replace(" N", " 1");
            let Some(words) = arguments(&line).filter(|words| words.len() > 1) else { continue };
            tried += 1;
            let Err(e) = Sim::try_parse_from(&words) else { continue };
            // Prose may leave out required arguments.
            if !matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::MissingRequiredArgument) {
                refused.push(format!("{}: {line}\n{e}", page.display()));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tried > 12, "only {tried} were found");
}
