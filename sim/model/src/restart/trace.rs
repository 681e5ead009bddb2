//! Text of a counterexample, with the same name for a node in all steps.

use super::log::{Kind, Log};
use super::state::State;
use super::step::{Cause, Step};
use super::{Restarts, sorted};

const NAMES: [char; 3] = ['A', 'B', 'C'];

impl Restarts {
    /// Returns a line for each step.
    pub fn trace(&self, steps: &[Step]) -> Vec<String> {
        let mut state = self.initial();
        // Names of the nodes in the order of the state.
        let mut names = NAMES;
        let mut lines = Vec::new();
        for step in steps {
            let next = self.rules.after(&state, *step);
            lines.push(line(*step, names, &state, &next));
            let (sorted, order) = sorted(next);
            names = order.map(|place| names[place]);
            state = sorted;
        }
        lines
    }
}

/// Returns the log in letters, each with its term: `g1` is a grant of term 1.
fn text(log: Log) -> String {
    let letter = |kind| match kind {
        Kind::Blank => 'b',
        Kind::Restart => 'r',
        Kind::Znode => 'z',
        Kind::Grant => 'g',
        Kind::Change => 'c',
    };
    let entries = log.iter().map(|(_, entry)| format!("{}{}", letter(entry.kind), entry.term));
    format!("[{}]", entries.collect::<Vec<_>>().join(" "))
}

fn line(step: Step, names: [char; 3], before: &State, after: &State) -> String {
    let name = |place: usize| names[place];
    let log = |place: usize| text(after.nodes[place].log);
    let line = match step {
        Step::Tick => "half a session timeout passes".to_owned(),
        Step::Elect(candidate, voter) => {
            let kind = after.nodes[candidate].log.iter().next_back().map(|(_, entry)| entry.kind);
            let restarts = if kind == Some(Kind::Restart) { " and restarts the cluster" } else { "" };
            format!(
                "{} leads with the vote of {}{restarts}: {}",
                name(candidate),
                name(voter),
                log(candidate)
            )
        }
        Step::ElectWithLearner(candidate) => {
            format!("{} leads with the vote of a learner: {}", name(candidate), log(candidate))
        }
        Step::Write(leader) => format!("{} appends a write of a znode: {}", name(leader), log(leader)),
        Step::Grant(leader) => format!("{} appends a grant: {}", name(leader), log(leader)),
        Step::Change(leader) => format!("{} changes the voters: {}", name(leader), log(leader)),
        Step::Send(leader, follower) => {
            format!("{} takes from {}: {}", name(follower), name(leader), log(follower))
        }
        Step::Flush(node) => format!("{} flushes", name(node)),
        Step::Confirm(leader, follower) => {
            format!("{} hears {} and confirms the holder's session", name(leader), name(follower))
        }
        Step::Release => "the holder releases the lock".to_owned(),
        Step::Lose(node, _, cause) => {
            let cause = match cause {
                Cause::Power => "loses power",
                Cause::PowerAfterClosed => "writes \"closed\" and loses power",
                Cause::FailedFlush => "fails to flush",
            };
            let memory = if after.nodes[node].has_forgotten { "has forgotten" } else { "remembers" };
            format!("{} {cause}, starts and {memory}: {}", name(node), log(node))
        }
        Step::Admit(leader, node) => format!("{} admits {}", name(leader), name(node)),
        Step::Kill(node) => format!("{} is killed, starts and remembers: {}", name(node), log(node)),
    };
    match before.token < after.token {
        true => format!("{line}; a client holds token {}", after.token),
        false => line,
    }
}
