//! Takes out what a bundle must not hold.
//!
//! Two nets, since either may have a hole. What is collected leaves secrets out by its kind: data of znodes
//! by the names of fields, passwords by the configuration's own rule. Then every text is searched for the
//! secrets that this process knows of: those of `cluster.toml` and of its environment, and what
//! stands behind words that announce a secret.

use serde_json::Value;

/// Stands for what was taken out.
pub(super) const REMOVED: &str = "(removed)";
/// Fields of documents that hold what clients have written, or secrets. A label is the data of its place in
/// a lock's queue.
const FIELDS: [&str; 6] = ["label", "data", "data_base64", "secret", "password", "digest_of"];
/// What stands behind one of these in a line of a log is a secret, up to the next blank.
const ANNOUNCED: [&str; 3] = ["Bearer ", "super:", "digest:"];
/// Tokens of HTTP begin by this, and so do the names of metrics.
const TOKEN: &str = "rowlock_";
/// Hexadecimal digits behind it: a token has 64. Fewer may be the rest of one.
const TOKEN_DIGITS_MIN: usize = 16;
/// A shorter word would be found in words that are none.
const SECRET_MIN: usize = 4;

pub(super) struct Redactor {
    secrets: Vec<String>,
}

impl Redactor {
    /// For these. Of `user:password` the password alone counts, too.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Redactor {
        let mut all: Vec<String> = Vec::new();
        for secret in secrets {
            let parts = secret.split(':').skip(1);
            let tails = std::iter::once(secret).chain(parts);
            all.extend(tails.filter(|one| one.len() >= SECRET_MIN).map(str::to_owned));
        }
        // A longer one may hold a shorter one.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        all.dedup();
        Redactor { secrets: all }
    }

    /// A text without them.
    pub(super) fn text(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in &self.secrets {
            if clean.contains(secret) {
                clean = clean.replace(secret, REMOVED);
            }
        }
        for word in ANNOUNCED {
            clean = without_announced(&clean, word);
        }
        without_tokens(&clean)
    }

    /// A node's document without fields that clients fill.
    pub(super) fn document(&self, document: &mut Value) {
        match document {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if FIELDS.contains(&name.as_str()) && !value.is_null() {
                        *value = REMOVED.into();
                    } else {
                        self.document(value);
                    }
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|one| self.document(one)),
            Value::String(text) => *text = self.text(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn without_announced(text: &str, word: &str) -> String {
    let mut parts = text.split(word);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Taken out already: the bracket at its end would be taken for the end of a secret.
        if part.starts_with(REMOVED) {
            clean.push_str(word);
            clean.push_str(part);
            continue;
        }
        let end = part.find(|letter: char| letter.is_whitespace() || "\"',;)".contains(letter));
        let rest = &part[end.unwrap_or(part.len())..];
        clean.push_str(word);
        clean.push_str(if end == Some(0) || part.is_empty() { "" } else { REMOVED });
        clean.push_str(rest);
    }
    clean
}

fn without_tokens(text: &str) -> String {
    let mut parts = text.split(TOKEN);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        clean.push_str(TOKEN);
        let is_token = digits >= TOKEN_DIGITS_MIN;
        clean.push_str(if is_token { REMOVED } else { "" });
        clean.push_str(&part[if is_token { digits } else { 0 }..]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_secrets_and_announced_ones_go_and_the_rest_of_the_text_stays() {
        let redactor = Redactor::new(["super:D/InIH=", "hunter2", "abc", ""]);
        let text = "a hunter2 b D/InIH= c abc\nAuthorization: Bearer xyz\nauth \"digest:bob:pass\" ok";
        let clean = "a (removed) b (removed) c abc\nAuthorization: Bearer (removed)\n\
                     auth \"digest:(removed)\" ok";
        assert_eq!(redactor.text(text), clean);
        assert_eq!(redactor.text("super: "), "super: ");
        for (text, clean) in [("\"super:D/InIH=\"", "\"(removed)\""), ("super:(removed)", "super:(removed)")]
        {
            assert_eq!(redactor.text(text), clean);
        }
    }

    #[test]
    fn tokens_go_and_names_of_metrics_stay() {
        let (_, token) = rowlock_coordinator::tokens::Token::new("ci".to_owned(), [].into(), None);
        let text = format!("?token={token}&a rowlock_sessions 7, rowlock_added {token}");
        let clean = "?token=rowlock_(removed)&a rowlock_sessions 7, rowlock_added rowlock_(removed)";
        assert_eq!(Redactor::new([]).text(&text), clean);
    }

    #[test]
    fn fields_that_clients_fill_go_at_any_depth() {
        let redactor = Redactor::new(["hunter2"]);
        let mut document = json!({ "places": [{ "label": "mine", "token": 7, "path": "/l/hunter2" }] });
        redactor.document(&mut document);
        let clean = json!({ "places": [{ "label": REMOVED, "token": 7, "path": "/l/(removed)" }] });
        assert_eq!(document, clean);
    }
}
