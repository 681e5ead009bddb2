//! Chooses the messages to draw if there are too many: first messages near a broken promise, then lost
//! messages, then an even sample of the rest.

use std::time::Duration;

use rowlock_world::time::Nanos;

use crate::report::scene::Message;

/// Messages this close to a broken promise are drawn first.
const CLOSE: Duration = Duration::from_secs(1);

/// Returns at most `most` of `messages`, in their order.
pub(super) fn thinned<'a>(messages: &'a [Message], violations: &[Nanos], most: usize) -> Vec<&'a Message> {
    if messages.len() <= most {
        return messages.iter().collect();
    }
    let close = |at: Nanos| violations.iter().any(|violation| at <= *violation && at + CLOSE >= *violation);
    let class = |message: &Message| match (message.lost, close(message.sent)) {
        (_, true) => 0,
        (true, false) => 1,
        (false, false) => 2,
    };
    let mut chosen = vec![false; messages.len()];
    let mut left = most;
    for wanted in 0..=2 {
        let members: Vec<usize> =
            (0..messages.len()).filter(|index| class(&messages[*index]) == wanted).collect();
        let take = members.len().min(left);
        // Takes every n-th message, so that no period and no host is left out.
        (0..take).for_each(|n| chosen[members[n * members.len() / take]] = true);
        left -= take;
    }
    messages.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(message, _)| message).collect()
}
