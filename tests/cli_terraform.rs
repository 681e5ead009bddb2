//! `rowlock terraform run`: its lock when a process of it is killed, and Terraform itself where it is
//! installed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{finish, rowlock};
use crate::support::http::request;
use crate::support::{eventually, secs};

const BUSY: i32 = 1;
const LOST: i32 = 75;

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
