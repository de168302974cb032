// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The environment that systemd gives a service, from its unit file and drop-ins, and the files that
//! they name (systemd.exec(5)). nginx overwrites its own environment with its title, so this is where its
//! variables can still be seen.
//!
//! ```text
//! PassEnvironment=  <  Environment=  <  EnvironmentFile=     the stronger is on the right;
//!                                                            UnsetEnvironment= takes away at the end
//! ```
//!
//! What systemd itself has and hands on (`PassEnvironment=`) is not looked at, and specifiers (`%i`) are
//! not replaced.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::environment::{self, words};
use super::{glob, proc};
use crate::verify::below;

/// Bound on a unit file and on a file of variables, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// Bound on the drop-ins of a unit in one folder.
const MAX_DROP_INS: usize = 1000;

/// Bound on the files of variables of a unit: most have one.
const MAX_ENVIRONMENT_FILES: usize = 100;

/// Bound on what could not be read: more would drown what matters.
const MAX_PROBLEMS: usize = 20;

/// Where unit files are, the ones that are overridden first.
const FOLDERS: [&str; 5] = [
    "/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/usr/local/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
];

/// The unit in the text of `/proc/PID/cgroup`: `0::/system.slice/nginx.service`.
pub(super) fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .find(|name| name.ends_with(".service"))
}

/// The environment of a service, as its files describe it.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    /// Values, each with the file that sets it last.
    set: BTreeMap<String, (String, PathBuf)>,
    /// Names that systemd hands on from its own environment, each with the file that says so.
    passed: BTreeMap<String, PathBuf>,
    /// Names, and assignments, that are taken away at the end, each with the file that says so.
    unset: Vec<(String, PathBuf)>,
    /// What could not be read.
    pub(super) problems: Vec<String>,
}

/// What a service's files say of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Described {
    /// This file sets it.
    Set(PathBuf, String),
    /// This file takes it away.
    Unset(PathBuf),
    /// This file hands it on from systemd's own environment.
    Passed(PathBuf),
    /// Nothing.
    Nothing,
}

/// A file of variables that a unit names.
struct EnvironmentFile {
    pattern: String,
    /// Whether it may be missing.
    optional: bool,
    named_by: PathBuf,
}

impl Environment {
    /// Reads the files of a unit, and those that they name.
    #[must_use]
    pub(super) fn of(files: &Path, unit: &str) -> Self {
        let mut environment = Self::default();
        let mut named = Vec::new();
        for file in unit_files(files, unit) {
            match proc::read_text(&below(files, &file), MAX_FILE) {
                Ok(text) => environment.unit_file(&file, &text, &mut named),
                Err(error) => environment.problem(format!("{}: {error}", file.display())),
            }
        }
        let mut budget = MAX_ENVIRONMENT_FILES;
        for file in named {
            environment.files_of_variables(files, &file, &mut budget);
        }
        environment
    }

    /// What becomes of a variable.
    #[must_use]
    pub(super) fn variable(&self, name: &str) -> Described {
        let set = self.set.get(name);
        let takes_away = |what: &str| match what.split_once('=') {
            Some((known, value)) => known == name && set.is_some_and(|(set, _)| set == value),
            None => what == name,
        };
        if let Some((_, file)) = self.unset.iter().find(|(what, _)| takes_away(what)) {
            return Described::Unset(file.clone());
        }
        match (set, self.passed.get(name)) {
            (Some((value, file)), _) => Described::Set(file.clone(), value.clone()),
            (None, Some(file)) => Described::Passed(file.clone()),
            (None, None) => Described::Nothing,
        }
    }

    fn unit_file(&mut self, file: &Path, text: &str, named: &mut Vec<EnvironmentFile>) {
        for line in logical_lines(text) {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let value = value.trim();
            // An empty value takes back what came before.
            match key.trim() {
                "Environment" if value.is_empty() => self.set.clear(),
                "Environment" => {
                    for word in words(value) {
                        if let Some((name, value)) = word.split_once('=') {
                            self.set(name, value, file);
                        }
                    }
                }
                "PassEnvironment" if value.is_empty() => self.passed.clear(),
                "PassEnvironment" => {
                    let names = words(value).into_iter();
                    self.passed
                        .extend(names.map(|name| (name, file.to_owned())));
                }
                "UnsetEnvironment" if value.is_empty() => self.unset.clear(),
                "UnsetEnvironment" => {
                    let all = words(value).into_iter();
                    self.unset.extend(all.map(|what| (what, file.to_owned())));
                }
                "EnvironmentFile" if value.is_empty() => named.clear(),
                "EnvironmentFile" => {
                    let path = value.strip_prefix('-');
                    named.push(EnvironmentFile {
                        pattern: path.unwrap_or(value).to_owned(),
                        optional: path.is_some(),
                        named_by: file.to_owned(),
                    });
                }
                _ => {}
            }
        }
    }

    /// Reads what one `EnvironmentFile=` means.
    fn files_of_variables(&mut self, root: &Path, named: &EnvironmentFile, budget: &mut usize) {
        let EnvironmentFile {
            pattern,
            optional,
            named_by,
        } = named;
        let by = named_by.display();
        let path = pattern.replace("%%", "\0");
        if path.contains('%') || !path.starts_with('/') {
            return self.problem(format!(
                "EnvironmentFile={pattern} in {by} was not looked at: it has a specifier, or is no absolute path"
            ));
        }
        let found = glob::files(root, Path::new(&path.replace('\0', "%")));
        if found.is_empty() && !optional {
            self.problem(format!("EnvironmentFile={pattern} in {by}: there is none"));
        }
        for file in found {
            if *budget == 0 {
                return self.problem(format!(
                    "{by}: more than {MAX_ENVIRONMENT_FILES} files of variables: the rest was not read"
                ));
            }
            *budget -= 1;
            match proc::read_text(&below(root, &file), MAX_FILE) {
                Ok(text) => {
                    for (name, value) in environment::parse(&text) {
                        self.set(&name, &value, &file);
                    }
                }
                Err(error) if *optional && error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.problem(format!(
                        "EnvironmentFile={} in {by}: {error}",
                        file.display()
                    ));
                }
            }
        }
    }

    fn set(&mut self, name: &str, value: &str, file: &Path) {
        let value = (value.to_owned(), file.to_owned());
        let _ = self.set.insert(name.to_owned(), value);
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(text);
        }
    }
}

/// The lines of a unit file without comments, continued ones joined by a blank.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines() {
        // Comments may stand between the parts of a line, too.
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        if let Some(continued) = line.strip_suffix('\\') {
            begun.push_str(continued);
            begun.push(' ');
            continue;
        }
        begun.push_str(line);
        lines.push(std::mem::take(&mut begun));
    }
    lines.push(begun);
    lines
}

/// The unit file that counts, then its drop-ins in the order of their names. Of files with one name the
/// last counts, and one that leads to `/dev/null` is none.
fn unit_files(files: &Path, unit: &str) -> Vec<PathBuf> {
    let folders = || FOLDERS.iter().map(Path::new);
    let kind = |file: &Path| fs::metadata(below(files, file)).map(|found| found.file_type());
    let there = |file: &PathBuf| kind(file).is_ok_and(|kind| !kind.is_dir());
    let masked = |file: &PathBuf| kind(file).is_ok_and(|kind| kind.is_char_device());
    let own = folders().map(|folder| folder.join(unit)).rfind(there);
    let mut drop_ins = BTreeMap::new();
    for folder in folders().map(|folder| folder.join(format!("{unit}.d"))) {
        let entries = fs::read_dir(below(files, &folder)).into_iter().flatten();
        for entry in entries.take(MAX_DROP_INS).flatten() {
            let name = entry.file_name();
            if Path::new(&name).extension() == Some("conf".as_ref()) {
                let _ = drop_ins.insert(name.clone(), folder.join(&name));
            }
        }
    }
    let all = own.into_iter().chain(drop_ins.into_values());
    all.filter(|file| !masked(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "lib/systemd/system/nginx.service";

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("folder"))
        }

        fn put(&self, name: &str, text: &[u8]) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().expect("folder")).expect("folders");
            fs::write(path, text).expect("file");
        }

        fn unit(&self, text: &str) {
            self.put(UNIT, format!("[Service]\n{text}").as_bytes());
        }

        fn environment(&self) -> Environment {
            Environment::of(self.0.path(), "nginx.service")
        }

        fn value(&self, name: &str) -> Option<String> {
            match self.environment().variable(name) {
                Described::Set(_, value) => Some(value),
                _ => None,
            }
        }

        /// The only problem.
        #[track_caller]
        fn problem(&self) -> String {
            let mut problems = self.environment().problems;
            assert_eq!(problems.len(), 1, "{problems:?}");
            problems.remove(0)
        }
    }

    #[test]
    fn the_last_drop_in_wins() {
        let files = Files::new();
        assert_eq!(files.value("A"), None);
        files.unit("# Environment=A=0\nEnvironment = \"A=1 2\" \\\n; C=3\n  B=2#\n");
        assert_eq!(files.value("A").expect("set"), "1 2");
        assert_eq!(files.value("B").expect("continued"), "2#");
        files.put(
            "etc/systemd/system/nginx.service.d/m.conf",
            b"[Service]\nEnvironment=A=3\n",
        );
        let file = PathBuf::from("/etc/systemd/system/nginx.service.d/m.conf");
        assert_eq!(
            files.environment().variable("A"),
            Described::Set(file, "3".to_owned())
        );
        assert_eq!(files.value("B").expect("set"), "2#");
        files.put(
            "run/systemd/system/nginx.service.d/z.conf",
            b"[Service]\nEnvironment=\n# Environment=A=4\n",
        );
        assert_eq!(files.value("A"), None);
        files.put(
            "lib/systemd/system/nginx.service.d/z.txt",
            b"Environment=A=5\n",
        );
        assert_eq!(files.value("A"), None);
        // One of the same name that counts more.
        let mask = files
            .0
            .path()
            .join("etc/systemd/system/nginx.service.d/z.conf");
        std::os::unix::fs::symlink("/dev/null", mask).expect("link");
        assert_eq!(files.value("A").expect("masked"), "3");
        assert!(files.environment().problems.is_empty());
    }

    #[test]
    fn files_of_variables_outdo_variables() {
        let files = Files::new();
        files.unit("EnvironmentFile=/etc/default/nginx\nEnvironmentFile=-/etc/more*\nEnvironment=A=1 B=1 C=1\n");
        files.put("etc/default/nginx", b"# A=0\nA='2'\nB=2\n");
        files.put("etc/more-1", b"B=\"3\"\n");
        files.put("etc/more-2", b"B=4\n");
        let file = PathBuf::from("/etc/default/nginx");
        let environment = files.environment();
        assert_eq!(
            environment.variable("A"),
            Described::Set(file, "2".to_owned())
        );
        assert_eq!(files.value("B").expect("the last"), "4");
        assert_eq!(files.value("C").expect("set"), "1");
        assert!(environment.problems.is_empty());
        files.put(
            "etc/systemd/system/nginx.service.d/m.conf",
            b"[Service]\nEnvironmentFile=\nEnvironmentFile=-/etc/missing\n",
        );
        assert_eq!(files.value("A").expect("reset"), "1");
        assert!(files.environment().problems.is_empty(), "it may be missing");
        files.unit("EnvironmentFile=/etc/miss%%ing");
        files.put("etc/systemd/system/nginx.service.d/m.conf", b"");
        assert!(files.problem().contains("/etc/miss%ing in /lib/"));
    }

    #[test]
    fn what_is_taken_away_and_what_is_handed_on() {
        let files = Files::new();
        files.unit(
            "Environment=A=1 B=1 C=1\nUnsetEnvironment=A B=1 C=2 D\nPassEnvironment=D E\nEnvironmentFile=-/etc/v\n",
        );
        files.put("etc/v", b"A=2\n");
        let unit = PathBuf::from(format!("/{UNIT}"));
        let environment = files.environment();
        for name in ["A", "B", "D"] {
            assert_eq!(environment.variable(name), Described::Unset(unit.clone()));
        }
        assert_eq!(files.value("C").expect("another value"), "1");
        assert_eq!(environment.variable("E"), Described::Passed(unit));
        assert_eq!(environment.variable("F"), Described::Nothing);
        files.put(
            "etc/systemd/system/nginx.service.d/m.conf",
            b"[Service]\nUnsetEnvironment=\nPassEnvironment=\n",
        );
        assert_eq!(files.value("A").expect("no longer taken away"), "2");
        assert_eq!(files.environment().variable("E"), Described::Nothing);
    }

    #[test]
    fn hostile_files_are_said_and_passed_over() {
        let files = Files::new();
        files.unit("Environment=A=1\nEnvironmentFile=-/etc/v\n");
        let long = vec![b'#'; usize::try_from(MAX_FILE).expect("it fits") + 1];
        for (bytes, what) in [
            (&b"A=2\0"[..], "not text"),
            (b"A=\xff\n", "not text"),
            (&long, "longer than"),
        ] {
            files.put("etc/v", bytes);
            let problem = files.problem();
            assert!(
                problem.starts_with("EnvironmentFile=/etc/v in /lib/"),
                "{problem}"
            );
            assert!(problem.contains(what), "{problem}");
            assert_eq!(files.value("A").expect("still"), "1");
        }
        let path = files.0.path().join("etc/v");
        fs::remove_file(&path).expect("removed");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        assert!(files.problem().contains("not a regular file"));
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("folder");
        assert!(files.problem().contains("not a regular file"));
        for odd in ["/etc/%i", "relative"] {
            files.unit(&format!("EnvironmentFile={odd}\n"));
            assert!(files.problem().contains("was not looked at"));
        }
        files.put(UNIT, &long);
        assert!(files.problem().contains("longer than"));
    }

    #[test]
    fn files_of_variables_are_bounded() {
        let files = Files::new();
        files.unit("EnvironmentFile=/etc/v/*\n");
        for number in 0..=MAX_ENVIRONMENT_FILES {
            files.put(&format!("etc/v/{number}"), b"A=1\n");
        }
        assert!(files.problem().contains("more than 100 files"));
    }

    #[test]
    fn the_unit_is_in_the_control_group() {
        assert_eq!(
            unit_of("0::/system.slice/nginx.service\n"),
            Some("nginx.service")
        );
        assert_eq!(
            unit_of("1:cpu:/\n0::/system.slice/a.service/x\n"),
            Some("a.service")
        );
        assert_eq!(unit_of("0::/user.slice\n"), None);
        assert_eq!(unit_of("nonsense"), None);
    }
}
