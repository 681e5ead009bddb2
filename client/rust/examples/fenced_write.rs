//! Why a lock is not enough, and what is: a holder that was paused wakes up late and writes, and is refused.
//!
//! ```text
//! cargo run -p rowlock-client --example fenced_write
//! ```
//! A child process holds the lock and writes to a storage service. It is stopped (SIGSTOP: as a long garbage
//! collection, a suspended laptop or a live migration would) until its session has expired; the next holder
//! writes. Then it is woken.

#![allow(clippy::disallowed_methods)] // an application: what it does is not simulated

use std::process::{Child, Command};
use std::time::Duration;

use rowlock_client::{Acl, CreateMode, Error};
use rustix::process::{Pid, Signal, kill_process};

mod support;
use support::storage::{Storage, put_to};
use support::{Stage, Story, client_of, unique};

/// Long enough that a busy machine does not end the story early.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The holder that will be stopped: writes under the lock until it is lost.
#[tokio::main]
pub async fn holder(storage: &str, lock: &str) -> Story {
    let client = client_of(&std::env::var("ROWLOCK_ENDPOINTS")?, "holder", TIMEOUT).await?;
    let guard = client.mutex(lock).lock().await?;
    let token = guard.token();
    let lost = loop {
        // `run` asks the clock before every step: after a pause it stops before another byte goes out.
        match guard.run(put_to(storage, "balance", (lock, token), "from the first holder")).await {
            Ok(written) => assert_eq!(written?.0, 200),
            Err(lost) => break lost,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    println!("  first holder woke up: {lost}");

    // A program without `run`, or one whose write was already on its way: it is the *storage* that saves the
    // data.
    let (status, answer) = put_to(storage, "balance", (lock, token), "far too late").await?;
    println!("  first holder writes all the same: {status} {answer}");
    assert_eq!(status, 412);

    // Data in the coordinator itself need no service: `txn` commits only while the lock is held.
    let fresh = client.renew().await?;
    let late = guard.txn().create("/late", None, CreateMode::Persistent, Acl::open());
    let refused = fresh.commit(late).await;
    println!(
        "  first holder's transaction: {}",
        refused.as_ref().err().map_or("done".into(), Error::to_string)
    );
    assert!(matches!(refused, Err(Error::TransactionRejected { index: 0, .. })));
    Ok(())
}

/// Ends the child whatever happens: a stopped process would stay for ever.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The story, with a command that starts [`holder`].
#[tokio::main]
pub async fn story(start_holder: impl Fn(&str, &str) -> Command) -> Story {
    let (stage, lock) = (Stage::set().await, unique("balance"));
    let (storage, refused) = Storage::start(&lock)?;
    let client = stage.client("second holder").await?;

    let mut command = start_holder(&storage.address, &lock);
    let child = Held(command.env("ROWLOCK_ENDPOINTS", stage.endpoints()).spawn()?);
    let first = storage.stored("balance").await.token;
    println!("the first holder writes with token {first}");

    kill_process(Pid::from_child(&child.0), Signal::STOP)?;
    println!("it is stopped; after its session timeout the lock goes to the next");
    let guard = client.mutex(&lock).lock().await?;
    let (status, answer) =
        put_to(&storage.address, "balance", (&lock, guard.token()), "from the second holder").await?;
    println!("the second holder writes with token {}: {status} {answer}", guard.token());
    assert!(status == 200 && guard.token() > first);

    println!("the first one goes on, and knows nothing of that:");
    kill_process(Pid::from_child(&child.0), Signal::CONT)?;
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = child;
        child.0.wait()
    })
    .await??;
    assert!(ended.success(), "the first holder: {ended}");

    let entry = storage.stored("balance").await;
    println!("what is stored: {:?}, and {} late write was refused", entry.value, refused.all().len());
    assert_eq!(entry.value, "from the second holder");
    // Only the one that it sent on purpose: `run` let nothing out after the pause.
    assert_eq!(refused.all(), [first]);
    guard.release().await?;
    client.close().await?;
    Ok(())
}

/// Tells the story, or is the holder in it.
pub fn main() -> Story {
    let args: Vec<String> = std::env::args().collect();
    match &args[..] {
        [_, role, storage, lock] if role == "holder" => holder(storage, lock),
        _ => {
            let program = std::env::current_exe()?;
            story(move |storage, lock| {
                let mut command = Command::new(&program);
                command.args(["holder", storage, lock]);
                command
            })
        }
    }
}
