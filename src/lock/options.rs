//! Flags that `lock`, `sem` and `elect` share: how long to wait, what to run, on which terms.

use std::ffi::OsString;
use std::time::Duration;

use crate::cluster::seconds;
use crate::exit::REFUSED;

/// flock's flags about waiting.
#[derive(clap::Args)]
pub struct Patience {
    /// Do not wait: fail if it is busy
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    pub nonblock: bool,
    /// Wait at most so many seconds
    #[arg(short = 'w', long, alias = "wait", value_name = "SEC", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Exit code for busy, with -n or -w
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    pub conflict_exit_code: u8,
}

/// The command to run, and how to speak of it.
#[derive(clap::Args)]
pub struct Work {
    /// Run this with `sh -c`
    #[arg(short = 'c', long, alias = "command", value_name = "COMMAND", conflicts_with = "words")]
    shell: Option<OsString>,
    /// Say on stderr what happens
    #[arg(short, long)]
    pub verbose: bool,
    /// Program and arguments; everything from here on is the program's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Work {
    /// Program and arguments. Empty: just hold.
    pub fn words(&self) -> Vec<OsString> {
        match &self.shell {
            Some(command) => vec!["/bin/sh".into(), "-c".into(), command.clone()],
            None => self.words.clone(),
        }
    }

    /// With -v.
    pub fn say(&self, text: &str) {
        if self.verbose {
            eprintln!("rowlock: {text}");
        }
    }
}
