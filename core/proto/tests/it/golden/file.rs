//! Reads the files of golden frames; their format is described in testdata/README.md.

use std::collections::BTreeMap;

/// One frame and its meaning.
pub struct Golden {
    /// Kind of the frame, which selects the decoder.
    pub kind: String,
    /// Name, unique in its file and kind.
    pub name: String,
    /// Bytes without the length in front.
    pub bytes: Vec<u8>,
    /// Debug text of the decoded frame.
    pub meaning: String,
}

type Definitions = BTreeMap<String, (Vec<u8>, String)>;

/// Parses all frames of a file, in order, and substitutes definitions.
pub fn parse(text: &str) -> Vec<Golden> {
    let mut definitions = Definitions::new();
    let mut frames = Vec::<Golden>::new();
    for block in text.split("\n\n") {
        let Some(frame) = parse_block(block, &definitions) else { continue };
        if frame.kind == "define" {
            definitions.insert(frame.name, (frame.bytes, frame.meaning));
        } else {
            let is_duplicate =
                frames.iter().any(|other| (&other.kind, &other.name) == (&frame.kind, &frame.name));
            assert!(!is_duplicate, "{} {} is duplicated", frame.kind, frame.name);
            frames.push(frame);
        }
    }
    frames
}

/// Parses one block; `None` for a block of comments.
fn parse_block(block: &str, definitions: &Definitions) -> Option<Golden> {
    let mut title = None;
    let mut bytes = Vec::new();
    let mut meaning = Vec::new();
    for line in block.lines() {
        if let Some(part) = line.strip_prefix("= ") {
            meaning.push(part);
            continue;
        }
        let line = line.split("--").next().unwrap_or_default();
        if line.starts_with(' ') {
            line.split_whitespace().for_each(|token| push_token(&mut bytes, token, definitions));
        } else if !line.trim().is_empty() {
            title = Some(line.trim().split_once(' ').unwrap_or_else(|| panic!("no name in {line:?}")));
        }
    }
    let (kind, name) = title?;
    let mut meaning = meaning.join(" ");
    for (name, (_, text)) in definitions {
        meaning = meaning.replace(&format!("@{name}"), text);
    }
    Some(Golden { kind: kind.to_owned(), name: name.to_owned(), bytes, meaning })
}

fn push_token(bytes: &mut Vec<u8>, token: &str, definitions: &Definitions) {
    if let Some(name) = token.strip_prefix('@') {
        let (defined, _) = definitions.get(name).unwrap_or_else(|| panic!("{token} is not defined"));
        bytes.extend_from_slice(defined);
    } else if let Some(text) = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        bytes.extend_from_slice(text.as_bytes());
    } else if let Some((byte, times)) = token.split_once('*') {
        let times = times.parse().unwrap_or_else(|e| panic!("{token}: {e}"));
        bytes.extend(std::iter::repeat_n(hex(byte)[0], times));
    } else {
        bytes.extend(hex(token));
    }
}

fn hex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2) && !digits.is_empty(), "odd hex {digits:?}");
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap_or_else(|e| panic!("{digits:?}: {e}")))
        .collect()
}
