//! What clients do in a run: the production client, on hosts of their own, telling what they ask and what they hear.

use std::time::Duration;

use rowlock_env::sync::watch;

use super::record::Journal;
use crate::history::Locks;

/// What one client of a run is like. Made from the seed, so a life after a crash may begin with it anew.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The nodes.
    pub endpoints: String,
    /// What it asks for.
    pub session_timeout: Duration,
    /// The locks of the run.
    pub locks: Locks,
}

/// One life of a client's process. Ends some time after `closing` says true, with everything given back and the
/// session closed.
pub async fn live(profile: Profile, journal: Journal, mut closing: watch::Receiver<bool>) {
    let _ = (profile, journal);
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}
