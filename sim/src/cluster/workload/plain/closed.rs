//! Changes of znodes with closed ACLs, and of these ACLs.

use rowlock_proto::request::{Create, SetAcl, SetData};
use rowlock_proto::{Acl, CreateMode, Id, Request, Right, Version, Zxid, path as paths, perms};

use super::super::chance::{between, chance, pick};
use super::access::User;
use super::guarded::{LOCKS, any_user};
use super::session::Fate;
use crate::cluster::record::client_address;
use crate::cluster::run::CLIENTS;
use crate::history::access::{CLOSED, Need, is_closed};
use crate::history::client::ClientId;

/// Lock whose ACL may be closed: one identity alone may use its folder.
pub(super) const LOCK: &str = "/closed/lock";
/// Znodes below [`CLOSED`], and the lock.
pub(super) const ZNODES: [&str; 4] = ["/closed/a", "/closed/a/b", "/closed/c", LOCK];
const PERMS: [i32; 6] = [
    perms::ALL,
    perms::ALL,
    perms::READ,
    perms::ALL & !perms::READ,
    perms::READ | perms::CREATE,
    perms::WRITE | perms::DELETE,
];
/// Percentage of lists that are open again, so that work goes on.
const OPEN_PERCENT: u64 = 25;

/// Draws a list of up to three entries.
fn any_acl() -> Vec<Acl> {
    let named = |scheme: &str, id: &str| Id { scheme: scheme.to_owned(), id: id.to_owned() };
    let entry = |_| {
        let id = match between(0, 6) {
            0 => Id::anyone(),
            1 => named("auth", ""),
            2 => named("ip", &client_address(ClientId(between(0, CLIENTS as u64 - 1) as usize)).to_string()),
            _ => any_user(),
        };
        Acl { perms: pick(&PERMS), id }
    };
    if chance(OPEN_PERCENT) { Acl::open() } else { (0..between(1, 3)).map(entry).collect() }
}

/// Returns what an operation on a lock needs whose ACL decides.
fn perms_of(right: Right) -> i32 {
    match right {
        Right::See => perms::READ,
        Right::Take | Right::Ask => perms::CREATE,
        Right::Force => perms::DELETE,
    }
}

/// Returns what an operation on a lock needs: a right by the rules, or a permission by the ACL.
pub(super) fn need(lock: &str, right: Right) -> Need {
    match is_closed(lock) {
        true => Need::Perms { path: lock.to_owned(), any_of: perms_of(right) },
        false => Need::Right { lock: lock.to_owned(), right },
    }
}

/// Returns the lock of a place.
pub(super) fn lock_of(place: &str) -> &str {
    place.rsplit_once('/').map_or(place, |(lock, _)| lock)
}

/// Returns what force on a lock takes: the right also if an ACL decides.
pub(super) fn needs_of_force(lock: &str) -> Vec<Need> {
    let right = Need::Right { lock: lock.to_owned(), right: Right::Force };
    if is_closed(lock) { vec![need(lock, Right::Force), right] } else { vec![right] }
}

/// Returns what giving a place back as a plain client takes: nothing by the rules.
pub(super) fn need_to_delete(place: &str) -> Vec<Need> {
    let lock = lock_of(place);
    if is_closed(lock) { vec![need(lock, Right::Force)] } else { Vec::new() }
}

/// Draws a lock under rules, or the lock with a closed ACL.
pub(super) fn some_lock() -> &'static str {
    if chance(25) { LOCK } else { pick(&LOCKS) }
}

impl User<'_> {
    /// Changes a znode, mostly its ACL.
    pub(super) async fn change_closed(&mut self) -> Result<(), Fate> {
        let (path, version) = (pick(&ZNODES).to_owned(), Version::ANY);
        let parent = paths::parent(&path).unwrap_or(CLOSED).to_owned();
        let need = |path: &str, any_of| vec![Need::Perms { path: path.to_owned(), any_of }];
        let acl = Some(any_acl().into());
        let (needs, request) = match between(0, 6) {
            0 => (need(&path, perms::WRITE), Request::SetData(SetData { path, data: None, version })),
            1 => (need(&parent, perms::DELETE), Request::Delete { path, version }),
            2 | 3 => {
                let create = Create { path, data: None, acl, flags: CreateMode::Persistent.flags() };
                (need(&parent, perms::CREATE), Request::Create2(create))
            }
            _ => {
                let needs = need(&path, perms::ADMIN);
                // The ACL before the change decides.
                let (zxid, answer) = self.session.ask(Request::SetAcl(SetAcl { path, acl, version })).await?;
                self.record_answer((Zxid(zxid.0 - 1), zxid), needs, answer);
                return Ok(());
            }
        };
        self.ask(needs, request).await.map(drop)
    }

    /// Creates the folder, which stays open, and the lock.
    pub(super) async fn create_closed(&mut self) -> Result<(), Fate> {
        for path in [CLOSED, LOCK] {
            let (acl, flags) = (Some(Acl::shared_open()), CreateMode::Persistent.flags());
            let create = Create { path: path.to_owned(), data: None, acl, flags };
            self.session.attempt(Request::Create2(create)).await?;
        }
        Ok(())
    }

    /// Proves another user in the middle of the session.
    pub(super) async fn prove_more(&mut self) -> Result<(), Fate> {
        self.person.add_user();
        self.prove().await
    }
}
