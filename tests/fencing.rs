//! fencing: a holder is stopped past its session, the next one writes, the first one goes on and writes late.
//! At each resource of `tests/examples/fencing` that is installed, its fence refuses that write, and without
//! the fence it does damage. `just fencing` has more rounds; `ROWLOCK_FENCING_PYTHON` is a Python with boto3
//! and moto.

use std::path::{Path, PathBuf};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::finish_within;
use crate::support::{secs, tools};

/// Of each resource, with its fence and without it.
const ROUNDS: &str = "1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_write_of_a_stopped_holder_is_refused_by_the_fence_and_does_damage_without_it() {
    let python = match std::env::var_os("ROWLOCK_FENCING_PYTHON") {
        Some(python) => PathBuf::from(python),
        None => match tools::python("the drill of fences") {
            Some(python) => python,
            None => return,
        },
    };
    let cluster = Cluster::start_with_api(1, FAST).await;
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let programs = Path::new(env!("CARGO_BIN_EXE_rowlock")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path)));
    let mut drill = tools::command(python);
    drill.arg(root.join("tests/examples/fencing/drill.py")).arg(format!("http://{}", cluster.api(1)));
    drill.arg(std::env::var("ROWLOCK_FENCING").unwrap_or(ROUNDS.to_owned()));
    drill.env("PATH", path.unwrap()).env("PYTHONPATH", root.join("client/python"));
    let said = tokio::task::spawn_blocking(move || finish_within(drill.spawn().unwrap(), secs(3_600)));
    let said = said.await.unwrap();
    println!("{}", said.out);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for built_in in ["file", "http", "znode"] {
        let tried = said.out.lines().any(|line| line.starts_with(built_in) && line.contains("rounds"));
        assert!(tried, "{built_in} needs nothing but Python: {}", said.out);
    }
}

#[test]
fn command_lines_of_the_page_end_with_an_error_at_a_late_token() {
    let page = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("docs/fencing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("redis-cli ")).collect();
    assert!(lines.len() >= 2 && lines.iter().all(|line| line.starts_with("redis-cli -e ")), "{lines:?}");
    assert!(page.contains("`psql -v ON_ERROR_STOP=1`"));
}
