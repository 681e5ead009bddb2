//! `rowlock sem`: at most N commands at once.

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};

const REFUSED: i32 = 1;
const USAGE: i32 = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_shared_out_and_who_says_another_number_is_told() {
    let cluster = Cluster::start(1, FAST).await;
    let ask = async |arguments: &[&str]| start(&cluster.folder, arguments).end().await;
    let unknown = ask(&["sem", "s", "true"]).await;
    assert_eq!(
        (unknown.code, unknown.err.ends_with("set it with -n N\n")),
        (REFUSED, true),
        "{}",
        unknown.err
    );
    let mut first = start(&cluster.folder, &["sem", "-n", "3", "s"]);
    first.first_line().await;
    let mut second = start(&cluster.folder, &["sem", "-n", "3", "s"]);
    second.first_line().await;
    assert_eq!(ask(&["sem", "--nonblock", "s", "true"]).await.code, 0, "one is left");
    assert_eq!(ask(&["sem", "--nonblock", "--permits", "2", "s", "true"]).await.code, REFUSED);
    assert_eq!(ask(&["sem", "-w", "0.1", "-E", "9", "--permits", "2", "s", "true"]).await.code, 9);
    let other = ask(&["sem", "-n", "4", "s", "true"]).await;
    assert_eq!(other.code, REFUSED);
    assert!(other.err.contains("3 permits"), "{}", other.err);
    let run = ask(&["sem", "s", "-c", "echo $ROWLOCK_LOCK_HELD; exit 6"]).await;
    assert_eq!((run.code, run.out.as_str()), (6, "true\n"));
    assert_eq!(ask(&["sem", "-n", "0", "s", "true"]).await.code, USAGE);

    // Who wants two waits for both to be given back.
    let both = start(&cluster.folder, &["sem", "--permits", "2", "s", "echo", "both"]);
    first.end_with_signal().await;
    let both = both.end().await;
    assert_eq!((both.code, both.out.as_str()), (0, "both\n"), "{}", both.err);
    second.end_with_signal().await;
}
