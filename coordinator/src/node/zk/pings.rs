//! Pings that wait for the leader's keepalive confirmation. Pure.
//!
//! A ping may be answered only after a restart of the session's timer at the leader, later than the ping's
//! arrival: clients compute from the reply how long their session is certain to live. The connection requests
//! a single confirmation at a time; pings that arrive meanwhile need the next confirmation.

/// Unanswered pings of one connection.
#[derive(Debug, Default)]
pub(super) struct Pings {
    /// Pings received before the outstanding confirmation was requested.
    covered: u32,
    later: u32,
}

/// Request a confirmation from the leader now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskConfirmation;

impl Pings {
    pub(super) fn received(&mut self) -> Option<AskConfirmation> {
        if self.covered > 0 {
            self.later += 1;
            return None;
        }
        self.covered = 1;
        Some(AskConfirmation)
    }

    /// Handles a confirmation. Returns the number of pings to answer, and whether to request the next
    /// confirmation.
    pub(super) fn confirmed(&mut self) -> (u32, Option<AskConfirmation>) {
        let answered = std::mem::replace(&mut self.covered, std::mem::take(&mut self.later));
        (answered, (self.covered > 0).then_some(AskConfirmation))
    }

    pub(super) fn len(&self) -> usize {
        self.covered as usize + self.later as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_is_answered_only_by_a_confirmation_asked_for_after_it() {
        let mut pings = Pings::default();
        assert_eq!(pings.received(), Some(AskConfirmation));
        assert_eq!(pings.received(), None);
        assert_eq!(pings.received(), None);
        assert_eq!(pings.confirmed(), (1, Some(AskConfirmation)));
        assert_eq!(pings.confirmed(), (2, None));
        assert_eq!(pings.confirmed(), (0, None));
        assert_eq!(pings.received(), Some(AskConfirmation));
        assert_eq!(pings.len(), 1);
    }
}
