//! Reads the closed segments of a node's history for an inspector, whether the node runs or not. Opens copies
//! only, and changes nothing in the node's folder.
//!
//! A running node may remove a segment between the list and the copy: the caller tries again.

use std::path::Path;

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;
use rowlock_proto::lock_event::{Gap, GapReason};

use super::block::{decompress, entries};
use super::footer::Footer;
use super::record::{Entry, Key};
use super::segment::{Table, folder_name};
use super::store::{FOLDER, Found};

pub use super::record::HistoryError;

/// Passes all stored entries of the history below the folder `node` to `visit`, oldest first; a lost segment
/// counts as one gap. `scratch` is an empty folder for the copies. Returns the zxid up to which the closed
/// segments have all events, `None` without a closed segment. Blocks on the disk.
///
/// # Errors
/// A segment is damaged, of another build, or cannot be read.
pub fn read(
    node: &Path,
    scratch: &Dir,
    mut visit: impl FnMut(Key, Entry),
) -> Result<Option<Zxid>, HistoryError> {
    let Found { footers, damaged, .. } = Found::scan(node)?;
    if let Some((_, error)) = damaged.into_iter().next() {
        return Err(error);
    }
    let replaced: Vec<u64> = footers.iter().filter_map(|footer| footer.replaces).collect();
    let mut covered = None;
    for footer in footers.iter().filter(|footer| !replaced.contains(&footer.number)) {
        if footer.is_lost {
            let from_zxid = covered.unwrap_or(Zxid(footer.first().zxid.0 - 1));
            let gap = Gap { from_zxid, missing: footer.entries(), reason: GapReason::Lost };
            visit(footer.last(), gap.into());
        } else {
            read_segment(node, footer, scratch, &mut visit)?;
        }
        covered = Some(footer.covered);
    }
    Ok(covered)
}

fn read_segment(
    node: &Path,
    footer: &Footer,
    scratch: &Dir,
    visit: &mut impl FnMut(Key, Entry),
) -> Result<(), HistoryError> {
    let name = folder_name(footer.number);
    let from = Dir::open(&node.join(FOLDER).join(&name))?;
    let copy = scratch.sub(&name)?;
    footer.copy_verified(&from, &copy)?;
    let table = Table::open(copy.path())?;
    for number in 0..footer.blocks.len() {
        for item in entries(&decompress(&table.get(number)?)?) {
            let item = item?;
            visit(item.key, item.entry()?);
        }
    }
    table.close(&copy)?;
    Ok(copy.remove_all()?)
}
