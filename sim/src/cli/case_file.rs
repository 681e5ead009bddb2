//! A case as text: settings, one per line, then `faults` and the script.

use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_sim::cluster::Scenario;
use rowlock_sim::fault::Script;

use super::case::{Case, mistake_named};
use crate::exit::{Failure, IO, USAGE};

/// Line between the settings and the script.
const FAULTS: &str = "faults";

/// Returns the text of a case whose faults are `script`.
pub fn write(case: &Case, script: &Script, found: Option<&str>) -> String {
    let mut text = String::from("# A run of Rowlock's simulator. Again: rowlock sim replay THIS_FILE\n");
    if let Some(found) = found {
        // A finding may have several lines; each line becomes a comment.
        found.lines().for_each(|line| text.push_str(&format!("# found: {line}\n")));
    }
    text.push_str(&format!("seed {}\nseconds {}\nscenario {}\n", case.seed, case.seconds, case.scenario));
    if let Some(mistake) = &case.mistake {
        text.push_str(&format!("mutant {mistake}\n"));
    }
    text.push_str(&format!("{FAULTS}\n{script}"));
    text
}

/// Reads the output of [`write()`]. The error names the line and the correct form.
pub fn read(text: &str) -> Result<Case, String> {
    let mut case = Case {
        seed: 0,
        seconds: super::options::SECONDS,
        scenario: Scenario::default(),
        script: None,
        mistake: None,
    };
    let mut has_seed = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let line = line.split('#').next().unwrap_or_default().trim();
        if line == FAULTS {
            let script: String = text.lines().skip(number).map(|line| format!("{line}\n")).collect();
            let script = script.parse::<Script>().map_err(|mut e| {
                e.line += number;
                e.to_string()
            })?;
            case.script = Some(script);
            break;
        }
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        has_seed |= name == "seed";
        set(&mut case, name, value.trim()).map_err(|e| format!("line {number}: {e}"))?;
    }
    if !has_seed {
        return Err("there is no line with a seed; write for example: seed 4711".to_owned());
    }
    Ok(case)
}

fn set(case: &mut Case, name: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("`{value}` is not a whole number"));
    match name {
        "seed" => case.seed = number()?,
        "seconds" => case.seconds = number()?,
        "scenario" => case.scenario = value.parse()?,
        "mutant" => case.mistake = Some(mistake_named(value)?),
        _ => {
            return Err(format!(
                "`{name}` is no setting; there are seed, seconds, scenario, mutant, {FAULTS}"
            ));
        }
    }
    Ok(())
}

pub fn load(path: &Path) -> Result<Case, Failure> {
    let text = text_of(path)?;
    read(&text).map_err(|e| Failure::new(USAGE, format!("{}: {e}", path.display())))
}

/// Reads a script, or the script of a complete case.
pub fn load_script(path: &Path) -> Result<Script, Failure> {
    let text = text_of(path)?;
    let wrong = |e: String| Failure::new(USAGE, format!("{}: {e}", path.display()));
    let is_case = text.lines().any(|line| line.trim() == FAULTS);
    if is_case {
        return Ok(read(&text).map_err(wrong)?.script.unwrap_or_default());
    }
    text.parse::<Script>().map_err(|e| wrong(e.to_string()))
}

fn text_of(path: &Path) -> Result<String, Failure> {
    let unread = |e: std::io::Error| Failure::new(IO, format!("cannot read {}: {e}", path.display()));
    let (folder, name) = place(path)?;
    let bytes = Dir::open(folder).and_then(|dir| dir.read(name)).map_err(unread)?;
    String::from_utf8(bytes).map_err(|_| {
        Failure::new(USAGE, format!("{} is not a text file; is it the right one?", path.display()))
    })
}

/// Returns the `.txt` files of a folder, in the order of their names; none if the folder does not exist.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unread = |e: std::io::Error| Failure::new(IO, format!("cannot read {}: {e}", folder.display()));
    let mut names = match Dir::open(folder) {
        Ok(dir) => dir.list().map_err(unread)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(unread(e)),
    };
    names.retain(|name| name.ends_with(".txt"));
    names.sort_unstable();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// Writes a file, creating its folder if necessary.
pub fn save(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let (folder, name) = place(path)?;
    let written = Dir::create(folder).and_then(|dir| dir.write_atomic(name, content));
    written.map_err(|e| Failure::new(IO, format!("cannot write {}: {e}", path.display())))
}

fn place(path: &Path) -> Result<(&Path, &str), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failure::new(USAGE, format!("{} is not the name of a file", path.display())))?;
    Ok((folder, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_case_is_read_back_unchanged() {
        let script: Script = "1s disconnect client1\n2s kill leader for 3s\n".parse().unwrap();
        let case = Case { seed: 99, seconds: 12, scenario: Scenario::Wiped, script: None, mistake: None };
        let text = write(&case, &script, Some("fifo: a came\nbefore b"));
        let read = read(&text).unwrap();
        assert_eq!((read.seed, read.seconds, read.scenario), (99, 12, Scenario::Wiped));
        assert_eq!(read.script, Some(script));
    }

    #[test]
    fn errors_name_the_line_of_the_file() {
        let wrong = |text: &str| read(text).unwrap_err();
        assert_eq!(wrong("seed x"), "line 1: `x` is not a whole number");
        assert!(wrong("seed 1\ncolour red").starts_with("line 2: `colour` is no setting"));
        assert!(wrong("seed 1\n# so\nfaults\n\n1s frob node1").starts_with("line 5: `frob` is no fault"));
        assert!(wrong("seconds 5").contains("no line with a seed"));
    }
}
