//! Rounds of a double barrier, and the next step of a member. Pure.
//!
//! The data of the barrier's znode hold the size of a round (`size=3`) and the members of an open round, a
//! line for each name. The znode's version decides between concurrent changes.

/// Content of the barrier's znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub size: u32,
    /// Names of the members, ascending. Empty: no round is on.
    pub members: Vec<String>,
}

/// Next step of an entering member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entering {
    /// Our round is open: we are inside.
    In,
    /// Our znode is gone.
    Expelled,
    /// Enough members are here: open a round with these.
    Open(Vec<String>),
    /// The round's members are all gone: close the round.
    Close,
    /// Wait for a change of the round or for the end of the given member.
    Wait(Option<String>),
}

/// Next step of a leaving member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    Out,
    /// Only we are left: remove our znode and close the round.
    Close,
    /// Remove our znode; then look again.
    Withdraw,
    /// Wait for the end of this member.
    Wait(String),
}

impl Round {
    pub(super) fn none(size: u32) -> Self {
        Round { size, members: Vec::new() }
    }

    /// `None`: these are not the data of a double barrier.
    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(data).ok()?.lines();
        let size = lines.next()?.strip_prefix("size=")?.parse().ok()?;
        Some(Round { size, members: lines.map(str::to_owned).collect() })
    }

    pub(super) fn format(&self) -> String {
        let mut text = format!("size={}", self.size);
        for member in &self.members {
            text.push('\n');
            text.push_str(member);
        }
        text
    }

    fn includes(&self, name: &str) -> bool {
        self.members.iter().any(|member| member == name)
    }

    /// `here`: the members' znodes, ours included; listed after the round was read.
    pub(super) fn entering(&self, own: &str, mut here: Vec<String>) -> Entering {
        if self.includes(own) {
            return Entering::In;
        }
        if !here.iter().any(|name| name == own) {
            return Entering::Expelled;
        }
        if !self.members.is_empty() {
            let rest = self.members.iter().find(|member| here.contains(member));
            return rest.map_or(Entering::Close, |member| Entering::Wait(Some(member.clone())));
        }
        if here.len() < self.size as usize {
            return Entering::Wait(None);
        }
        // Everybody chooses the same ones, whether or not we are among them: the last to come sees them all,
        // and may be the only one who does.
        here.sort_unstable();
        here.truncate(self.size as usize);
        Entering::Open(here)
    }

    /// `here` as above. The lowest member stays until all other members have left, and watches only the
    /// highest; the other members leave at once, and watch only the lowest: each departure wakes few members.
    pub(super) fn leaving(&self, own: &str, here: &[String]) -> Leaving {
        if !self.includes(own) {
            return Leaving::Withdraw;
        }
        let mut left: Vec<&String> = self.members.iter().filter(|member| here.contains(member)).collect();
        left.sort_unstable();
        match (left.first(), left.last()) {
            (Some(&lowest), Some(&highest)) if lowest == own => {
                if highest == own {
                    Leaving::Close
                } else {
                    Leaving::Wait(highest.clone())
                }
            }
            (Some(_), _) if left.iter().any(|&member| member == own) => Leaving::Withdraw,
            (Some(&lowest), _) => Leaving::Wait(lowest.clone()),
            (None, _) => Leaving::Out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<String> {
        list.chars().map(String::from).collect()
    }

    fn round(members: &str) -> Round {
        Round { size: 3, members: names(members) }
    }

    #[test]
    fn a_round_is_text() {
        for it in [round(""), round("abc")] {
            assert_eq!(Round::parse(it.format().as_bytes()), Some(it));
        }
        assert_eq!((Round::parse(b""), Round::parse(b"3"), Round::parse(&[0xff])), (None, None, None));
    }

    #[test]
    fn a_round_opens_when_enough_are_here_and_takes_no_more() {
        assert_eq!(round("").entering("a", names("ab")), Entering::Wait(None));
        assert_eq!(round("").entering("a", names("cba")), Entering::Open(names("abc")));
        assert_eq!(round("").entering("d", names("dcba")), Entering::Open(names("abc")));
        assert_eq!(round("abc").entering("b", names("abc")), Entering::In);
        assert_eq!(round("abc").entering("b", names("a")), Entering::In, "it was opened with us");
        assert_eq!(round("").entering("b", names("acd")), Entering::Expelled);
    }

    #[test]
    fn who_comes_too_late_waits_for_the_end_of_the_round_even_if_it_died_out() {
        assert_eq!(round("abc").entering("d", names("dcb")), Entering::Wait(Some("b".into())));
        assert_eq!(round("abc").entering("d", names("de")), Entering::Close);
    }

    #[test]
    fn the_lowest_leaves_last() {
        assert_eq!(round("abc").leaving("b", &names("abc")), Leaving::Withdraw);
        assert_eq!(round("abc").leaving("b", &names("ac")), Leaving::Wait("a".into()));
        assert_eq!(round("abc").leaving("a", &names("abc")), Leaving::Wait("c".into()));
        assert_eq!(round("abc").leaving("a", &names("ab")), Leaving::Wait("b".into()));
        assert_eq!(round("abc").leaving("a", &names("a")), Leaving::Close);
        assert_eq!(round("abc").leaving("b", &names("")), Leaving::Out);
    }

    #[test]
    fn members_that_die_are_not_waited_for_and_later_comers_neither() {
        assert_eq!(round("abc").leaving("b", &names("cd")), Leaving::Wait("c".into()), "the lowest died");
        assert_eq!(round("abc").leaving("b", &names("b")), Leaving::Close);
        assert_eq!(round("abc").leaving("b", &names("de")), Leaving::Out);
        assert_eq!(round("def").leaving("b", &names("bdef")), Leaving::Withdraw, "the next round is on");
    }
}
