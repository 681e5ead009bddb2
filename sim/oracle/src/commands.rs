//! Commands of the log, each run on the book.

use std::sync::Arc;

use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, Request, SessionId, Version};
use rowlock_state::command::{Attachment, Command, Ordinal, Proposal, Stamp};
use rowlock_state::outcome::{Applied, Attached, SessionEnd};

use crate::book::{Author, Cause, Change, News, Oracle, Reply};
use crate::{rights, tree};

/// Last zxid that a raise of tokens may name.
const TOKEN_MAX: i64 = (1 << 55) - 1;

impl Oracle {
    /// Takes the next batch of the log, and returns whether the batch follows the last one of its term.
    pub fn takes(&mut self, ordinal: Ordinal) -> bool {
        let Ordinal { term, number } = self.entry;
        let next = if ordinal.term == term { number + 1 } else { 1 };
        let follows = ordinal.number == 0 || ordinal.term >= term && ordinal.number == next;
        if follows && ordinal.number != 0 {
            self.entry = ordinal;
        }
        follows
    }

    /// Runs a proposal. `given`: the machine's answer.
    pub(crate) fn apply(&mut self, stamp: Stamp, proposal: &Proposal, given: &Reply<Response>) -> Applied {
        self.time_ms = self.time_ms.max(stamp.time_ms);
        self.undo.clear();
        self.touched.clear();
        self.events.clear();
        self.given = given.clone();
        self.news = News { by: proposal.session, ..News::default() };
        let mut attached = None;
        let result = self.run(stamp, proposal, &mut attached);
        Applied { zxid: self.zxid, result, attached }
    }

    fn run(&mut self, stamp: Stamp, proposal: &Proposal, attached: &mut Option<Attached>) -> Reply<Response> {
        match &proposal.command {
            Command::OpenSession { .. } if self.grace_ms > 0 => return Err(ErrorCode::ThrottledOp),
            Command::OpenSession { proof, timeout_ms } => {
                *attached = Some(self.open(proposal.origin.node, *proof, *timeout_ms));
            }
            Command::Reattach { from, session, proof, timeout_ms } => {
                *attached = Some(self.attach(*session, *proof, *from, *timeout_ms)?);
            }
            Command::ExpireSession { session, attachment } => {
                self.admit(*session, *attachment)?;
                let is_super = rights::is_super(&proposal.identities);
                self.end(*session, if is_super { SessionEnd::Ended } else { SessionEnd::Expired });
            }
            Command::Client(Request::Sync(path)) => return Ok(Response::Path(path.clone())),
            Command::Client(Request::Ask(ask)) => {
                if proposal.session != SessionId::NONE {
                    self.admit(proposal.session, proposal.attachment)?;
                }
                return self.ask(&self.author(stamp, proposal), ask);
            }
            Command::Tagged { id, acked, command } => {
                self.admit(proposal.session, proposal.attachment)?;
                return self.run_once(&self.author(stamp, proposal), (*id, *acked), command);
            }
            Command::Client(Request::Verify(claims)) => {
                self.admit(proposal.session, proposal.attachment)?;
                return self.verify(&self.author(stamp, proposal), claims);
            }
            Command::Client(Request::CloseSession) => {
                self.admit(proposal.session, proposal.attachment)?;
                self.end(proposal.session, SessionEnd::Closed);
            }
            command @ (Command::Client(_) | Command::Fenced { .. } | Command::Refused(_)) => {
                self.admit(proposal.session, proposal.attachment)?;
                return self.write(&self.author(stamp, proposal), command);
            }
            command => return self.run_own(command),
        }
        Ok(Response::Empty)
    }

    fn author(&self, stamp: Stamp, proposal: &Proposal) -> Author {
        Author { session: proposal.session, who: proposal.identities.clone(), stamp }
    }

    /// Runs a command of the cluster's own.
    fn run_own(&mut self, command: &Command) -> Reply<Response> {
        match command {
            Command::Reap { path } => {
                self.zxid.0 += 1;
                let znode = self.znode(path).ok_or(ErrorCode::NoNode)?;
                if znode.stat.num_children > 0 {
                    return Err(ErrorCode::NotEmpty);
                }
                let is_delayed = self.locks.get(&**path).is_some_and(|lock| lock.delayed_until_ms != 0);
                if !znode.is_due(self.time_ms) || is_delayed {
                    return Err(ErrorCode::BadVersion);
                }
                let change = self.remove(path);
                self.publish(&Cause::of_the_cluster(None), vec![change]);
            }
            Command::Configure { config } => {
                self.zxid.0 += 1;
                let data = Some(config.clone().into_bytes().into());
                let (change, _) = self.replace(tree::CONFIG, data, Version(-1));
                self.publish(&Cause::of_the_cluster(None), vec![change]);
            }
            Command::LockDue { lock } => {
                self.zxid.0 += 1;
                self.lock_due(lock);
            }
            Command::RaiseTokens { above } if above.0 > TOKEN_MAX => return Err(ErrorCode::BadArguments),
            Command::RaiseTokens { above } => self.zxid.0 = self.zxid.0.max(above.0),
            Command::Found { .. } => self.is_founded = true,
            Command::EndGrace => self.grace_ms = 0,
            Command::RaiseVersion { to } if to.number > self.version.number && !self.is_version_held => {
                self.version = to.clone();
            }
            Command::HoldVersion { hold } => self.is_version_held = *hold,
            _ => {}
        }
        Ok(Response::Empty)
    }

    /// Runs a client's write under a zxid of its own.
    pub(crate) fn write(&mut self, by: &Author, command: &Command) -> Reply<Response> {
        self.zxid.0 += 1;
        let request = match command {
            Command::Client(request) => request,
            Command::Refused(code) => return Err(*code),
            Command::Fenced { claim, change } => {
                let holder = self.holder_of(claim).map(|holder| holder.session);
                if holder != Some(by.session) {
                    self.permit_reading(by, claim)?;
                }
                if holder.is_none() {
                    let codes = [ErrorCode::NoNode, ErrorCode::RuntimeInconsistency];
                    return Ok(Response::Multi(codes.map(|code| OpResult::Error(Some(code))).into()));
                }
                let mut results = self.multi(by, std::slice::from_ref(change));
                let is_refused = matches!(results[0], OpResult::Error(_));
                results.insert(0, if is_refused { OpResult::Error(None) } else { OpResult::Check });
                return Ok(Response::Multi(results));
            }
            _ => return Err(ErrorCode::Unimplemented),
        };
        match request {
            Request::Multi(ops) => Ok(Response::Multi(self.multi(by, ops))),
            Request::Acquire(all) => self.acquire(by, all),
            Request::Release(claims) => self.release(by, claims),
            Request::Abandon(attempts) => self.abandon(by, attempts),
            Request::ForceRelease(claim) => self.force_release(by, claim),
            Request::Convert { claim, mode, prefix } => self.convert(by, claim, *mode, prefix),
            _ => self.change_one(by, request),
        }
    }

    fn change_one(&mut self, by: &Author, request: &Request) -> Reply<Response> {
        let (change, response) = match request {
            Request::Create(create) => {
                let (change, _) = self.create(by, create, None)?;
                let path = change.path.to_string();
                (change, Response::Path(path))
            }
            Request::Create2(create) | Request::CreateContainer(create) => {
                let (change, stat) = self.create(by, create, None)?;
                let path = change.path.to_string();
                (change, Response::PathStat(path, stat))
            }
            Request::CreateTtl(create, ttl_ms) => {
                let (change, stat) = self.create(by, create, Some(*ttl_ms))?;
                let path = change.path.to_string();
                (change, Response::PathStat(path, stat))
            }
            Request::Delete { path, version } => (self.delete(by, path, *version)?, Response::Empty),
            Request::SetData(set) => {
                let (change, stat) = self.set_data(by, set)?;
                (change, Response::Stat(stat))
            }
            Request::SetAcl(set) => return self.set_acl(by, set).map(Response::Stat),
            _ => return Err(ErrorCode::Unimplemented),
        };
        let changes = vec![change];
        self.end_delays(&changes);
        self.publish(&Cause::of(by, None), changes);
        Ok(response)
    }

    fn admit(&mut self, session: SessionId, attachment: Attachment) -> Reply<()> {
        let admitted = match self.sessions.get(&session) {
            Some(open) if open.attachment == attachment => Ok(()),
            Some(_) => Err(ErrorCode::SessionMoved),
            None => Err(ErrorCode::SessionExpired),
        };
        self.news.about = admitted.err().map(|_| "session-order");
        admitted
    }

    pub(crate) fn changes_of(&mut self, paths: Vec<Arc<str>>) -> Vec<Change> {
        paths.into_iter().map(|path| self.remove(&path)).collect()
    }
}
