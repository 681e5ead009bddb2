//! The JSON that the page's data needs: arrays, whole numbers, texts. The data stands within a `script`
//! element, so no text may close it.

/// An array that is being written.
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
            // `</script>` and `<!--` mean something to the parser around us; the two separators to old ones.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => json.push_str(&format!("\\u{:04x}", c as u32)),
            c if c.is_control() => json.push_str(&format!("\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json.push('"');
}
