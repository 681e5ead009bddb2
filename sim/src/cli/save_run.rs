//! Files of a failing run: a case file for replays, and a space-time diagram.

use std::path::{Path, PathBuf};

use rowlock_sim::cluster::Outcome;

use super::case::Case;
use super::{case_file, print_run};
use crate::exit::Failure;

/// Paths of the two files.
pub struct Kept {
    pub case: PathBuf,
    pub page: PathBuf,
}

/// Writes a failing run into `folder`. `outcome` must have its trace.
pub fn save(case: &Case, outcome: &Outcome, folder: &Path) -> Result<Kept, Failure> {
    let mutant = case.mistake.as_ref().map(|mistake| format!("-{mistake}")).unwrap_or_default();
    // Runs of a guided search may share a seed.
    let branch =
        case.script.as_ref().map(|_| format!("-{:08x}", outcome.fingerprint >> 32)).unwrap_or_default();
    let stem = format!("seed-{}{mutant}{branch}", case.seed);
    let kept = Kept { case: folder.join(format!("{stem}.txt")), page: folder.join(format!("{stem}.html")) };
    let found = outcome.violation.as_ref().map(ToString::to_string);
    case_file::save(&kept.case, case_file::write(case, &outcome.script, found.as_deref()).as_bytes())?;
    print_run::page(case, outcome, format!("rowlock sim replay {}", kept.case.display()), &kept.page)?;
    Ok(kept)
}

/// Returns the commands for the analysis of a failed run.
pub fn advice(case: &Case, kept: Option<&Kept>) -> String {
    let mut text = String::new();
    if case.script.is_none() {
        text.push_str(&format!("reproduce: {}\n", case.command()));
    }
    if let Some(kept) = kept {
        text.push_str(&format!("replay:    rowlock sim replay {}\n", kept.case.display()));
        text.push_str(&format!("shrink:    rowlock sim shrink {}\n", kept.case.display()));
        text.push_str(&format!("look:      {}\n", kept.page.display()));
    }
    text
}
