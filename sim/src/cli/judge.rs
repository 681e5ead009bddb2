//! `rowlock sim judge`: replays the logs of a real cluster and prints which promises held.

use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_coordinator::node::moment::{parse_rfc3339, rfc3339};
use rowlock_sim::judge::evidence::{Evidence, Start};
use rowlock_sim::judge::histories::Compared;
use rowlock_sim::judge::{self, Judgment, drawing};
use rowlock_sim::report::{Heading, Verdict, html};

use super::case_file;
use super::figures::counted;
use crate::exit::{Failure, IO, REFUSED, USAGE};
use crate::paint::Paint;
use crate::print::print;
use crate::table::table;

/// Judge a real cluster: replay its logs and say which promises held
///
/// Reads the data folders of the nodes, and backups. Changes nothing and takes no lock, so the nodes may run.
/// The more nodes are named, the more is compared.
#[derive(clap::Args)]
pub struct Judge {
    /// Data folders of nodes, folders with data folders, or backups
    #[arg(required = true, value_name = "FOLDER|BACKUP")]
    paths: Vec<PathBuf>,
    /// Write a space-time diagram of the time around --at to this file: who led, who held, who waited
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Moment to draw, like 2026-11-20T13:42:05Z [default: the last judged entry]
    #[arg(long, value_name = "TIME", requires = "html")]
    at: Option<String>,
    /// Seconds to draw, with the moment in the middle
    #[arg(long, value_name = "S", requires = "html", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
}

impl Judge {
    /// Judges. Exit code 1: a promise was broken, or nothing was judged.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let at_ms = self.at.as_deref().map(|text| {
            let wrong =
                || Failure::new(USAGE, format!("{text} is not a time; write one like 2026-11-20T13:42:05Z"));
            parse_rfc3339(text).ok_or_else(wrong)
        });
        let at_ms = at_ms.transpose()?;
        let unreadable = |why: judge::Unreadable| Failure::new(IO, why);
        let evidence = Evidence::read(&self.paths).map_err(unreadable)?;
        let judgment = judge::run(&evidence).map_err(unreadable)?;
        let is_kept = judgment.broken().is_none() && !judgment.is_empty();
        print(report(&evidence, &judgment).as_bytes())?;
        if let Some(file) = &self.html {
            let page = self.page(&evidence, &judgment, at_ms);
            case_file::save(file, page.as_bytes())?;
            print(format!("drawn:     {}\n", file.display()).as_bytes())?;
        }
        Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }

    fn page(&self, evidence: &Evidence, judgment: &Judgment, at_ms: Option<i64>) -> String {
        let last_ms = judgment.replayed.span_ms.map_or(0, |(_, last_ms)| last_ms);
        let (at_ms, half_ms) = (at_ms.unwrap_or(last_ms), i64::from(self.seconds) * 500);
        let window = at_ms - half_ms..at_ms + half_ms;
        let nodes: Vec<_> = evidence.nodes.iter().map(|log| log.node).collect();
        let begin = rfc3339(window.start);
        let drawing = drawing::draw(judgment, &nodes, window);
        let mut facts = vec![
            ("0 s is".to_owned(), begin),
            ("grants judged".to_owned(), counted(judgment.replayed.grants)),
        ];
        if drawing.left_out > 0 {
            facts.push(("sessions not drawn".to_owned(), counted(drawing.left_out as u64)));
        }
        let verdict = match judgment.broken() {
            None => Verdict::Held,
            Some(promise) => {
                Verdict::Broken(format!("{}: {}", promise.name(), promise.broken().unwrap_or_default()))
            }
        };
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let title = format!("Cluster {} around {}", evidence.nodes[0].cluster, rfc3339(at_ms));
        let reproduce = format!("rowlock sim judge {}", paths.join(" "));
        html::page(&Heading { title, verdict, facts, reproduce }, &drawing.record, drawing.end)
    }
}

fn report(evidence: &Evidence, judgment: &Judgment) -> String {
    let paint = Paint::stdout();
    let mut out = paint.bold(&format!("Cluster {}\n", evidence.nodes[0].cluster));
    out.push_str(&nodes(evidence, judgment));
    out.push_str(&span(evidence, judgment));
    if judgment.is_empty() {
        out.push_str(
            &paint.bad("\nNothing was judged: there is no committed entry with a command after the start.\n"),
        );
        return out;
    }
    out.push('\n');
    for promise in &judgment.promises {
        let (judged, unit) = promise.judged();
        let line = |word: &str| format!("  {word:<8}{:<25}{} {unit}\n", promise.name(), counted(judged));
        out.push_str(&match (promise.broken(), judged) {
            (Some(what), _) => paint.bad(&format!("  BROKEN  {:<25}{what}\n", promise.name())),
            (None, 0) => paint.dim(&line("-")),
            (None, _) => line("held"),
        });
    }
    out.push_str(&match judgment.broken() {
        None => paint.good("\nEvery promise that was judged held.\n"),
        Some(promise) => paint.bad(&format!("\nBROKEN  {}\n", promise.name())),
    });
    out
}

fn nodes(evidence: &Evidence, judgment: &Judgment) -> String {
    let rows: Vec<[String; 6]> = evidence
        .nodes
        .iter()
        .map(|log| {
            let range = log.committed.first_key_value().zip(log.committed.last_key_value());
            let range = range.map_or("-".to_owned(), |((first, _), (last, _))| format!("{first} to {last}"));
            let snapshots = log.snapshots.iter().filter_map(|file| file.meta().last_log_id);
            let snapshots: Vec<String> = snapshots.map(|id| id.index.to_string()).collect();
            let history = judgment.histories.iter().find(|compared| compared.node == log.node);
            [
                format!("node {}", log.node),
                range,
                log.uncommitted.to_string(),
                if snapshots.is_empty() { "-".to_owned() } else { snapshots.join(" ") },
                history.map_or("-".to_owned(), history_text),
                log.folder.display().to_string(),
            ]
        })
        .collect();
    table(["", "committed", "uncommitted", "snapshot", "history", "folder"], &rows)
}

fn history_text(compared: &Compared) -> String {
    match compared.gaps {
        0 => format!("{} events", compared.events),
        gaps => format!("{} events, {gaps} gaps", compared.events),
    }
}

fn span(evidence: &Evidence, judgment: &Judgment) -> String {
    let replayed = &judgment.replayed;
    let start = match &evidence.start {
        Start::Beginning => "the beginning of the log".to_owned(),
        Start::Snapshot { node, .. } => format!("the snapshot of node {node} at {}", evidence.start_index),
    };
    let mut out = format!("\nreplayed from {start} to entry {}\n", replayed.last_index);
    if let Some((first, last)) = replayed.span_ms {
        out.push_str(&format!("span       {} to {}\n", rfc3339(first), rfc3339(last)));
    }
    out.push_str(&format!(
        "judged     {} entries, {} commands, {} sessions opened, {} grants, {} lock events\n",
        counted(replayed.entries),
        counted(replayed.commands),
        counted(replayed.sessions),
        counted(replayed.grants),
        counted(replayed.events.len() as u64),
    ));
    for (path, is_reached) in &replayed.backups {
        let how =
            if *is_reached { "compared" } else { "not compared: its state is outside the replayed entries" };
        out.push_str(&format!("backup     {} {how}\n", path.display()));
    }
    out
}
