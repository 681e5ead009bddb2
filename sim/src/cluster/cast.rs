//! Checks the hosts that a script names: hosts of the seed's cluster, and nodes that the script itself adds.

use std::collections::BTreeSet;

use super::run::{CLIENTS, Plan};
use super::shape::Shape;
use crate::fault::{Fault, Target};

impl Plan {
    /// Returns the reason why the script cannot run if it names a host that this seed's cluster never has.
    pub fn refusal(&self) -> Option<String> {
        let script = self.script.as_ref()?;
        let founders = Shape::of_run(self.seed, self.scenario).nodes();
        let new = script.steps().iter().filter_map(|step| match step.fault {
            Fault::AddLearner { node } | Fault::AddVoter { node } | Fault::Replace { node, .. } => Some(node),
            _ => None,
        });
        let nodes: BTreeSet<usize> = (1..=founders).chain(new).collect();
        let is_there = |target: &Target| match target {
            Target::Node(node) => nodes.contains(node),
            Target::Follower(number) => *number < nodes.len(),
            Target::Client(number) => *number <= CLIENTS,
            Target::Leader | Target::AllNodes | Target::AllClients => true,
        };
        script.steps().iter().find_map(|step| {
            let absent = step.fault.targets().into_iter().find(|target| !is_there(target))?;
            Some(format!(
                "`{step}` names {absent}, but the cluster of seed {} has nodes 1 to {founders} and clients 1 to {CLIENTS}; name one of these, add the node first (add-learner, add-voter), or take another seed",
                self.seed
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scenario;
    use super::*;

    /// Returns the refusal of a script for a cluster of three.
    fn refusal(script: &str) -> Option<String> {
        let shape = |seed: &u64| Shape::of_run(*seed, Scenario::Calm);
        let three = |seed: &u64| (shape(seed).voters, shape(seed).learners) == (3, 0);
        let seed = (1..).find(three).expect("most have three");
        let script = Some(script.parse().expect("a script"));
        Plan { seed, seconds: 8, scenario: Scenario::Calm, script, mutant: None, record: false }.refusal()
    }

    #[test]
    fn a_script_that_names_an_absent_host_is_refused() {
        for (script, absent) in [
            ("1s isolate node5 for 100ms", "node5"),
            ("1s kill node9 for 1s", "node9"),
            ("1s isolate follower3 for 100ms", "follower3"),
            ("1s disconnect client5", "client5"),
            ("1s partition node1 client7 | node2 for 1s", "client7"),
        ] {
            let why = refusal(script).expect(script);
            assert!(why.contains(&format!("names {absent}")) && why.contains("nodes 1 to 3"), "{why}");
        }
    }

    #[test]
    fn a_script_may_name_nodes_of_the_seed_and_added_nodes() {
        for script in [
            "1s isolate node3 for 100ms\n2s kill follower2 for 1s\n3s reset nodes -> clients",
            "1s kill node4 for 1s\n2s add-voter node4\n3s isolate follower3 for 1s",
            "1s replace node1 by node5\n2s pause node5 for 1s\n3s disconnect client4",
        ] {
            assert_eq!(refusal(script), None, "{script}");
        }
    }
}
