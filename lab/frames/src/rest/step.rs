//! Parser of paragraphs: the steps of a case.

use std::net::IpAddr;

/// A paragraph of a case; `rest.rs` has the syntax.
pub(super) enum Step<'a> {
    Lease { name: &'a str, ttl_ms: Option<u32> },
    Send(Wanted<'a>),
    Times { count: usize, wanted: Wanted<'a> },
    Begin { name: &'a str, wanted: Wanted<'a> },
    Pending { name: &'a str },
    End { name: &'a str },
    Until { text: &'a str, wanted: Wanted<'a> },
    Open { name: &'a str, wanted: Wanted<'a> },
    Events { name: &'a str, count: usize },
    Close { name: &'a str },
}

/// A request before its names have values.
#[derive(Default)]
pub(super) struct Wanted<'a> {
    pub(super) leases: Vec<&'a str>,
    pub(super) tokens: Vec<&'a str>,
    pub(super) node: usize,
    pub(super) from: Option<IpAddr>,
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    pub(super) is_http_1_0: bool,
    pub(super) body: &'a str,
    pub(super) headers: Vec<(&'a str, &'a str)>,
}

/// Parses a paragraph. Panics if the paragraph is no step.
pub(super) fn parse(paragraph: &str) -> Step<'_> {
    let (first, rest) = paragraph.split_once(' ').unwrap_or((paragraph, ""));
    let (name, behind) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = |text: &str| text.trim().parse().unwrap_or_else(|_| panic!("no number in {paragraph:?}"));
    match first {
        "lease" => {
            let ttl_ms = (!behind.is_empty()).then(|| behind.parse().expect("milliseconds"));
            Step::Lease { name, ttl_ms }
        }
        "begin" => Step::Begin { name, wanted: Wanted::parse(behind) },
        "pending" => Step::Pending { name },
        "end" => Step::End { name },
        "until" => {
            let (text, request) = rest.split_once(" in ").unwrap_or_else(|| panic!("no request in {rest:?}"));
            Step::Until { text, wanted: Wanted::parse(request) }
        }
        "open" => Step::Open { name, wanted: Wanted::parse(behind) },
        "events" => Step::Events { name, count: number(behind) },
        "close" => Step::Close { name },
        _ if name == "times" => Step::Times { count: number(first), wanted: Wanted::parse(behind) },
        _ => Step::Send(Wanted::parse(paragraph)),
    }
}

impl<'a> Wanted<'a> {
    /// Parses a request. Panics if the text has no method.
    pub(super) fn parse(text: &'a str) -> Self {
        let (line, headers) = text.split_once('\n').unwrap_or((text, ""));
        let mut wanted = Wanted { node: 1, ..Wanted::default() };
        let mut rest = line;
        while !rest.is_empty() {
            let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = behind;
            if word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()) {
                wanted.method = word;
                break;
            } else if let Some(name) = word.strip_prefix('@') {
                wanted.tokens.push(name);
            } else if let Some(node) = word.strip_prefix("node").and_then(|node| node.parse().ok()) {
                wanted.node = node;
            } else if let Ok(address) = word.parse() {
                wanted.from = Some(address);
            } else if word == "ops" {
                wanted.node = 0;
            } else {
                wanted.leases.push(word);
            }
        }
        assert!(!wanted.method.is_empty(), "no method in {text:?}");
        (wanted.target, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Some(behind) = rest.strip_prefix("HTTP/1.0") {
            (wanted.is_http_1_0, rest) = (true, behind.trim_start());
        }
        wanted.body = rest;
        let pair = |line: &'a str| line.split_once(": ").unwrap_or_else(|| panic!("no header in {line:?}"));
        wanted.headers = headers.lines().map(pair).collect();
        wanted
    }
}
