//! Pings that wait for the leader's word. Pure.
//!
//! A ping may be answered only when the leader's timer of the session was restarted after the ping came in:
//! clients compute from the reply until when they may believe in their session. One confirmation is asked for
//! at a time; pings that come while it is under way need the next one.

/// The pings of one connection that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Pings {
    /// Received before the confirmation that is under way was asked for.
    covered: u32,
    later: u32,
}

/// Ask the leader now.
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

    /// The confirmation came: this many pings may be answered, and perhaps the next one is to be asked for.
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
