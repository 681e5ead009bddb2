//! The faults: nodes crash, lag and come back, clients pause and die, connections break, leaders change.

use rowlock_state::command::{Batch, Command};

use crate::history::{CLOCK_SPREAD_MS, Fact, Millis, Origin};
use crate::state::mutant::Mutant;

use super::{Step, World, violation};

impl World {
    /// One fault, or the end of one.
    pub(super) fn fault(&mut self) -> Step {
        let node = self.rng.below(self.nodes.len());
        let client = self.rng.below(self.clients.len());
        self.trace.line(format_args!("{} fault at node {node}, client {client}", self.now.0));
        match self.rng.weighted(&[8, 20, 20, 20, 15, 10, 15, 6, 8, 3, 8, 12]) {
            0 => self.crash(node),
            1 => self.restart(node),
            2 if self.nodes[node].up => {
                self.nodes[node].freeze();
                Ok(())
            }
            3 => self.write_snapshot(node),
            4 => self.install(node),
            5 => self.purge(node),
            6 => {
                self.stats.cuts += 1;
                self.cut(client);
                Ok(())
            }
            7 => self.crash_client(client),
            8 => {
                self.stats.pauses += 1;
                self.clients[client].paused_until = Millis(self.now.0 + self.rng.below(2_000) as i64);
                Ok(())
            }
            9 => self.change_leader(),
            10 => {
                self.stats.isolations += u64::from(!self.nodes[node].isolated);
                self.nodes[node].isolated = true;
                Ok(())
            }
            _ => {
                self.nodes[node].isolated = false;
                Ok(())
            }
        }
    }

    /// All faults end: nodes are up, connected, and have what they need from the log or a snapshot.
    pub(super) fn heal(&mut self) -> Step {
        for client in &mut self.clients {
            client.paused_until = self.now;
        }
        for node in 0..self.nodes.len() {
            self.nodes[node].isolated = false;
            self.restart(node)?;
        }
        for node in 0..self.nodes.len() {
            while self.nodes[node].applied < self.log.purged() {
                let source = (0..self.nodes.len())
                    .max_by_key(|node| self.nodes[*node].snapshot.as_ref().map(|s| s.index));
                self.install_from(source.expect("there are nodes"), node)?;
            }
        }
        Ok(())
    }

    fn crash(&mut self, node: usize) -> Step {
        if self.nodes[node].up {
            self.stats.node_crashes += 1;
            self.close_all(node, true);
            self.nodes[node].crash();
        }
        Ok(())
    }

    fn restart(&mut self, node: usize) -> Step {
        if self.nodes[node].up {
            return Ok(());
        }
        self.stats.restarts += 1;
        let target = &mut self.nodes[node];
        target.restart().map_err(|what| violation("replica-equality", what))?;
        let (id, index, digest) = (target.id, target.applied, target.machine.digest());
        if self.mutant == Some(Mutant::SkipEntry) && index < self.log.last() {
            target.applied.0 += 1;
        }
        // Before the first entry there is nothing to compare.
        if index.0 == 0 {
            return Ok(());
        }
        self.tell(Fact::Replica { node: id, index, digest, origin: Origin::Restart })
    }

    fn write_snapshot(&mut self, node: usize) -> Step {
        let written =
            self.nodes[node].write_snapshot().map_err(|what| violation("replica-equality", what))?;
        self.stats.snapshots += u64::from(written);
        Ok(())
    }

    /// A lagging node gets the snapshot of another, if that one is ahead.
    fn install(&mut self, node: usize) -> Step {
        let source = self.rng.below(self.nodes.len());
        let ahead = self.nodes[source].snapshot.as_ref().is_some_and(|s| s.index > self.nodes[node].applied);
        if self.nodes[node].up && ahead { self.install_from(source, node) } else { Ok(()) }
    }

    fn install_from(&mut self, source: usize, node: usize) -> Step {
        self.stats.installs += 1;
        let snapshot = self.nodes[source].snapshot.clone().expect("the log is purged behind a snapshot only");
        self.close_all(node, false);
        let target = &mut self.nodes[node];
        target.install(snapshot).map_err(|what| violation("replica-equality", what))?;
        let (id, index, digest) = (target.id, target.applied, target.machine.digest());
        self.tell(Fact::Replica { node: id, index, digest, origin: Origin::Install })
    }

    /// The log goes as far as some node has a snapshot: others may then need it.
    fn purge(&mut self, node: usize) -> Step {
        if let Some(snapshot) = &self.nodes[node].snapshot {
            self.log.purge(snapshot.index.max(self.log.purged()));
        }
        Ok(())
    }

    fn close_all(&mut self, node: usize, by_crash: bool) {
        for connection in self.connections_of(node) {
            self.close(connection, by_crash);
        }
    }

    fn crash_client(&mut self, client: usize) -> Step {
        self.stats.client_crashes += 1;
        self.cut(client);
        let mut facts = Vec::new();
        self.clients[client].crash(&mut facts);
        facts.into_iter().try_for_each(|fact| self.tell(fact))
    }

    /// The old leader's expiries have come to the log or never will; only then does the new one hear clients.
    fn change_leader(&mut self) -> Step {
        self.stats.leader_changes += 1;
        let (expiries, late) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|p| matches!(p.command, Command::ExpireSession { .. }));
        self.late = late;
        let mut proposals: Vec<_> = expiries;
        let committed = self.rng.below(proposals.len() + 1);
        proposals.truncate(committed);
        if !proposals.is_empty() {
            self.append_batch(Batch { time_ms: self.wall_ms(), proposals, ..Batch::default() })?;
        }
        self.leader_offset_ms = self.rng.below(CLOCK_SPREAD_MS as usize + 1) as i64;
        self.leader.change(self.now);
        self.tell(Fact::AllTouched { at: self.now })
    }
}
