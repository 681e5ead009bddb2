//! Stories in `testdata/*.txt`: commands and, under a dashed line, what the machine answered and told.
//!
//! `ROWLOCK_UPDATE=1 cargo test -p rowlock-state --test it stories` rewrites the answers; review the
//! difference. What can be written there is described in [`script`]; what comes out in [`world`].

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod locks;
mod script;
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rowlock_state::Machine;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// Runs the story and compares, or rewrites it.
#[expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]
fn play(name: &str) {
    let path = testdata().join(format!("{name}.txt"));
    let story = std::fs::read_to_string(&path).unwrap();
    let played = replay(&story);
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        std::fs::write(&path, played).unwrap();
    } else {
        for (number, (written, played)) in story.lines().zip(played.lines()).enumerate() {
            assert_eq!(written, played, "{}:{}", path.display(), number + 1);
        }
        assert_eq!(story.lines().count(), played.lines().count(), "{} has another length", path.display());
    }
}

/// The story with the answers of a fresh machine: comments and blank lines stay, `----` blocks, which reach
/// to the next blank line, are replaced.
fn replay(story: &str) -> String {
    let mut world = world::World::default();
    let mut played = String::new();
    let mut lines = story.lines().peekable();
    while let Some(line) = lines.next() {
        played.push_str(line);
        played.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if lines.next_if_eq(&"----").is_some() {
            while lines.next_if(|line| !line.is_empty()).is_some() {}
        }
        let answer = world.run(line);
        // An empty answer would end its block.
        let answer = if answer.is_empty() { "nothing" } else { answer.trim_end() };
        writeln!(played, "----\n{answer}").unwrap();
        if lines.peek().is_some_and(|next| !next.is_empty()) {
            played.push('\n');
        }
        world.machine.check().unwrap_or_else(|error| panic!("after {line:?}: {error}"));
        restore(&world.machine).unwrap_or_else(|error| panic!("after {line:?}: {error}"));
    }
    played
}

/// Every state can be written and read back.
fn restore(machine: &Machine) -> Result<(), String> {
    let mut bytes = Vec::new();
    machine.freeze().encode(&mut bytes).map_err(|error| error.to_string())?;
    let restored = Machine::decode(&mut bytes.as_slice()).map_err(|error| error.to_string())?;
    restored.check()?;
    if restored.digest() == machine.digest() { Ok(()) } else { Err("it is restored to another".to_owned()) }
}

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[test] fn $name() { play(stringify!($name)); })*

        #[test]
        fn every_story_is_played() {
            let listed: BTreeSet<String> = [$(stringify!($name)),*].map(|name| format!("{name}.txt")).into();
            let files = std::fs::read_dir(testdata()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let present: BTreeSet<String> = files.filter(|name| name.ends_with(".txt")).collect();
            assert_eq!(listed, present);
        }
    };
}

stories! {
    access
    access_guard
    acl
    attach_and_moved
    config
    containers_and_ttl
    create_checks
    create_modes
    delete
    fenced
    locks
    locks_deadlock
    locks_many
    locks_nested
    locks_mixed
    locks_permits
    locks_replaced
    locks_shared
    locks_min_hold
    locks_ask
    locks_time
    multi
    null_data
    once
    quota
    quota_hard
    sequential
    sessions_and_ephemerals
    stat
    token_floor
    zxid_and_time
}
