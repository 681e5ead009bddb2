//! Programs as text: `sim/world/testdata/disk.txt`, with all states that may remain.
//!
//! - `durable PATH TEXT` (name and content), `create PATH`, `write PATH AT TEXT`, `cut PATH LENGTH`,
//!   `allocate PATH LENGTH`, `sync PATH`, `mkdir PATH`, `rename PATH PATH`, `remove PATH`, `removeall
//!   PATH`, `syncdir PATH`, `list PATH`
//! - `kill` and `power`: the process or the power goes, and the next process begins
//! - `fail` (the next flush), `broken` (every change), `healed`; `show` adds the state at this moment
//!
//! A refused command stands in the answer with its error, before the state at the end. A line is one
//! outcome; a single outcome has a line for each part.

use std::collections::BTreeSet;
use std::io;

use rowlock_stories::Words;

use super::*;

struct Story {
    disk: Arc<HostDisk>,
    mount: Arc<dyn Disk>,
    seen: Vec<String>,
}

impl Story {
    fn run(&mut self, command: &str) {
        let words = &Words::new(command);
        match words.at(0) {
            "kill" => self.mount = after_kill(&self.disk),
            "power" => self.mount = after_power_loss(&self.disk),
            "fail" => self.disk.fail_syncs(1),
            "broken" => self.disk.fail_changes(true),
            "healed" => self.disk.heal(),
            "show" => self.seen.push(state(&self.mount)),
            _ => {
                if let Err(error) = change(&self.mount, words) {
                    let kind = format!("{:?}", error.kind());
                    let what = error.raw_os_error().map_or(kind, |code| format!("error {code}"));
                    self.seen.push(format!("{command}: {what}"));
                }
            }
        }
    }
}

fn change(mount: &Arc<dyn Disk>, words: &Words<'_>) -> io::Result<()> {
    let named = path(words.at(1));
    let file = || mount.open(named, Open::Existing);
    match words.at(0) {
        "durable" => drop(durable(mount, words.at(1), words.at(2).as_bytes())),
        "create" => drop(mount.open(named, Open::New)?),
        "write" => file()?.write_all_at(words.at(3).as_bytes(), words.parse(2))?,
        "cut" => file()?.set_len(words.parse(2))?,
        "allocate" => file()?.allocate(words.parse(2))?,
        "sync" => file()?.sync()?,
        "mkdir" => mount.create_dir(named)?,
        "rename" => mount.rename(named, path(words.at(2)))?,
        "remove" => mount.remove(named)?,
        "removeall" => mount.remove_all(named)?,
        "syncdir" => mount.sync_dir(named)?,
        "list" => drop(mount.list(named)?),
        verb => panic!("no such command: {verb}"),
    }
    Ok(())
}

/// Returns all files with their content, and empty directories.
fn state(mount: &Arc<dyn Disk>) -> String {
    let mut found = Vec::new();
    let mut folders = vec!["/".to_owned()];
    while let Some(folder) = folders.pop() {
        let names = mount.list(path(&folder)).expect("is a directory");
        if names.is_empty() && folder != "/" {
            found.push(folder.clone());
        }
        for name in names.iter().map(|name| format!("{folder}{name}")) {
            if mount.is_dir(path(&name)) {
                folders.push(format!("{name}/"));
            } else {
                let bytes = content(mount, &name);
                let text = String::from_utf8(bytes).expect("is text");
                let zeros = text.len() - text.trim_end_matches('\0').len();
                let (text, zeros) = text.split_at(text.len() - if zeros > 3 { zeros } else { 0 });
                let zeros =
                    if zeros.is_empty() { String::new() } else { format!(" + {} zeros", zeros.len()) };
                found.push(format!("{name} {text:?}{zeros}"));
            }
        }
    }
    found.sort();
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}

fn outcome(seed: u64, program: &str) -> String {
    let (disk, mount) = disk(seed);
    let mut story = Story { disk, mount, seen: Vec::new() };
    program.split([';', '\n']).for_each(|command| story.run(command.trim()));
    story.seen.push(state(&story.mount));
    story.seen.join("; ")
}

#[test]
fn programs_leave_these_states_and_no_others() {
    let stories = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/disk.txt");
    let played = rowlock_stories::play(&stories, |paragraph| {
        let program = match paragraph.strip_prefix("== ") {
            Some(case) => case.split_once('\n').map_or("", |(_, program)| program),
            None => paragraph,
        };
        let outcomes: BTreeSet<String> = (0..SEEDS).map(|seed| outcome(seed, program)).collect();
        let outcomes = outcomes.into_iter().collect::<Vec<_>>();
        if let [only] = &outcomes[..] { only.replace("; ", "\n") } else { outcomes.join("\n") }
    });
    played.unwrap_or_else(|difference| panic!("{difference}"));
}
