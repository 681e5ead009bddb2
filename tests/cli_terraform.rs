//! `rowlock terraform run`: a script that plays the protocol of Terraform's backend "http", and Terraform
//! itself where it is installed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::http::request;
use crate::support::{eventually, secs};

const BUSY: i32 = 1;
const USAGE: i32 = 64;
const LOST: i32 = 75;

/// Asks as Terraform does: METHOD ADDRESS BODY; prints the code and the body.
const ASK: &str = r#"
ask() { curl -s --max-time 20 -X "$1" -w '%{http_code}\n' --data-binary "$3" "$2"; }
"#;

fn has_curl() -> bool {
    let found = Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("curl is not installed: the script is LEFT OUT");
    }
    found
}

async fn run(cluster: &Cluster, flags: &[&str], script: &str) -> Said {
    let script = format!("{ASK}{script}");
    let all = [&["terraform", "run"], flags, &["--", "bash", "-c", &script]].concat();
    start(&cluster.folder, &all).end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_holds_the_lock_answers_its_backend_and_keeps_the_state_behind_the_token() {
    if !has_curl() {
        return;
    }
    let cluster = Cluster::start_with_api(1, FAST).await;
    let script = r#"
        info='{"ID":"a","Who":"me"}'
        ask LOCK $TF_HTTP_LOCK_ADDRESS "$info"
        ask LOCK $TF_HTTP_LOCK_ADDRESS '{"ID":"b"}'
        ask UNLOCK $TF_HTTP_UNLOCK_ADDRESS '{"ID":"b"}'
        curl -s -o /dev/null -w '%{http_code}\n' $TF_HTTP_ADDRESS
        ask POST "$TF_HTTP_ADDRESS?ID=a" '{"serial":1}'
        ask POST "$TF_HTTP_ADDRESS?ID=a" '{"serial":2}'
        curl -s -w '%{http_code}\n' $TF_HTTP_ADDRESS
        head -c 3000000 /dev/zero | curl -s -o /dev/null -w '%{http_code}\n' --data-binary @- $TF_HTTP_ADDRESS
        curl -s -o /dev/null -w '%{http_code}\n' "${TF_HTTP_ADDRESS%/*/state}/other/state"
        ask UNLOCK $TF_HTTP_UNLOCK_ADDRESS "$info"
        exit 3
    "#;
    let said = run(&cluster, &["prod", "--state"], script).await;
    assert_eq!(said.code, 3, "the command's own: {}", said.err);
    let taken = r#"{"ID":"a","Who":"me"}"#;
    let expected =
        format!("200\n{taken}423\n{taken}409\n404\n200\n200\n{{\"serial\":2}}200\n413\n404\n200\n");
    assert_eq!(said.out, expected, "{}", said.err);
    // The next run finds the state, and without --state there is no address of ours.
    let said = run(&cluster, &["prod", "--state"], "curl -s $TF_HTTP_ADDRESS").await;
    assert_eq!((said.code, said.out.as_str()), (0, "{\"serial\":2}"), "{}", said.err);
    let said = run(&cluster, &["prod"], "echo ${TF_HTTP_ADDRESS-none}").await;
    assert_eq!((said.code, said.out.as_str()), (0, "none\n"), "{}", said.err);
    for wrong in [&["terraform", "run", "prod"][..], &["terraform", "run", "a/b", "true"]] {
        assert_eq!(start(&cluster.folder, wrong).end().await.code, USAGE, "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_state_is_free_when_the_command_or_its_wrapper_is_killed_or_stopped() {
    let cluster = Cluster::start_with_api(1, FAST).await;
    let lock = |id: &str| json!({ "ID": id }).to_string();
    let plain =
        async |id: &str| request(cluster.api(1), "LOCK /v1/terraform/prod", "", &lock(id)).await.unwrap().0;
    let command = "echo $$ > running; sleep 600";
    for what in ["command killed", "wrapper killed", "wrapper stopped"] {
        let all = ["terraform", "run", "prod", "--ttl", "2", "--disconnect-grace", "1", "-c", command];
        let mut wrapper = start(&cluster.folder, &all);
        let child = wrapper.pid("running").await;
        fs::remove_file(cluster.folder.join("running")).unwrap();
        assert_eq!(plain("plain").await, 423, "it is the lock of /v1/terraform");
        let busy = ["terraform", "run", "prod", "-w", "0", "true"];
        assert_eq!(start(&cluster.folder, &busy).end().await.code, BUSY);
        let begun = Instant::now();
        let mut stopped = None;
        match what {
            "command killed" => {
                let killed = Command::new("kill").args(["-9", &child.to_string()]).status().unwrap();
                assert!(killed.success());
                assert_eq!(wrapper.code().await, Some(128 + 9));
            }
            "wrapper killed" => {
                wrapper.child.kill().unwrap();
                wrapper.child.wait().unwrap();
            }
            _ => {
                wrapper.signal(Signal::STOP);
                stopped = Some(wrapper);
            }
        }
        let free = || async { (plain("plain").await == 200).then_some(()) };
        eventually("the lock is free", secs(8), free).await;
        println!("{what}: free after {:?}", begun.elapsed());
        // A stopped parent has not reaped it yet.
        let child_ended = || async {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        };
        eventually("the command has ended", secs(8), child_ended).await;
        let freed = request(cluster.api(1), "UNLOCK /v1/terraform/prod", "", &lock("plain")).await.unwrap();
        assert_eq!(freed.1, json!({ "released": true }));
        if let Some(wrapper) = stopped {
            wrapper.signal(Signal::CONT);
            assert_eq!(wrapper.code().await, Some(LOST));
        }
    }
}

/// A machine that stands still: neither the wrapper nor its command nor its warden runs. The late write of
/// the state is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_the_state_after_the_lock_was_taken_away_is_refused() {
    if !has_curl() {
        return;
    }
    let cluster = Cluster::start(1, FAST).await;
    // It survives the SIGTERM that follows the loss, and writes nevertheless.
    let script = "trap '' TERM; echo > late; while [ ! -e taken ]; do sleep 0.02; done; \
                  ask POST $TF_HTTP_ADDRESS '{\"late\":true}' > answer";
    let script = format!("{ASK}{script}");
    let late = start(&cluster.folder, &["terraform", "run", "prod", "--state", "--", "bash", "-c", &script]);
    late.wrote("late").await;
    let queue = start(&cluster.folder, &["queue", "@terraform/prod", "-o", "json"]).end().await;
    let queue: Value = serde_json::from_str(&queue.out).unwrap_or_else(|e| panic!("{e}: {}", queue.err));
    let token = queue["holders"][0]["token"].to_string();
    let forced =
        start(&cluster.folder, &["release", "--force", "--token", &token, "@terraform/prod"]).end().await;
    assert_eq!(forced.code, 0, "{}", forced.err);
    fs::write(cluster.folder.join("taken"), "").unwrap();
    let said = late.end().await;
    assert_eq!(said.code, LOST, "{}", said.err);
    let answer = fs::read_to_string(cluster.folder.join("answer")).unwrap_or_default();
    assert!(answer.is_empty() || answer.ends_with("409\n"), "{answer}");
    assert_ne!(
        start(&cluster.folder, &["get", "/terraform/prod"]).end().await.code,
        0,
        "nothing was written"
    );
}

const CONFIGURATION: &str = r#"
terraform {
  backend "http" {}
}
variable "greeting" {}
resource "terraform_data" "greeting" {
  input = var.greeting
}
output "greeting" {
  value = terraform_data.greeting.output
}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terraform_itself_works_under_a_run_with_its_state_in_the_cluster() {
    let program = ["tofu", "terraform"].into_iter().find(|program| {
        let version =
            Command::new(program).arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    });
    let Some(program) = program else {
        println!("neither tofu nor terraform is installed: NOT TRIED");
        return;
    };
    let cluster = Cluster::start(1, FAST).await;
    fs::write(cluster.folder.join("main.tf"), CONFIGURATION).unwrap();
    let terraform = async |words: &[&str]| {
        let all = [&["terraform", "run", "prod", "--state", "--", program], words].concat();
        let mut command = rowlock(&cluster.folder, &all);
        command.env("CHECKPOINT_DISABLE", "1").env("TF_IN_AUTOMATION", "1").env("TF_INPUT", "0");
        tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
    };
    let said = terraform(&["init", "-no-color"]).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for greeting in ["hello", "bye"] {
        let variable = format!("greeting={greeting}");
        let said = terraform(&["apply", "-no-color", "-auto-approve", "-var", &variable]).await;
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        let said = terraform(&["output", "-no-color", "-raw", "greeting"]).await;
        assert_eq!((said.code, said.out.as_str()), (0, greeting), "{}", said.err);
    }
    let state = start(&cluster.folder, &["get", "/terraform/prod"]).end().await;
    let state: Value = serde_json::from_str(&state.out).unwrap_or_else(|e| panic!("{e}: {}", state.err));
    assert_eq!(state["outputs"]["greeting"]["value"], "bye");
    println!("{program}: state of serial {}", state["serial"]);
}
