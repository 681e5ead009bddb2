//! Order of a lock's queue, from the names of the queue znodes.
//!
//! The server numbers the znodes: ten digits at the end of the name, as ZooKeeper's `%010d` of a signed
//! 32-bit counter that wraps. Only the number counts, never the text before the number (which differs by
//! client). Numbers are compared as distances, and the queue keeps its order when the counter wraps from
//! 2147483647 to -2147483648. (Sorting the names as text, the habit of most clients, breaks there:
//! kazoo#606.)
//!
//! Holders are always the front of the queue: the server grants no later znode before an earlier one.

use rowlock_env::decides;
use rowlock_proto::lock::Mode;

use super::names;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub name: String,
    sequence: i32,
    mode: Mode,
}

/// Position of a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecipePosition {
    /// No earlier contender blocks this contender.
    Holder,
    /// An earlier contender blocks this contender.
    Behind { position: usize, wake: Wake, holder: String },
    /// The contender is not in the list.
    Absent,
}

/// Event that may change a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The end of this contender.
    Gone(String),
    /// The end of any contender before, or another number of permits.
    AnyChange,
}

/// The contenders of a lock in queue order.
#[derive(Debug)]
pub(crate) struct Queue {
    contenders: Vec<Contender>,
}

impl Queue {
    /// Parses the children of the lock's znode; children without a number are no contenders.
    pub(crate) fn new(children: Vec<String>) -> Self {
        let mut contenders: Vec<Contender> = children
            .into_iter()
            .filter_map(|name| {
                sequence(&name).map(|sequence| Contender { mode: names::mode_of(&name), name, sequence })
            })
            .collect();
        if let Some(origin) = contenders.first().map(|first| first.sequence) {
            // A queue is far shorter than half of all numbers, so distances from any member order it.
            contenders.sort_by(|a, b| {
                let distance = |contender: &Contender| contender.sequence.wrapping_sub(origin);
                distance(a).cmp(&distance(b)).then_with(|| a.name.cmp(&b.name))
            });
        }
        Queue { contenders }
    }

    /// Finds a contender's position. `limit`: the semaphore's number of permits, for a contender with
    /// permits.
    pub(crate) fn position(&self, name: &str, limit: u32) -> RecipePosition {
        let Some(at) = self.contenders.iter().position(|contender| contender.name == name) else {
            return RecipePosition::Absent;
        };
        let before = &self.contenders[..at];
        let wake = match self.contenders[at].mode {
            Mode::Exclusive => before.last().map(|last| Wake::Gone(last.name.clone())),
            Mode::Shared => {
                let blocking = before.iter().rev().find(|contender| contender.mode != Mode::Shared);
                blocking.map(|contender| Wake::Gone(contender.name.clone()))
            }
            Mode::Permits(wanted) => {
                let fits = at == 0 || permits(before) + u64::from(wanted) <= u64::from(limit);
                (!fits).then_some(Wake::AnyChange)
            }
        };
        match wake {
            None => RecipePosition::Holder,
            Some(wake) => {
                RecipePosition::Behind { position: at, wake, holder: self.contenders[0].name.clone() }
            }
        }
    }

    /// Returns how many of `limit` permits are free.
    pub(crate) fn free_permits(&self, limit: u32) -> u32 {
        let mut taken = 0;
        for (at, contender) in self.contenders.iter().enumerate() {
            let wanted = permits(std::slice::from_ref(contender));
            // The first who has to wait ends the row of the holders.
            if decides!("queue-takes-all-permits", at > 0 && taken + wanted > u64::from(limit)) {
                break;
            }
            taken += wanted;
        }
        u32::try_from(u64::from(limit).saturating_sub(taken)).unwrap_or(0)
    }

    /// Checks that the queue is exactly these two znodes, in this order.
    pub(crate) fn is_just(&self, first: &str, second: &str) -> bool {
        self.contenders.iter().map(|contender| contender.name.as_str()).eq([first, second])
    }

    /// Checks that all contenders between these two are readers.
    pub(crate) fn only_readers_between(&self, first: &str, second: &str) -> bool {
        let at = |name| self.contenders.iter().position(|contender| contender.name == name);
        match (at(first), at(second)) {
            (Some(first), Some(second)) if first < second => {
                self.contenders[first + 1..second].iter().all(|contender| contender.mode == Mode::Shared)
            }
            _ => false,
        }
    }

    /// The names of the contenders, in their order.
    pub(crate) fn into_names(self) -> Vec<String> {
        self.contenders.into_iter().map(|contender| contender.name).collect()
    }

    /// Finds the contender by the beginning of the name.
    pub(crate) fn find(&self, prefix: &str) -> Option<&str> {
        self.contenders.iter().map(|contender| contender.name.as_str()).find(|name| name.starts_with(prefix))
    }
}

/// Sums the permits of the contenders; an exclusive or shared lock counts as `u32::MAX`.
fn permits(contenders: &[Contender]) -> u64 {
    let of = |contender: &Contender| match contender.mode {
        Mode::Permits(count) => u64::from(count),
        Mode::Exclusive | Mode::Shared => u64::from(u32::MAX),
    };
    contenders.iter().map(of).sum()
}

/// Parses the server's number at the end of a sequential znode's name. A minus sign and a separating dash
/// look alike; the number's width of ten characters (eleven from -1000000000 down) tells them apart.
pub(super) fn sequence(name: &str) -> Option<i32> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (before, digits) = name.split_at(digits.max(name.len().saturating_sub(10)));
    let magnitude: i64 = digits.parse().ok()?;
    let negative = match digits.len() {
        // -1 to -999999999: the sign is the first of the ten places.
        9 => before.ends_with('-').then_some(true)?,
        // From -1000000000 down the sign is an eleventh place, behind the prefix's own dash or underscore.
        // Without one there (a prefix that ends otherwise), only a number too large to be positive gives
        // itself away.
        10 => {
            before.ends_with("--")
                || before.ends_with("_-")
                || (before.ends_with('-') && magnitude > i64::from(i32::MAX))
        }
        _ => return None,
    };
    i32::try_from(if negative { -magnitude } else { magnitude }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(names: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Queue::new(names).contenders.into_iter().map(|contender| contender.name).collect()
    }

    #[test]
    fn every_client_s_names_are_understood() {
        for (name, expected) in [
            ("_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60-lock-0000000007", Some(7)),
            ("8f14e45fceea167a5a36dedd4bea2543__lock__0000000012", Some(12)),
            ("lock-2147483647", Some(i32::MAX)),
            ("_c_x-lock--2147483648", Some(i32::MIN)),
            ("x__lock__-2147483647", Some(-2_147_483_647)),
            ("_c_x-lock--000000001", Some(-1)),
            ("x__lock__-999999999", Some(-999_999_999)),
            ("lock-2147483648", Some(i32::MIN)),
            ("40000000009", Some(9)),
            ("0000000003", Some(3)),
            ("leases", None),
            ("lock-12", None),
            ("", None),
        ] {
            assert_eq!(sequence(name), expected, "{name}");
        }
    }

    #[test]
    fn numbers_count_and_not_the_text_before_them() {
        assert_eq!(
            queue(&["_c_b-lock-0000000010", "a__lock__0000000009", "_c_a-lock-0000000011", "config"]),
            ["a__lock__0000000009", "_c_b-lock-0000000010", "_c_a-lock-0000000011"]
        );
    }

    #[test]
    fn the_order_survives_the_overflow_of_the_counter() {
        let right = [
            "l-2147483646",
            "l-2147483647",
            "l--2147483648",
            "l--2147483647",
            "l--000000001",
            "l-0000000000",
        ];
        let near_overflow = [right[3], right[1], right[2], right[0]];
        assert_eq!(queue(&near_overflow), right[..4]);
        assert_eq!(queue(&[right[5], right[4]]), right[4..]);
    }

    fn position(it: &Queue, name: &str) -> (usize, Option<Wake>) {
        match it.position(name, 4) {
            RecipePosition::Holder => (0, None),
            RecipePosition::Behind { position, wake, .. } => (position, Some(wake)),
            RecipePosition::Absent => panic!("{name} is absent"),
        }
    }

    fn gone(name: &str) -> Option<Wake> {
        Some(Wake::Gone(name.to_owned()))
    }

    #[test]
    fn a_standing_names_the_one_directly_before_and_the_holder() {
        let it = Queue::new(vec!["l-0000000003".into(), "l-0000000001".into(), "l-0000000002".into()]);
        assert_eq!(it.position("l-0000000001", 0), RecipePosition::Holder);
        let wake = Wake::Gone("l-0000000002".into());
        let behind = RecipePosition::Behind { position: 2, wake, holder: "l-0000000001".into() };
        assert_eq!(it.position("l-0000000003", 0), behind);
        assert_eq!(it.position("l-0000000004", 0), RecipePosition::Absent);
    }

    #[test]
    fn readers_wait_for_the_nearest_writer_before_them_and_for_no_later_one() {
        let names =
            ["a__READ__0000000001", "b__rlock__0000000002", "c__WRIT__0000000003", "d__READ__0000000004"];
        let it = Queue::new(names.map(str::to_owned).to_vec());
        assert_eq!(position(&it, names[0]), (0, None));
        assert_eq!(position(&it, names[1]), (0, None));
        assert_eq!(position(&it, names[2]), (2, gone(names[1])));
        assert_eq!(position(&it, names[3]), (3, gone(names[2])));
        assert!(it.only_readers_between(names[0], names[2]) && !it.only_readers_between(names[0], names[3]));
        assert!(!it.is_just(names[0], names[1]));
    }

    #[test]
    fn permits_are_taken_in_order_and_a_large_wish_is_not_overtaken() {
        let names =
            ["a-permit-0000000001", "b-2-permit-0000000002", "c-3-permit-0000000003", "d-permit-0000000004"];
        let it = Queue::new(names.map(str::to_owned).to_vec());
        assert_eq!(position(&it, names[1]), (0, None));
        assert_eq!(position(&it, names[2]), (2, Some(Wake::AnyChange)));
        assert_eq!(position(&it, names[3]), (3, Some(Wake::AnyChange)), "it would fit, but came later");
        assert_eq!(it.free_permits(4), 1);
        let alone = Queue::new(vec!["a-9-permit-0000000001".into()]);
        assert_eq!(
            position(&alone, "a-9-permit-0000000001"),
            (0, None),
            "more than the limit: granted alone"
        );
        assert_eq!((alone.free_permits(4), Queue::new(Vec::new()).free_permits(4)), (0, 4));
    }
}
