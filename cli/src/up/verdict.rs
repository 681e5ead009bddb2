//! Verdict on a demonstration, from the observations of its clients. Pure.

use std::time::Duration;

/// Turn of one client with the lock. Times count from the start of the demonstration, on one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Position in the queue, from 1.
    pub position: usize,
    pub token: i64,
    /// Time of the call of `lock`.
    pub requested: Duration,
    pub granted: Duration,
    /// Time at the begin of the release.
    pub released: Duration,
    /// Wake-ups of this waiter by the server.
    pub wakes: u64,
    /// True if the client held the lock until its release.
    pub kept: bool,
}

/// Promise, and the result of its check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub promise: &'static str,
    pub kept: bool,
    pub evidence: String,
}

/// Checks `grants`, in grant order, of `clients` that queued.
pub fn check(grants: &[Grant], clients: usize) -> Vec<Finding> {
    vec![
        all_served(grants, clients),
        in_order(grants),
        tokens_increase(grants),
        one_holder(grants),
        one_wake(grants),
    ]
}

fn all_served(grants: &[Grant], clients: usize) -> Finding {
    let kept = grants.iter().filter(|g| g.kept).count();
    Finding {
        promise: "every client got its turn",
        kept: kept == clients && grants.len() == clients,
        evidence: format!("{kept} of {clients} held the lock and released it"),
    }
}

fn in_order(grants: &[Grant]) -> Finding {
    let positions: Vec<String> = grants.iter().map(|g| g.position.to_string()).collect();
    Finding {
        promise: "grants in queue order",
        kept: grants.is_sorted_by(|a, b| a.position < b.position),
        evidence: format!("positions {}", positions.join(" ")),
    }
}

fn tokens_increase(grants: &[Grant]) -> Finding {
    let ends = match (grants.first(), grants.last()) {
        (Some(first), Some(last)) => format!("from {} to {}", first.token, last.token),
        _ => "no token".to_owned(),
    };
    Finding {
        promise: "tokens strictly increasing",
        kept: grants.is_sorted_by(|a, b| a.token < b.token),
        evidence: ends,
    }
}

/// Checks that no two turns overlap and no two holders had the same token.
fn one_holder(grants: &[Grant]) -> Finding {
    let overlaps = grants.windows(2).filter(|pair| pair[0].released > pair[1].granted).count();
    let mut tokens: Vec<i64> = grants.iter().map(|g| g.token).collect();
    tokens.sort_unstable();
    let twins = tokens.windows(2).filter(|pair| pair[0] == pair[1]).count();
    Finding {
        promise: "never two holders",
        kept: overlaps == 0 && twins == 0,
        evidence: format!("{overlaps} overlapping turns, {twins} shared tokens"),
    }
}

/// Checks that no waiter is woken twice. A waiter may have zero wake-ups: after a lost connection the waiter
/// queries its position.
fn one_wake(grants: &[Grant]) -> Finding {
    let waiters = grants.iter().filter(|g| g.position > 1).count();
    let wakes: u64 = grants.iter().map(|g| g.wakes).sum();
    let queried = grants.iter().filter(|g| g.position > 1 && g.wakes == 0).count();
    let suffix = match queried {
        0 => String::new(),
        n => format!(", {n} found out on reconnecting"),
    };
    Finding {
        promise: "one wake-up per release",
        kept: grants.iter().all(|g| g.wakes <= u64::from(g.position > 1)),
        evidence: format!("{wakes} wake-ups for {waiters} waiters{suffix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants() -> Vec<Grant> {
        let at = |ms: usize| Duration::from_millis(ms as u64);
        (1..=4)
            .map(|position| Grant {
                position,
                token: 100 + position as i64,
                requested: at(0),
                granted: at(10 * position),
                released: at(10 * position + 9),
                wakes: u64::from(position > 1),
                kept: true,
            })
            .collect()
    }

    fn broken(change: impl FnOnce(&mut Vec<Grant>)) -> Vec<&'static str> {
        let mut grants = grants();
        change(&mut grants);
        check(&grants, 4).into_iter().filter(|f| !f.kept).map(|f| f.promise).collect()
    }

    #[test]
    fn fair_round_keeps_every_promise() {
        assert!(broken(|_| ()).is_empty());
    }

    #[test]
    fn each_broken_promise_is_found_alone() {
        assert_eq!(
            broken(|g| g[2].granted = g[1].released - Duration::from_millis(1)),
            ["never two holders"]
        );
        assert_eq!(broken(|g| g[1].wakes = 3), ["one wake-up per release"]);
        assert_eq!(broken(|g| g[3].kept = false), ["every client got its turn"]);
        assert_eq!(
            broken(|g| {
                g.pop();
            }),
            ["every client got its turn"]
        );
    }

    #[test]
    fn shared_token_is_two_holders_and_no_increase() {
        assert_eq!(broken(|g| g[1].token = g[0].token), ["tokens strictly increasing", "never two holders"]);
    }

    #[test]
    fn jumped_queue_is_found() {
        assert_eq!(
            broken(|g| {
                let position = g[1].position;
                g[1].position = g[2].position;
                g[2].position = position;
            }),
            ["grants in queue order"]
        );
    }
}
