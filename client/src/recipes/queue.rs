//! The order of a lock's queue, from the names of its znodes.
//!
//! The server numbers them: ten digits at the end of the name, as ZooKeeper's `%010d` of a signed 32-bit counter that
//! wraps. So only the number counts, never the text before it (which differs by client), and numbers are compared as
//! distances, so that the queue keeps its order when the counter wraps from 2147483647 to -2147483648. (Sorting the
//! names as text, as most clients do, breaks there: kazoo#606.)

/// A member of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub name: String,
    sequence: i32,
}

/// Where a contender stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// First: it holds the lock.
    Holder,
    /// Somebody is before it.
    Behind { position: usize, predecessor: String, holder: String },
    /// Not in the list.
    Absent,
}

/// The contenders of one lock in their order.
#[derive(Debug)]
pub(crate) struct Queue {
    contenders: Vec<Contender>,
}

impl Queue {
    /// From the children of the lock's znode; children without a number are no contenders.
    pub(crate) fn new(children: Vec<String>) -> Self {
        let mut contenders: Vec<Contender> = children
            .into_iter()
            .filter_map(|name| sequence(&name).map(|sequence| Contender { name, sequence }))
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

    pub(crate) fn standing(&self, name: &str) -> Standing {
        match self.contenders.iter().position(|contender| contender.name == name) {
            None => Standing::Absent,
            Some(0) => Standing::Holder,
            Some(position) => Standing::Behind {
                position,
                predecessor: self.contenders[position - 1].name.clone(),
                holder: self.contenders[0].name.clone(),
            },
        }
    }

    /// The contender whose name carries a random id.
    pub(crate) fn find(&self, id: &str) -> Option<&str> {
        self.contenders.iter().map(|contender| contender.name.as_str()).find(|name| name.contains(id))
    }
}

/// The server's number at the end of a sequential znode's name. A minus sign and a separating dash look alike, but the
/// number always takes ten places (eleven from -1000000000 down), which tells them apart.
fn sequence(name: &str) -> Option<i32> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (before, digits) = name.split_at(digits.max(name.len().saturating_sub(10)));
    let magnitude: i64 = digits.parse().ok()?;
    let negative = match digits.len() {
        // -1 to -999999999: the sign is the first of the ten places.
        9 => before.ends_with('-').then_some(true)?,
        // From -1000000000 down the sign is an eleventh place, behind the prefix's own dash or underscore. Without one
        // there (a prefix that ends otherwise), only a number too large to be positive gives itself away.
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

    #[test]
    fn a_standing_names_the_one_directly_before_and_the_holder() {
        let it = Queue::new(vec!["l-0000000003".into(), "l-0000000001".into(), "l-0000000002".into()]);
        assert_eq!(it.standing("l-0000000001"), Standing::Holder);
        assert_eq!(
            it.standing("l-0000000003"),
            Standing::Behind {
                position: 2,
                predecessor: "l-0000000002".into(),
                holder: "l-0000000001".into()
            }
        );
        assert_eq!(it.standing("l-0000000004"), Standing::Absent);
    }
}
