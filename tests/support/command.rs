//! Runs the built binary with a deadline and returns its output.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

const LIMIT: Duration = Duration::from_secs(120);

/// The output and exit code of a command.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A program of ours, without the environment of the tests.
pub fn clean(program: impl AsRef<OsStr>) -> Command {
    hear_hangups();
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROWLOCK_")) {
        command.env_remove(name);
    }
    command
}

/// Has what is started from now on hear SIGHUP, even if the tests were started by `nohup`: what has a handler
/// here is not ignored there.
fn hear_hangups() {
    static ONCE: Once = Once::new();
    // A thread of its own, since a test may have entered a runtime.
    ONCE.call_once(|| {
        thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            drop(runtime.block_on(async { signal(SignalKind::hangup()).unwrap() }));
        })
        .join()
        .unwrap()
    });
}

/// The binary, in `folder`.
pub fn rowlock(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = clean(env!("CARGO_BIN_EXE_rowlock"));
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs it to its end. Call from async code through `tokio::task::spawn_blocking`, or where nothing else
/// runs.
pub fn finish(child: Child) -> Said {
    finish_within(child, LIMIT)
}

/// As [`finish`], for commands that have much to do.
pub fn finish_within(mut child: Child, limit: Duration) -> Said {
    // Read beside the waiting, or a full pipe would stop the command.
    let mut pipes: (_, _) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = thread::spawn(move || text(&mut pipes.0));
    let err = thread::spawn(move || text(&mut pipes.1));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("no end within {limit:?}: {} | {}", out.join().unwrap(), err.join().unwrap());
        }
        thread::sleep(Duration::from_millis(5));
    };
    let code = status.code().or(status.signal().map(|signal| -signal)).unwrap();
    Said { code, out: out.join().unwrap(), err: err.join().unwrap() }
}

pub fn run(folder: &Path, arguments: &[&str]) -> Said {
    finish(rowlock(folder, arguments).spawn().unwrap())
}

fn text(pipe: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
