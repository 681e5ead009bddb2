//! Rendering of a scan: two tables that fit the terminal, or a JSON document.

use std::io::IsTerminal;

use rowlock_env::time;
use serde_json::{Value, json};

use super::{Answer, Frame};
use crate::moment;
use crate::paint::Paint;
use crate::print::safe;
use crate::table::{fitted, terminal_width};

const NODES: [&str; 11] =
    ["node", "role", "term", "req/s", "p99", "grants/s", "flush p99", "sessions", "conns", "slow", "address"];
/// Columns omitted at a narrow terminal, in this order.
const NODES_SPARE: [&str; 6] = ["address", "slow", "grants/s", "conns", "p99", "term"];
const LOCKS: [&str; 4] = ["lock", "waiting", "longest", "holding"];
const LOCKS_SPARE: [&str; 2] = ["holding", "longest"];
/// Minimum width of a lock's name at a terminal, and the width of all further columns.
const NAME_LEAST: usize = 12;
const COLUMNS_OF_LOCKS: usize = 30;

pub(super) struct Screen {
    paint: Paint,
    /// True to draw over the previous frame.
    replaces: bool,
    width: Option<usize>,
    height: Option<usize>,
}

impl Screen {
    /// Creates a screen for stdout; `replaces` draws each frame over the previous one.
    pub(super) fn of_stdout(replaces: bool) -> Screen {
        let paint = Paint::stdout();
        let out = std::io::stdout();
        let size = rustix::termios::tcgetwinsize(&out).ok().filter(|_| out.is_terminal());
        let height = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0);
        Screen { paint, replaces: replaces && paint.is_terminal(), width: terminal_width(), height }
    }

    pub(super) fn draw(&self, shown: &Frame) -> String {
        let mut lines = self.nodes(shown);
        lines.push(String::new());
        lines.extend(self.locks(shown, lines.len()));
        if !self.replaces {
            lines.push(String::new());
            return lines.join("\n");
        }
        // Overwrites the previous frame line by line: clearing first would flicker.
        let body: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        format!("\x1b[H{body}\x1b[J")
    }

    fn nodes(&self, shown: &Frame) -> Vec<String> {
        let rows: Vec<[String; 11]> = shown.nodes.iter().map(|(addr, node)| row(addr, node)).collect();
        let (laid_out, _) = fitted(NODES, &rows, &NODES_SPARE, self.width);
        let mut lines = Vec::new();
        for (at, line) in laid_out.lines().enumerate() {
            let line = self.cut(line);
            let node = at.checked_sub(1).and_then(|row| shown.nodes.get(row));
            lines.push(match node {
                None => self.paint.bold(&line),
                Some((_, Ok((sample, _)))) if sample.report.serving => line,
                Some(_) => self.paint.bad(&line),
            });
        }
        lines
    }

    fn locks(&self, shown: &Frame, above: usize) -> Vec<String> {
        let document = match &shown.locks {
            Ok(document) => document,
            Err(why) => return vec![self.paint.bad(&self.cut(&format!("no locks: {why}")))],
        };
        let name_max = self.width.map(|width| width.saturating_sub(COLUMNS_OF_LOCKS).max(NAME_LEAST));
        let all = document["locks"].as_array().map_or(&[][..], Vec::as_slice);
        let rows: Vec<[String; 4]> = all.iter().map(|lock| lock_row(lock, name_max)).collect();
        if rows.is_empty() {
            return vec![self.paint.dim("no locks are held or waited for")];
        }
        let room = self.height.filter(|_| self.replaces).map(|rows| rows.saturating_sub(above + 2));
        let shown_rows = room.map_or(rows.len(), |room| rows.len().min(room.max(1)));
        let (laid_out, _) = fitted(LOCKS, &rows[..shown_rows], &LOCKS_SPARE, self.width);
        let paint = |(at, line): (usize, &str)| {
            let line = self.cut(line);
            if at == 0 { self.paint.bold(&line) } else { line }
        };
        laid_out.lines().enumerate().map(paint).collect()
    }

    /// Cuts a line to the terminal's width: a wrapped line would take two rows.
    fn cut(&self, line: &str) -> String {
        self.width.map_or_else(|| line.to_owned(), |width| line.chars().take(width).collect())
    }
}

fn row(addr: &str, node: &Answer) -> [String; 11] {
    let (sample, rates) = match node {
        Ok(answered) => answered,
        Err(why) => {
            let mut cells = std::array::from_fn(|_| "-".to_owned());
            cells[1] = safe(&format!("no answer: {why}"));
            cells[10] = addr.to_owned();
            return cells;
        }
    };
    let report = &sample.report;
    let per_second = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
    let ms = |time: Option<std::time::Duration>| {
        time.map_or("-".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1e3))
    };
    let role = if report.serving { report.role.clone() } else { format!("{} (not serving)", report.role) };
    [
        report.node.to_string(),
        role,
        report.term.to_string(),
        per_second(rates.requests),
        ms(rates.request_p99),
        per_second(rates.grants),
        ms(rates.flush_p99),
        report.sessions.to_string(),
        report.connections.to_string(),
        per_second(rates.slow),
        addr.to_owned(),
    ]
}

fn lock_row(lock: &Value, name_max: Option<usize>) -> [String; 4] {
    let name = safe(lock["lock"].as_str().unwrap_or("-"));
    let length = name.chars().count();
    let name = match name_max {
        // The end of a path is more specific than its beginning.
        Some(max) if length > max => format!("…{}", name.chars().skip(length - max + 1).collect::<String>()),
        _ => name,
    };
    let longest = lock["oldest_wait_ms"].as_i64().map_or("-".to_owned(), moment::span);
    [name, lock["waiters"].to_string(), longest, lock["holders"].to_string()]
}

/// Renders a frame as JSON. Unknown rates are `null`.
pub(super) fn document(shown: &Frame) -> Value {
    let ms = |time: Option<std::time::Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    let node = |(addr, node): &(String, Answer)| match node {
        Err(why) => json!({ "address": addr, "error": why }),
        Ok((sample, rates)) => {
            let report = &sample.report;
            json!({
                "address": addr, "node": report.node, "role": report.role, "term": report.term,
                "serving": report.serving, "requests_per_second": rates.requests,
                "request_p99_ms": ms(rates.request_p99), "grants_per_second": rates.grants,
                "flush_p99_ms": ms(rates.flush_p99), "sessions": report.sessions,
                "connections": report.connections, "slow_requests": rates.slow,
            })
        }
    };
    let nodes: Vec<Value> = shown.nodes.iter().map(node).collect();
    let (locks, why) = match &shown.locks {
        Ok(document) => (document["locks"].clone(), None),
        Err(why) => (Value::Null, Some(why)),
    };
    json!({ "time_ms": time::wall_ms(), "nodes": nodes, "locks": locks, "no_locks": why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(width: Option<usize>, height: Option<usize>, replaces: bool) -> Screen {
        // Tests have no terminal, and therefore no colors.
        Screen { paint: Paint::stdout(), replaces, width, height }
    }

    fn shown(locks: usize) -> Frame {
        let lock = |nth: usize| {
            json!({ "lock": format!("/locks/{}/{nth}", "deep/".repeat(8)), "waiters": nth, "holders": 1,
                    "oldest_wait_ms": 1_500 })
        };
        let all: Vec<Value> = (0..locks).map(lock).collect();
        let down = Err("connection refused\x1b[31m".to_owned());
        Frame { nodes: vec![("h:8081".to_owned(), down)], locks: Ok(json!({ "locks": all })) }
    }

    #[test]
    fn no_line_is_wider_and_no_frame_longer_than_the_terminal() {
        for (width, height) in [(80, 24), (40, 12), (20, 6)] {
            let drawn = screen(Some(width), Some(height), true).draw(&shown(100));
            let plain = drawn.replace("\x1b[H", "").replace("\x1b[K", "").replace("\x1b[J", "");
            assert!(plain.lines().all(|line| line.chars().count() <= width), "{width}:\n{plain}");
            assert!(plain.lines().count() < height.max(6), "{height}:\n{plain}");
        }
    }

    #[test]
    fn without_a_terminal_all_rows_are_shown_and_sanitized() {
        let drawn = screen(None, None, false).draw(&shown(50));
        assert_eq!(drawn.matches("/locks/").count(), 50);
        assert!(drawn.contains("no answer: connection refused") && !drawn.contains('\x1b'), "{drawn}");
        assert!(drawn.ends_with('\n'));
    }

    #[test]
    fn the_end_of_a_long_name_stays() {
        let cells =
            lock_row(&json!({ "lock": "/locks/a/very/long/name", "waiters": 2, "holders": 1 }), Some(12));
        assert_eq!(cells, ["…y/long/name", "2", "-", "1"]);
    }
}
