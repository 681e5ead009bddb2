//! The rules of locks against a naive reading of their text, and the bounds of a text.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

use proptest::prelude::*;
use rowlock_proto::Right;
use rowlock_proto::acl::Id;
use rowlock_state::rules::{IDENTITIES_OF_PATTERN_MAX, RULES_MAX, RULES_MAX_BYTES, Rights, Rules};

const PATHS: [&str; 9] = ["/a", "/a/b", "/a/b/c", "/a-b", "/ab", "/a/bc", "/b", "/a/b/c/d", "/"];
const WHO: [&str; 4] = ["anyone", "sasl:u", "sasl:v", "token:t"];
const RIGHTS: [&str; 5] = ["take", "ask,see", "force", "all", "none"];

fn id(text: &str) -> Id {
    let (scheme, id) = text.split_once(':').unwrap();
    Id { scheme: scheme.to_owned(), id: id.to_owned() }
}

/// All rights by a linear search: the longest matching pattern, an exact one before one with a star.
fn naive(rules: &[(String, usize, usize)], path: &str, who: &[&str], is_guarded: bool) -> Vec<Right> {
    let length = |pattern: &str| match pattern.strip_suffix('*') {
        Some(folder) => path.strip_prefix(folder).filter(|rest| !rest.is_empty()).map(|_| folder.len()),
        None => (pattern == path).then_some(usize::MAX),
    };
    let Some(longest) = rules.iter().filter_map(|(pattern, ..)| length(pattern)).max() else {
        return Right::ALL.into_iter().filter(|right| !(is_guarded && *right == Right::Force)).collect();
    };
    let deciding = rules.iter().filter(|(pattern, ..)| length(pattern) == Some(longest));
    let mine = deciding.filter(|(_, _, at)| WHO[*at] == "anyone" || who.contains(&WHO[*at]));
    let words: Vec<&str> = mine.flat_map(|(_, rights, _)| RIGHTS[*rights].split(',')).collect();
    Right::ALL
        .into_iter()
        .filter(|right| words.iter().any(|word| *word == "all" || *word == right.as_str()))
        .collect()
}

proptest! {
    #[test]
    fn rules_decide_as_a_linear_search_by_the_longest_pattern_does(
        drawn in prop::collection::btree_map(
            (0..2 * PATHS.len(), 0..WHO.len()),
            0..RIGHTS.len(),
            0..12,
        ),
        who in prop::sample::subsequence(WHO[1..].to_vec(), 0..3),
        is_guarded in any::<bool>(),
    ) {
        let pattern = |at: usize| match PATHS[at % PATHS.len()] {
            "/" => "/*".to_owned(),
            path if at < PATHS.len() => path.to_owned(),
            path => format!("{path}/*"),
        };
        let mut rules: Vec<_> =
            drawn.into_iter().map(|((at, who), rights)| (pattern(at), rights, who)).collect();
        rules.sort_unstable_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
        rules.dedup_by(|a, b| (&a.0, a.2) == (&b.0, b.2));
        let text: String =
            rules.iter().map(|(at, rights, who)| format!("{} {at} {}\n", RIGHTS[*rights], WHO[*who])).collect();
        let read = Rules::parse(&text).unwrap();
        let identities: Vec<Id> = who.iter().map(|text| id(text)).collect();
        for path in PATHS.into_iter().filter(|path| *path != "/") {
            let decision = read.decide(path, &identities, is_guarded);
            let expected = naive(&rules, path, &who, is_guarded);
            prop_assert_eq!(decision.rights, Rights::of(expected.iter().copied()), "{} {}", path, text);
            for right in Right::ALL {
                prop_assert!(is_guarded || read.allow(path, right, &identities) == expected.contains(&right));
            }
            prop_assert_eq!(read.decide(path, &[id("super:")], is_guarded).rights, Rights::ALL);
        }
        let again: String = read.iter().map(|rule| format!("{rule}\n")).collect();
        prop_assert_eq!(Rules::parse(&again).unwrap(), read);
    }
}

#[test]
fn a_text_beyond_its_bounds_or_with_a_wrong_line_is_refused_with_the_number_of_the_line() {
    let many = |count: usize, line: fn(usize) -> String| (0..count).map(line).collect::<String>();
    let of_locks = |n: usize| format!("see /locks/{n} anyone\n");
    assert!(Rules::parse(&many(RULES_MAX, of_locks)).is_ok());
    let of_users = |n: usize| format!("see /locks/a sasl:u{n}\n");
    assert!(Rules::parse(&many(IDENTITIES_OF_PATTERN_MAX, of_users)).is_ok());
    for (text, why) in [
        (many(RULES_MAX + 1, of_locks), "line 1025: more than 1024 rules"),
        (many(IDENTITIES_OF_PATTERN_MAX + 1, of_users), "line 65: more than 64 identities"),
        ("#".repeat(RULES_MAX_BYTES + 1), "the rules have 65537 bytes"),
        ("\n# x\nsee /a".to_owned(), "line 3: it needs three words"),
        ("write /a anyone".to_owned(), "line 1: \"write\" is no right"),
        ("see a anyone".to_owned(), "line 1: \"a\" is no path of locks"),
        ("see /a/*/b anyone".to_owned(), "line 1: \"/a/*/b\" is no path of locks"),
        ("see /a bob".to_owned(), "line 1: \"bob\" is no identity"),
        ("see /a super:".to_owned(), "line 1: \"super:\" is no identity"),
        ("see /a digest:bob".to_owned(), "line 1: \"digest:bob\" is no identity"),
        ("see /a anyone\ntake /a anyone".to_owned(), "line 2: anyone has another rule"),
    ] {
        let said = Rules::parse(&text).unwrap_err();
        assert!(said.starts_with(why), "{said}");
    }
    assert!(Rules::parse("see /a x509:CN=a b,O=Acme Inc.").is_ok(), "a subject has blanks");
}
