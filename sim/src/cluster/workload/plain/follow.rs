//! Plain client with persistent watches, recursive or not, on the plain znodes. The client loses and closes
//! connections, and registers its watches again on the next connection. All clients write to these znodes;
//! sometimes this client does too, by reported calls.

use std::time::Duration;

use rowlock_proto::request::PathWatch;
use rowlock_proto::{Request, Zxid};

use super::super::chance::{about, between, chance, millis, pick};
use super::super::life::Place as Life;
use super::super::operations;
use super::super::theme::Operation;
use super::session::{Fate, Session};
use crate::history::client::{DATA, Follow};

/// Mean pause between two actions.
const PAUSE: Duration = Duration::from_millis(200);
/// Largest number of simultaneous watches.
const WATCHES: usize = 5;
/// Modes of addWatch and the matching kinds of removeWatches.
const MODE: [i32; 2] = [0, 1];
const KIND: [i32; 2] = [4, 5];

/// Uses sessions one after another, until the run ends.
pub(in super::super) async fn live(life: Life) {
    while !life.is_over() {
        let Some(mut session) = Session::open_or_rest(&life).await else { continue };
        session.follow();
        let mut follower = Follower { life: &life, session, watches: Vec::new() };
        while !life.is_over() && !follower.session.is_over() {
            // Errors need no handling: the next turn opens a lost connection or an ended session again.
            let _ = follower.turn().await;
            follower.session.idle(about(PAUSE)).await;
        }
        // All events up to the zxid of this read must have arrived.
        let _ = follower.read().await;
        follower.session.close().await;
    }
}

struct Follower<'a> {
    life: &'a Life,
    session: Session,
    /// Paths, and whether the watch is recursive.
    watches: Vec<(String, bool)>,
}

impl Follower<'_> {
    async fn turn(&mut self) -> Result<(), Fate> {
        if !self.session.is_attached() {
            self.come_back().await?;
        }
        match between(0, 9) {
            0..3 => self.watch().await,
            3 => self.forget().await,
            4..6 => self.read().await.map(drop),
            6 => {
                self.session.hang_up();
                // Other clients change watched znodes meanwhile.
                self.life.rest(millis(0, 400)).await;
                Ok(())
            }
            _ => {
                let kinds =
                    [Operation::Change, Operation::Sequential, Operation::Ephemeral, Operation::Multi];
                operations::run(pick(&kinds), self.life).await;
                Ok(())
            }
        }
    }

    /// Registers the watches on a new connection before any other request, as clients do.
    async fn come_back(&mut self) -> Result<(), Fate> {
        self.session.attach().await?;
        let of = |is_recursive: bool| {
            let own = self.watches.iter().filter(move |(_, recursive)| *recursive == is_recursive);
            own.map(|(path, _)| path.clone()).collect::<Vec<String>>()
        };
        let (persistent, recursive) = (of(false), of(true));
        let since = self.session.rearm(persistent, recursive).await?;
        self.session.report(Follow::Rearmed { since });
        Ok(())
    }

    fn any_path(&self) -> String {
        match between(0, 9) {
            0..3 => DATA.to_owned(),
            3..5 => format!("{DATA}/ephemeral{}", between(1, 3)),
            _ => format!("{DATA}/znode{}", between(1, self.life.caller.profile().znodes)),
        }
    }

    async fn watch(&mut self) -> Result<(), Fate> {
        let (path, is_recursive) = (self.any_path(), chance(50));
        if self.watches.len() >= WATCHES {
            return Ok(());
        }
        let mode = MODE[usize::from(is_recursive)];
        let (since, result) = self.session.ask(Request::AddWatch { path: path.clone(), mode }).await?;
        if result.is_ok() {
            self.session.report(Follow::Added { path: path.clone(), is_recursive, since });
            let watch = (path, is_recursive);
            if !self.watches.contains(&watch) {
                self.watches.push(watch);
            }
        }
        Ok(())
    }

    async fn forget(&mut self) -> Result<(), Fate> {
        if self.watches.is_empty() {
            return Ok(());
        }
        let (path, is_recursive) = pick(&self.watches);
        let kind = KIND[usize::from(is_recursive)];
        let (_, result) = self.session.ask(Request::RemoveWatches { path: path.clone(), kind }).await?;
        if result.is_ok() {
            self.session.report(Follow::Removed { path: path.clone(), is_recursive });
            self.watches.retain(|watch| *watch != (path.clone(), is_recursive));
        }
        Ok(())
    }

    /// Reads a znode. All events before the reply must have arrived; after a sync these are all acknowledged
    /// writes.
    async fn read(&mut self) -> Result<Zxid, Fate> {
        if chance(50) {
            self.session.attempt(Request::Sync("/".to_owned())).await?;
        }
        let asked = PathWatch { path: self.any_path(), watch: false };
        let (zxid, _) = self.session.ask(Request::Exists(asked)).await?;
        Ok(zxid)
    }
}
