//! Reader of stories: test cases as text, each paragraph with the recorded answer of the code under test.
//!
//! A paragraph ends at an empty line. Its answer stands below a line of four dashes. Lines that begin with
//! `#` are comments.
//!
//! ```text
//! # A reader is granted the lock beside another reader.
//! as a acquire /rw a- mode=s
//! ----
//! held /rw/a-0000000000 token 4
//! ```
//!
//! With the environment variable `ROWLOCK_UPDATE` a test rewrites the answers; the author reviews the
//! difference.

#![expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Returns the story files (`*.txt`) of a folder, sorted.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "txt"));
    files.sort();
    files
}

/// Plays the story at `path` and compares the answers with the recorded ones, or rewrites them. An error
/// names the first line that differs.
///
/// `answer` gets the lines of one paragraph. An empty answer leaves the paragraph without a block of
/// dashes.
pub fn play(path: &Path, answer: impl FnMut(&str) -> String) -> Result<(), String> {
    let story = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let played = replay(&story, answer);
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        return std::fs::write(path, played).map_err(|error| format!("{}: {error}", path.display()));
    }
    let (mut recorded, mut answered) = (story.lines(), played.lines());
    for number in 1.. {
        match (recorded.next(), answered.next()) {
            (None, None) => break,
            (one, other) if one == other => {}
            (one, other) => {
                let (path, one, other) =
                    (path.display(), one.unwrap_or("the end"), other.unwrap_or("the end"));
                return Err(format!("{path}:{number}\n  recorded: {one}\n  answered: {other}"));
            }
        }
    }
    Ok(())
}

/// Returns the story with new answers.
fn replay(story: &str, mut answer: impl FnMut(&str) -> String) -> String {
    let mut played = String::new();
    let mut write = |line: &str| {
        played.push_str(line);
        played.push('\n');
    };
    let mut lines = story.lines().peekable();
    while let Some(line) = lines.next() {
        write(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut paragraph = line.to_owned();
        while let Some(line) = lines.next_if(|line| !line.is_empty() && *line != "----") {
            write(line);
            if !line.starts_with('#') {
                paragraph.push('\n');
                paragraph.push_str(line);
            }
        }
        if lines.next_if_eq(&"----").is_some() {
            while lines.next_if(|line| !line.is_empty()).is_some() {}
        }
        let answer = answer(&paragraph);
        if !answer.is_empty() {
            assert!(!answer.trim_end().contains("\n\n"), "an empty line would end the answer {answer:?}");
            write("----");
            write(answer.trim_end());
        }
    }
    played
}

/// Makes a test of each story: `stories!(play, folder(); NAME ...)`. Another test compares the names with the
/// files of the folder.
#[macro_export]
macro_rules! stories {
    ($play:path, $folder:expr; $($name:ident)*) => {
        $(#[test] fn $name() { $play(stringify!($name)); })*

        #[test]
        fn every_story_is_played() {
            let mut listed = [$(stringify!($name)),*].map(|name| $folder.join(format!("{name}.txt")));
            listed.sort();
            assert_eq!($crate::files(&$folder), listed);
        }
    };
}

/// Positional words and options (`key=value`) of a line.
pub struct Words<'a> {
    positional: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    pub fn new(line: &'a str) -> Self {
        let (options, positional) = line
            .split_whitespace()
            .partition::<Vec<_>, _>(|word| word.contains('=') && !word.starts_with('/'));
        let options = options.into_iter().filter_map(|word| word.split_once('=')).collect();
        Words { positional, options }
    }

    /// Returns the positional word number `at`; the verb is number 0. `''` stands for the empty string.
    pub fn at(&self, at: usize) -> &'a str {
        self.find(at).unwrap_or_else(|| panic!("word {at} is missing in {:?}", self.positional))
    }

    /// Returns the positional word number `at`, if the line has one.
    pub fn find(&self, at: usize) -> Option<&'a str> {
        self.positional.get(at).map(|word| if *word == "''" { "" } else { *word })
    }

    /// Returns the positional words from number `at` on.
    pub fn from(&self, at: usize) -> &[&'a str] {
        self.positional.get(at..).unwrap_or_default()
    }

    /// Parses the positional word number `at`.
    pub fn parse<T: FromStr>(&self, at: usize) -> T {
        parse(self.at(at))
    }

    pub fn option(&self, key: &str) -> Option<&'a str> {
        self.options.get(key).copied()
    }

    /// Parses the option `key`.
    pub fn number<T: FromStr>(&self, key: &str, default: T) -> T {
        self.option(key).map_or(default, parse)
    }
}

/// Parses a word. Panics with a word that is no `T`.
pub fn parse<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("cannot parse {word:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_replaced_and_everything_else_stays() {
        let story = "# A comment.\n\none\n# Another.\ntwo x\n----\nold\nanswer\n\n== silent\n\nthree\n";
        let played = replay(story, |lines| if lines.starts_with("==") { "" } else { lines }.to_owned());
        let expected =
            "# A comment.\n\none\n# Another.\ntwo x\n----\none\ntwo x\n\n== silent\n\nthree\n----\nthree\n";
        assert_eq!(played, expected);
        assert_eq!(replay(&played, |_| "once\n".to_owned()).matches("once").count(), 3);
    }

    #[test]
    fn words_have_an_order_and_options_have_names() {
        let words = Words::new("create /a=b '' v=3");
        assert_eq!((words.at(0), words.at(1), words.at(2), words.find(3)), ("create", "/a=b", "", None));
        assert_eq!((words.number("v", 0), words.number("w", 7), words.from(3).len()), (3, 7, 0));
    }
}
