//! What is in `deploy/`: the files that nodes read are good, and fit together with what surrounds them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rowlock_coordinator::ClusterConfig;

use crate::support::command::{rowlock, run};
use crate::support::tools::Tool;

fn deploy(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("deploy").join(name)
}

#[test]
fn clusters_of_containers_are_three_nodes_that_know_each_other_by_name() {
    let pods = "rowlock-N.rowlock-nodes:";
    for (name, host) in [("compose", "rowlock-N:"), ("kubernetes", pods), ("kubernetes-tls", pods)] {
        let file = deploy(name).join("cluster.toml");
        let cluster = ClusterConfig::load(&file).unwrap();
        // Probes and Prometheus ask over the network; docs/operations.md says what that means.
        let other = cluster.warnings.iter().find(|warning| !warning.starts_with("http = "));
        assert_eq!(other, None, "{name}");
        assert_eq!(cluster.nodes.len(), 3);
        for node in &cluster.nodes {
            // `--node from-hostname` counts from 1, hosts from 0.
            let host = host.replace('N', &(node.id.0 - 1).to_string());
            assert!(node.peer_addr.starts_with(&host), "{name}: {}", node.peer_addr);
            assert!(node.any_client_addr().starts_with(&host), "{name}: {}", node.any_client_addr());
            assert!(
                node.peer_listen.as_deref().is_some_and(|listen| listen.starts_with("0.0.0.0:")),
                "{name}"
            );
        }
    }
}

/// The script of the service `setup`, as the shell of the container gets it.
fn setup(compose: &str, folder: &Path) -> String {
    let script = compose.split_once("command:\n      - |\n").unwrap().1;
    let lines = script.lines().take_while(|line| line.starts_with("        "));
    let script: String = lines.flat_map(|line| [line.trim_start(), "\n"]).collect();
    script.replace("$$", "$").replace("/etc/rowlock", folder.to_str().unwrap())
}

#[test]
fn containers_of_compose_are_reached_by_https_with_files_that_are_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let (here, secrets) = (folder.path(), folder.path().join("secrets"));
    fs::create_dir(&secrets).unwrap();
    fs::copy(deploy("compose/cluster.toml"), here.join("cluster.toml")).unwrap();
    let script = setup(&fs::read_to_string(deploy("compose/compose.yml")).unwrap(), here);
    let bin = rowlock(here, &[]).get_program().to_owned();
    let bin = Path::new(&bin).parent().unwrap().display().to_string();
    let set_up = || {
        let mut shell = Command::new("sh");
        shell.args(["-euc", &script]).env("ROWLOCK_CONFIG", here.join("cluster.toml"));
        let done = shell.env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap())).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        fs::read(secrets.join("operator.token")).unwrap()
    };
    let token = set_up();
    assert_eq!(token, set_up(), "what is there is kept");

    let said = run(here, &["tls", "check"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let said = run(here, &["token", "ls"]);
    assert!(said.out.contains("operator") && said.out.contains("prometheus"), "{}", said.out);
    let cluster = ClusterConfig::load(&here.join("cluster.toml")).unwrap();
    assert!(cluster.http.api && cluster.http.tls && cluster.http.token_file.is_some());
    let scraped = fs::read_to_string(deploy("compose/prometheus.yml")).unwrap();
    let files = scraped.split(['}', ' ', '\n']).filter_map(|word| word.strip_prefix("/etc/rowlock/"));
    let readable: Vec<u32> =
        files.map(|file| fs::metadata(here.join(file)).unwrap().permissions().mode() & 0o777).collect();
    assert_eq!(readable, [0o644, 0o644], "Prometheus is another user");
}

/// Rendered by kubectl where it is there: the overlay still fits the manifests below it.
#[test]
fn pods_with_certificates_are_the_plain_pods_with_other_ports_probes_and_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["kubernetes", "kubernetes-tls"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        for file in fs::read_dir(deploy(name)).unwrap().map(Result::unwrap) {
            if file.file_type().unwrap().is_file() {
                fs::copy(file.path(), folder.path().join(name).join(file.file_name())).unwrap();
            }
        }
    }
    let overlay = folder.path().join("kubernetes-tls");
    let described = fs::read_to_string(overlay.join("kustomization.yaml")).unwrap();
    let secrets = described.lines().filter_map(|line| line.trim().strip_prefix("- secrets/"));
    fs::create_dir(overlay.join("secrets")).unwrap();
    for name in secrets {
        fs::write(overlay.join("secrets").join(name), name).unwrap();
        assert!(
            described.contains(&format!("{{key: {name}, path: secrets/{name}}}")),
            "{name} is not mounted"
        );
    }
    let rendered = Command::new("kubectl").args(["kustomize", "."]).current_dir(&overlay).output();
    let Ok(rendered) = rendered else { return println!("no kubectl: the overlay is NOT rendered") };
    let (text, why) = (String::from_utf8_lossy(&rendered.stdout), String::from_utf8_lossy(&rendered.stderr));
    assert!(rendered.status.success(), "{why}");
    assert_eq!(text.matches("scheme: HTTPS").count(), 3, "each probe asks by HTTPS");
    assert_eq!(text.matches("port: 2181").count() + text.matches("8481").count(), 0, "no port without TLS");
    assert_eq!(text.matches("port: 2481").count(), 3, "both Services and the policy");
    assert!(text.contains("defaultMode: 288") && !text.contains("ca.key"), "{text}");
}

/// Lints the chart with these values (JSON), and returns its manifests in Kustomize's form, and the
/// `cluster.toml`.
fn chart(helm: &[&str], folder: &Path, values: &str) -> Result<(Vec<String>, ClusterConfig), String> {
    let file = folder.join("values.yaml");
    fs::write(&file, values).unwrap();
    let run = |words: [&str; 2]| {
        let mut command = Command::new(helm[0]);
        command.args(&helm[1..]).args(words).arg(deploy("helm/rowlock")).arg("-f").arg(&file);
        let done = command.output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        if done.status.success() { Ok(done.stdout) } else { Err(said) }
    };
    run(["lint", "--strict"])?;
    let rendered = run(["template", "rowlock"])?;
    fs::write(folder.join("rendered.yaml"), rendered).unwrap();
    fs::write(folder.join("kustomization.yaml"), "resources: [rendered.yaml]\n").unwrap();
    Ok(kustomized(folder))
}

/// Returns the manifests in Kustomize's form but the ConfigMap and the Secret, without the hashes that
/// Kustomize appends to the names of these two, and the `cluster.toml` of the ConfigMap.
fn kustomized(folder: &Path) -> (Vec<String>, ClusterConfig) {
    let rendered = Command::new("kubectl").args(["kustomize", "."]).current_dir(folder).output().unwrap();
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let text = String::from_utf8(rendered.stdout).unwrap();
    let is_kind = |of: &&str, kind: &str| of.lines().any(|line| line == format!("kind: {kind}"));
    let config = text.split("\n---\n").find(|of| is_kind(of, "ConfigMap")).unwrap();
    let file = config.lines().skip_while(|line| *line != "  cluster.toml: |").skip(1);
    let file = file.take_while(|line| line.is_empty() || line.starts_with("    "));
    let file: String = file.flat_map(|line| [line.trim_start(), "\n"]).collect();
    // Beside the folder: the nodes' data folders are named from the file's place.
    let made = folder.with_file_name("made.toml");
    fs::write(&made, file).unwrap();
    let others = text.split("\n---\n").filter(|of| !is_kind(of, "ConfigMap") && !is_kind(of, "Secret"));
    let plain =
        |line: &str| match line.trim().strip_prefix("name: rowlock-").map(|end| end.rsplit('-').next()) {
            Some(Some(hash)) if hash.len() == 10 => line[..line.len() - 11].to_owned(),
            _ => line.to_owned(),
        };
    // What the chart adds to the manifests of Kustomize.
    let is_more = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("checksum/config: ") || line == "imagePullPolicy: IfNotPresent"
    };
    let lines = |of: &str| of.trim().lines().filter(|line| !is_more(line)).map(plain).collect::<Vec<_>>();
    let others = others.map(|of| lines(of).join("\n")).collect();
    (others, ClusterConfig::load(&made).unwrap())
}

/// Linted and rendered where Helm, or its library for Python (`pip install helm-python-sdk`), is there.
#[test]
fn the_chart_is_the_manifests_of_kustomize_with_values() {
    const SKIPPED: &str = "the chart for Helm";
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/support/helm.py"));
    let script = script.to_str().unwrap();
    let find = |name, probe: &[&str]| {
        Tool { name, programs: &[Path::new(name)], probe, least: &[0], skipped: SKIPPED }.find().is_some()
    };
    let helm = match (find("helm", &["version", "--short"]), find("kubectl", &["version", "--client"])) {
        (_, false) => return,
        (true, true) => vec!["helm"],
        (false, true) if find("python3", &[script]) => vec!["python3", script],
        (false, true) => return,
    };
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("chart");
    fs::create_dir(&made).unwrap();
    for name in ["kubernetes", "kubernetes-tls"] {
        let copy = folder.path().join(name);
        fs::create_dir_all(copy.join("secrets")).unwrap();
        for file in ["cluster.toml", "kustomization.yaml", "rowlock.yaml"] {
            let _ = fs::copy(deploy(name).join(file), copy.join(file)); // the overlay has no manifests
        }
        let described = fs::read_to_string(copy.join("kustomization.yaml")).unwrap();
        for secret in described.lines().filter_map(|line| line.trim().strip_prefix("- secrets/")) {
            fs::write(copy.join("secrets").join(secret), secret).unwrap();
        }
        let (wanted, config) = kustomized(&copy);
        let values = format!(r#"{{"tls":{{"enabled":{}}}}}"#, name == "kubernetes-tls");
        let (found, of_chart) = chart(&helm, &made, &values).unwrap();
        assert_eq!(found, wanted, "{name}");
        assert_eq!(format!("{:?}", of_chart.nodes), format!("{:?}", config.nodes), "{name}");
        assert_eq!((of_chart.http.api, of_chart.http.tls), (config.http.api, config.http.tls), "{name}");
        assert_eq!(of_chart.http.token_file.is_some(), config.http.token_file.is_some(), "{name}");
    }
    let values = r#"{"replicas":5,"tls":{"enabled":true,"secret":"mine"},"tokens":{"enabled":false},
        "settings":"[limits]\nsessions = 4000","storage":{"className":"fast","size":"20Gi"},"antiAffinity":"preferred",
        "podDisruptionBudget":{"enabled":false},"networkPolicy":{"clients":[{"podSelector":{}}]}}"#;
    let (found, config) = chart(&helm, &made, values).unwrap();
    let text = found.join("\n");
    assert_eq!(
        (config.nodes.len(), config.limits.sessions, config.http.token_file.is_some()),
        (5, 4_000, false)
    );
    for part in [
        "storageClassName: fast",
        "storage: 20Gi",
        "replicas: 5",
        "preferredDuring",
        "podSelector: {}",
        "path: secrets/node-5.key",
        "name: mine",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for part in ["PodDisruptionBudget", "secrets/tokens", "requiredDuring", "node-6"] {
        assert!(!text.contains(part), "{part} is in {text}");
    }
    for (values, why) in
        [(r#"{"replicas":2}"#, "must be odd"), (r#"{"antiAffinity":"some"}"#, "antiAffinity must be")]
    {
        let refused = chart(&helm, &made, values).unwrap_err();
        assert!(refused.contains(why), "{values}: {refused}");
    }
}

#[test]
fn a_manual_page_is_made_of_each_command_and_no_hidden_one() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(folder.path(), &["__manuals", "."]);
    assert_eq!(said.code, 0, "{}", said.err);
    let names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in ["rowlock.1", "rowlock-lock.1", "rowlock-serve.1", "rowlock-tls-init.1"] {
        assert!(names.iter().any(|one| one == name), "{name} in {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("__")), "{names:?}");
    let page = fs::read_to_string(folder.path().join("rowlock-lock.1")).unwrap();
    assert!(page.contains("Exit codes") && page.contains("max\\-hold"), "{page}");
}

#[test]
fn the_unit_prevents_restarts_for_what_a_person_must_mend() {
    let unit = fs::read_to_string(deploy("rowlock.service")).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    // Usage, another state than the others, the data folder, the configuration (docs/cli.md).
    assert_eq!(value("RestartPreventExitStatus"), Some("64 70 73 78"));
    assert_eq!(value("Type"), Some("notify"));
    let files: u64 = value("LimitNOFILE").unwrap().parse().unwrap();
    let most =
        ClusterConfig::load(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("cluster.toml"))
            .unwrap();
    assert!(files >= most.client.max_connections as u64 + 512, "{files}");
}

/// The targets of the relative links of a page, without their fragments.
fn relative_links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ', '\n']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn no_link_of_the_packed_pages_leads_out_of_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/pack-docs"));
    match Command::new(script).arg(folder.path()).output() {
        Ok(done) if done.status.code() == Some(127) => return println!("python3 is not installed: LEFT OUT"),
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(e) => panic!("{e}"),
    }
    let (mut folders, mut links, mut dead) = (vec![folder.path().to_owned()], 0, Vec::new());
    while let Some(inside) = folders.pop() {
        for path in fs::read_dir(inside).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                for target in relative_links(&text) {
                    links += 1;
                    if !path.parent().unwrap().join(target).exists() {
                        dead.push(format!("{}: {target}", path.display()));
                    }
                }
            }
        }
    }
    assert!(links > 300 && dead.is_empty(), "{links} links, of these dead: {dead:#?}");
}
