//! Tokens of HTTP clients: the file that nodes read, and the header of a request.

use std::io;
use std::path::{Path, PathBuf};

use rowlock_coordinator::access::tokens::{Hash, Token};
use rowlock_env::disk::Dir;

use crate::history::access::Bearer;

const FOLDER: &str = "/etc/rowlock";
const FILE: &str = "tokens";
/// End of the ended token, in milliseconds since 1970.
const ENDED_MS: i64 = 1;

/// Returns the path of the file on each node.
pub fn path() -> PathBuf {
    Path::new(FOLDER).join(FILE)
}

/// Writes the file to this node's disk, unless the disk has the file. Blocking.
pub fn write_once() -> io::Result<()> {
    let folder = Dir::create(Path::new(FOLDER))?;
    if folder.exists(FILE) {
        return Ok(());
    }
    let lines: Vec<String> = Bearer::ALL.into_iter().filter_map(line).collect();
    folder.write_atomic(FILE, (lines.join("\n") + "\n").as_bytes())
}

fn line(bearer: Bearer) -> Option<String> {
    let (roles, expires_ms) = match bearer {
        Bearer::Ended => ("operator", Some(ENDED_MS)),
        bearer => (bearer.roles()?, None),
    };
    let roles = roles.split(',').map(|role| role.parse().expect("a role")).collect();
    let name = bearer.name().to_owned();
    Some(Token { name, hash: Hash::of(&text(bearer)), roles, expires_ms }.to_string())
}

fn text(bearer: Bearer) -> String {
    format!("rowlock_of_{}", bearer.name())
}

/// Returns the header of a request, behind a tab.
pub fn header(bearer: Bearer) -> String {
    match bearer {
        Bearer::Absent => String::new(),
        bearer => format!("\tAuthorization: Bearer {}", text(bearer)),
    }
}
