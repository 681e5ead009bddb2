//! Bounds of a client's options for its connection (sessionOptions).

use std::time::Duration;

use rowlock_env::decides;
use rowlock_proto::lock::SessionOptions;

use crate::limits::DISCONNECT_GRACE_MIN_MS;

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
