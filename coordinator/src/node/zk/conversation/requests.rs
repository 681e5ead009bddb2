//! Authentication of a client, and its rights before that.
//!
//! Must never give an unauthenticated client any other information, where the configuration requires
//! authentication (`client.require_auth`).
//!
//! Reports for clients, and operations of superusers. A task builds a report from the state at the request's
//! turn; the conversation forwards an operation at its turn.
//!
//! Invariant: the events of all that the report shows are in `output` before its reply.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::DISCONNECT_GRACE_MIN_MS;
use bytes::Bytes;
use rowlock_env::time::Instant;
use rowlock_env::{decides, rng};
use rowlock_proto::acl::Id;
use rowlock_proto::decode::BadRequest;
use rowlock_proto::lock::SessionOptions;
use rowlock_proto::response::{ReplyHeader, Response};
use rowlock_proto::{ErrorCode, OpCode, RequestFrame, Xid, Zxid};
use rowlock_state::acl;

use super::super::shared::PasswordUser;
use super::super::{identity, sasl};
use super::{Conversation, Phase};
use crate::node::admin::{Ask, Reader};
use crate::node::delivery::outbox::Inbox;

impl Conversation {
    /// Returns the xid of a request that is refused unread for lack of authentication. Until then a client
    /// may authenticate, send pings, and close its session.
    pub(super) fn barred(&self, read: &Result<RequestFrame, BadRequest>) -> Option<Xid> {
        if !self.shared.context.config.client.require_auth || acl::has_proven(&self.identities) {
            return None;
        }
        let (xid, opcode) = match read {
            Ok(RequestFrame { xid, request }) => (*xid, Some(request.opcode())),
            Err(BadRequest::Body { xid, opcode, .. }) => (*xid, Some(*opcode)),
            Err(BadRequest::UnknownOpcode { xid, .. }) => (*xid, None),
            Err(BadRequest::Header) => return None,
        };
        let may_pass = [OpCode::Auth, OpCode::Sasl, OpCode::Ping, OpCode::CloseSession];
        opcode.is_none_or(|opcode| !may_pass.contains(&opcode)).then_some(xid)
    }

    /// Replies as ZooKeeper's `enforce.auth` does, and closes. The session stays until its timeout, for a
    /// client that reconnects and authenticates.
    pub(super) fn bar(&mut self, xid: Xid, read: Option<RequestFrame>) {
        tracing::debug!(peer = %self.peer.addr, "closed: it has not authenticated, and client.require_auth is on");
        if let Some(frame) = read {
            self.record_barred(&frame.request);
        }
        let err = Some(ErrorCode::SessionClosedRequireSaslAuth);
        self.write_reply(ReplyHeader { xid, zxid: Zxid(0), err }, None);
        self.phase = Phase::Finishing;
    }

    /// Replies at once, bypassing the queue; later requests use the new identities.
    pub(super) fn authenticate(&mut self, xid: Xid, scheme: &str, auth: &Bytes) {
        let super_digest = self.shared.context.config.client.super_digest.as_deref();
        let attempt = identity::super_attempt(scheme, auth, super_digest);
        let proven = match attempt {
            Some(is_right)
                if !self.shared.admits_password(&self.peer, &PasswordUser::Superuser, is_right) =>
            {
                Err(identity::AuthFailed)
            }
            _ => identity::authenticated(&self.identities, scheme, auth, super_digest),
        };
        let err = self.take_on(proven).err();
        let result = match (attempt, err) {
            (Some(false), _) => Err("WrongSuperPassword"),
            (_, Some(_)) => Err("AuthFailed"),
            (_, None) => Ok(()),
        };
        self.record_auth(&identity::attempted(scheme, auth), result);
        self.write_reply(ReplyHeader { xid, zxid: Zxid(0), err }, None);
    }

    /// Replies at once like `authenticate`: clients send no other request before SASL has succeeded.
    pub(super) fn negotiate(&mut self, xid: Xid, token: &Bytes) {
        let users = &self.shared.context.config.client.sasl_users;
        let nonce = || format!("{:016x}{:016x}", rng::u64(), rng::u64());
        let step = self.sasl.step(token, users, nonce);
        let is_challenge = matches!(step, Ok(sasl::SaslStep::Challenge(_)));
        let admits_password = |user: &str, is_right| {
            self.shared.admits_password(&self.peer, &PasswordUser::Sasl(user), is_right)
        };
        let step = match step {
            Ok(sasl::SaslStep::Challenge(challenge)) => Ok((self.identities.clone(), challenge)),
            Ok(sasl::SaslStep::Proven { user, token }) if admits_password(&user, true) => {
                tracing::debug!(peer = %self.peer.addr, user, "authenticated by SASL");
                identity::with_sasl_user(&self.identities, user).map(|identities| (identities, token))
            }
            Ok(sasl::SaslStep::Proven { .. }) => Err(identity::AuthFailed),
            Err(sasl::Failed) => {
                admits_password("", false);
                Err(identity::AuthFailed)
            }
        };
        let (proven, token) = match step {
            Ok((identities, token)) => (Ok(identities), token),
            Err(failed) => (Err(failed), String::new()),
        };
        let err = self.take_on(proven).err();
        if !is_challenge {
            self.record_auth("sasl", err.map_or(Ok(()), |_| Err("AuthFailed")));
        }
        let header = ReplyHeader { xid, zxid: Zxid(0), err };
        let body = Response::Sasl(Some(token.into()));
        self.write_reply(header, err.is_none().then_some(&body));
    }

    /// Adopts the new identities, or closes the connection after a failure.
    fn take_on(&mut self, proven: Result<Arc<[Id]>, identity::AuthFailed>) -> Result<(), ErrorCode> {
        let Ok(identities) = proven else {
            self.phase = Phase::Finishing;
            return Err(ErrorCode::AuthFailed);
        };
        self.shared.context.replica.watches.lock().identify(self.peer.id, identities.clone());
        self.identities = identities;
        Ok(())
    }
}

/// Returns the effective grace for a session with this timeout; 0: a hang-up shortens nothing. The grace is
/// at least the time that a client needs to reconnect, and 0 where it would not end the session sooner.
pub(super) fn disconnect_grace_ms(options: SessionOptions, timeout: Duration) -> u32 {
    match options.disconnect_grace_ms {
        0 => 0,
        asked => {
            let grace_ms = asked.max(DISCONNECT_GRACE_MIN_MS);
            if decides!("grace-is-below-timeout", Duration::from_millis(u64::from(grace_ms)) < timeout) {
                grace_ms
            } else {
                0
            }
        }
    }
}

impl Conversation {
    /// Forwards each operation whose turn has come.
    pub(super) fn begin_operation(&mut self) {
        while let Some((tag, operation)) = self.queue.begin_operation() {
            let ask = Ask { wanted: operation, reply_to: self.peer.outbox.clone(), tag };
            if let Err(code) = self.shared.context.admin.operate(ask) {
                self.queue.reported(tag, Err(code));
            }
        }
    }

    /// Starts each report whose turn has come. Returns the number of replies on the way.
    pub(super) fn begin_report(&mut self, inbox: &mut Inbox, now: Instant) -> usize {
        let mut answered = 0;
        while self.queue.report_is_next() && !self.is_full() {
            let replica = self.shared.context.replica.clone();
            let state = replica.state.read();
            self.take_messages(inbox, now);
            // The messages may have ended the conversation.
            let Some((tag, question)) = self.queue.begin_report() else { break };
            self.seen(state.last_zxid());
            let frozen = state.freeze();
            drop(state);
            let (who, session) = (self.identities.to_vec(), self.attached.session);
            let reader = Reader { who, session, address: self.peer.addr.ip() };
            let ask = Ask { wanted: question, reply_to: self.peer.outbox.clone(), tag };
            if let Err(code) = self.shared.context.reports.report(frozen, ask, reader) {
                self.queue.reported(tag, Err(code));
            }
            answered += self.answer_settled(now);
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disconnect_grace_stays_within_its_bounds() {
        let in_force = |asked| {
            let options = SessionOptions { disconnect_grace_ms: asked };
            disconnect_grace_ms(options, Duration::from_millis(4_000))
        };
        let asked = [0, 1, 99, 100, 500, 3_999, 4_000, u32::MAX];
        assert_eq!(asked.map(in_force), [0, 100, 100, 100, 500, 3_999, 0, 0]);
    }
}
