//! Grammar of doc comments: counts per crate, with ceilings, and vague verbs in the names of functions.

use std::collections::BTreeMap;

use crate::tree::Tree;

/// A comment that begins with one of these is a fragment of a sentence.
const FRAGMENTS: [&str; 21] = [
    "What", "Whether", "Who", "Whose", "Of", "Where", "How", "When", "Why", "That", "Which", "Whom", "As",
    "To", "For", "By", "With", "In", "From", "It", "Its",
];
/// Words that stand for a noun, which the reader has to look up.
const PRONOUNS: [&str; 15] = [
    "it", "its", "that", "what", "who", "one", "ones", "those", "them", "they", "other", "others", "so",
    "such", "which",
];
const AUXILIARIES: [&str; 7] = ["is", "was", "are", "were", "be", "been", "being"];
const PARTICIPLES: [&str; 10] =
    ["told", "said", "asked", "given", "taken", "made", "done", "known", "looked", "noted"];
/// Percentage of fragments, pronouns per 100 words, passives per 1,000 words.
const CEILINGS: [f64; 3] = [2.0, 5.0, 1.0];
/// A crate with fewer words is not measured.
const WORDS_MIN: usize = 200;
/// Verbs that do not say what a function does; `ask` names a request of the product.
const VAGUE: [&str; 11] =
    ["tell", "judge", "note", "look", "put", "settle", "fly", "say", "undo", "stand", "give"];
/// Most functions of each vague verb.
const VAGUE_MAX: usize = 3;
const UNITS: [&str; 3] =
    ["% of comments are fragments", "pronouns per 100 words", "passives per 1,000 words"];

pub fn breaches(tree: &Tree) -> Vec<String> {
    let crates = crates(tree);
    let mut comments: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut verbs: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in tree.product().filter(|(path, _)| !path.starts_with("lab/third_party")) {
        let owner = crates.iter().find(|folder| path.starts_with(**folder)).copied().unwrap_or_default();
        comments.entry(owner).or_default().extend(comments_of(text));
        for verb in VAGUE {
            *verbs.entry(verb).or_default() += functions(text, verb);
        }
    }
    let mut found = Vec::new();
    for (owner, comments) in comments {
        let Some(figures) = figures(&comments) else { continue };
        for ((figure, most), unit) in figures.into_iter().zip(CEILINGS).zip(UNITS) {
            if figure > most {
                found.push(format!("{owner}: {figure:.1} {unit}, at most {most:.1}"));
            }
        }
    }
    let vague = verbs.into_iter().filter(|(_, count)| *count > VAGUE_MAX);
    found.extend(vague.map(|(verb, count)| format!("{count} functions named {verb}, at most {VAGUE_MAX}")));
    found
}

/// Folders of crates, the deepest first.
fn crates(tree: &Tree) -> Vec<&str> {
    let mut crates: Vec<&str> =
        tree.of_kind("toml").filter_map(|(path, _)| path.strip_suffix("Cargo.toml")).collect();
    crates.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    crates
}

/// Runs of doc comments, each as one line.
fn comments_of(text: &str) -> Vec<String> {
    let mut comments = vec![Vec::new()];
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
            Some(words) => comments.last_mut().unwrap().push(words.trim()),
            None => comments.push(Vec::new()),
        }
    }
    comments.iter().filter(|lines| !lines.is_empty()).map(|lines| lines.join(" ")).collect()
}

/// The figures of [`CEILINGS`], `None` if there is too little text.
fn figures(comments: &[String]) -> Option<[f64; 3]> {
    let mut counts = [0; 3];
    let mut words = 0;
    for comment in comments {
        words += comment.split_whitespace().count();
        let parts: Vec<&str> = comment.split(|c: char| !c.is_alphanumeric()).collect();
        let lower: Vec<String> = parts.iter().map(|part| part.to_lowercase()).collect();
        counts[0] += usize::from(FRAGMENTS.contains(&parts[0]));
        counts[1] += lower.iter().filter(|word| PRONOUNS.contains(&&***word)).count();
        let is_passive =
            |pair: &&[String]| AUXILIARIES.contains(&&*pair[0]) && PARTICIPLES.contains(&&*pair[1]);
        counts[2] += lower.windows(2).filter(is_passive).count();
    }
    let share = |count: usize, of: usize, per: usize| (count * per) as f64 / of as f64;
    (words >= WORDS_MIN).then(|| {
        [share(counts[0], comments.len(), 100), share(counts[1], words, 100), share(counts[2], words, 1_000)]
    })
}

/// Number of functions whose name is the verb or begins with the verb.
fn functions(text: &str, verb: &str) -> usize {
    let is_named = |rest: &str| {
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        name == verb || name.strip_prefix(verb).is_some_and(|rest| rest.starts_with('_'))
    };
    text.split("fn ").skip(1).filter(|rest| is_named(rest)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(comment: &str, code: &str) -> Vec<String> {
        let text = format!("/// {comment}\n{code}\n").repeat(40);
        breaches(&Tree::with(&[("a/Cargo.toml", ""), ("a/src/lib.rs", &text), ("b/tests/x.rs", &text)]))
    }

    #[test]
    fn fragments_pronouns_passives_and_vague_verbs_are_found() {
        assert_eq!(found("Returns the length of the queue in bytes.", "fn len() {}"), [""; 0]);
        assert_eq!(
            found("What the leader sends to each follower now.", ""),
            [
                "a/: 100.0 % of comments are fragments, at most 2.0",
                "a/: 12.5 pronouns per 100 words, at most 5.0"
            ]
        );
        assert_eq!(
            found("Returns the leader, as each follower was told before.", "fn tell_all() {}"),
            ["a/: 111.1 passives per 1,000 words, at most 1.0", "40 functions named tell, at most 3"]
        );
    }
}
