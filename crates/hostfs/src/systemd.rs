// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Unit files and drop-ins of systemd, and the environment that they give a service (systemd.exec(5)). A
//! server such as nginx overwrites its own environment with its title; this module finds the variables
//! nevertheless.
//!
//! ```text
//! PassEnvironment=  <  Environment=  <  EnvironmentFile=     the one on the right wins;
//!                                                            UnsetEnvironment= removes variables at the end
//! ```
//!
//! Not read: the values that systemd passes on from its own environment (`PassEnvironment=`). Specifiers
//! (`%i`) are not replaced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::environment::{self, words};
use crate::lexer;
use crate::{FileKind, Root, Unavailable, glob};

/// Bound on a unit file and on a file of variables, in bytes: the largest unit of Debian's systemd has 3 KiB.
const MAX_FILE: usize = 256 * 1024;

/// Bound on the number of a unit's files of variables; most units have one.
const MAX_ENVIRONMENT_FILES: usize = 100;

/// Bound on reported problems: more would hide the important ones.
const MAX_PROBLEMS: usize = 20;

/// Folders of unit files, in ascending priority.
const FOLDERS: [&str; 5] = [
    "/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/usr/local/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
];

/// Exists where systemd manages the machine (sd_booted(3)).
pub const BOOTED: &str = "/run/systemd/system";

/// The files in a folder of units: the units themselves and the drop-ins in its folders `*.d`. `list` returns
/// the names in a folder.
pub fn files_in(folder: &str, mut list: impl FnMut(&str) -> Vec<String>) -> Vec<String> {
    let mut files = Vec::new();
    for name in list(folder) {
        let path = format!("{folder}/{name}");
        if name.ends_with(".d") {
            files.extend(list(&path).into_iter().map(|name| format!("{path}/{name}")));
        } else {
            files.push(path);
        }
    }
    files
}

/// The unit in the text of `/proc/PID/cgroup`: `0::/system.slice/nginx.service`.
#[must_use]
pub fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .find(|name| name.ends_with(".service"))
}

/// The values of a setting in a unit's files, in order. An empty assignment discards those before it, as it
/// does for systemd's lists (systemd.syntax(7)). Files that cannot be read are skipped.
#[must_use]
pub fn values(root: &Root, unit: &str, setting: &str) -> Vec<String> {
    let mut values = Vec::new();
    for file in unit_files(root, unit) {
        for line in logical_lines(&root.text(&file, MAX_FILE).unwrap_or_default()) {
            match line.split_once('=') {
                Some((key, value)) if key.trim() == setting && value.trim().is_empty() => {
                    values.clear();
                }
                Some((key, value)) if key.trim() == setting => values.push(value.trim().to_owned()),
                _ => {}
            }
        }
    }
    values
}

/// The environment of a service, from its unit files.
#[derive(Clone, Debug, Default)]
pub struct ServiceEnvironment {
    /// Values, each with the file that sets it last.
    set: BTreeMap<String, (String, PathBuf)>,
    /// Names that systemd passes on from its own environment, each with the file that lists it.
    passed: BTreeMap<String, PathBuf>,
    /// Names and assignments that are removed at the end, each with the file that lists it.
    unset: Vec<(String, PathBuf)>,
    /// Files that could not be read, each with the reason.
    pub problems: Vec<String>,
}

/// The effect of a service's unit files on a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceVariable {
    /// This unit file sets the variable to this value.
    Set(PathBuf, String),
    /// This unit file removes the variable.
    Unset(PathBuf),
    /// This unit file passes the variable on from systemd's own environment.
    Passed(PathBuf),
    /// No unit file mentions the variable.
    NotNamed,
}

/// A file of variables that a unit names.
struct EnvironmentFile {
    pattern: String,
    /// Whether the file may be missing.
    optional: bool,
    named_by: PathBuf,
}

impl ServiceEnvironment {
    /// Reads the files of a unit and the files of variables that they name.
    #[must_use]
    pub fn of(root: &Root, unit: &str) -> Self {
        let mut environment = Self::default();
        let mut named = Vec::new();
        for file in unit_files(root, unit) {
            match root.text(&file, MAX_FILE) {
                Ok(text) => environment.unit_file(Path::new(&file), &text, &mut named),
                Err(reason) => environment.problem(format!("{file}: {reason}")),
            }
        }
        let mut budget = MAX_ENVIRONMENT_FILES;
        for file in named {
            environment.files_of_variables(root, &file, &mut budget);
        }
        environment
    }

    /// The effect of the unit files on a variable.
    #[must_use]
    pub fn variable(&self, name: &str) -> ServiceVariable {
        let set = self.set.get(name);
        let removes = |what: &str| match what.split_once('=') {
            Some((known, value)) => known == name && set.is_some_and(|(set, _)| set == value),
            None => what == name,
        };
        if let Some((_, file)) = self.unset.iter().find(|(what, _)| removes(what)) {
            return ServiceVariable::Unset(file.clone());
        }
        match (set, self.passed.get(name)) {
            (Some((value, file)), _) => ServiceVariable::Set(file.clone(), value.clone()),
            (None, Some(file)) => ServiceVariable::Passed(file.clone()),
            (None, None) => ServiceVariable::NotNamed,
        }
    }

    fn unit_file(&mut self, file: &Path, text: &str, named: &mut Vec<EnvironmentFile>) {
        for line in logical_lines(text) {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let value = value.trim();
            // An empty value resets the list.
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
                    self.passed.extend(names.map(|name| (name, file.to_owned())));
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

    /// Reads the files named by one `EnvironmentFile=`.
    fn files_of_variables(&mut self, root: &Root, named: &EnvironmentFile, budget: &mut usize) {
        let EnvironmentFile { pattern, optional, named_by } = named;
        let by = named_by.display();
        let path = pattern.replace("%%", "\0");
        if path.contains('%') || !path.starts_with('/') {
            return self.problem(format!(
                "EnvironmentFile={pattern} in {by} was not read: it has a specifier or is not an absolute path"
            ));
        }
        let found = glob::files(root, &path.replace('\0', "%"));
        if found.is_empty() && !optional {
            self.problem(format!("EnvironmentFile={pattern} in {by}: there is no such file"));
        }
        for file in found {
            if *budget == 0 {
                return self.problem(format!(
                    "{by}: more than {MAX_ENVIRONMENT_FILES} files of variables: the rest was not read"
                ));
            }
            *budget -= 1;
            match root.text(&file, MAX_FILE) {
                Ok(text) => {
                    for (name, value) in environment::parse(&text) {
                        self.set(&name, &value, Path::new(&file));
                    }
                }
                Err(Unavailable::Missing) if *optional => {}
                Err(reason) => self.problem(format!("EnvironmentFile={file} in {by}: {reason}")),
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

/// The lines of a unit file without comments, which may also stand between the parts of a continued line.
fn logical_lines(text: &str) -> Vec<String> {
    let is_comment = |line: &str| line.trim_start().starts_with(['#', ';']);
    lexer::logical_lines(text, " ", |line| (!is_comment(line)).then_some(line))
}

/// The unit file in force, then its drop-ins by name. Of files with the same name, the one in the folder with
/// the highest priority wins; a link to `/dev/null` masks the name.
fn unit_files(root: &Root, unit: &str) -> Vec<String> {
    let masked = |file: &String| {
        matches!(root.link(file), Ok(Some(target)) if target == "/dev/null")
            || root.kind(file) == Ok(FileKind::CharacterDevice)
    };
    let exists =
        |file: &String| masked(file) || root.kind(file).is_ok_and(|kind| kind != FileKind::Folder);
    let own = FOLDERS.iter().map(|folder| format!("{folder}/{unit}")).rfind(exists);
    let mut drop_ins = BTreeMap::new();
    for folder in FOLDERS.iter().map(|folder| format!("{folder}/{unit}.d")) {
        for name in root.names(&folder) {
            if name.ends_with(".conf") {
                let path = format!("{folder}/{name}");
                let _ = drop_ins.insert(name, path);
            }
        }
    }
    let all = own.into_iter().chain(drop_ins.into_values());
    all.filter(|file| !masked(file)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

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

        fn environment(&self) -> ServiceEnvironment {
            ServiceEnvironment::of(&Root::open(self.0.path()).expect("folder"), "nginx.service")
        }

        fn value(&self, name: &str) -> Option<String> {
            match self.environment().variable(name) {
                ServiceVariable::Set(_, value) => Some(value),
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
    fn values_of_a_setting_are_collected_until_an_empty_one() {
        let files = Files::new();
        let values = || {
            let root = Root::open(files.0.path()).expect("folder");
            values(&root, "nginx.service", "LoadCredential")
        };
        assert!(values().is_empty());
        files.unit("LoadCredential=a:/1\nLoadCredentialEncrypted=c:/3\nLoadCredential = b:/2\n");
        assert_eq!(values(), ["a:/1", "b:/2"]);
        files.put(
            "etc/systemd/system/nginx.service.d/m.conf",
            b"[Service]\nLoadCredential=\nLoadCredential=a:/4\n",
        );
        assert_eq!(values(), ["a:/4"]);
    }

    #[test]
    fn last_drop_in_wins_and_masked_drop_ins_do_not_count() {
        let files = Files::new();
        assert_eq!(files.value("A"), None);
        files.unit("# Environment=A=0\nEnvironment = \"A=1 2\" \\\n; C=3\n  B=2#\n");
        assert_eq!(files.value("A").expect("set"), "1 2");
        assert_eq!(files.value("B").expect("continued"), "2#");
        files.put("etc/systemd/system/nginx.service.d/m.conf", b"[Service]\nEnvironment=A=3\n");
        let file = PathBuf::from("/etc/systemd/system/nginx.service.d/m.conf");
        assert_eq!(files.environment().variable("A"), ServiceVariable::Set(file, "3".to_owned()));
        assert_eq!(files.value("B").expect("set"), "2#");
        files.put(
            "run/systemd/system/nginx.service.d/z.conf",
            b"[Service]\nEnvironment=\n# Environment=A=4\n",
        );
        assert_eq!(files.value("A"), None);
        files.put("lib/systemd/system/nginx.service.d/z.txt", b"Environment=A=5\n");
        assert_eq!(files.value("A"), None);
        // A file of the same name in a folder with higher priority.
        let mask = files.0.path().join("etc/systemd/system/nginx.service.d/z.conf");
        std::os::unix::fs::symlink("/dev/null", mask).expect("link");
        assert_eq!(files.value("A").expect("masked"), "3");
        assert!(files.environment().problems.is_empty());
    }

    #[test]
    fn environment_files_win_over_environment_lines() {
        let files = Files::new();
        files.unit("EnvironmentFile=/etc/default/nginx\nEnvironmentFile=-/etc/more*\nEnvironment=A=1 B=1 C=1\n");
        files.put("etc/default/nginx", b"# A=0\nA='2'\nB=2\n");
        files.put("etc/more-1", b"B=\"3\"\n");
        files.put("etc/more-2", b"B=4\n");
        let file = PathBuf::from("/etc/default/nginx");
        let environment = files.environment();
        assert_eq!(environment.variable("A"), ServiceVariable::Set(file, "2".to_owned()));
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
    fn unset_and_passed_variables_name_their_unit_file() {
        let files = Files::new();
        files.unit(
            "Environment=A=1 B=1 C=1\nUnsetEnvironment=A B=1 C=2 D\nPassEnvironment=D E\nEnvironmentFile=-/etc/v\n",
        );
        files.put("etc/v", b"A=2\n");
        let unit = PathBuf::from(format!("/{UNIT}"));
        let environment = files.environment();
        for name in ["A", "B", "D"] {
            assert_eq!(environment.variable(name), ServiceVariable::Unset(unit.clone()));
        }
        assert_eq!(files.value("C").expect("another value"), "1");
        assert_eq!(environment.variable("E"), ServiceVariable::Passed(unit));
        assert_eq!(environment.variable("F"), ServiceVariable::NotNamed);
        files.put(
            "etc/systemd/system/nginx.service.d/m.conf",
            b"[Service]\nUnsetEnvironment=\nPassEnvironment=\n",
        );
        assert_eq!(files.value("A").expect("no longer taken away"), "2");
        assert_eq!(files.environment().variable("E"), ServiceVariable::NotNamed);
    }

    #[test]
    fn unreadable_environment_files_are_reported_and_skipped() {
        let files = Files::new();
        files.unit("Environment=A=1\nEnvironmentFile=-/etc/v\n");
        let long = vec![b'#'; MAX_FILE + 1];
        for (bytes, what) in
            [(&b"A=2\0B=3"[..], "not text"), (b"A=\xff\n", "not text"), (&long, "larger than")]
        {
            files.put("etc/v", bytes);
            let problem = files.problem();
            assert!(problem.starts_with("EnvironmentFile=/etc/v in /lib/"), "{problem}");
            assert!(problem.contains(what), "{problem}");
            assert_eq!(files.value("A").expect("still"), "1");
        }
        let path = files.0.path().join("etc/v");
        fs::remove_file(&path).expect("removed");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        assert!(files.problem().contains("it is a "));
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("folder");
        assert!(files.problem().contains("it is a "));
        for odd in ["/etc/%i", "relative"] {
            files.unit(&format!("EnvironmentFile={odd}\n"));
            assert!(files.problem().contains("was not read"));
        }
        files.put(UNIT, &long);
        assert!(files.problem().contains("larger than"));
    }

    #[test]
    fn number_of_environment_files_is_bounded() {
        let files = Files::new();
        files.unit("EnvironmentFile=/etc/v/*\n");
        for number in 0..=MAX_ENVIRONMENT_FILES {
            files.put(&format!("etc/v/{number}"), b"A=1\n");
        }
        assert!(files.problem().contains("more than 100 files"));
    }

    #[test]
    fn unit_is_read_from_the_control_group() {
        assert_eq!(unit_of("0::/system.slice/nginx.service\n"), Some("nginx.service"));
        assert_eq!(unit_of("1:cpu:/\n0::/system.slice/a.service/x\n"), Some("a.service"));
        assert_eq!(unit_of("0::/user.slice\n"), None);
        assert_eq!(unit_of("nonsense"), None);
    }
}
