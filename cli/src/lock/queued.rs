//! What `lock`, `sem` and `once` share: wait in a queue, run the command under what was granted, leave.

use std::ffi::OsString;
use std::process::ExitCode;

use rowlock_client::{Client, Error, Owner};
use rowlock_proto::report::Queue;
use rowlock_proto::{Right, SessionId};

use super::held::Held;
use super::options::{self, Asking, Terms, Ties, Waiting, Work};
use super::passed::Passed;
use super::under::{self, Around, Over, Setting};
use crate::acl;
use crate::cluster::leave;
use crate::exit::Failure;
use crate::name::Name;
use crate::patience;

/// Who is further behind in a queue is not told its place.
const PLACES_SHOWN: u32 = 1_000;

/// How long to wait, on which terms to hold, what to run.
#[derive(clap::Args)]
pub struct Queued {
    #[command(flatten)]
    pub waiting: Waiting,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    ties: Ties,
    #[command(flatten)]
    work: Work,
    /// Program and arguments; everything from here on is the program's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Queued {
    /// Runs the command under what `ask` is granted; `None`: it was busy. Exits with the command's code.
    pub async fn run<H: Held>(
        &self,
        name: &Name,
        nonblock: bool,
        ask: impl AsyncFnOnce(&Client, Owner, &Asking) -> Result<Option<H>, Error>,
    ) -> Result<ExitCode, Failure> {
        self.run_around(name, self.waiting.begin(nonblock), ask, Around::Nothing).await
    }

    /// Whether there is something to run.
    pub fn has_command(&self) -> bool {
        !self.work.command(&self.words).is_empty()
    }

    /// The same, with something around the command.
    pub async fn run_around<H: Held>(
        &self,
        name: &Name,
        asking: Asking,
        ask: impl AsyncFnOnce(&Client, Owner, &Asking) -> Result<Option<H>, Error>,
        around: Around<'_>,
    ) -> Result<ExitCode, Failure> {
        let mut passed = Passed::listen()?;
        let label = self.terms.label.as_deref();
        let client = match passed.unless(asking.bound(self.ties.connect(label, &asking))).await {
            Ok(connected) => connected?,
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let acquire = async {
            let owner = options::owner(&client).await?;
            let why = self.why_we_wait(name, &client);
            let asked = patience::explained(ask(&client, owner, &asking), why).await;
            match self.judge(name, asked) {
                Ok(held) => Ok((owner, held)),
                Err(e) => Err(acl::refused(
                    &client,
                    (name.as_said(), &name.mutex(&client).server_path()),
                    Right::Take,
                    &e,
                )
                .await),
            }
        };
        let ended = match passed.unless(asking.bound(acquire)).await {
            Ok(Ok((owner, Some(held)))) => self.hold(name, &client, (owner, around), held, &mut passed).await,
            Ok(Ok((_, None))) => Ok(Over::Code(self.waiting.conflict_exit_code)),
            Ok(Err(failure)) => Err(failure),
            Err(signal) => Ok(Over::Code(under::shell_code(signal))),
        };
        // This also leaves the queue.
        leave(&client).await;
        ended.map(Over::exit)
    }

    /// For a person who waits: for whom, and at which place in the queue.
    async fn why_we_wait(&self, name: &Name, client: &Client) -> String {
        let waits = format!("waiting for {}", name.as_said());
        match client.report_queue(&name.mutex(client).server_path(), PLACES_SHOWN).await {
            Ok(queue) => format!("{waits}{}; Ctrl-C gives up", place_in(&queue, client.session_id())),
            // A plain ZooKeeper has no such report.
            Err(_) => format!("{waits}; Ctrl-C gives up"),
        }
    }

    fn judge<H: Held>(&self, name: &Name, asked: Result<Option<H>, Error>) -> Result<Option<H>, Error> {
        let say = |text: &str| self.work.say(&format!("{}: {text}", name.as_said()));
        let granted = Waiting::judge(asked, say)?;
        if let Some(held) = &granted {
            say(&options::granted(held.token(), held.wait_stats()));
        }
        Ok(granted)
    }

    async fn hold<H: Held>(
        &self,
        name: &Name,
        client: &Client,
        (owner, around): (Owner, Around<'_>),
        held: H,
        passed: &mut Passed,
    ) -> Result<Over, Failure> {
        let setting = Setting {
            client,
            name: name.as_said(),
            work: &self.work,
            words: self.work.command(&self.words),
            owner,
            way: self.ties.cluster.arguments()?,
            may_be_followed_at_once: self.terms.may_be_followed_at_once(),
            around,
        };
        under::run(held, setting, passed).await
    }
}

/// ` (held by worker-7 for 20 s, 2 before us)`, without unknown parts.
fn place_in(queue: &Queue, session: SessionId) -> String {
    let holder = queue.holders.first().map(|holder| {
        let label = holder.place.label.as_deref().map(crate::print::safe).filter(|label| !label.is_empty());
        let others = match queue.holder_count {
            0 | 1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let held = holder.held_ms.map(|ms| format!(" for {}", crate::moment::span(ms))).unwrap_or_default();
        format!("held by {}{others}{held}", label.unwrap_or_else(|| "an unnamed client".to_owned()))
    });
    let before = queue.waiters.iter().position(|waiter| waiter.place.session == Some(session));
    let before = before.filter(|before| *before > 0).map(|before| format!("{before} wait before us"));
    match [holder, before].into_iter().flatten().collect::<Vec<_>>() {
        known if known.is_empty() => String::new(),
        known => format!(" ({})", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queue(holders: u64, label: &str, sessions: &[&str]) -> Queue {
        let place = |session: &str, label: &str| {
            json!({
                "position": 1, "path": "/l/a", "session": session, "token": 3, "label": label, "address": null,
                "mode": "exclusive", "permits": null, "owner": null, "acquired": true, "since_ms": 0,
                "held_ms": 65_000, "waited_ms": 0, "revoke_at_ms": null, "waits_for": null,
            })
        };
        let waiters: Vec<_> = sessions.iter().map(|session| place(session, "w")).collect();
        serde_json::from_value(json!({
            "zxid": 1, "time_ms": 0, "lock": "/l", "limit": null, "delayed_until_ms": null,
            "holder_count": holders, "waiter_count": sessions.len(), "more": false,
            "holders": if holders > 0 { vec![place("0x9", label)] } else { Vec::new() }, "waiters": waiters,
        }))
        .unwrap()
    }

    #[test]
    fn a_waiter_is_told_who_holds_and_how_many_wait_before() {
        let us = SessionId(7);
        let said = |holders, label, sessions: &[&str]| place_in(&queue(holders, label, sessions), us);
        assert_eq!(said(1, "worker-7", &["0x7"]), " (held by worker-7 for 1 min 5 s)");
        assert_eq!(
            said(1, "a\x1b[2Jb", &["0x5", "0x6", "0x7"]),
            " (held by a [2Jb for 1 min 5 s, 2 wait before us)"
        );
        assert_eq!(said(3, "", &["0x5"]), " (held by an unnamed client and 2 more for 1 min 5 s)");
        assert_eq!(said(0, "", &[]), "");
    }
}
