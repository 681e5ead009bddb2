//! Programs of others that tests use where they are installed. One that is missing, too old or broken is
//! named, and what needs it is skipped; that is never a failure.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::finish_within;
use super::secs;

/// A library of this folder, built into `folder`, that a program is started with by LD_PRELOAD.
pub fn preloaded(folder: &Path, name: &str) -> PathBuf {
    let library = folder.join(name).with_extension("so");
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("tests/support").join(name);
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("the C compiler that links Rust").success());
    library
}

/// A program of which a version at least is needed.
pub struct Tool<'a> {
    /// What people call it.
    pub name: &'a str,
    /// Where it may be; the first one that will do is taken.
    pub programs: &'a [&'a Path],
    /// Arguments with which it works as the tests need it, and prints its version.
    pub probe: &'a [&'a str],
    pub least: &'a [u32],
    /// What is skipped without it.
    pub skipped: &'a str,
}

impl Tool<'_> {
    /// The program, if it will do. Says what was found, on the output of the test.
    pub fn find(&self) -> Option<PathBuf> {
        let mut why = String::new();
        for program in self.programs {
            match self.version(program) {
                Ok(version) => {
                    println!("found {} {version} ({})", self.name, program.display());
                    return Some(program.to_path_buf());
                }
                Err(wrong) => write!(why, "{}{wrong}", if why.is_empty() { "" } else { "; " }).unwrap(),
            }
        }
        println!("{} is SKIPPED: {why}", self.skipped);
        None
    }

    fn version(&self, program: &Path) -> Result<String, String> {
        let Tool { name, probe, least, .. } = self;
        let shown = program.display();
        let mut command = Command::new(program);
        command.args(*probe).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("{name} is not installed as {shown}"),
            _ => format!("{shown} cannot be started: {error}"),
        })?;
        let said = finish_within(child, secs(60));
        let all = format!("{}\n{}", said.out, said.err);
        if said.code != 0 {
            let last = all.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
            return Err(format!("{shown} ends with {}: {}", said.code, last.trim()));
        }
        let version = version_in(&all).ok_or_else(|| format!("{shown} names no version"))?;
        if numbers(&version) < least.to_vec() {
            let least = least.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
            return Err(format!("{name} {version} is older than {least}"));
        }
        Ok(version)
    }
}

/// The first word that begins with a number and a dot, whatever stands before it: `go1.19.8`, `v20.3.0`. If
/// there is none, the first that is a number: `javac 25`.
fn version_in(text: &str) -> Option<String> {
    let is_of_version = |character: char| character.is_ascii_digit() || character == '.';
    let whole = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let dotted = text.split_whitespace().find_map(|word| {
        let number = word.trim_start_matches(|character: char| !character.is_ascii_digit());
        let number = &number[..number.find(|character| !is_of_version(character)).unwrap_or(number.len())];
        number.trim_end_matches('.').contains('.').then(|| number.trim_end_matches('.').to_owned())
    });
    dotted.or_else(|| text.split_whitespace().find(whole).map(str::to_owned))
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or(u32::MAX)).collect()
}

/// `python3`, and the version of Python that all our scripts need.
pub fn python(skipped: &str) -> Option<PathBuf> {
    let probe = &["-c", "import platform; print(platform.python_version())"];
    Tool { name: "Python", programs: &[Path::new("python3")], probe, least: &[3, 9], skipped }.find()
}

/// A command of a tool that was found, as the tests run it.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // No caches of byte code beside the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_tool_that_is_missing_too_old_or_broken_is_named_and_not_found() {
    let version = |programs: &[&Path], probe: &[&str], least: &[u32]| {
        Tool { name: "sh", programs, probe, least, skipped: "nothing" }.version(programs[0])
    };
    let sh = Path::new("/bin/sh");
    assert_eq!(version(&[sh], &["-c", "echo tool v20.3.1-beta"], &[20, 3]), Ok("20.3.1".to_owned()));
    assert_eq!(version(&[sh], &["-c", "echo go version go1.19.8 x"], &[1, 19]), Ok("1.19.8".to_owned()));
    for (script, least, why) in [
        ("echo 2.8.0", [2, 11], "sh 2.8.0 is older than 2.11"),
        ("echo 2.10", [3, 0], "sh 2.10 is older than 3.0"),
        ("echo no library >&2; exit 3", [1, 0], "/bin/sh ends with 3: no library"),
        ("echo javac 25", [26, 0], "sh 25 is older than 26.0"),
        ("echo fine", [1, 0], "/bin/sh names no version"),
    ] {
        assert_eq!(version(&[sh], &["-c", script], &least), Err(why.to_owned()));
    }
    let missing = version(&[Path::new("/no/such/tool")], &[], &[1, 0]);
    assert_eq!(missing, Err("sh is not installed as /no/such/tool".to_owned()));
}
