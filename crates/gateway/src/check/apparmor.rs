// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The profile of AppArmor that confines a server, and the file that an administrator extends.

use millrace_hostfs::Root;

/// The folder of the profiles.
pub(super) const PROFILES: &str = "/etc/apparmor.d";

/// The profiles that the kernel has loaded, each with its mode. Only root reads it.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";

/// Bound on a profile and on the list of the loaded ones, in bytes: Debian's longest profile has 30 KiB.
const MAX_FILE: usize = 1 << 20;

/// A profile whose rules are enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    /// Its name, as the kernel has it.
    pub(super) name: String,
    /// The name of its file in [`PROFILES`].
    pub(super) file: String,
}

impl Profile {
    /// The profile in the label of a process. `None` for a process that no profile confines, or that AppArmor only
    /// watches.
    pub(super) fn of_label(root: &Root, label: Option<String>) -> Option<Self> {
        let name = enforced(label.as_deref()?)?;
        // The profile of a process's child has the name of both.
        let outer = name.split("//").next().unwrap_or(name);
        let found = files(root).find(|(_, header)| header.name == outer);
        // Debian names the file by the path of the program.
        let usual = || outer.trim_start_matches('/').replace('/', ".");
        Some(Self { name: name.to_owned(), file: found.map_or_else(usual, |(file, _)| file) })
    }

    /// The profile that a program gets when it starts.
    pub(super) fn of_program(root: &Root, program: &str) -> Option<Self> {
        let loaded = root.lossy_text(LOADED, MAX_FILE).ok()?;
        let (file, header) = files(root).find(|(_, header)| header.program == program)?;
        let is_enforced = loaded.lines().filter_map(enforced).any(|name| name == header.name);
        is_enforced.then_some(Self { name: header.name, file })
    }

    /// Whether the file, or what an administrator adds to it, names the provider's files.
    pub(super) fn names_millrace(&self, root: &Root) -> bool {
        let names = |path: String| {
            root.lossy_text(&path, MAX_FILE).is_ok_and(|text| text.contains("millrace"))
        };
        names(self.local()) || names(format!("{PROFILES}/{}", self.file))
    }

    /// The commands that add rules to the profile.
    pub(super) fn adding(&self, rules: &[String]) -> [String; 2] {
        let lines: String = rules.iter().map(|rule| format!("  {rule}\\n")).collect();
        [
            format!("printf '{lines}' >> {}", self.local()),
            format!("apparmor_parser -r {PROFILES}/{}", self.file),
        ]
    }

    fn local(&self) -> String {
        format!("{PROFILES}/local/{}", self.file)
    }
}

/// The name in `NAME (enforce)`.
fn enforced(label: &str) -> Option<&str> {
    label.trim_end().strip_suffix(" (enforce)")
}

/// The first line of a profile: `profile NAME PROGRAM flags=(…) {`, or `PROGRAM {`.
struct ProfileHeader {
    name: String,
    /// The path of the program, or empty.
    program: String,
}

impl ProfileHeader {
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim().strip_suffix('{')?;
        let mut words = line.split_whitespace().map(|word| word.trim_matches('"'));
        let first = words.next()?;
        let name = if first == "profile" { words.next()? } else { first };
        let is_path = |word: &&str| word.starts_with('/');
        let program = words.next().filter(is_path).or_else(|| Some(name).filter(is_path));
        (first == "profile" || first.starts_with('/')).then(|| Self {
            name: name.to_owned(),
            program: program.unwrap_or_default().to_owned(),
        })
    }
}

/// The profiles of the files, each with the name of its file.
fn files(root: &Root) -> impl Iterator<Item = (String, ProfileHeader)> {
    root.names(PROFILES).into_iter().flat_map(|file| {
        let text = root.lossy_text(&format!("{PROFILES}/{file}"), MAX_FILE).unwrap_or_default();
        let headers: Vec<ProfileHeader> = text.lines().filter_map(ProfileHeader::parse).collect();
        headers.into_iter().map(move |header| (file.clone(), header))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_a_profile_gives_its_name_and_its_program() {
        for (line, name, program) in [
            (
                "profile unbound /usr/sbin/unbound flags=(attach_disconnected) {",
                "unbound",
                "/usr/sbin/unbound",
            ),
            (
                "/usr/lib/ipsec/charon flags=(attach_disconnected) {",
                "/usr/lib/ipsec/charon",
                "/usr/lib/ipsec/charon",
            ),
            ("profile millrace-virtio {", "millrace-virtio", ""),
            ("profile /usr/sbin/nginx flags=(attach) {", "/usr/sbin/nginx", "/usr/sbin/nginx"),
            ("  profile \"a\" \"/b\" {", "a", "/b"),
        ] {
            let header = ProfileHeader::parse(line).expect(line);
            assert_eq!((&*header.name, &*header.program), (name, program), "{line}");
        }
        for line in ["# a {", "  /etc/unbound/** r,", "}", "hat {", ""] {
            assert!(ProfileHeader::parse(line).is_none(), "{line}");
        }
    }
}
