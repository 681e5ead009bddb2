//! The examples do what they tell: each is run as its users run it, and holds itself to its story.

use std::process::Command;

#[path = "../../examples/election.rs"]
mod election;
#[allow(dead_code)] // its `main`: here the pieces are called
#[path = "../../examples/fenced_write.rs"]
mod fenced_write;
#[path = "../../examples/multi_lock.rs"]
mod multi_lock;
#[path = "../../examples/mutex.rs"]
mod mutex;
#[path = "../../examples/read_write.rs"]
mod read_write;
#[path = "../../examples/semaphore.rs"]
mod semaphore;

#[test]
fn the_mutex_example_runs() {
    mutex::main().unwrap();
}

#[test]
fn the_election_example_runs() {
    election::main().unwrap();
}

#[test]
fn the_multi_lock_example_runs() {
    multi_lock::main().unwrap();
}

#[test]
fn the_read_write_example_runs() {
    read_write::main().unwrap();
}

#[test]
fn the_semaphore_example_runs() {
    semaphore::main().unwrap();
}

const HOLDER: &str = "KIT_FENCED_HOLDER";

/// Hazard 3: a holder stopped with SIGSTOP past its timeout resumes and writes with its old token.
#[test]
fn a_holder_paused_beyond_its_timeout_reports_the_loss_and_its_late_write_is_refused() {
    let program = std::env::current_exe().unwrap();
    let start = move |storage: &str, lock: &str| {
        let mut command = Command::new(&program);
        let test = "examples::holder_process_of_the_fenced_write_example";
        command.args([test, "--exact", "--nocapture"]).env(HOLDER, format!("{storage} {lock}"));
        command
    };
    fenced_write::story(start).unwrap();
}

/// Not a test of its own: the child process of the one above.
#[test]
fn holder_process_of_the_fenced_write_example() {
    if let Ok(arguments) = std::env::var(HOLDER) {
        let (storage, lock) = arguments.split_once(' ').unwrap();
        fenced_write::holder(storage, lock).unwrap();
    }
}
