//! Stories in `testdata/*.txt`: commands and, under a dashed line, what the machine answered and told.
//!
//! `ROWLOCK_UPDATE=1 cargo test -p rowlock-state --test it stories` rewrites the answers; review the
//! difference. What can be written there is described in [`script`]; what comes out in [`world`].

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod locks;
mod script;
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rowlock_state::Machine;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// Plays the story with a fresh machine. A paragraph is one line, whose answer is never empty.
fn play(name: &str) {
    let mut world = world::World::default();
    let answer = |line: &str| {
        assert!(!line.contains('\n'), "a paragraph has one line, not {line:?}");
        let answer = world.run(line);
        world.machine.check().unwrap_or_else(|error| panic!("after {line:?}: {error}"));
        restore(&world.machine).unwrap_or_else(|error| panic!("after {line:?}: {error}"));
        if answer.is_empty() { "nothing".to_owned() } else { answer }
    };
    let played = rowlock_stories::play(&testdata().join(format!("{name}.txt")), answer);
    played.unwrap_or_else(|difference| panic!("{difference}"));
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
            let files = rowlock_stories::files(&testdata()).into_iter();
            let present = files.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
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
