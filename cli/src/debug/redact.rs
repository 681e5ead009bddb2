//! Redaction of secrets in a bundle.
//!
//! Two independent filters, because either may have a gap. The collector omits secrets by kind: data of
//! znodes by the names of fields, passwords by the configuration's own rule. Then every text is searched for
//! the secrets known to this process (from `cluster.toml` and the environment), and for text after words that
//! announce a secret.

use serde_json::Value;

pub(super) const REMOVED: &str = "(removed)";
/// Fields of documents with secrets or with text from clients. A label is the data of a queue znode.
const FIELDS: [&str; 6] = ["label", "data", "data_base64", "secret", "password", "digest_of"];
/// Words in log lines followed by a secret, up to the next blank.
const ANNOUNCED: [&str; 3] = ["Bearer ", "super:", "digest:"];
/// Prefix of HTTP tokens, and of metrics' names.
const TOKEN: &str = "rowlock_";
/// Fewest hexadecimal digits after the prefix: a token has 64, a truncated one may have fewer.
const TOKEN_DIGITS_MIN: usize = 16;
/// Shortest secret searched: a shorter word would match harmless text.
const SECRET_MIN: usize = 4;

pub(super) struct Redactor {
    secrets: Vec<String>,
}

impl Redactor {
    /// Creates a redactor of these secrets. The password of `user:password` counts as a secret of its own.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Redactor {
        let mut all: Vec<String> = Vec::new();
        for secret in secrets {
            let parts = secret.split(':').skip(1);
            let tails = std::iter::once(secret).chain(parts);
            all.extend(tails.filter(|one| one.len() >= SECRET_MIN).map(str::to_owned));
        }
        // A longer secret may contain a shorter one.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        all.dedup();
        Redactor { secrets: all }
    }

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

    /// Removes fields with text from clients from a node's document.
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
        // Already removed: the bracket at its end would look like the end of a secret.
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
    fn known_and_announced_secrets_are_removed_and_nothing_else() {
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
    fn tokens_are_removed_and_names_of_metrics_stay() {
        let (_, token) = rowlock_coordinator::access::tokens::Token::new("ci".to_owned(), [].into(), None);
        let text = format!("?token={token}&a rowlock_sessions 7, rowlock_added {token}");
        let clean = "?token=rowlock_(removed)&a rowlock_sessions 7, rowlock_added rowlock_(removed)";
        assert_eq!(Redactor::new([]).text(&text), clean);
    }

    #[test]
    fn client_fields_are_removed_at_any_depth() {
        let redactor = Redactor::new(["hunter2"]);
        let mut document = json!({ "places": [{ "label": "mine", "token": "7", "path": "/l/hunter2" }] });
        redactor.document(&mut document);
        let clean = json!({ "places": [{ "label": REMOVED, "token": "7", "path": "/l/(removed)" }] });
        assert_eq!(document, clean);
    }
}
