//! HTTP by TLS and with tokens, at a node of its own process, by the commands of an operator.

use rustix::process::Signal;

use crate::support::cluster::{Cluster, ENCRYPTED, FAST};
use crate::support::command::{Said, finish, rowlock, run};
use crate::support::{eventually, secs};

const CLOSED: &str = "[http]\ntls = true\ntoken_file = \"tokens\"\n";
const CA: &str = "--tls-ca=tls/peers-ca.pem";
const SHOWS: [&str; 2] = ["--tls-cert=tls/client-alice.pem", "--tls-key=tls/client-alice.key"];

async fn status(cluster: &Cluster, arguments: &[&str], token: Option<&str>) -> Said {
    let arguments: Vec<&str> = ["status"].iter().chain(arguments).copied().collect();
    let mut command = rowlock(&cluster.folder, &arguments);
    command.envs(token.map(|token| ("ROWLOCK_TOKEN", token)));
    let child = command.spawn().unwrap();
    tokio::task::spawn_blocking(|| finish(child)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_makes_a_token_uses_it_by_tls_and_takes_it_back() {
    let mut it = Cluster::start_encrypted(1).await;
    it.stop(1).await;
    it.change_settings(&format!("{FAST}{ENCRYPTED}{CLOSED}"));
    // The node that is started writes the file that the command reads.
    it.start_node(1);
    assert_eq!(it.exit_code(1).await, Some(78), "there is no file of tokens");
    let token = |name: &str, role: &str| {
        let made = run(&it.folder, &["token", "new", name, "--role", role, "--expires", "90d"]);
        assert_eq!(made.code, 0, "{}", made.err);
        made.out.trim().to_owned()
    };
    let (reader, locks) = (token("prometheus", "read"), token("ci", "lock:/locks/ci/*"));
    let twice = run(&it.folder, &["token", "new", "ci", "--role", "read"]);
    assert!(twice.code == 73 && twice.err.contains("has a token ci already"), "{}", twice.err);
    let listed = run(&it.folder, &["token", "ls"]);
    assert!(listed.out.contains("prometheus") && !listed.out.contains(&reader), "{}", listed.out);
    it.start_node(1);
    let serves = async || {
        let said = status(&it, &[CA], Some(&reader)).await;
        (said.code == 0).then_some(said.out)
    };
    let shown = eventually("the node serves", secs(120), serves).await;
    assert!(shown.contains("leader"), "{shown}");
    assert_eq!(status(&it, &[&[CA][..], &SHOWS].concat(), None).await.code, 0, "a certificate will do, too");
    let named = format!("https://{}", it.http(1));
    assert_eq!(status(&it, &[CA, "--http", &named], Some(&reader)).await.code, 0);
    for (arguments, token, wanted) in [
        (&[CA][..], None, "the node requires a token (ROWLOCK_TOKEN) or a client certificate"),
        (&[CA], Some("rowlock_guess"), "requires a token"),
        (&[CA], Some(locks.as_str()), "the token does not allow this"),
        (&["--http", it.http(1)], Some(&reader), "HTTP uses TLS"),
    ] {
        let said = status(&it, arguments, token).await;
        assert!(said.code == 69 && said.out.contains(wanted), "{} {}", said.out, said.err);
    }
    let said = status(&it, &[], Some(&reader)).await;
    assert!(said.code == 78 && said.err.contains("set --tls-ca"), "{}", said.err);
    // A file that is wrong changes nothing; one without the token takes it back.
    let file = it.folder.join("tokens");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "nonsense\n").unwrap();
    it.signal(1, Signal::HUP);
    let told = async || it.log(1).contains("cannot load the changed file of tokens").then_some(());
    eventually("the log tells", secs(60), told).await;
    assert_eq!(status(&it, &[CA], Some(&reader)).await.code, 0);
    std::fs::remove_file(&file).unwrap();
    it.signal(1, Signal::HUP);
    let told = async || it.log(1).contains("tokens cannot be read").then_some(());
    eventually("the log names the deleted file", secs(60), told).await;
    assert_eq!(status(&it, &[CA], Some(&reader)).await.code, 0);
    std::fs::write(&file, good).unwrap();
    assert_eq!(run(&it.folder, &["token", "rm", "prometheus"]).code, 0);
    it.signal(1, Signal::HUP);
    let refused = async || {
        let said = status(&it, &[CA], Some(&reader)).await;
        (said.code == 69).then_some(said.out)
    };
    let shown = eventually("the token does not count any more", secs(60), refused).await;
    assert!(shown.contains("requires a token"), "{shown}");
}
