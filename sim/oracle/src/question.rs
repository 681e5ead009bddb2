//! Questions to the holders of a lock.

use std::collections::BTreeMap;

use rowlock_proto::acl::{Acl, perms};
use rowlock_proto::lock::{Ask, Claim};
use rowlock_proto::path::validate;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, Right};
use rowlock_state::outcome::LockEventKind;
use rowlock_state::{ASK_PAUSE_MS, ASKED_MAX, ASKERS_MAX, Asker, Deadline, Question};

use crate::book::{Author, Oracle, Position, Reply, split};
use crate::events::Event;
use crate::queue::label_of;
use crate::requests::number_of_user;
use crate::rights::permit;

impl Oracle {
    pub(crate) fn ask(&mut self, by: &Author, ask: &Ask) -> Reply<Response> {
        self.zxid.0 += 1;
        let has_deadline = ask.within_ms != 0;
        if !ask.is_good() || validate(&ask.lock).is_err() {
            return Err(ErrorCode::BadArguments);
        }
        permit(self.nearest(&ask.lock), perms::CREATE, &by.who)?;
        if has_deadline {
            permit(self.nearest(&ask.lock), perms::DELETE, &by.who)?;
        }
        self.require(by, &ask.lock, if has_deadline { Right::Force } else { Right::Ask })?;
        let Some(lock) = self.locks.get(&*ask.lock) else { return Ok(Response::Number(0)) };
        let holders = lock.positions.iter().filter(|position| position.granted_ms.is_some()).take(ASKED_MAX);
        let holders: Vec<Position> = holders.cloned().collect();
        let before: Vec<&Question> = holders.iter().filter_map(|holder| holder.asked.as_ref()).collect();
        let (asked_ms, askers) = self.turn(&before, number_of_user(0, &by.who), has_deadline)?;
        let deadline = has_deadline.then_some(Deadline { since_ms: self.time_ms, within_ms: ask.within_ms });
        for holder in &holders {
            let earlier = holder.asked.as_ref().and_then(|question| question.deadline);
            let question = Question {
                reason: ask.reason.clone(),
                by: ask.by.clone(),
                asked_ms,
                deadline: earlier.into_iter().chain(deadline).min_by_key(|deadline| deadline.at_ms()),
                askers: askers.clone().into(),
            };
            self.change_position(&holder.claim(), |holder| holder.asked = Some(question));
            self.publish_question(&holder.claim());
        }
        let shown = if holders.is_empty() { 0 } else { self.ahead_shown(by, &ask.lock, holders.len()) };
        Ok(Response::Number(shown as i32))
    }

    /// Returns time and askers of the next question, or the refusal of an asker within the pause.
    fn turn(&self, before: &[&Question], who: u64, has_deadline: bool) -> Reply<(i64, Vec<Asker>)> {
        let now_ms = self.time_ms;
        let last_ms = before.iter().map(|question| question.asked_ms).max().unwrap_or(i64::MIN);
        let mut recent: BTreeMap<u64, i64> = BTreeMap::new();
        for asker in before.iter().flat_map(|question| question.askers.iter()) {
            if now_ms - asker.at_ms < ASK_PAUSE_MS {
                let at_ms = recent.entry(asker.who).or_insert(asker.at_ms);
                *at_ms = asker.at_ms.max(*at_ms);
            }
        }
        let is_early = !has_deadline && (recent.contains_key(&who) || last_ms >= now_ms);
        if is_early || last_ms >= now_ms + ASK_PAUSE_MS {
            return Err(ErrorCode::ThrottledOp);
        }
        recent.insert(who, now_ms);
        let mut askers: Vec<Asker> = recent.into_iter().map(|(who, at_ms)| Asker { who, at_ms }).collect();
        askers.sort_by_key(|asker| (asker.at_ms, asker.who == who, asker.who));
        let askers = askers.split_off(askers.len().saturating_sub(ASKERS_MAX));
        Ok((now_ms.max(last_ms.saturating_add(1)), askers))
    }

    /// Publishes the question of a holder.
    pub(crate) fn publish_question(&mut self, claim: &Claim) {
        let Some(holder) = self.position_of(claim).cloned() else { return };
        let Some((question, (lock, _))) = holder.asked.clone().zip(split(&claim.path)) else { return };
        let text = label_of(format!("{}: {}", question.by, question.reason).as_bytes());
        let list =
            |path: &str| -> Vec<Acl> { self.znode(path).map(|znode| znode.acl.to_vec()).unwrap_or_default() };
        let lists = (list(&claim.path), list(lock));
        let kind = LockEventKind::Asked { question: text };
        self.lock_event((lock, &holder), lists, String::new(), kind);
        self.events.push(Event::Asked(claim.clone(), question));
    }
}
