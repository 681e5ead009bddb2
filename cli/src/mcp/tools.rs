//! Tools of `rowlock mcp`: names, descriptions for a language model, and parameters with bounds. Schema and
//! check of the arguments come from the same table.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// Longest text of an agent in a label, in bytes.
pub const INTENT_BYTES_MAX: usize = 160;
/// Longest wait for a lock in seconds. Many programs give up a call after a minute.
pub const WAIT_S_MAX: u64 = 300;
pub const EXPIRES_S_DEFAULT: u64 = 1_800;
pub const WAIT_S_DEFAULT: u64 = 20;
pub const LIMIT_DEFAULT: u64 = 20;

/// Tool as the agent's program sees it.
pub struct ToolSpec {
    pub name: &'static str,
    about: &'static str,
    /// The tool changes nothing.
    is_read_only: bool,
    params: &'static [Param],
}

/// Parameter of a tool.
struct Param {
    name: &'static str,
    about: &'static str,
    kind: ParamKind,
    is_required: bool,
}

enum ParamKind {
    /// Text of at most this many bytes.
    Text(usize),
    Number(RangeInclusive<u64>),
    Flag,
}

const fn text(name: &'static str, most: usize, about: &'static str) -> Param {
    Param { name, about, kind: ParamKind::Text(most), is_required: true }
}

const fn number(name: &'static str, bounds: RangeInclusive<u64>, about: &'static str) -> Param {
    Param { name, about, kind: ParamKind::Number(bounds), is_required: false }
}

const fn optional(param: Param) -> Param {
    Param { is_required: false, ..param }
}

const LOCK: Param = text("lock", 512, "Name of the lock: a path such as repo/src/main.rs or deploy/staging.");

/// The tools in the order of the list.
const ALL: [ToolSpec; 8] = [
    ToolSpec {
        name: "take_lock",
        about: "Take a lock before you change the thing that it stands for. Returns when you hold it, or an error that \
                says who holds it and what for. One queue for all clients: first come, first served. The lock is lost \
                by itself after expires_s, or when this process or the cluster is cut off.",
        is_read_only: false,
        params: &[
            LOCK,
            text("intent", INTENT_BYTES_MAX, "What you will do under the lock. Other clients read it."),
            number("expires_s", 1..=86_400, "Seconds after which you lose the lock by itself. Default 1800."),
            number(
                "wait_s",
                0..=WAIT_S_MAX,
                "Longest wait in the queue in seconds; 0: do not wait. Default 20.",
            ),
            Param {
                name: "shared",
                about: "Share the lock with other clients in shared mode (readers). Default false.",
                kind: ParamKind::Flag,
                is_required: false,
            },
        ],
    },
    ToolSpec {
        name: "release_lock",
        about: "Release a lock when you are done with it. An error says that you had lost it before.",
        is_read_only: false,
        params: &[LOCK],
    },
    ToolSpec {
        name: "list_locks",
        about: "List locks that clients hold or wait for, with their holders and what these hold them for.",
        is_read_only: true,
        params: &[
            optional(text("lock", 512, "Only this lock, with all its waiters.")),
            number("limit", 1..=50, "Most locks to list, the most contended first. Default 20."),
        ],
    },
    ToolSpec {
        name: "my_locks",
        about: "List the locks that you hold, when they expire, how many clients wait, and questions to you.",
        is_read_only: true,
        params: &[],
    },
    ToolSpec {
        name: "ask_holder",
        about: "Ask the holders of a lock to give it back. They see your name and the reason; list_locks shows their \
                answer. Does not take the lock: call take_lock, too, to wait in its queue.",
        is_read_only: false,
        params: &[
            LOCK,
            text("reason", INTENT_BYTES_MAX, "Why you want the lock."),
            number(
                "within_s",
                1..=3_600,
                "Deadline in seconds after which the holder loses the lock. Needs the right to force; leave it out to ask only.",
            ),
        ],
    },
    ToolSpec {
        name: "answer_question",
        about: "Answer a question to you about a lock that you hold, for instance how long you need it. Others read \
                the answer with your intent. To give the lock back, call hand_over.",
        is_read_only: false,
        params: &[LOCK, text("answer", INTENT_BYTES_MAX, "Your answer.")],
    },
    ToolSpec {
        name: "hand_over",
        about: "Give a lock to the first client in its queue. An error says that no client waits; you then keep it.",
        is_read_only: false,
        params: &[LOCK],
    },
    ToolSpec {
        name: "write_file",
        about: "Replace a file as a whole, only while you hold the lock. A write after a loss is refused, and changes \
                nothing, even if you do not know of the loss yet.",
        is_read_only: false,
        params: &[
            LOCK,
            text("path", 4_096, "Path of the file, relative to the root folder or absolute within it."),
            text("content", 1_000_000, "The whole new content."),
        ],
    },
];

/// Returns the descriptions for the agent's program.
pub fn all() -> Vec<Tool> {
    ALL.iter().map(ToolSpec::describe).collect()
}

pub fn find(name: &str) -> Option<&'static ToolSpec> {
    ALL.iter().find(|tool| tool.name == name)
}

impl ToolSpec {
    fn describe(&self) -> Tool {
        let hints = ToolAnnotations::new().read_only(self.is_read_only).open_world(false);
        let hints = if self.is_read_only { hints } else { hints.destructive(self.name == "write_file") };
        Tool::new(self.name, self.about, Arc::new(self.schema())).with_annotations(hints)
    }

    fn schema(&self) -> JsonObject {
        let mut properties = JsonObject::new();
        for param in self.params {
            let mut property = match &param.kind {
                // JSON Schema counts characters: the check counts bytes, which are not fewer.
                ParamKind::Text(most) => json!({ "type": "string", "minLength": 1, "maxLength": most }),
                ParamKind::Number(bounds) => {
                    json!({ "type": "integer", "minimum": bounds.start(), "maximum": bounds.end() })
                }
                ParamKind::Flag => json!({ "type": "boolean" }),
            };
            if param.name == "content" {
                property["minLength"] = 0.into();
            }
            property["description"] = param.about.into();
            properties.insert(param.name.to_owned(), property);
        }
        let required: Vec<&str> =
            self.params.iter().filter(|param| param.is_required).map(|param| param.name).collect();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        let Value::Object(schema) = schema else { unreachable!("an object was made") };
        schema
    }

    /// Checks names, types and bounds of the arguments.
    pub fn check(&self, arguments: &JsonObject) -> Result<(), String> {
        let known = |name: &str| self.params.iter().any(|param| param.name == name);
        if let Some(unknown) = arguments.keys().find(|name| !known(name)) {
            let shown = crate::print::safe(&unknown.chars().take(40).collect::<String>());
            return Err(format!("{} has no argument {shown:?}", self.name));
        }
        self.params.iter().try_for_each(|param| param.check(arguments.get(param.name)))
    }
}

impl Param {
    fn check(&self, value: Option<&Value>) -> Result<(), String> {
        let name = self.name;
        let value = match value {
            None | Some(Value::Null) if !self.is_required => return Ok(()),
            None | Some(Value::Null) => return Err(format!("{name} is missing")),
            Some(value) => value,
        };
        match &self.kind {
            ParamKind::Text(most) => match value.as_str() {
                Some(text) if text.len() > *most => {
                    Err(format!("{name} has {} bytes, at most {most} are allowed", text.len()))
                }
                Some(text) if text.trim().is_empty() && name != "content" => Err(format!("{name} is empty")),
                Some(_) => Ok(()),
                None => Err(format!("{name} must be text")),
            },
            ParamKind::Number(bounds) => match value.as_u64() {
                Some(number) if bounds.contains(&number) => Ok(()),
                _ => {
                    Err(format!("{name} must be a whole number from {} to {}", bounds.start(), bounds.end()))
                }
            },
            ParamKind::Flag => {
                value.as_bool().map(drop).ok_or_else(|| format!("{name} must be true or false"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(tool: &str, arguments: Value) -> Result<(), String> {
        find(tool).unwrap().check(arguments.as_object().unwrap())
    }

    #[test]
    fn arguments_outside_their_bounds_are_refused_by_name() {
        assert_eq!(checked("take_lock", json!({ "lock": "a", "intent": "b", "wait_s": 0 })), Ok(()));
        assert_eq!(checked("my_locks", json!({})), Ok(()));
        assert_eq!(checked("write_file", json!({ "lock": "a", "path": "b", "content": "" })), Ok(()));
        for (arguments, problem) in [
            (json!({ "lock": "a" }), "intent is missing"),
            (json!({ "lock": "a", "intent": " " }), "intent is empty"),
            (json!({ "lock": 7, "intent": "b" }), "lock must be text"),
            (
                json!({ "lock": "a", "intent": "ä".repeat(81) }),
                "intent has 162 bytes, at most 160 are allowed",
            ),
            (
                json!({ "lock": "a", "intent": "b", "wait_s": 301 }),
                "wait_s must be a whole number from 0 to 300",
            ),
            (
                json!({ "lock": "a", "intent": "b", "wait_s": -1 }),
                "wait_s must be a whole number from 0 to 300",
            ),
            (
                json!({ "lock": "a", "intent": "b", "expires_s": 1.5 }),
                "expires_s must be a whole number from 1 to 86400",
            ),
            (json!({ "lock": "a", "intent": "b", "shared": "yes" }), "shared must be true or false"),
            (json!({ "lock": "a", "intent": "b", "x": 1 }), "take_lock has no argument \"x\""),
        ] {
            assert_eq!(checked("take_lock", arguments), Err(problem.to_owned()));
        }
    }

    #[test]
    fn each_schema_names_every_parameter_with_a_bound_and_a_description() {
        for (tool, spec) in all().into_iter().zip(&ALL) {
            let schema = tool.schema_as_json_value();
            assert_eq!(schema["additionalProperties"], false);
            for param in spec.params {
                let property = &schema["properties"][param.name];
                assert!(
                    property["description"].as_str().is_some_and(|about| about.ends_with('.')),
                    "{property}"
                );
                let is_bounded = property["type"] == "boolean"
                    || property["maxLength"].is_u64()
                    || property["maximum"].is_u64();
                assert!(is_bounded, "{property}");
            }
        }
    }
}
