//! Stories in `testdata`: lines of input and, under a dashed line, the output.
//!
//! `ROWLOCK_UPDATE=1 cargo test ...` rewrites the output; review the difference. A line `== TITLE` begins a
//! case; comments (`#`) and blank lines stay as they are.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// Runs the lines of the story at `path`, and compares the outputs, or rewrites them.
///
/// # Panics
/// An output differs from the story's.
#[expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]
pub fn play(path: &Path, run: &mut dyn FnMut(&str) -> String) {
    let story = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let played = replay(&story, run);
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        std::fs::write(path, played).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let mut case = "";
    for (number, (written, played)) in story.lines().zip(played.lines()).enumerate() {
        case = written.strip_prefix("== ").unwrap_or(case);
        assert_eq!(written, played, "{}:{} {case}", path.display(), number + 1);
    }
    assert_eq!(story.lines().count(), played.lines().count(), "{} has another length", path.display());
}

/// Returns the story with the outputs of `run`. An output reaches to the next blank line.
fn replay(story: &str, run: &mut dyn FnMut(&str) -> String) -> String {
    let mut played = String::new();
    let mut lines = story.lines().peekable();
    while let Some(line) = lines.next() {
        played.push_str(line);
        played.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if lines.next_if_eq(&"----").is_some() {
            while lines.next_if(|line| !line.is_empty()).is_some() {}
        }
        let output = run(line);
        if line.starts_with("== ") {
            continue;
        }
        // An empty output would end its block.
        let output = if output.is_empty() { "nothing" } else { output.trim_end() };
        let _ = writeln!(played, "----\n{output}");
        if lines.peek().is_some_and(|next| !next.is_empty()) {
            played.push('\n');
        }
    }
    played
}

/// Compares the names of stories with the files in `folder`.
///
/// # Panics
/// A story is not listed, or has no file.
pub fn all_are_played(folder: &Path, names: &[&str]) {
    let listed: BTreeSet<String> = names.iter().map(|name| format!("{name}.txt")).collect();
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let present: BTreeSet<String> = names.filter(|name| name.ends_with(".txt")).collect();
    assert_eq!(listed, present);
}

/// Makes a test of each story: `stories!(play, folder(); NAME ...)`.
#[macro_export]
macro_rules! stories {
    ($play:path, $folder:expr; $($name:ident)*) => {
        $(#[test] fn $name() { $play(&$folder.join(concat!(stringify!($name), ".txt"))); })*

        #[test]
        fn every_story_is_played() {
            $crate::story::all_are_played(&$folder, &[$(stringify!($name)),*]);
        }
    };
}
