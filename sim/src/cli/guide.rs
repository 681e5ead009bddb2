//! Guided search over several threads, with an optional folder for the corpus.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rowlock_sim::cluster::Outcome;
use rowlock_sim::corpus::{Corpus, Origin};

use super::case::Case;
use super::case_file;
use crate::exit::Failure;

/// Largest number of corpus files: a search reads and keeps at most this many.
const FILES_MAX: usize = 500;

pub struct Guide {
    example: Case,
    folder: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    corpus: Corpus,
    /// Cases of the folder not run yet.
    known: VecDeque<Case>,
    files: usize,
}

impl Guide {
    /// Creates a search with the example's seed, length, scenario and mutant.
    pub fn new(example: &Case, folder: Option<&Path>) -> Result<Guide, Failure> {
        let known = folder.map(|folder| cases_in(folder, example)).transpose()?.unwrap_or_default();
        let corpus = Corpus::new(example.seed, example.seconds, example.scenario);
        let (files, known) = (known.len(), known.into());
        let state = Mutex::new(State { corpus, known, files });
        Ok(Guide { example: example.clone(), folder: folder.map(Path::to_owned), state })
    }

    /// Runs the next case. `fresh` is a candidate for the seed of a run without a kept origin.
    pub fn run(&self, fresh: u64, run: impl Fn(&Case) -> Outcome) -> (Case, Outcome) {
        let case = self.next(fresh);
        let outcome = run(&case);
        let origin = Origin { seed: case.seed, script: case.script.clone() };
        let mut state = self.state.lock();
        let is_kept = state.corpus.add(&origin, &outcome);
        if is_kept
            && state.files < FILES_MAX
            && let Some(folder) = &self.folder
        {
            let file = folder.join(format!("seed-{}-{:016x}.txt", case.seed, outcome.fingerprint));
            // The corpus helps later searches only; this search continues without the file.
            if case_file::save(&file, case_file::write(&case, &outcome.script, None).as_bytes()).is_ok() {
                state.files += 1;
            }
        }
        drop(state);
        (case, outcome)
    }

    fn next(&self, fresh: u64) -> Case {
        let mut state = self.state.lock();
        if let Some(known) = state.known.pop_front() {
            return Case { mistake: self.example.mistake, ..known };
        }
        let Origin { seed, script } = state.corpus.next(fresh);
        Case { seed, script, ..self.example.clone() }
    }
}

/// Returns the matching cases of a folder, in the order of their file names.
fn cases_in(folder: &Path, example: &Case) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for file in case_file::files_in(folder)?.into_iter().take(FILES_MAX) {
        let case = case_file::load(&file)?;
        if (case.seconds, case.scenario) == (example.seconds, example.scenario) {
            cases.push(case);
        }
    }
    Ok(cases)
}
