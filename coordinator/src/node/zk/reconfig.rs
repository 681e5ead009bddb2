//! ZooKeeper's view of the membership, as `/zookeeper/config` shows it.

use rowlock_consensus::reconfiguration::Wanted;
use rowlock_proto::ErrorCode;
use rowlock_state::Machine;

/// The answer to a client that is no superuser: as ZooKeeper does it, mistakes are found before rights are
/// missed.
pub(super) fn refusal(machine: &Machine, wanted: &Wanted) -> ErrorCode {
    if wanted.config_id != -1 && u64::try_from(wanted.config_id).ok() != config_version(machine) {
        return ErrorCode::BadVersion;
    }
    wanted.change().err().unwrap_or(ErrorCode::NoAuth)
}

/// The version that /zookeeper/config shows.
pub fn config_version(machine: &Machine) -> Option<u64> {
    let (data, _) = machine.get_data("/zookeeper/config", &[]).ok()?;
    let data = data?;
    let text = std::str::from_utf8(&data).ok()?;
    let version = text.lines().find_map(|line| line.strip_prefix("version="))?;
    u64::from_str_radix(version, 16).ok()
}
