//! Plain client that works on the locks' own znodes: takes queue positions as Curator and kazoo do, removes
//! the positions of others, changes limits, and deletes and recreates a lock's znode when its queue is empty.
//!
//! With an exclusive position the client follows ZooKeeper's recipe: the client believes that it holds the
//! lock while its position is the first and its session is alive. The checkers learn all remaining facts from
//! the log.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Mode;
use rowlock_proto::path::join;
use rowlock_proto::request::{Create, Op, PathWatch, SetData};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{Acl, CreateMode, ErrorCode, FencingToken, Request, Version};

use super::super::chance::{about, between, chance, millis, pick, weighted};
use super::super::life::Place as Life;
use super::session::{Fate, Session};
use crate::history::Lock;
use crate::history::client::ClientFact;

/// Mean pause between two actions.
const PAUSE: Duration = Duration::from_millis(150);
/// Largest number of simultaneous positions.
const PLACES: usize = 3;
/// Suffixes of the client's znodes after the session's number: for exclusive positions, and for shared
/// positions and permits.
const ALONE: [&str; 4] = ["-lock-", "__lock__", "__WRIT__", "-x-"];
const BESIDE: [&str; 3] = ["__READ__", "__rlock__", "-lease-"];

struct Place {
    lock: Lock,
    path: String,
    token: FencingToken,
    is_alone: bool,
    /// Time at which the client releases the position.
    until: Instant,
    /// Whether the client holds the lock by the recipe.
    is_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    Queue,
    QueueSeveral,
    Remake,
    Resize,
    DeleteOthers,
    Litter,
}

const DEEDS: [(Deed, u64); 6] = [
    (Deed::Queue, 6),
    (Deed::QueueSeveral, 2),
    (Deed::Remake, 5),
    (Deed::Resize, 2),
    (Deed::DeleteOthers, 1),
    (Deed::Litter, 1),
];

/// Uses sessions one after another, until the run ends.
pub(in super::super) async fn live(life: Life) {
    while !life.is_over() {
        let Some(session) = Session::open_or_rest(&life).await else { continue };
        let mut worker = Worker { life: &life, session, places: Vec::new(), made: 0 };
        while !life.is_over() && !worker.session.is_over() {
            // Errors need no handling: the next turn opens a lost connection or an ended session again.
            let _ = worker.turn().await;
            worker.session.idle(about(PAUSE)).await;
        }
        worker.leave().await;
    }
}

struct Worker<'a> {
    life: &'a Life,
    session: Session,
    places: Vec<Place>,
    /// Number of used names.
    made: u64,
}

impl Worker<'_> {
    async fn turn(&mut self) -> Result<(), Fate> {
        self.report_beliefs();
        if !self.session.is_attached() {
            self.session.attach().await?;
            self.clear_away_unknown().await?;
        }
        self.release_due().await?;
        match weighted(&DEEDS) {
            Deed::Queue => self.queue().await?,
            Deed::QueueSeveral => self.queue_several().await?,
            Deed::Remake => self.remake().await?,
            Deed::Resize => self.resize().await?,
            Deed::DeleteOthers => self.delete_others().await?,
            Deed::Litter => self.litter().await?,
        }
        self.update_first().await
    }

    /// Returns the locks of the run in random order.
    fn locks(&self) -> Vec<Lock> {
        let profile = self.life.caller.profile();
        let mut locks = profile.plain.clone();
        locks.extend([profile.permits.0, profile.lead]);
        rowlock_env::rng::shuffle(&mut locks);
        locks
    }

    fn path(&self, lock: Lock) -> String {
        self.life.caller.lock_path(lock).to_owned()
    }

    /// Returns the mark in the names of this client's positions only.
    fn mark(&self) -> String {
        format!("{:016x}", self.session.id().0)
    }

    /// Returns a create of a new position below `lock`, and whether the position is exclusive.
    fn place_below(&mut self, lock: &str) -> (Create, bool) {
        self.made += 1;
        let is_alone = chance(50);
        let kind = if is_alone { pick(&ALONE) } else { pick(&BESIDE) };
        let name = format!("_c_{}{:04x}{kind}", self.mark(), self.made);
        let create = Create {
            path: join(lock, &name),
            data: chance(50).then(|| Bytes::from_static(b"plain")),
            acl: Some(Acl::shared_open()),
            flags: CreateMode::EphemeralSequential.flags(),
        };
        (create, is_alone)
    }

    fn has_room(&self) -> bool {
        self.places.len() < PLACES
    }

    fn add(&mut self, lock: Lock, path: String, token: i64, is_alone: bool) {
        let until = time::now() + millis(50, 1_500);
        let token = FencingToken(token);
        self.places.push(Place { lock, path, token, is_alone, until, is_first: false });
    }

    async fn queue(&mut self) -> Result<(), Fate> {
        if !self.has_room() {
            return Ok(());
        }
        let lock = self.locks()[0];
        let (create, is_alone) = self.place_below(&self.path(lock));
        match self.session.ask(Request::Create2(create)).await?.1 {
            Ok(Response::PathStat(path, stat)) => self.add(lock, path, stat.czxid.0, is_alone),
            Err(ErrorCode::NoNode) => self.make(&self.path(lock)).await?,
            _ => {}
        }
        Ok(())
    }

    /// Takes positions in several queues, and sometimes makes another change, in one transaction.
    async fn queue_several(&mut self) -> Result<(), Fate> {
        if !self.has_room() {
            return Ok(());
        }
        let mut locks = self.locks();
        locks.truncate(usize::try_from(between(2, 3)).unwrap_or(2));
        let (mut ops, mut alone) = (Vec::new(), Vec::new());
        for lock in &locks {
            let (create, is_alone) = self.place_below(&self.path(*lock));
            ops.push(Op::Create2(create));
            alone.push(is_alone);
        }
        if chance(30) {
            ops.push(Op::SetData(self.data_of(locks[0])));
        }
        if chance(40)
            && let Some(place) = self.places.pop()
        {
            self.let_go(&place);
            ops.push(Op::Delete { path: place.path, version: Version::ANY });
        }
        let (_, result) = self.session.ask(Request::Multi(ops)).await?;
        let Ok(Response::Multi(results)) = result else { return Ok(()) };
        for ((lock, is_alone), result) in locks.into_iter().zip(alone).zip(results) {
            if let OpResult::Create2(path, stat) = result {
                self.add(lock, path, stat.czxid.0, is_alone);
            }
        }
        Ok(())
    }

    /// Returns data for a lock's znode: mostly the permits of the run's semaphore.
    fn data(&self) -> Option<Bytes> {
        let usual = self.life.caller.profile().permits.1;
        match between(0, 9) {
            0..4 => Some(format!("permits={usual}").into()),
            4..7 => Some(format!("permits={}", between(1, 6)).into()),
            7 => Some(Bytes::new()),
            8 => Some(Bytes::from_static(b"permits=many")),
            _ => None,
        }
    }

    fn data_of(&self, lock: Lock) -> SetData {
        SetData { path: self.path(lock), data: self.data(), version: Version::ANY }
    }

    async fn resize(&mut self) -> Result<(), Fate> {
        let lock = self.locks()[0];
        let set = self.data_of(lock);
        self.session.attempt(Request::SetData(set)).await
    }

    fn znode(&self, path: &str) -> Create {
        let flags = CreateMode::Persistent.flags();
        Create { path: path.to_owned(), data: self.data(), acl: Some(Acl::shared_open()), flags }
    }

    /// Creates the znode of a lock. Clients that acquire create its ancestors.
    async fn make(&mut self, path: &str) -> Result<(), Fate> {
        let create = self.znode(path);
        let request = if chance(50) {
            Request::Create2(create)
        } else {
            Request::CreateContainer(Create { flags: CreateMode::Container.flags(), ..create })
        };
        self.session.attempt(request).await
    }

    /// Deletes the znode of a lock whose queue is empty, and mostly creates the znode again: at once, or in
    /// the same request.
    async fn remake(&mut self) -> Result<(), Fate> {
        for lock in self.locks() {
            let path = self.path(lock);
            match self.children(&path).await? {
                Some(names) if names.is_empty() => {}
                Some(_) => continue,
                None => return self.make(&path).await,
            }
            let delete = || (path.clone(), Version::ANY);
            if chance(30) {
                let (path, version) = delete();
                let ops = vec![Op::Delete { path: path.clone(), version }, Op::Create(self.znode(&path))];
                self.session.attempt(Request::Multi(ops)).await?;
            } else {
                let (path, version) = delete();
                let (_, deleted) = self.session.ask(Request::Delete { path: path.clone(), version }).await?;
                if deleted.is_ok() && chance(80) {
                    self.session.idle(millis(0, 30)).await;
                    self.make(&path).await?;
                }
            }
            if chance(50) && self.has_room() {
                let (create, is_alone) = self.place_below(&path);
                if let Ok(Response::PathStat(path, stat)) =
                    self.session.ask(Request::Create2(create)).await?.1
                {
                    self.add(lock, path, stat.czxid.0, is_alone);
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// Returns the children, or `None` if the znode does not exist.
    async fn children(&mut self, path: &str) -> Result<Option<Vec<String>>, Fate> {
        let asked = Request::GetChildren(PathWatch { path: path.to_owned(), watch: false });
        match self.session.ask(asked).await?.1 {
            Ok(Response::Children(names)) => Ok(Some(names)),
            _ => Ok(None),
        }
    }

    /// Deletes any position of another client, held or waiting.
    async fn delete_others(&mut self) -> Result<(), Fate> {
        let path = self.path(self.locks()[0]);
        let (names, mark) = (self.children(&path).await?.unwrap_or_default(), self.mark());
        let others: Vec<String> = names.into_iter().filter(|name| !name.contains(&mark)).collect();
        if others.is_empty() {
            return Ok(());
        }
        let (path, version) = (join(&path, &pick(&others)), Version::ANY);
        self.session.attempt(Request::Delete { path, version }).await
    }

    /// Creates a child that is no queue position; the child ends with the session or by `delete_others`.
    async fn litter(&mut self) -> Result<(), Fate> {
        let lock = self.locks()[0];
        let mode = pick(&[CreateMode::Persistent, CreateMode::Ephemeral]);
        let create = Create { flags: mode.flags(), ..self.znode(&join(&self.path(lock), "note")) };
        let path = create.path.clone();
        self.session.attempt(Request::Create2(create)).await?;
        self.session.idle(millis(0, 200)).await;
        self.session.attempt(Request::Delete { path, version: Version::ANY }).await
    }

    /// Deletes unknown positions of this session: a create without a reply may have made one.
    async fn clear_away_unknown(&mut self) -> Result<(), Fate> {
        let mark = self.mark();
        self.session.ask(Request::Sync("/".to_owned())).await?.1.map_err(|_| Fate::Lost)?;
        for lock in self.locks() {
            let path = self.path(lock);
            for name in self.children(&path).await?.unwrap_or_default() {
                let path = join(&path, &name);
                if name.contains(&mark) && self.places.iter().all(|place| place.path != path) {
                    self.session.attempt(Request::Delete { path, version: Version::ANY }).await?;
                }
            }
        }
        Ok(())
    }

    async fn release_due(&mut self) -> Result<(), Fate> {
        while let Some(at) = self.places.iter().position(|place| place.until <= time::now()) {
            let place = self.places.remove(at);
            self.let_go(&place);
            self.session.attempt(Request::Delete { path: place.path, version: Version::ANY }).await?;
        }
        Ok(())
    }

    /// Applies the recipe: the position with the lowest number holds the lock.
    async fn update_first(&mut self) -> Result<(), Fate> {
        for at in 0..self.places.len() {
            let Place { lock, is_alone, .. } = self.places[at];
            if !is_alone {
                continue;
            }
            let path = self.path(lock);
            let names = self.children(&path).await?.unwrap_or_default();
            let number = |name: &str| name.get(name.len().saturating_sub(10)..)?.parse::<i64>().ok();
            let first = names.iter().filter(|name| number(name).is_some()).min_by_key(|name| number(name));
            let place = &mut self.places[at];
            place.is_first = first.is_some_and(|first| join(&path, first) == place.path);
            if !place.is_first {
                let place = &self.places[at];
                self.let_go(place);
            }
            self.report_beliefs();
        }
        Ok(())
    }

    fn report_beliefs(&self) {
        let is_alive = self.session.is_alive();
        for Place { lock, token, .. } in self.places.iter().filter(|place| place.is_first && is_alive) {
            let (lock, token, mode) = (*lock, *token, Mode::Exclusive);
            self.session.journal().record(ClientFact::Holds { lock, token, mode });
        }
    }

    fn let_go(&self, place: &Place) {
        let (lock, token) = (place.lock, place.token);
        self.session.journal().record(ClientFact::LetGo { lock, token });
    }

    /// Releases all positions, or leaves their release to the end of the session.
    async fn leave(mut self) {
        self.places.iter().for_each(|place| self.let_go(place));
        if chance(20) {
            self.session.hang_up();
        } else {
            self.session.close().await;
        }
    }
}
