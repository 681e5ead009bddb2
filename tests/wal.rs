//! `rowlock wal`: what it says of the log of a node that was stopped, whole and damaged.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

use rowlock_client::CreateMode;
use serde_json::Value;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::run;
use rowlock_frames::raw::RawClient;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a document a line")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_stopped_node_is_told_in_words_and_damage_with_its_place() {
    let mut it = Cluster::start(1, FAST).await;
    let mut raw = RawClient::attach(it.endpoint(1), 20_000).await;
    for n in 0..50 {
        raw.create(&format!("/a-{n:02}"), "very secret", CreateMode::Persistent).await.unwrap();
    }
    let folder = it.data(1);
    let path = folder.to_str().unwrap().to_owned();
    let running = run(&it.folder, &["wal", "inspect", &path]);
    assert!(running.code == 0 && running.out.contains("does not start with this now"), "{}", running.out);
    it.stop(1).await;

    let whole = run(&it.folder, &["wal", "inspect", &path]);
    assert!(whole.code == 0 && whole.out.contains("a start as node 1"), "{}", whole.out);
    let dumped = run(&it.folder, &["wal", "dump", &path, "-o", "json"]);
    assert!(dumped.code == 0 && !dumped.out.contains("very secret"), "{}", dumped.err);
    let all = lines(&dumped.out);
    let creates = |all: &[Value]| {
        let commands = all.iter().flat_map(|line| line["commands"].as_array().cloned().unwrap_or_default());
        commands.filter(|one| one["op"] == "create" && one["bytes"] == 11).count()
    };
    assert_eq!(creates(&all), 50);
    let entry = all.iter().rfind(|line| line["commands"][0]["op"] == "create").unwrap();
    let index = entry["index"].to_string();
    let one = run(&it.folder, &["wal", "dump", &path, "--from", &index, "--to", &index, "--data"]);
    assert!(one.out.contains("create") && one.out.contains("data=\"very secret\""), "{}", one.out);

    // One byte in the middle of an entry that was flushed.
    let file = folder.join("wal").join(entry["file"].as_str().unwrap());
    let at = entry["offset"].as_u64().unwrap() + 40;
    let mut log = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let mut byte = [0];
    log.seek(SeekFrom::Start(at)).unwrap();
    log.read_exact(&mut byte).unwrap();
    log.seek(SeekFrom::Start(at)).unwrap();
    log.write_all(&[byte[0] ^ 0x10]).unwrap();
    let before = fs::read(&file).unwrap();
    let dumped = run(&it.folder, &["wal", "dump", &path, "-o", "json"]);
    let spoilt = lines(&dumped.out);
    let damage: Vec<&Value> = spoilt.iter().filter(|line| line["kind"] == "damage").collect();
    assert_eq!((dumped.code, damage.len()), (1, 1), "{}", dumped.out);
    assert_eq!((&damage[0]["file"], &damage[0]["offset"]), (&entry["file"], &entry["offset"]));
    let lost = entry["commands"].as_array().unwrap().len();
    assert_eq!(creates(&spoilt), 50 - lost, "what follows is shown");
    let inspected = run(&it.folder, &["wal", "inspect", &path]);
    assert!(inspected.code == 1 && inspected.out.contains("DAMAGED at offset"), "{}", inspected.out);
    assert_eq!(fs::read(&file).unwrap(), before, "nothing is changed");
    let nowhere = run(&it.folder, &["wal", "dump", "nowhere"]);
    assert!(nowhere.code == 74 && nowhere.err.contains("name the data folder"), "{}", nowhere.err);
}
