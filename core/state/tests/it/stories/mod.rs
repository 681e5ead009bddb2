//! Stories in `testdata/*.txt`: commands and, under a dashed line, the machine's answers and events.
//!
//! `ROWLOCK_UPDATE=1 cargo test -p rowlock-state --test it stories` rewrites the answers; review the
//! difference. Requests are written as [`rowlock_frames::script`] says, other lines as [`world`] says.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod locks;
mod world;

use std::path::{Path, PathBuf};

use rowlock_state::Machine;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// Plays a story on a fresh machine, which is checked and restored after each line.
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

rowlock_stories::stories! {
    play, testdata();
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
