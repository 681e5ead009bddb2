//! `rowlock token`: edits the file of tokens that authenticate HTTP clients. docs/tls.md.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rowlock_coordinator::access::tokens::{Role, Token, Tokens};
use rowlock_env::disk::Dir;
use rowlock_env::time;

use crate::exit::{CONFIG, DATA_FOLDER, Failure, IO, REFUSED, USAGE};
use crate::found;
use crate::moment::{positive_duration, rfc3339};
use crate::print::{errln, out, outln};
use crate::table::table;

const DEFAULT_FILE: &str = "tokens";
const HEAD: &str = "# Tokens of HTTP clients: name, SHA-256, roles, end. `rowlock token new` adds one.\n";

/// Create and list tokens of HTTP clients
#[derive(clap::Args)]
pub struct TokenCommand {
    #[command(subcommand)]
    command: TokenAction,
}

#[derive(clap::Subcommand)]
enum TokenAction {
    New(New),
    Ls(Ls),
    Rm(Rm),
}

#[derive(clap::Args)]
struct FileOptions {
    /// Token file [default: http.token_file of cluster.toml, else `tokens`]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Path of the file cluster.toml
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
}

/// Create a token: add its hash to the file and print its text, which is stored nowhere
#[derive(clap::Args)]
struct New {
    /// Name of the token in logs: letters, digits, `.`, `_`, `-`, `@`
    #[arg(value_parser = name)]
    name: String,
    /// Permissions: read, operator, lock:/PATH, or znode:/PATH
    #[arg(long = "role", value_name = "ROLE", required = true, value_delimiter = ',')]
    roles: Vec<Role>,
    /// Validity: a number and a unit (s, m, h, d) [default: unlimited]
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    expires: Option<Duration>,
    #[command(flatten)]
    file: FileOptions,
}

/// List the tokens of a file
#[derive(clap::Args)]
struct Ls {
    #[command(flatten)]
    file: FileOptions,
}

/// Remove a token from the file
#[derive(clap::Args)]
struct Rm {
    /// Name of the token
    #[arg(value_parser = name)]
    name: String,
    #[command(flatten)]
    file: FileOptions,
}

fn name(text: &str) -> Result<String, String> {
    match Token::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("use at most 64 letters, digits, dots, dashes, _ and @".to_owned()),
    }
}

impl TokenCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            TokenAction::New(new) => new.run(),
            TokenAction::Ls(ls) => ls.run(),
            TokenAction::Rm(rm) => rm.run(),
        }
    }
}

impl New {
    fn run(self) -> Result<ExitCode, Failure> {
        let expires_ms = self.expires.map(end_of).transpose()?;
        let file = TokenFile::open(&self.file, true)?;
        if file.tokens.all().iter().any(|token| token.name == self.name) {
            let problem = format!("{} has a token {} already", file.path.display(), self.name);
            return Err(Failure::new(
                DATA_FOLDER,
                format!("{problem}; choose another name, or remove it first"),
            ));
        }
        let (token, secret) = Token::new(self.name, self.roles.into_iter().collect(), expires_ms);
        let mut text = if file.text.is_empty() { HEAD.to_owned() } else { file.text.clone() };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        file.replace(&format!("{text}{token}\n"))?;
        errln!("added {} to {}; its text follows and is stored nowhere:", token.name, file.path.display());
        outln!("{secret}");
        Ok(ExitCode::SUCCESS)
    }
}

impl Ls {
    fn run(self) -> Result<ExitCode, Failure> {
        let (file, now_ms) = (TokenFile::open(&self.file, false)?, time::wall_ms());
        let row = |token: &Token| {
            let roles: Vec<String> = token.roles.iter().map(Role::to_string).collect();
            let ends = match token.expires_ms {
                None => "never".to_owned(),
                Some(at) if token.is_over(now_ms) => format!("{} (ended)", rfc3339(at)),
                Some(at) => rfc3339(at),
            };
            [token.name.clone(), roles.join(","), ends]
        };
        let rows: Vec<[String; 3]> = file.tokens.all().iter().map(row).collect();
        out!("{}", table(["name", "roles", "ends"], &rows));
        Ok(ExitCode::SUCCESS)
    }
}

impl Rm {
    fn run(self) -> Result<ExitCode, Failure> {
        let file = TokenFile::open(&self.file, false)?;
        if !file.tokens.all().iter().any(|token| token.name == self.name) {
            let problem = format!("{} has no token {}", file.path.display(), self.name);
            return Err(Failure::new(REFUSED, format!("{problem}; `rowlock token ls` lists them")));
        }
        let is_other = |line: &&str| line.split_whitespace().next() != Some(self.name.as_str());
        file.replace(&file.text.lines().filter(is_other).flat_map(|line| [line, "\n"]).collect::<String>())?;
        errln!("removed {} from {}", self.name, file.path.display());
        Ok(ExitCode::SUCCESS)
    }
}

fn end_of(life: Duration) -> Result<i64, Failure> {
    let ms = i64::try_from(life.as_millis()).ok().and_then(|ms| time::wall_ms().checked_add(ms));
    // Later years have more than four digits.
    ms.filter(|ms| *ms < 253_402_300_800_000)
        .ok_or_else(|| Failure::new(USAGE, "--expires is too far away; leave it out for a token without end"))
}

struct TokenFile {
    path: PathBuf,
    text: String,
    tokens: Tokens,
}

impl TokenFile {
    fn open(options: &FileOptions, may_be_missing: bool) -> Result<TokenFile, Failure> {
        let path = options.path()?;
        let (folder, name) = folder_and_name(&path)?;
        let unreadable = |e| Failure::new(DATA_FOLDER, format!("{} cannot be read: {e}", path.display()));
        let bytes = match Dir::open(folder).and_then(|dir| dir.read(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound && may_be_missing => Vec::new(),
            read => read.map_err(unreadable)?,
        };
        let wrong = |why: String| Failure::new(CONFIG, format!("{}: {why}", path.display()));
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is not a text in UTF-8".to_owned()))?;
        let tokens = Tokens::parse(&text).map_err(wrong)?;
        Ok(TokenFile { path, text, tokens })
    }

    /// Replaces the file, mode 0600.
    fn replace(&self, text: &str) -> Result<(), Failure> {
        let (folder, name) = folder_and_name(&self.path)?;
        Tokens::parse(text).map_err(|why| Failure::new(USAGE, why))?;
        let written = Dir::create(folder).and_then(|dir| dir.write_atomic(name, text.as_bytes()));
        written.map_err(|e| Failure::new(IO, format!("{} cannot be written: {e}", self.path.display())))
    }
}

impl FileOptions {
    fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let config = found::cluster_file_if_any(self.config.as_deref())?;
        if let Some(named) = config.and_then(|config| config.http.token_file) {
            return Ok(named);
        }
        found::check(Path::new(DEFAULT_FILE), "--file")?;
        Ok(DEFAULT_FILE.into())
    }
}

fn folder_and_name(path: &Path) -> Result<(&Path, &str), Failure> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failure::new(USAGE, format!("{} is not the name of a file", path.display())))?;
    Ok((folder, name))
}
