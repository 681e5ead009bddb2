//! Names for values that differ from run to run.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Shortest value that is replaced within other text.
const LONG: usize = 12;

/// Values of a case and their names, in both directions.
#[derive(Default)]
pub(super) struct Names {
    /// Values by name, without the dollar sign.
    values: BTreeMap<String, String>,
    /// Names by class and value.
    names: BTreeMap<(&'static str, String), String>,
    counts: BTreeMap<&'static str, usize>,
    /// Lease ids and secrets.
    leases: Vec<(String, String)>,
    newest_token: i64,
}

/// Kind of a member of a document by the member's name.
fn kind(key: &str) -> Option<&'static str> {
    Some(match key {
        "token" => "token",
        "secret" => "secret",
        "lease" | "session" | "ephemeral_owner" => "lease",
        "place" | "Path" => "place",
        "request_id" => "request",
        "Created" | "asked_ms_ago" => "time",
        "zxid" | "czxid" | "mzxid" | "pzxid" | "from_zxid" => "zxid",
        _ if key.ends_with("_ms") && !DURATIONS.contains(&key) => "time",
        _ => return None,
    })
}

/// Returns whether a path is a position in a queue: its name ends in a number of ten digits.
fn is_place(text: &str) -> bool {
    let number = text.rsplit_once("-lock-").map_or("", |(_, number)| number);
    text.starts_with("/locks/") && number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Members in milliseconds that are the same in each run.
const DURATIONS: [&str; 3] = ["ttl_ms", "valid_for_ms", "wait_bounds_ms"];

impl Names {
    pub(super) fn bind(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.to_owned());
    }

    /// Names the values of a lease: `NAME` for the secret, `NAME.id`, and `NAME.wrong` for a secret that
    /// differs in the last digit.
    pub(super) fn bind_lease(&mut self, name: &str, id: &str, secret: &str) {
        let id_name = format!("{name}.id");
        for (name, class, value) in [(name, "secret", secret), (&id_name, "lease", id)] {
            self.bind(name, value);
            self.names.insert((class, value.to_owned()), format!("${name}"));
        }
        self.bind_wrong(name, secret);
        self.leases.push((id.to_owned(), secret.to_owned()));
    }

    fn bind_wrong(&mut self, name: &str, secret: &str) {
        let wrong = if secret.ends_with('0') { "1" } else { "0" };
        self.bind(&format!("{name}.wrong"), &format!("{}{wrong}", &secret[..secret.len() - 1]));
    }

    /// Returns ids and secrets of the leases that the case has opened.
    pub(super) fn leases(&self) -> &[(String, String)] {
        &self.leases
    }

    pub(super) fn value(&self, name: &str) -> Option<&String> {
        self.values.get(name)
    }

    /// Replaces names by their values. Other words behind a dollar sign stay.
    pub(super) fn replace(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.';
            let end = part.find(|c| !is_name(c)).unwrap_or(part.len());
            match self.values.get(&part[..end]) {
                Some(value) => replaced.push_str(value),
                None => replaced.extend(["$", &part[..end]]),
            }
            replaced.push_str(&part[end..]);
        }
        replaced
    }

    /// Returns a document with names in the place of values. The zxid of a view of the queues is a time, too:
    /// a node answers from what it has applied.
    pub(super) fn shown(&mut self, key: &str, value: &Value) -> Value {
        match value {
            Value::Object(members) => {
                if let (Some(id), Some(secret)) = (members.get("lease"), members.get("secret")) {
                    self.record_lease(id, secret);
                }
                let is_view = members.contains_key("more");
                members
                    .iter()
                    .map(|(key, value)| match key.as_str() {
                        "zxid" if is_view => (key.clone(), "#".into()),
                        _ => (key.clone(), self.shown(key, value)),
                    })
                    .collect::<Map<_, _>>()
                    .into()
            }
            Value::Array(all) => all.iter().map(|value| self.shown(key, value)).collect(),
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(_) | Value::String(_) => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                match kind(key) {
                    _ if text.is_empty() => value.clone(),
                    Some("time") => "#".into(),
                    _ if text == "0" => value.clone(),
                    None if key == "version" && value.is_string() => "#".into(),
                    None if is_place(&text) => self.name("place", text).into(),
                    Some("request") if text.len() < LONG => value.clone(),
                    Some(kind) => self.name(kind, text).into(),
                    None if value.is_string() => self.within(&text).into(),
                    None => value.clone(),
                }
            }
        }
    }

    fn record_lease(&mut self, id: &Value, secret: &Value) {
        if let (Some(id), Some(secret)) = (id.as_str(), secret.as_str()) {
            self.leases.push((id.to_owned(), secret.to_owned()));
        }
    }

    fn name(&mut self, kind: &'static str, value: String) -> String {
        // A token is a zxid.
        let class = if kind == "token" { "zxid" } else { kind };
        let is_token = kind == "token";
        if let Some(name) = self.names.get(&(class, value.clone())) {
            return name.clone();
        }
        let number = value.parse().unwrap_or_default();
        let kind = if is_token && number < self.newest_token { "late" } else { kind };
        if is_token {
            self.newest_token = self.newest_token.max(number);
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let name = format!("{kind}{count}");
        self.bind(&name, &value);
        if let Some((_, last)) = value.rsplit_once('/') {
            self.bind(&format!("{name}.name"), last);
        }
        if kind == "secret" {
            self.bind_wrong(&name, &value);
        }
        self.names.insert((class, value), format!("${name}"));
        format!("${name}")
    }

    /// Returns a text with names in the place of known values.
    pub(super) fn within(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for ((class, value), name) in &self.names {
            if value.len() >= LONG {
                text = text.replace(value, name);
            }
            if *class == "zxid" {
                text = text.replace(&format!("token {value}:"), &format!("token {name}:"));
            }
        }
        text
    }

    /// Returns a problem as text: the detail, then members that only this problem has.
    pub(super) fn problem(&mut self, status: u16, mut problem: Value) -> String {
        let Some(members) = problem.as_object_mut() else { return problem.to_string() };
        let detail = members.remove("detail").unwrap_or_default();
        let mut common = [("type", Value::from("about:blank")), ("status", status.into())].into_iter();
        let is_common = common.all(|(name, value)| members.remove(name) == Some(value));
        let has_title = members.remove("title").is_some_and(|title| title.is_string());
        let detail = self.within(detail.as_str().unwrap_or("no detail"));
        let mark = if is_common && has_title { "" } else { " (type, title or status is wrong)" };
        let rest = if members.is_empty() { String::new() } else { format!(" {}", self.shown("", &problem)) };
        format!("{detail}{mark}{rest}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_given_in_order_and_a_smaller_token_is_late() {
        let mut names = Names::default();
        let shown =
            names.shown("", &json!({ "a": [{ "token": "7" }, { "token": "9" }], "zxid": 9, "since_ms": 0 }));
        assert_eq!(
            shown,
            json!({ "a": [{ "token": "$token1" }, { "token": "$token2" }], "zxid": "$token2", "since_ms": "#" })
        );
        assert_eq!(names.shown("", &json!({ "token": "8" })), json!({ "token": "$late1" }));
        let view = json!({ "locks": [], "more": false, "zxid": "9" });
        assert_eq!(names.shown("", &view), json!({ "locks": [], "more": false, "zxid": "#" }));
        assert_eq!(names.replace("$token1, $token12, $late1.x, $"), "7, $token12, $late1.x, $");
        assert_eq!(names.within("token 7: job, token 77: job"), "token $token1: job, token 77: job");
    }

    #[test]
    fn problem_shows_wrong_common_members() {
        let problem = |status: u16| json!({ "type": "about:blank", "title": "t", "status": status, "detail": "d", "x": 1 });
        let mut names = Names::default();
        assert_eq!(names.problem(404, problem(404)), "d {\"x\":1}");
        assert!(names.problem(404, problem(400)).contains("is wrong"));
    }
}
