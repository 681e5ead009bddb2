//! Words of one line of a script. Every error names the expected word.

use std::time::Duration;

use super::script::{Down, Target};
use super::span;

/// Rest of a line.
pub(super) struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        Words { rest: line.split_whitespace().peekable() }
    }

    /// Returns the next word. The error names `what` as the expected word.
    pub(super) fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.rest.next().ok_or_else(|| format!("the line ends where {what} should stand"))
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), String> {
        let found = self.next(&format!("`{word}`"))?;
        if found == word { Ok(()) } else { Err(format!("`{found}` stands where `{word}` should")) }
    }

    /// Consumes the next word if it equals `word`, and reports whether it did.
    pub(super) fn take(&mut self, word: &str) -> bool {
        self.rest.next_if_eq(&word).is_some()
    }

    pub(super) fn target(&mut self) -> Result<Target, String> {
        let word = self.next("a target")?;
        target(word).ok_or_else(|| {
            format!("`{word}` is no target; write node1, leader, follower1, client1, nodes or clients")
        })
    }

    /// Reads one or more targets, up to the first other word.
    pub(super) fn targets(&mut self) -> Result<Vec<Target>, String> {
        let mut targets = vec![self.target()?];
        while let Some(more) = self.rest.peek().copied().and_then(target) {
            self.rest.next();
            targets.push(more);
        }
        Ok(targets)
    }

    /// Reads `A B -> C D`.
    pub(super) fn way(&mut self) -> Result<(Vec<Target>, Vec<Target>), String> {
        let from = self.targets()?;
        self.expect("->")?;
        Ok((from, self.targets()?))
    }

    pub(super) fn node(&mut self) -> Result<usize, String> {
        match self.target()? {
            Target::Node(n) => Ok(n),
            other => Err(format!("`{other}` stands where a node's number should, like node4")),
        }
    }

    pub(super) fn client(&mut self) -> Result<usize, String> {
        match self.target()? {
            Target::Client(n) => Ok(n),
            other => Err(format!("`{other}` stands where a client's number should, like client1")),
        }
    }

    pub(super) fn after(&mut self) -> Result<Duration, String> {
        self.expect("after")?;
        span::read(self.next("a length of time")?)
    }

    pub(super) fn lasts(&mut self) -> Result<Duration, String> {
        self.expect("for")?;
        span::read(self.next("a length of time")?)
    }

    /// Reads `for 4s` or `for good`.
    pub(super) fn down(&mut self) -> Result<Down, String> {
        self.expect("for")?;
        match self.next("a length of time or `good`")? {
            "good" => Ok(Down::ForGood),
            span => Ok(Down::For(span::read(span)?)),
        }
    }

    pub(super) fn range(&mut self) -> Result<(Duration, Duration), String> {
        let word = self.next("a range of times")?;
        let (least, most) = word
            .split_once("..")
            .ok_or_else(|| format!("`{word}` is no range of times; write for example 100ms..400ms"))?;
        let (least, most) = (span::read(least)?, span::read(most)?);
        if least > most {
            return Err(format!("`{word}` ends before it begins; write the shorter time first"));
        }
        Ok((least, most))
    }

    /// Reads a number between a prefix and a suffix, like `x20`, `30%`, `+50000ppm`.
    pub(super) fn number<N: std::str::FromStr>(
        &mut self,
        prefix: &str,
        suffix: &str,
        example: &str,
    ) -> Result<N, String> {
        let word = self.next(&format!("a number like {example}"))?;
        word.strip_prefix(prefix)
            .and_then(|word| word.strip_suffix(suffix))
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("`{word}` stands where a number like {example} should"))
    }

    pub(super) fn end(mut self) -> Result<(), String> {
        match self.rest.next() {
            None => Ok(()),
            Some(more) => Err(format!("`{more}` is too much; remove it and what follows")),
        }
    }
}

fn target(word: &str) -> Option<Target> {
    match word {
        "leader" => return Some(Target::Leader),
        "nodes" => return Some(Target::AllNodes),
        "clients" => return Some(Target::AllClients),
        _ => {}
    }
    let split = word.find(|c: char| c.is_ascii_digit())?;
    let number = word[split..].parse().ok().filter(|n| *n > 0)?;
    match &word[..split] {
        "node" => Some(Target::Node(number)),
        "follower" => Some(Target::Follower(number)),
        "client" => Some(Target::Client(number)),
        _ => None,
    }
}
