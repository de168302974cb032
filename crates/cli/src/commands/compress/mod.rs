// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace compress`: static files, compressed once beside the originals.

mod formats;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use millrace_hostfs::replace::replace_with;
use millrace_operation::sync::lock;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::CompressArgs;
use crate::exit::{Failure, fail};
use crate::output;
use crate::progress;

/// Longest file: the compressors hold it and their output in memory.
const MAX_LENGTH: u64 = 256 << 20;

/// Deepest folder, so that a loop of mounts ends.
const MAX_DEPTH: usize = 64;

/// The outcome of one pass over the folder.
#[derive(Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Compressed {
    /// Files that were considered
    files: usize,
    /// Outputs written, or with --dry-run to be written
    written: usize,
    /// Outputs that exist and are as old as their file
    fresh: usize,
    /// Outputs left out, because they would not be smaller than their file
    not_smaller: usize,
    /// Bytes of the files of which outputs were written
    in_bytes: u64,
    /// Bytes of these outputs
    out_bytes: u64,
    /// Files that could not be compressed and folders that could not be read, with the reason
    failures: Vec<String>,
}

pub(crate) fn run(args: &CompressArgs) -> Result<()> {
    let dir = args.dir.display();
    let problem = match fs::metadata(&args.dir) {
        Ok(data) if data.is_dir() => None,
        Ok(_) => Some("it is not a folder".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = problem {
        let message = format!("{dir}: {problem}; name the folder of a site");
        return Err(fail(Failure::Usage, message));
    }
    let mut known = BTreeSet::new();
    loop {
        let found = Found::below(&args.dir, args);
        for gone in known.iter().filter(|path: &&PathBuf| !path.exists()) {
            forget(gone, args);
        }
        known = found.files.iter().cloned().collect();
        let done = compress(found, args);
        if !args.watch || done.written > 0 || !done.failures.is_empty() {
            report(&done, args)?;
        }
        if !args.watch {
            let failures = done.failures.len();
            let message = format!("{failures} files or folders could not be compressed");
            return if failures == 0 { Ok(()) } else { Err(fail(Failure::Failed, message)) };
        }
        thread::sleep(args.interval);
    }
}

/// The original has gone: its compressed forms would still be served.
fn forget(original: &Path, args: &CompressArgs) {
    for format in &args.formats {
        // It may have been written by no run of this command, or be gone already.
        drop(fs::remove_file(formats::beside(original, *format)));
    }
}

fn report(done: &Compressed, args: &CompressArgs) -> Result<()> {
    if args.json {
        return output::print_json(done);
    }
    for failure in &done.failures {
        note!("millrace: {failure}");
    }
    let verb = if args.plan.dry_run { "would be written" } else { "written" };
    output::print(&format!(
        "{} files: {} {verb} ({:.1} MB from {:.1} MB), {} fresh, {} not smaller\n",
        done.files,
        done.written,
        done.out_bytes as f64 / 1e6,
        done.in_bytes as f64 / 1e6,
        done.fresh,
        done.not_smaller
    ))
}

/// The files to compress.
#[derive(Debug, Default)]
struct Found {
    files: Vec<PathBuf>,
    /// Folders that could not be read, with the reason.
    failures: Vec<String>,
}

impl Found {
    /// Looks through a folder. Symbolic links are not followed.
    fn below(dir: &Path, args: &CompressArgs) -> Self {
        let mut found = Self::default();
        let mut folders = vec![(dir.to_owned(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            if let Err(error) = found.look_into(&folder, depth, &mut folders, args) {
                found.failures.push(format!("{}: {error}", folder.display()));
            }
        }
        found.files.sort();
        found
    }

    fn look_into(
        &mut self,
        folder: &Path,
        depth: usize,
        folders: &mut Vec<(PathBuf, usize)>,
        args: &CompressArgs,
    ) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            match entry.metadata() {
                Ok(data) if data.is_dir() && depth < MAX_DEPTH => folders.push((path, depth + 1)),
                Ok(data) if data.is_file() => {
                    let ending = path.extension().and_then(|ending| ending.to_str());
                    let wanted = ending.is_some_and(|ending| {
                        args.endings.iter().any(|compressible| compressible == ending)
                    });
                    if wanted && (args.min_length..=MAX_LENGTH).contains(&data.len()) {
                        self.files.push(path);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn compress(Found { files, failures }: Found, args: &CompressArgs) -> Compressed {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = args.threads.map_or(cores, usize::from).min(files.len().max(1));
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Compressed { failures, ..Compressed::default() });
    let bar = if args.watch { ProgressBar::hidden() } else { progress::bar("", files.len()) };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut done = Compressed::default();
                    if let Err(error) = all_formats(path, args, &mut done) {
                        done.failures.push(format!("{}: {error:#}", path.display()));
                    }
                    bar.inc(1);
                    lock(&total).add(done);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.files = files.len();
    done
}

impl Compressed {
    fn add(&mut self, other: Self) {
        let Self { files, written, fresh, not_smaller, in_bytes, out_bytes, failures } = other;
        self.files += files;
        self.written += written;
        self.fresh += fresh;
        self.not_smaller += not_smaller;
        self.in_bytes += in_bytes;
        self.out_bytes += out_bytes;
        self.failures.extend(failures);
    }
}

fn all_formats(path: &Path, args: &CompressArgs, done: &mut Compressed) -> Result<()> {
    let data = fs::metadata(path).context("looking at it")?;
    let changed = data.modified().context("its time")?;
    let mut original = None;
    for format in &args.formats {
        let target = formats::beside(path, *format);
        if fs::metadata(&target).and_then(|target| target.modified()).ok() == Some(changed) {
            done.fresh += 1;
            continue;
        }
        let original = match &mut original {
            Some(original) => original,
            none => none.insert(fs::read(path).context("reading it")?),
        };
        let packed = formats::pack(*format, original)?;
        if packed.len() >= original.len() {
            done.not_smaller += 1;
            if !args.plan.dry_run {
                // An older form of it would be served in its place.
                drop(fs::remove_file(&target));
            }
            continue;
        }
        done.written += 1;
        done.in_bytes += original.len() as u64;
        done.out_bytes += packed.len() as u64;
        if !args.plan.dry_run {
            put(&target, &packed, &data)?;
            // The original may have changed while it was read.
            if fs::metadata(path).and_then(|data| data.modified()).ok() != Some(changed) {
                drop(fs::remove_file(&target));
            }
        }
    }
    Ok(())
}

/// Writes a whole file under its name at once, with mode and time of the original.
fn put(target: &Path, bytes: &[u8], original: &fs::Metadata) -> Result<()> {
    let mode = original.permissions().mode() & 0o7777;
    let written = replace_with(target, Some(mode), |file| {
        file.write_all(bytes)?;
        file.set_modified(original.modified()?)
    });
    written.with_context(|| format!("writing {}", target.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command, CompressFormat};

    fn arguments(dir: &Path, more: &[&str]) -> CompressArgs {
        let line = ["millrace", "compress"].iter().chain(more).map(|word| (*word).to_owned());
        let line = line.chain([dir.display().to_string()]);
        match Cli::try_parse_from(line).expect("a command line").command {
            Command::Compress(args) => args,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn files_are_compressed_once_and_again_when_they_change() {
        let dir = tempfile::tempdir().expect("a folder");
        let page = dir.path().join("sub/page.html");
        fs::create_dir(dir.path().join("sub")).expect("a folder");
        fs::write(&page, "<p>words and words</p>\n".repeat(200)).expect("a file");
        fs::write(dir.path().join("short.html"), "x").expect("a file");
        fs::write(dir.path().join("photo.jpeg"), "x".repeat(5000)).expect("a file");
        let args = arguments(dir.path(), &[]);
        let once = |wanted: [usize; 3]| {
            let done = compress(Found::below(dir.path(), &args), &args);
            assert_eq!([done.written, done.fresh, done.not_smaller], wanted, "{done:?}");
            assert!(done.failures.is_empty());
        };
        once([3, 0, 0]);
        once([0, 3, 0]);
        let time =
            |path: &Path| fs::metadata(path).and_then(|data| data.modified()).expect("a time");
        for format in [CompressFormat::Gz, CompressFormat::Br, CompressFormat::Zst] {
            let beside = formats::beside(&page, format);
            assert_eq!(time(&beside), time(&page));
        }
        let noise: Vec<u8> =
            (0..4000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        fs::write(&page, noise).expect("a file");
        let later = time(&page) + Duration::from_secs(5);
        fs::File::options()
            .write(true)
            .open(&page)
            .and_then(|file| file.set_modified(later))
            .expect("a time");
        let done = compress(Found::below(dir.path(), &args), &args);
        assert_eq!(done.written + done.not_smaller, 3, "{done:?}");
        for format in [CompressFormat::Gz, CompressFormat::Br, CompressFormat::Zst] {
            let beside = formats::beside(&page, format);
            assert!(
                !beside.exists() || time(&beside) == later,
                "no form of the former page is left"
            );
        }
        let mut left = fs::read_dir(dir.path().join("sub")).expect("a folder").flatten();
        assert!(left.all(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")));
    }

    #[test]
    fn unreadable_folder_is_a_failure() {
        let dir = tempfile::tempdir().expect("a folder");
        let args = arguments(&dir.path().join("none"), &[]);
        let done = compress(Found::below(&args.dir, &args), &args);
        let [failure] = &done.failures[..] else { panic!("{done:?}") };
        assert!(failure.starts_with(&format!("{}: No such file", args.dir.display())), "{failure}");
    }

    #[test]
    fn dry_run_writes_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("page.html"), "words ".repeat(500)).expect("a file");
        let args = arguments(dir.path(), &["--dry-run"]);
        let done = compress(Found::below(dir.path(), &args), &args);
        assert_eq!(done.written, 3);
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
    }
}
