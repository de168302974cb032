// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The state folder of a managed node, as [`super`] draws it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use millrace_hostfs::ordinary::{self, Links};
use millrace_service::overview::now_ms;
use millrace_service::rates::JobClass;
use millrace_service::store::{IfExists, write_private};

use super::ManagedNodeError;
use crate::model::node::{Capacity, MAX_FORMER};

/// The locked state folder of a node, and the processes that held it.
#[derive(Debug)]
pub struct NodeFolder {
    path: PathBuf,
    /// Held until the process ends.
    _lock: File,
    /// Number of this process.
    process: u64,
    /// Numbers of processes that held the lock and did not leave in order. They have ended.
    former: Vec<u64>,
}

impl NodeFolder {
    /// Makes the folder, takes its lock and notes this process.
    ///
    /// # Errors
    /// Another node has the lock, or the folder cannot be written.
    pub fn lock(path: &Path) -> Result<Self, ManagedNodeError> {
        make_folder(path).map_err(ManagedNodeError::of(path))?;
        let file = path.join("lock");
        let lock = ordinary::open_to_write(&file, 0o600).map_err(ManagedNodeError::of(&file))?;
        lock.try_lock().map_err(|_| ManagedNodeError::Locked(path.to_owned()))?;
        let former = numbers(&path.join("processes"));
        let process = now_ms() << 16 | u64::from(std::process::id() & 0xffff);
        let folder = Self { path: path.to_owned(), _lock: lock, process, former };
        let kept = folder.former.iter().rev().take(MAX_FORMER - 1).rev();
        let all: Vec<u64> = kept.copied().chain([process]).collect();
        folder.write_processes(&all)?;
        Ok(folder)
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of this process.
    pub(super) fn process(&self) -> u64 {
        self.process
    }

    /// Numbers of the former processes, for the registration.
    pub(super) fn former(&self) -> &[u64] {
        &self.former
    }

    /// The manager knows that the former processes have ended.
    pub(super) fn forget_former(&mut self) -> Result<(), ManagedNodeError> {
        self.former.clear();
        self.write_processes(&[self.process])
    }

    /// The manager knows that this process has left the pool.
    pub(super) fn note_left(&self) -> Result<(), ManagedNodeError> {
        self.write_processes(&[])
    }

    fn write_processes(&self, numbers: &[u64]) -> Result<(), ManagedNodeError> {
        let text: String = numbers.iter().map(|number| format!("{number}\n")).collect();
        self.write("processes", &text)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), ManagedNodeError> {
        let path = self.path.join(name);
        write_private(&path, text.as_bytes(), IfExists::Replace)
            .map_err(ManagedNodeError::of(&path))
    }

    /// The capacity from the file, if it was measured on `machine` (one line); else from `measure`, which is kept.
    ///
    /// # Errors
    /// The measurement fails, or the node can do no operation.
    pub fn capacity<E>(
        &self,
        machine: &str,
        measure: impl FnOnce() -> Result<Capacity, E>,
    ) -> Result<Capacity, E>
    where
        E: From<ManagedNodeError>,
    {
        let kept = read(&self.path.join("capacity"));
        if let Some((head, rows)) = kept.split_once('\n')
            && head == machine
        {
            let capacity: Capacity = rows.lines().filter_map(row).collect();
            if !capacity.is_empty() {
                return Ok(capacity);
            }
        }
        let capacity = measure()?;
        if capacity.is_empty() {
            return Err(ManagedNodeError::NoCapacity.into());
        }
        let rows: String =
            capacity.iter().map(|(class, rate)| format!("{class} {rate}\n")).collect();
        self.write("capacity", &format!("{machine}\n{rows}"))?;
        Ok(capacity)
    }
}

/// Makes a folder that only this user may enter.
///
/// # Errors
/// As the system reports them.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// `rsa-2048 1500`.
fn row(line: &str) -> Option<(JobClass, u64)> {
    let (class, rate) = line.split_once(' ')?;
    Some((class.parse().ok()?, rate.parse().ok()?))
}

/// Numbers in a file, one a line. A damaged file has none: then the former processes' slices expire.
fn numbers(path: &Path) -> Vec<u64> {
    let text = read(path);
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The text of a file of the folder; empty for one that cannot be read.
fn read(path: &Path) -> String {
    ordinary::read_text(path, Links::Refuse, MAX_FILE).unwrap_or_default()
}

/// Bound on a file of the folder, in bytes: a thousand classes of jobs with their rates.
const MAX_FILE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folder_is_held_by_one_process_and_names_those_that_did_not_leave() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("node");
        let first = NodeFolder::lock(&path).unwrap();
        assert!(first.former().is_empty());
        assert!(matches!(NodeFolder::lock(&path), Err(ManagedNodeError::Locked(_))));
        let number = first.process();
        drop(first);
        let mut second = NodeFolder::lock(&path).unwrap();
        assert_eq!(second.former(), [number]);
        second.forget_former().unwrap();
        second.note_left().unwrap();
        drop(second);
        assert!(NodeFolder::lock(&path).unwrap().former().is_empty());
    }

    #[test]
    fn capacity_is_measured_once_for_a_machine() {
        let place = tempfile::tempdir().unwrap();
        let folder = NodeFolder::lock(&place.path().join("node")).unwrap();
        let of = |rate: u64| move || Ok(Capacity::from([("rsa-2048".parse().unwrap(), rate)]));
        let rate = |capacity: Result<Capacity, ManagedNodeError>| {
            *capacity.unwrap().values().next().unwrap()
        };
        assert_eq!(rate(folder.capacity("a", of(7))), 7);
        assert_eq!(rate(folder.capacity("a", of(8))), 7, "kept");
        assert_eq!(rate(folder.capacity("b", of(9))), 9, "another machine");
        fs::write(folder.path.join("capacity"), "b\nnonsense\n").unwrap();
        assert_eq!(rate(folder.capacity("b", of(10))), 10, "a damaged file");
        let none = folder.capacity("c", || Ok(Capacity::new()));
        assert!(matches!(none, Err(ManagedNodeError::NoCapacity)));
    }
}
