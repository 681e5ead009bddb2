//! Commands on single znodes: one session, one call, one answer.

pub mod create;
pub mod get;
mod refused;
pub mod tree;

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;

use rowlock_proto::{Stat, Version, path};
use serde_json::{Value, json};

use crate::exit::{Failure, IO, USAGE};
use crate::print::{print, safe_json};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Plain text, for people and shells.
    #[default]
    Simple,
    /// One JSON document, for programs.
    Json,
}

/// Refuses an invalid path before a session is opened.
fn check_path(path: &str) -> Result<(), Failure> {
    path::validate(path).map_err(|e| no_path(path, e))
}

fn no_path(path: &str, e: path::PathError) -> Failure {
    let remedy = match e {
        path::PathError::NotAbsolute => format!("; did you mean /{path}?"),
        path::PathError::TrailingSlash => format!("; did you mean {}?", path.trim_end_matches('/')),
        _ => String::new(),
    };
    Failure::new(USAGE, format!("{path}: {e}{remedy}"))
}

/// Returns the data on the command line; without any, or with `-`, all of stdin.
pub fn data(argument: Option<OsString>) -> Result<Vec<u8>, Failure> {
    match argument {
        Some(data) if data != "-" => Ok(data.into_vec()),
        _ => {
            let mut data = Vec::new();
            let read = std::io::stdin().lock().read_to_end(&mut data);
            read.map_err(|e| Failure::new(IO, format!("cannot read the data from stdin: {e}")))?;
            Ok(data)
        }
    }
}

/// Writes a JSON value to stdout as one line.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print(format!("{}\n", safe_json(&value.to_string())).as_bytes())
}

/// Returns bytes as a JSON string, or as a list of numbers if not UTF-8.
fn json_data(data: Option<&[u8]>) -> Value {
    match data.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => json!(text),
        Some((bytes, Err(_))) => json!(bytes),
    }
}

fn json_stat(stat: &Stat) -> Value {
    json!({
        "czxid": stat.czxid.0,
        "mzxid": stat.mzxid.0,
        "ctime_ms": stat.ctime_ms,
        "mtime_ms": stat.mtime_ms,
        "version": stat.version.0,
        "cversion": stat.cversion.0,
        "aversion": stat.aversion.0,
        "ephemeral_owner": stat.ephemeral_owner.0,
        "data_length": stat.data_length,
        "num_children": stat.num_children,
        "pzxid": stat.pzxid.0,
    })
}

/// Version of a conditional change. A negative number means any version, as in ZooKeeper.
fn condition(version: Option<i32>) -> Option<Version> {
    version.filter(|v| *v >= 0).map(Version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_any_kind_has_a_form_in_json() {
        assert_eq!(json_data(None), Value::Null);
        assert_eq!(json_data(Some(b"v1")), json!("v1"));
        assert_eq!(json_data(Some(&[0xff, 1])), json!([255, 1]));
    }
}
