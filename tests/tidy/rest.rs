//! Each sentence of docs/rest.md that promises, and what shows it: a promise of docs/guarantees.md, whose
//! checkers watch simulated runs, a case of `coordinator/testdata/rest`, or a test. A sentence with one of
//! the [`MARKS`] is listed here, or is reworded.

use super::promises::is_promise;
use super::tree::Tree;

const PAGE: &str = "docs/rest.md";
const CASES: &str = "coordinator/testdata/rest/";
const HERE: &str = "tests/tidy/rest.rs";

/// Words of sentences that promise.
const MARKS: [&str; 16] = [
    "always",
    "at any node",
    "at most",
    "ends",
    "expires",
    "never",
    "none",
    "nothing",
    "once",
    "one effect",
    "only",
    "reflects",
    "repeat",
    "takes effect",
    "until",
    "within",
];

/// What shows sentences, each with parts of these sentences.
const SHOWN: &[(&str, &[&str])] = &[
    ("ephemeral-lifetime", &["frees everything it holds", "the znode ends with the lease"]),
    ("a waiting request does not keep its lease alive", &["extends it only on arrival"]),
    ("a lease lives until its end and only its secret opens it", &["controls the lease at any node"]),
    (
        "names are percent-encoded and paths are checked",
        &["the node decodes it once", "The root is read only"],
    ),
    ("each_level_of_a_name_is_percent_encoded", &["every other byte of the UTF-8 form"]),
    ("names_that_look_like_queue_znodes_are_refused", &["512 bytes and 32 levels", "or ends in ten digits"]),
    ("exactly-once", &["repeat the request with the same `request_id`", "With `Idempotency-Key` as well"]),
    ("exactly-once", &["one effect", "takes nothing (`gone`)", "older than those 384", "at any node"]),
    ("exactly-once", &["an acquire still in progress may take one"]),
    ("a busy lock leaves no session behind", &["nothing is left behind"]),
    ("fair-service", &["within half of the lease's time"]),
    ("all locks are held or none and a retry finds them", &["takes all positions, or none"]),
    ("linearizable-verify", &["once it holds all", "at a moment between request and answer"]),
    ("questions", &["a holder must stop within", "asks the holders to give the lock back"]),
    ("a holder learns who asks for its lock", &["the newest question for each lock", "it is only a notice"]),
    ("questions are signed by the token and only an operator sets a deadline", &["may ask once a second"]),
    ("mutual-exclusion", &["the resource must check tokens"]),
    ("the-oracle-agrees", &["ends the lock-delay or the minimum hold"]),
    ("pages of children continue after the last name", &["names in order, 1,000 by default"]),
    ("synced-reads", &["reflects everything before the request"]),
    ("fencing-monotonic", &["takes effect only while that token holds that lock"]),
    ("a change without a lease leaves no session behind", &["counts as a new session"]),
    ("a change with a wrong version has no effect", &["answers 304 if it is unchanged"]),
    ("write_waits_for_its_share_of_a_full_queue_until_its_deadline", &["no answer within 8 s"]),
    (
        "an_attempt_whose_answer_is_lost_holds_nothing_for_long_and_is_found_by_its_id",
        &["holds the lock for at most 10 s"],
    ),
    (
        "the session of a state lock may be silent for long and ends with the lock",
        &["lasts until its release"],
    ),
    (
        "the_lock_of_a_state_is_free_when_the_command_or_its_wrapper_is_killed_or_stopped",
        &["has none of these limits"],
    ),
    (
        "terraform_itself_works_under_a_run_with_its_state_in_the_cluster",
        &["only while the run holds its lock"],
    ),
    ("lock-events", &["continues there, at any node", "misses one only at a `gap`"]),
    ("streams are counted and end with the quorum", &["loses its quorum"]),
];

/// Sentences with a mark that warn, and promise nothing.
const WARNINGS: [&str; 3] = [
    "Nothing checks the token where the state is written",
    "may hold the lock until it expires",
    "a retry makes another lease",
];

pub fn breaches(tree: &Tree) -> Vec<String> {
    let page = prose(tree.get(PAGE).unwrap_or_default());
    let parts = SHOWN.iter().flat_map(|(_, parts)| parts.iter()).chain(&WARNINGS);
    let mut found: Vec<String> = Vec::new();
    for sentence in sentences(&page).filter(|sentence| has_mark(sentence)) {
        if !parts.clone().any(|part| sentence.contains(part)) {
            found.push(format!("{PAGE}: {sentence:?} promises: say in {HERE} what shows it, or reword it"));
        }
    }
    let gone = parts.filter(|part| !page.contains(**part));
    found.extend(gone.map(|part| format!("{HERE}: {PAGE} does not say {part:?}")));
    let unshown = SHOWN.iter().filter(|(by, _)| !shows(tree, by));
    found.extend(unshown.map(|(by, _)| format!("{HERE}: no promise, case or test {by:?}")));
    found
}

fn shows(tree: &Tree, by: &str) -> bool {
    let (case, test) = (format!("\n== {by}\n"), format!("fn {by}("));
    is_promise(tree, by)
        || tree.of_kind("txt").any(|(path, text)| path.starts_with(CASES) && text.contains(&case))
        || tree.sources().any(|(_, text)| text.contains(&test))
}

/// Returns the page in one line, without code and without what is made from the code.
fn prose(page: &str) -> String {
    let (mut is_code, mut is_made, mut text) = (false, false, String::new());
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        is_made = line.starts_with("<!--generated") || is_made && line != "<!--end-->";
        if !is_code && !is_made && !line.starts_with(['<', '#']) && !line.starts_with("```") {
            text.push_str(if line.starts_with("- ") || line.is_empty() { ". " } else { " " });
            text.push_str(line.trim_start_matches("- "));
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn sentences(page: &str) -> impl Iterator<Item = &str> {
    page.split(". ")
}

fn has_mark(sentence: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric();
    let plain = format!(" {} ", sentence.to_lowercase().replace(|letter| !is_word(letter), " "));
    MARKS.iter().any(|mark| plain.contains(&format!(" {mark} ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_that_promises_is_listed_and_a_listed_one_is_shown() {
        let page = "# A\n\nIt never fails. It is\nwarm. ```\n\n```\nonly\n```\n- **x**: only once\n";
        let found = breaches(&Tree::with(&[(PAGE, page)]));
        let is_found = |text: &str| found.iter().any(|breach| breach.contains(text));
        assert!(
            is_found("\"It never fails\" promises") && is_found("\"**x**: only once\" promises"),
            "{found:?}"
        );
        assert!(!is_found("It is warm") && !is_found("\"only\""), "{found:?}");
        assert!(
            is_found("no promise, case or test \"lock-events\"") && is_found("does not say"),
            "{found:?}"
        );
    }
}
