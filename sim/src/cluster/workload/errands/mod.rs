//! What a client does, one file per kind of thing. Errors are told where calls are made, so an errand that
//! fails just ends: the next one finds out how things stand.

mod locks;
mod recipes;
mod upgrades;
mod watching;
mod znodes;

use super::life::Place;
use super::theme::Errand;

/// Does it once.
pub(super) async fn run(errand: Errand, place: &Place) {
    match errand {
        Errand::Mutex => locks::mutex(place).await,
        Errand::TryLock => locks::try_lock(place).await,
        Errand::Patient => locks::patient(place).await,
        Errand::Dropped => locks::dropped(place).await,
        Errand::Options => locks::options(place).await,
        Errand::Read => locks::read(place).await,
        Errand::Write => locks::write(place).await,
        Errand::Convert => locks::convert(place).await,
        Errand::Permits => locks::permits(place).await,
        Errand::Many => locks::many(place).await,
        Errand::Nested => locks::nested(place).await,
        Errand::Reentrant => locks::reentrant(place).await,
        Errand::Change => znodes::change(place).await,
        Errand::Look => znodes::look(place).await,
        Errand::Pipeline => znodes::pipeline(place).await,
        Errand::Sequential => znodes::sequential(place).await,
        Errand::Ephemeral => znodes::ephemeral(place).await,
        Errand::Multi => znodes::multi(place).await,
        Errand::Watch => watching::watch(place).await,
        Errand::Campaign => recipes::campaign(place).await,
        Errand::Observe => recipes::observe(place).await,
        Errand::Count => recipes::count(place).await,
        Errand::Latch => recipes::latch(place).await,
        Errand::Force => locks::force(place).await,
        Errand::Hold => locks::hold(place).await,
        Errand::Upgrade => upgrades::upgrade(place).await,
    }
}
