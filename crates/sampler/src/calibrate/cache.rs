// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Calibrations on disk. A file with unexpected content counts as missing, and the calibration is repeated.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::replace::replace_file;
use millrace_hostfs::{Root, TABLE_BYTES};
use serde::{Deserialize, Serialize};

use super::{Calibration, Template};
use crate::Image;

/// Version of the procedure: calibrations of other versions are repeated.
const SCHEMA: u32 = 6;

/// Bound on a file: real ones have 100 KiB.
const MAX_LEN: usize = 8 << 20;

/// Bound on the templates in a file: a calibration makes one for each operation that it runs.
const MAX_TEMPLATES: usize = 100;

#[derive(Serialize, Deserialize)]
struct Stored {
    schema: u32,
    templates: Vec<Template>,
}

/// The cache folder. `None` if the user has no home.
pub(super) fn folder() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/cache/millrace".into());
    }
    let absolute = |name| {
        let path = PathBuf::from(env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .map(|folder| folder.join("millrace"))
}

/// The name of the file for this libcrypto on this processor.
pub(super) fn name(image: &Image) -> String {
    let mut hasher = DefaultHasher::new();
    let root = Root::open("/").ok();
    let cpu = root.and_then(|root| root.text("proc/cpuinfo", TABLE_BYTES).ok()).unwrap_or_default();
    let telling = ["model name", "flags", "CPU implementer", "CPU part", "Features"];
    for line in cpu.lines().take_while(|line| !line.is_empty()) {
        if telling.iter().any(|start| line.starts_with(start)) {
            line.hash(&mut hasher);
        }
    }
    env::var_os("OPENSSL_ia32cap").hash(&mut hasher);
    if image.build_id().is_none() {
        (image.path(), image.regions().len()).hash(&mut hasher);
    }
    let id = image.build_id().unwrap_or("none");
    format!("calibration-{id}-{:016x}.json", hasher.finish())
}

pub(super) fn load(path: &Path, image: &Image) -> Option<Calibration> {
    let text = ordinary::read(path, Links::Refuse, MAX_LEN).ok()?;
    let stored: Stored = serde_json::from_slice(&text).ok()?;
    if stored.schema != SCHEMA || !(1..=MAX_TEMPLATES).contains(&stored.templates.len()) {
        return None;
    }
    let known = |start: u64| image.region(start).is_some_and(|region| region.start == start);
    let is_sane = |template: &Template| {
        let mut counts = template.counts.iter();
        !template.counts.is_empty()
            && counts.all(|(start, count)| known(*start) && *count <= u64::from(u32::MAX))
    };
    // Calibrations of files without build ID are not kept.
    stored
        .templates
        .iter()
        .all(is_sane)
        .then_some(Calibration { templates: stored.templates, handshakes: true })
}

/// Stores a calibration. Failure is not an error: the calibration is repeated next time.
pub(super) fn store(path: &Path, calibration: &Calibration) {
    let write = || -> Option<()> {
        let text = serde_json::to_vec(&Stored {
            schema: SCHEMA,
            templates: calibration.templates.clone(),
        });
        let folder = path.parent()?;
        fs::create_dir_all(folder).ok()?;
        replace_file(path, &text.ok()?, Some(0o600)).ok()
    };
    // See above.
    let _ = write();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolClass;

    #[test]
    fn stored_calibration_is_loaded_and_damaged_ones_are_not() {
        let image = Image::open(Path::new("/proc/self/exe")).expect("this program");
        let start = image.regions()[7].start;
        let calibration = Calibration {
            templates: vec![Template { class: SymbolClass::Aes, counts: [(start, 3)].into() }],
            handshakes: true,
        };
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("new").join(name(&image));
        store(&path, &calibration);
        assert_eq!(load(&path, &image), Some(calibration.clone()));
        for text in [
            "",
            "{}",
            "{\"schema\":6,\"templates\":[]}",
            "{\"schema\":0,\"templates\":[{\"class\":\"aes\",\"counts\":{\"1\":1}}]}",
            "{\"schema\":6,\"templates\":[{\"class\":\"aes\",\"counts\":{\"18446744073709551615\":1}}]}",
            "{\"schema\":6,\"templates\":[{\"class\":\"no\",\"counts\":{\"1\":1}}]}",
        ] {
            fs::write(&path, text).expect("write");
            assert_eq!(load(&path, &image), None, "{text}");
        }
        store(Path::new("/proc/nowhere/x"), &calibration);
        fs::remove_file(&path).expect("removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("a pipe");
        assert_eq!(load(&path, &image), None, "a pipe");
    }
}
