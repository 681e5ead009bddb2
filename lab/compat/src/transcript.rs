//! The replies of a server to a script, in a form that can be compared with another server's replies.
//!
//! Zxids are separate from the text and compare by their rank within the transcript: two transcripts agree if
//! a one-to-one mapping between their zxids keeps the order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rowlock_proto::{SessionId, Stat, Zxid};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Zxid(i64),
}

/// A reply or event in comparable form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pieces: Vec<Piece>,
}

impl Line {
    pub fn new(text: impl Into<String>) -> Self {
        let mut line = Line::default();
        line.text(text);
        line
    }

    pub fn text(&mut self, text: impl Into<String>) {
        self.pieces.push(Piece::Text(text.into()));
    }

    /// Appends a zxid. Values of 0 and below are not positions in the log and compare by value.
    pub fn zxid(&mut self, zxid: Zxid) {
        match zxid.0 {
            fixed @ ..=0 => self.text(format!("z{fixed}")),
            zxid => self.pieces.push(Piece::Zxid(zxid)),
        }
    }

    pub fn max_zxid(&self) -> Option<Zxid> {
        self.zxids().max().map(Zxid)
    }

    fn zxids(&self) -> impl Iterator<Item = i64> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Zxid(zxid) => Some(*zxid),
            Piece::Text(_) => None,
        })
    }

    fn render(&self, root: &str, ranks: &BTreeMap<i64, usize>) -> String {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(&text.replace(root, "~")),
                Piece::Zxid(zxid) => {
                    let _ = write!(out, "z#{}", ranks[zxid]);
                }
            }
        }
        out
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Step(usize),
    /// The reply to a request of the player itself, between two steps.
    Between,
    Event,
}

/// All lines that the clients of a script received, by client and in order.
#[derive(Debug)]
pub struct Transcript {
    root: String,
    clients: Vec<Vec<(Cause, Line)>>,
    sessions: BTreeMap<SessionId, String>,
    times: BTreeMap<i64, i64>,
}

impl Transcript {
    /// Creates an empty transcript. `~` replaces `root` in all texts.
    pub fn new(root: &str, clients: usize) -> Self {
        Transcript {
            root: root.to_owned(),
            clients: vec![Vec::new(); clients],
            sessions: BTreeMap::new(),
            times: BTreeMap::new(),
        }
    }

    pub fn push(&mut self, client: usize, cause: Cause, line: Line) {
        self.clients[client].push((cause, line));
    }

    /// Returns the number of lines that a client has received.
    pub fn len(&self, client: usize) -> usize {
        self.clients[client].len()
    }

    /// Sorts the events that a client received since line `from` by their text: one transaction caused them,
    /// and their order is not specified. Other lines keep their positions. Lines of events have no zxids.
    pub fn sort_events(&mut self, client: usize, from: usize) {
        for run in self.clients[client][from..].split_mut(|(cause, _)| *cause != Cause::Event) {
            run.sort_by_key(|(_, line)| line.render(&self.root, &BTreeMap::new()));
        }
    }

    /// Names a new session independently of the server.
    pub fn name_session(&mut self, session: SessionId, client: usize) {
        let count = self.sessions.len();
        self.sessions.entry(session).or_insert_with(|| format!("session {count} of client {client}"));
    }

    pub fn session(&self, session: SessionId) -> String {
        self.sessions.get(&session).cloned().unwrap_or_else(|| format!("session {:#x}", session.0))
    }

    /// Appends a Stat. Checks its times only for properties that hold on every server: a change has one time,
    /// and later changes have no earlier times.
    pub fn stat(&mut self, line: &mut Line, stat: &Stat) {
        line.text(" {c=");
        line.zxid(stat.czxid);
        line.text(" m=");
        line.zxid(stat.mzxid);
        line.text(" p=");
        line.zxid(stat.pzxid);
        let owner = match stat.ephemeral_owner {
            SessionId(0) => "none".to_owned(),
            session if (session.0 as u64) >> 56 == 0xff => format!("ttl {:#x}", session.0),
            SessionId(i64::MIN) => "container".to_owned(),
            session => self.session(session),
        };
        line.text(format!(
            " v={} cv={} av={} owner={owner} len={} children={}",
            stat.version, stat.cversion, stat.aversion, stat.data_length, stat.num_children
        ));
        for (field, zxid, ms) in [("ctime", stat.czxid, stat.ctime_ms), ("mtime", stat.mzxid, stat.mtime_ms)]
        {
            if !self.time_fits(zxid, ms) {
                line.text(format!(" BAD {field}={ms}"));
            }
        }
        line.text("}");
    }

    fn time_fits(&mut self, zxid: Zxid, ms: i64) -> bool {
        if *self.times.entry(zxid.0).or_insert(ms) != ms {
            return false;
        }
        let before = self.times.range(..zxid.0).next_back().is_none_or(|(_, earlier)| *earlier <= ms);
        let after = self.times.range(zxid.0 + 1..).next().is_none_or(|(_, later)| *later >= ms);
        before && after
    }

    /// Returns the lines of each client as text, with ranks instead of zxids.
    pub fn render(&self) -> Vec<Vec<(Cause, String)>> {
        let all: BTreeSet<i64> = self.clients.iter().flatten().flat_map(|(_, line)| line.zxids()).collect();
        let ranks = all.into_iter().enumerate().map(|(rank, zxid)| (zxid, rank)).collect();
        let client = |lines: &Vec<(Cause, Line)>| {
            lines.iter().map(|(cause, line)| (*cause, line.render(&self.root, &ranks))).collect()
        };
        self.clients.iter().map(client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(zxids: &[i64]) -> Transcript {
        let mut transcript = Transcript::new("/root", 1);
        for zxid in zxids {
            let mut line = Line::new("at ");
            line.zxid(Zxid(*zxid));
            transcript.push(0, Cause::Between, line);
        }
        transcript
    }

    #[test]
    fn zxids_agree_by_order_and_repetition() {
        assert_eq!(transcript(&[5, 9, 5]).render(), transcript(&[100, 101, 100]).render());
        assert_ne!(transcript(&[5, 9, 5]).render(), transcript(&[9, 5, 9]).render());
        assert_ne!(transcript(&[5, 9, 5]).render(), transcript(&[5, 9, 9]).render());
        assert_ne!(transcript(&[0, 1]).render(), transcript(&[1, 2]).render(), "0 is not a position");
    }

    #[test]
    fn times_follow_the_order_of_changes() {
        let mut transcript = Transcript::new("/root", 1);
        assert!(transcript.time_fits(Zxid(5), 100));
        assert!(transcript.time_fits(Zxid(9), 100));
        assert!(!transcript.time_fits(Zxid(5), 101));
        assert!(!transcript.time_fits(Zxid(12), 99));
    }

    #[test]
    fn only_runs_of_events_are_sorted() {
        let mut transcript = Transcript::new("/root", 1);
        for (cause, text) in [
            (Cause::Event, "b"),
            (Cause::Event, "a"),
            (Cause::Between, "x"),
            (Cause::Event, "d"),
            (Cause::Event, "c"),
        ] {
            transcript.push(0, cause, Line::new(text));
        }
        transcript.sort_events(0, 0);
        let lines: Vec<String> = transcript.render().remove(0).into_iter().map(|(_, text)| text).collect();
        assert_eq!(lines, ["a", "b", "x", "c", "d"]);
    }
}
