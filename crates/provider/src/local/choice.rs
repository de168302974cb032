// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Costs of each primitive by AWS-LC and in the installed OpenSSL, and the file that keeps them.
//!
//! With `local = on` AWS-LC computes a primitive only if that was measured to be faster. `ffi::local::measure` measures
//! once for each build of libcrypto on each processor; the file saves the next start of a server those milliseconds. A
//! line has the system, the name of the primitive, and its costs in nanoseconds by AWS-LC and in OpenSSL, with tabs
//! between. `-` stands for the cost of a primitive that OpenSSL lacks.
//!
//! A wrong file can only slow a gateway down. It is read and written only where root and the user of this process alone
//! can write.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::trusted::{self, Untrusted};
use thiserror::Error;

use crate::algorithms::Primitive;

/// Bound on the file, in bytes: lines of some 100 bytes for a few releases of OpenSSL.
const MAX_FILE_LEN: usize = 64 * 1024;

/// Most systems in the file: a machine has one or two, and gets others with updates.
const MAX_SYSTEMS: usize = 16;

/// Cost of one primitive, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Cost in this process, with AWS-LC.
    pub local_ns: u64,
    /// Cost in the installed OpenSSL. `None` if that does not have the primitive.
    pub openssl_ns: Option<u64>,
}

impl Cost {
    /// Whether OpenSSL lacks the primitive, or AWS-LC is cheaper by the gain that its row requires for a libcrypto with
    /// assembly or without.
    #[must_use]
    pub fn is_lower_locally(&self, primitive: Primitive, has_assembly: bool) -> bool {
        let gain = primitive.row().least_gain;
        let percent = if has_assembly { gain.with_assembly } else { gain.without_assembly };
        let least = self.local_ns.saturating_mul(percent);
        self.openssl_ns.is_none_or(|openssl_ns| least < openssl_ns.saturating_mul(100))
    }
}

/// The costs by the index of their [`Primitive`]. `None` for what was not measured.
pub type Costs = [Option<Cost>; Primitive::ALL.len()];

/// Why the file was not used.
#[derive(Debug, Error)]
pub enum ChoiceFileError {
    /// The file cannot be opened, read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Others than root and this user can write to the file or its folder.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The file is not text.
    #[error("it is not text")]
    Form,
}

/// The folder of the file, in which only root and this user can write.
fn folder_of(path: &Path, user: u32) -> Result<&Path, ChoiceFileError> {
    let folder = path.parent().ok_or(ChoiceFileError::Form)?;
    trusted::check_entry(folder, &fs::symlink_metadata(folder)?, &[user])?;
    Ok(folder)
}

/// The text of a file that only root and this user can have written.
pub(crate) fn text(path: &Path, user: u32) -> Result<String, ChoiceFileError> {
    folder_of(path, user)?;
    let file = ordinary::open(path, Links::Refuse)?;
    trusted::check_entry(path, &file.metadata()?, &[user])?;
    let mut text = Vec::new();
    ordinary::read_rest(file, MAX_FILE_LEN, &mut text)?;
    String::from_utf8(text).map_err(|_| ChoiceFileError::Form)
}

/// A line: system, primitive, costs.
fn parse(line: &str) -> Option<(&str, Primitive, Cost)> {
    let mut columns = line.split('\t');
    let system = columns.next()?;
    let name = columns.next()?;
    let cost = Cost {
        local_ns: columns.next()?.parse().ok()?,
        openssl_ns: match columns.next()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        },
    };
    let is_all = columns.next().is_none();
    is_all.then_some((system, Primitive::from_name(name)?, cost))
}

/// The costs on this system that the file has. `user` is that of this process.
pub fn read(path: &Path, system: &str, user: u32) -> Result<Costs, ChoiceFileError> {
    let text = text(path, user)?;
    let mut costs = [None; Primitive::ALL.len()];
    for (known, primitive, cost) in text.lines().filter_map(parse) {
        if known == system {
            costs[primitive as usize] = Some(cost);
        }
    }
    Ok(costs)
}

/// Replaces the costs on this system in the file, and keeps those of other systems.
///
/// # Errors
/// The file was not written, and is unchanged.
pub fn save(path: &Path, system: &str, costs: &Costs, user: u32) -> Result<(), ChoiceFileError> {
    let folder = folder_of(path, user)?;
    let before = text(path, user).unwrap_or_default();
    let others: Vec<&str> = before
        .lines()
        .filter(|line| parse(line).is_some_and(|(known, ..)| known != system))
        .collect();
    let most = (MAX_SYSTEMS - 1) * Primitive::ALL.len();
    let mut lines: Vec<String> =
        others[others.len().saturating_sub(most)..].iter().map(|line| (*line).to_owned()).collect();
    for primitive in Primitive::ALL {
        let Some(cost) = costs[*primitive as usize] else {
            continue;
        };
        let Cost { local_ns, openssl_ns } = cost;
        let openssl_ns = openssl_ns.map_or_else(|| "-".to_owned(), |time| time.to_string());
        let name = primitive.row().name;
        lines.push(format!("{system}\t{name}\t{local_ns}\t{openssl_ns}"));
    }
    lines.push(String::new());
    let fresh = folder.join(format!(".local-choice.{}", std::process::id()));
    // One that a process with this number left behind.
    let _ = fs::remove_file(&fresh);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    let written = options
        .open(&fresh)
        .and_then(|mut file| file.write_all(lines.join("\n").as_bytes()))
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    Ok(written?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn user(folder: &Path) -> u32 {
        fs::metadata(folder).expect("a folder").uid()
    }

    fn some_costs() -> Costs {
        let mut costs = [None; Primitive::ALL.len()];
        costs[Primitive::X25519 as usize] = Some(Cost { local_ns: 30, openssl_ns: Some(80) });
        costs[Primitive::X25519MlKem768 as usize] = Some(Cost { local_ns: 50, openssl_ns: None });
        costs
    }

    #[test]
    fn costs_that_were_saved_are_read_for_their_system_alone() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, user) = (folder.path().join("choice.tsv"), user(folder.path()));
        let costs = some_costs();
        save(&path, "one", &costs, user).expect("saved");
        save(&path, "two", &[None; Primitive::ALL.len()], user).expect("saved");
        assert_eq!(read(&path, "one", user).expect("read"), costs);
        assert_eq!(read(&path, "two", user).expect("read"), [None; Primitive::ALL.len()]);
        let mut slower = costs;
        slower[Primitive::X25519 as usize] = Some(Cost { local_ns: 90, openssl_ns: Some(80) });
        save(&path, "one", &slower, user).expect("saved");
        assert_eq!(read(&path, "one", user).expect("read"), slower);
        let is_lower = |primitive| {
            slower[primitive as usize].expect("a cost").is_lower_locally(primitive, true)
        };
        assert!(!is_lower(Primitive::X25519));
        assert!(is_lower(Primitive::X25519MlKem768));
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 1, "nothing but the file is left");
    }

    #[test]
    fn records_are_left_to_an_openssl_with_assembly_that_is_nearly_as_fast() {
        let openssl_ns = Some(300);
        for (local_ns, of_handshake, of_record_without, of_record) in [
            (99, true, true, true),
            (100, true, true, false),
            (199, true, true, false),
            (200, true, false, false),
            (300, false, false, false),
        ] {
            let cost = Cost { local_ns, openssl_ns };
            for has_assembly in [true, false] {
                let lower = |primitive| cost.is_lower_locally(primitive, has_assembly);
                let of_record = if has_assembly { of_record } else { of_record_without };
                assert_eq!(lower(Primitive::X25519), of_handshake, "{local_ns}");
                assert_eq!(lower(Primitive::AesGcm), of_record, "{local_ns} {has_assembly}");
            }
        }
    }

    #[test]
    fn file_keeps_a_bounded_number_of_systems() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, user) = (folder.path().join("choice.tsv"), user(folder.path()));
        let mut all = some_costs();
        all.fill(some_costs()[Primitive::X25519 as usize]);
        for number in 0..2 * MAX_SYSTEMS {
            save(&path, &format!("system {number}"), &all, user).expect("saved");
        }
        let text = fs::read_to_string(&path).expect("text");
        assert_eq!(text.lines().count(), MAX_SYSTEMS * Primitive::ALL.len());
        let last = format!("system {}", 2 * MAX_SYSTEMS - 1);
        assert_eq!(read(&path, &last, user).expect("read"), all);
    }

    #[test]
    fn damaged_file_yields_no_cost_and_is_made_anew_by_the_next_measurement() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, user) = (folder.path().join("choice.tsv"), user(folder.path()));
        let costs = some_costs();
        let long = vec![b'x'; MAX_FILE_LEN + 1];
        for damaged in [&b""[..], b"one\tx25519\t3", b"\x00\xff\x1b[2J\n", b"{}", &long] {
            fs::write(&path, damaged).expect("a file");
            let found = read(&path, "one", user).unwrap_or([None; Primitive::ALL.len()]);
            assert!(found.iter().all(Option::is_none), "{found:?}");
            save(&path, "one", &costs, user).expect("saved");
            assert_eq!(read(&path, "one", user).expect("read"), costs);
        }
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            assert!(read(&path, "one", user).is_err());
            save(&path, "one", &costs, user).expect("saved");
            assert_eq!(read(&path, "one", user).expect("read"), costs);
        }
    }

    #[test]
    fn file_or_folder_that_others_can_write_is_not_used() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, user) = (folder.path().join("choice.tsv"), user(folder.path()));
        let costs = some_costs();
        save(&path, "one", &costs, user).expect("saved");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode(&path, 0o666);
        assert!(read(&path, "one", user).is_err());
        mode(&path, 0o644);
        assert!(read(&path, "one", user).is_ok());
        mode(folder.path(), 0o777);
        assert!(read(&path, "one", user).is_err());
        assert!(save(&path, "one", &costs, user).is_err());
        mode(folder.path(), 0o755);
        if user != 0 {
            assert!(read(&path, "one", user + 1).is_err());
        }
        let link = folder.path().join("link.tsv");
        symlink(&path, &link).expect("a link");
        assert!(read(&link, "one", user).is_err());
        assert!(save(&folder.path().join("none/choice.tsv"), "one", &costs, user).is_err());
    }

    #[test]
    fn lines_that_mean_nothing_are_passed_over() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, user) = (folder.path().join("choice.tsv"), user(folder.path()));
        let text = "one\tX25519\t1\none\tX25519\t-1\t2\none\tX25519\t1\t2\t3\none\tAES\t1\t2\n\none\tX25519\t7\t8\n";
        fs::write(&path, text).expect("written");
        let costs = read(&path, "one", user).expect("read");
        let expected = Cost { local_ns: 7, openssl_ns: Some(8) };
        assert_eq!(costs[Primitive::X25519 as usize], Some(expected));
        assert_eq!(costs.iter().flatten().count(), 1);
        fs::write(&path, [0xff; 10]).expect("written");
        assert!(read(&path, "one", user).is_err());
        fs::write(&path, vec![b'a'; 65 * 1024]).expect("written");
        assert!(read(&path, "one", user).is_err());
    }
}
