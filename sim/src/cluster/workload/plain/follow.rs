//! A plain client with persistent watches, recursive or not, on the plain znodes. It loses and closes
//! connections and registers its watches again on the next one. Others write there; now and then it does so
//! itself, by reported calls.

use std::time::Duration;

use rowlock_proto::request::PathWatch;
use rowlock_proto::{Request, Zxid};

use super::super::chance::{about, between, chance, millis, pick};
use super::super::life::Place as Life;
use super::super::operations;
use super::super::theme::Operation;
use super::session::{Fate, Session};
use crate::history::client::{DATA, Follow};

/// Mean time between two things that it does.
const PAUSE: Duration = Duration::from_millis(200);
/// The most watches that it has at a time.
const WATCHES: usize = 5;
/// What addWatch calls the two modes, and removeWatches.
const MODE: [i32; 2] = [0, 1];
const KIND: [i32; 2] = [4, 5];

/// Sessions one after another, until its place in the run ends.
pub(in super::super) async fn live(life: Life) {
    while !life.is_over() {
        let profile = life.caller.profile();
        let timeout = millis(1_500, 5_000);
        let Some(mut session) = Session::open(life.caller.journal(), &profile.membership, timeout).await
        else {
            life.rest(millis(50, 400)).await;
            continue;
        };
        session.follow();
        let mut follower = Follower { life: &life, session, watches: Vec::new() };
        while !life.is_over() && !follower.session.is_over() {
            // Whatever the outcome: a lost connection is opened again, and an ended session too.
            let _ = follower.turn().await;
            follower.session.idle(about(PAUSE)).await;
        }
        // Everything up to here must have been told.
        let _ = follower.read().await;
        follower.session.close().await;
    }
}

struct Follower<'a> {
    life: &'a Life,
    session: Session,
    /// Paths, and whether all below is watched too.
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
                // Meanwhile others change what it watches.
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

    /// On a new connection, as clients do: before anything else.
    async fn come_back(&mut self) -> Result<(), Fate> {
        self.session.attach().await?;
        let of = |is_recursive: bool| {
            let own = self.watches.iter().filter(move |(_, recursive)| *recursive == is_recursive);
            own.map(|(path, _)| path.clone()).collect::<Vec<String>>()
        };
        let (persistent, recursive) = (of(false), of(true));
        let since = self.session.rearm(persistent, recursive).await?;
        self.session.tell(Follow::Rearmed { since });
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
            self.session.tell(Follow::Added { path: path.clone(), is_recursive, since });
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
            self.session.tell(Follow::Removed { path: path.clone(), is_recursive });
            self.watches.retain(|watch| *watch != (path.clone(), is_recursive));
        }
        Ok(())
    }

    /// It must have been told of what it reads; after a sync that is everything.
    async fn read(&mut self) -> Result<Zxid, Fate> {
        if chance(50) {
            self.session.attempt(Request::Sync("/".to_owned())).await?;
        }
        let asked = PathWatch { path: self.any_path(), watch: false };
        let (zxid, _) = self.session.ask(Request::Exists(asked)).await?;
        Ok(zxid)
    }
}
