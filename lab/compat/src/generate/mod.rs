//! Generates scripts from seeds. The same seed and root always give the same script.
//!
//! Few names and small version numbers make collisions common. Never generates requests that `dialect`
//! excludes.

mod acl;
mod multi;
mod paths;
mod raw;

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::request::{Create, PathWatch, SetAcl, SetData, SetWatches};
use rowlock_proto::{Acl, Request, Version};

use self::paths::WatchStyle;
use crate::dialect;
use crate::script::{Action, Comeback, Relative, Script, Step};
use rowlock_world::rng::Rng;

pub fn script(seed: u64, root: &str) -> Script {
    let mut rng = Rng::new(seed);
    let clients = rng.pick_weighted(&[(4, 1), (4, 2), (2, 3)]);
    let spread = rng.chance(40);
    let home = rng.below(3);
    let servers = (0..clients).map(|_| if spread { rng.below(3) } else { home }).collect();
    let restrictive = rng.chance(30);
    let length = 6 + rng.below(40);
    let style_seed = rng.u64();
    let mut generator = Generator { rng, root: root.to_owned(), clients, restrictive, style_seed, slot: 0 };
    let steps = (0..length).map(|_| generator.step()).collect();
    Script { root: root.to_owned(), servers, steps, restrictive }
}

struct Generator {
    rng: Rng,
    root: String,
    clients: usize,
    restrictive: bool,
    style_seed: u64,
    slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Create,
    CreateTtl,
    Delete,
    SetData,
    GetData,
    Exists,
    Children,
    GetAcl,
    SetAcl,
    Multi,
    MultiRead,
    Sync,
    Ping,
    Ephemerals,
    Count,
    WhoAmI,
    AddWatch,
    RemoveWatches,
    CheckWatches,
    SetWatches,
    Auth,
    Malformed,
    UnknownOpcode,
    Reconnect,
    Close,
}

impl Generator {
    fn step(&mut self) -> Step {
        if self.rng.chance(25) {
            self.slot = self.rng.below(self.clients);
        }
        let action = self.action();
        Step { slot: self.slot, action }
    }

    fn action(&mut self) -> Action {
        match self.kind() {
            Kind::SetWatches => self.set_watches(),
            Kind::Malformed => {
                let kind = self.request_kind();
                let request = self.request(kind);
                raw::malformed(&mut self.rng, &request)
            }
            Kind::UnknownOpcode => raw::unknown_opcode(&mut self.rng),
            Kind::Reconnect => Action::Reconnect(self.rng.pick_weighted(&[
                (5, Comeback::Resume),
                (4, Comeback::Move),
                (2, Comeback::WrongPassword),
                (2, Comeback::NoSuchSession),
                (1, Comeback::Fresh),
            ])),
            Kind::Close => Action::Close,
            kind => Action::request(&self.request(kind)),
        }
    }

    fn kind(&mut self) -> Kind {
        let (lists, watches) = if self.restrictive { (6, 0) } else { (2, 3) };
        let alone = usize::from(self.clients == 1);
        self.rng.pick_weighted(&[
            (24, Kind::Create),
            (3, Kind::CreateTtl),
            (10, Kind::Delete),
            (8, Kind::SetData),
            (9, Kind::GetData),
            (6, Kind::Exists),
            (10, Kind::Children),
            (2 + lists, Kind::GetAcl),
            (2 + lists, Kind::SetAcl),
            (10, Kind::Multi),
            (3, Kind::MultiRead),
            (2, Kind::Sync),
            (1, Kind::Ping),
            (2, Kind::Ephemerals),
            (2, Kind::Count),
            (1, Kind::WhoAmI),
            (2 * watches, Kind::AddWatch),
            (watches, Kind::RemoveWatches),
            (watches * alone, Kind::CheckWatches),
            (watches, Kind::SetWatches),
            (lists, Kind::Auth),
            (1, Kind::Malformed),
            (1, Kind::UnknownOpcode),
            (3, Kind::Reconnect),
            (1, Kind::Close),
        ])
    }

    fn request_kind(&mut self) -> Kind {
        loop {
            match self.kind() {
                Kind::SetWatches | Kind::Malformed | Kind::UnknownOpcode | Kind::Reconnect | Kind::Close => {}
                kind => return kind,
            }
        }
    }

    fn request(&mut self, kind: Kind) -> Request {
        let request = match kind {
            Kind::Create => self.create_request(),
            Kind::CreateTtl => {
                let (create, ttl_ms) = self.create_ttl();
                Request::CreateTtl(create, ttl_ms)
            }
            Kind::Delete => Request::Delete { path: self.path(), version: self.version() },
            Kind::SetData => Request::SetData(self.set_data()),
            Kind::GetData => Request::GetData(self.path_watch()),
            Kind::Exists => Request::Exists(self.path_watch()),
            Kind::Children if self.rng.chance(50) => Request::GetChildren(self.path_watch()),
            Kind::Children => Request::GetChildren2(self.path_watch()),
            Kind::GetAcl => Request::GetAcl(self.path()),
            Kind::SetAcl => {
                Request::SetAcl(SetAcl { path: self.path(), acl: self.acl(), version: self.version() })
            }
            Kind::Multi => Request::Multi(self.ops()),
            Kind::MultiRead => Request::MultiRead(self.read_ops()),
            Kind::Sync => Request::Sync(self.path()),
            Kind::Ping => Request::Ping,
            Kind::Ephemerals => Request::GetEphemerals(self.prefix()),
            Kind::Count => Request::GetAllChildrenNumber(self.path()),
            Kind::WhoAmI => Request::WhoAmI,
            Kind::AddWatch => self.add_watch(),
            Kind::RemoveWatches => {
                let (path, kind) = self.watch_to_remove();
                Request::RemoveWatches { path, kind }
            }
            Kind::CheckWatches => {
                let (path, kind) = self.watch_to_remove();
                Request::CheckWatches { path, kind }
            }
            Kind::Auth => acl::auth(&mut self.rng),
            Kind::SetWatches | Kind::Malformed | Kind::UnknownOpcode | Kind::Reconnect | Kind::Close => {
                unreachable!("not a request of its own: {kind:?}")
            }
        };
        assert!(!dialect::is_deadly(&request), "{request:?}");
        request
    }

    fn create_request(&mut self) -> Request {
        let kind = self.rng.below(20);
        let mut create = self.create();
        match kind {
            0..=8 => Request::Create(create),
            9..=17 => Request::Create2(create),
            _ => {
                create.flags = self.rng.pick_weighted(&[(8, 4), (1, 0), (1, 2)]);
                Request::CreateContainer(create)
            }
        }
    }

    fn create(&mut self) -> Create {
        let flags = self.rng.pick_weighted(&[
            (10, 0),
            (6, 1),
            (5, 2),
            (4, 3),
            (2, 4),
            (1, 5),
            (1, 6),
            (1, 7),
            (1, -1),
        ]);
        Create { path: self.path_to_create(flags), data: self.data(), acl: self.acl(), flags }
    }

    fn create_ttl(&mut self) -> (Create, i64) {
        let flags = self.rng.pick_weighted(&[(6, 5), (4, 6), (1, 0), (1, 1), (1, 4), (1, 9)]);
        let create = Create { path: self.path_to_create(flags), data: self.data(), acl: self.acl(), flags };
        let times = [(6, 600_000), (2, 0xff_ffff_ffff), (1, 0x100_0000_0000), (1, 0)];
        let ttl_ms = self.rng.pick_weighted(&times);
        (create, if flags == 5 && self.rng.chance(5) { -1 } else { ttl_ms })
    }

    fn set_data(&mut self) -> SetData {
        SetData { path: self.path(), data: self.data(), version: self.version() }
    }

    fn data(&mut self) -> Option<Bytes> {
        match self.rng.below(6) {
            0 => None,
            1 => Some(Bytes::new()),
            2 => Some(Bytes::from(vec![b'x'; 1 + self.rng.below(20)])),
            _ => Some(Bytes::from(vec![b'a' + self.rng.below(4) as u8; 1])),
        }
    }

    fn version(&mut self) -> Version {
        Version(self.rng.pick_weighted(&[
            (60, -1),
            (15, 0),
            (12, 1),
            (5, 2),
            (2, 99),
            (2, -2),
            (1, i32::MIN),
        ]))
    }

    fn acl(&mut self) -> Option<Arc<[Acl]>> {
        acl::list(&mut self.rng, self.restrictive).map(Arc::from)
    }

    fn path_watch(&mut self) -> PathWatch {
        let path = self.path();
        let may = !self.restrictive && self.style(&path) == WatchStyle::Once;
        PathWatch { watch: may && self.rng.chance(60), path }
    }

    fn add_watch(&mut self) -> Request {
        let path = self.path_of_style(|style| style != WatchStyle::Once);
        let mode = match self.style(&path) {
            _ if self.rng.chance(5) => 2,
            WatchStyle::Recursive => 1,
            WatchStyle::Once | WatchStyle::Persistent => 0,
        };
        Request::AddWatch { path, mode }
    }

    fn watch_to_remove(&mut self) -> (String, i32) {
        let path = self.path();
        let kind = match self.style(&path) {
            _ if self.rng.chance(5) => self.rng.pick(&[0, 6, -1]),
            WatchStyle::Once => self.rng.pick(&[1, 2, 3]),
            WatchStyle::Persistent | WatchStyle::Recursive => 3,
        };
        (path, kind)
    }

    fn set_watches(&mut self) -> Action {
        let mut list = |style: WatchStyle| -> Vec<String> {
            let count = self.rng.below(3);
            (0..count).map(|_| self.path_of_style(|other| other == style)).collect()
        };
        let mut watches = SetWatches {
            data: list(WatchStyle::Once),
            exist: list(WatchStyle::Once),
            child: list(WatchStyle::Once),
            ..SetWatches::default()
        };
        let two = self.rng.chance(50);
        if two {
            let mut list = |style: WatchStyle| -> Vec<String> {
                let count = self.rng.below(2);
                (0..count).map(|_| self.path_of_style(|other| other == style)).collect()
            };
            watches.persistent = list(WatchStyle::Persistent);
            watches.persistent_recursive = list(WatchStyle::Recursive);
        }
        let relative =
            self.rng.pick_weighted(&[(6, Relative::LastSeen), (3, Relative::Zero), (1, Relative::Future)]);
        Action::SetWatches { relative, watches, two }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_script_below_any_root() {
        let texts = |root: &str| -> Vec<String> {
            let script = script(11, root);
            script.steps.iter().map(|step| step.action.describe().replace(root, "ROOT")).collect()
        };
        assert_eq!(texts("/first-root"), texts("/another-root"));
    }

    #[test]
    fn no_script_has_a_request_that_breaks_the_reference() {
        for seed in 0..2_000 {
            for step in script(seed, "/r").steps {
                if let Action::Send { opcode, .. } = step.action {
                    assert!(![13, 20, -10].contains(&opcode), "seed {seed}");
                    assert!(!(1_000..1_100).contains(&opcode), "seed {seed}: Rowlock's own");
                }
            }
        }
    }

    #[test]
    fn scripts_that_forbid_reading_set_no_watches() {
        for seed in 0..500 {
            let script = script(seed, "/r");
            let texts: Vec<String> = script.steps.iter().map(|step| step.action.describe()).collect();
            let watching = texts.iter().any(|text| text.contains("watch: true") || text.contains("AddWatch"));
            assert!(!(script.restrictive && watching), "seed {seed}");
        }
    }
}
