//! Operations of a client, one file per kind. The caller reports errors, so a failing operation just ends:
//! the next operation reads the current state.

mod locks;
mod recipes;
mod sessions;
mod upgrades;
mod watching;
mod znodes;

use super::life::Place;
use super::theme::Operation;

pub(super) async fn run(operation: Operation, place: &Place) {
    match operation {
        Operation::Mutex => locks::mutex(place).await,
        Operation::TryLock => locks::try_lock(place).await,
        Operation::Patient => locks::patient(place).await,
        Operation::Repeated => locks::repeated(place).await,
        Operation::Dropped => locks::dropped(place).await,
        Operation::Options => locks::options(place).await,
        Operation::Read => locks::read(place).await,
        Operation::Write => locks::write(place).await,
        Operation::Convert => locks::convert(place).await,
        Operation::Permits => locks::permits(place).await,
        Operation::Many => locks::many(place).await,
        Operation::Nested => locks::nested(place).await,
        Operation::Reentrant => locks::reentrant(place).await,
        Operation::Change => znodes::change(place).await,
        Operation::Look => znodes::read_some(place).await,
        Operation::Pipeline => znodes::pipeline(place).await,
        Operation::Sequential => znodes::sequential(place).await,
        Operation::Ephemeral => znodes::ephemeral(place).await,
        Operation::Multi => znodes::multi(place).await,
        Operation::Watch => watching::watch(place).await,
        Operation::Campaign => recipes::campaign(place).await,
        Operation::Observe => recipes::observe(place).await,
        Operation::Count => recipes::count(place).await,
        Operation::Latch => recipes::latch(place).await,
        Operation::Force => locks::force(place).await,
        Operation::Ask => locks::ask_holders(place).await,
        Operation::Hold => locks::hold(place).await,
        Operation::End => sessions::end(place).await,
        Operation::Upgrade => upgrades::upgrade(place).await,
    }
}
