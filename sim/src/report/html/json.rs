//! JSON encoder for the page's data: arrays, whole numbers, texts. The data is inside a `script` element, so
//! no text may close that element.

pub(super) struct Array(String);

impl Array {
    pub(super) fn new() -> Self {
        Array("[".to_owned())
    }

    pub(super) fn number(mut self, n: impl Into<i128>) -> Self {
        self.next();
        self.0.push_str(&n.into().to_string());
        self
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.next();
        push_text(&mut self.0, text);
        self
    }

    pub(super) fn raw(mut self, json: &str) -> Self {
        self.next();
        self.0.push_str(json);
        self
    }

    pub(super) fn end(mut self) -> String {
        self.0.push(']');
        self.0
    }

    fn next(&mut self) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
    }
}

pub(super) fn array(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(",\n"))
}

pub(super) fn text(text: &str) -> String {
    let mut json = String::new();
    push_text(&mut json, text);
    json
}

fn push_text(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            // The HTML parser interprets `</script>` and `<!--`; old parsers interpret the two separators.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => json.push_str(&format!("\\u{:04x}", c as u32)),
            c if c.is_control() => json.push_str(&format!("\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json.push('"');
}
