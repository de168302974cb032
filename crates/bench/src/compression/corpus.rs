// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Real text to compress: the user's own files, or documents that Debian brings.

use std::fs;
use std::path::{Path, PathBuf};

use super::MAX_PAGE;
use crate::error::BenchError;

/// Kinds of content, by the ending of files. The numbers to reach are about the first three, which `--kinds` has by
/// default.
pub(crate) const KINDS: [&str; 8] = ["html", "json", "js", "css", "svg", "xml", "txt", "png"];

/// Folder of documents that Debian's packages install.
const DOCUMENTS: &str = "/usr/share";

/// Database of installed packages, one record for each; made into JSON as an API would answer.
const PACKAGES: &str = "/var/lib/dpkg/status";

/// Bound on the files of the search, so that a large tree takes seconds: `/usr/share` of a development machine has
/// 8,000 such files.
const MAX_FILES: usize = 20_000;

/// Bound on the depth of the search: those files lie at most eleven folders deep.
const MAX_DEPTH: usize = 12;

/// One kind of content, as long as the longest page or shorter.
pub(super) struct KindText {
    pub(super) kind: &'static str,
    pub(super) bytes: Vec<u8>,
}

/// # Errors
/// [`BenchError::Usage`] if there is no text of any kind.
pub(super) fn read(files: Option<&Path>, kinds: &[String]) -> Result<Vec<KindText>, BenchError> {
    let folder = files.unwrap_or_else(|| Path::new(DOCUMENTS));
    let mut found = Vec::new();
    walk(folder, 0, &mut found);
    found.sort();
    let text = |kind: &'static str| {
        let mut bytes = Vec::new();
        let of_kind = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == kind);
        for path in found.iter().filter(of_kind) {
            if bytes.len() >= MAX_PAGE {
                break;
            }
            bytes.extend(fs::read(path).unwrap_or_default());
        }
        if kind == "json" && files.is_none() {
            bytes = packages();
        }
        KindText { kind, bytes }
    };
    let texts: Vec<KindText> = KINDS
        .into_iter()
        .filter(|kind| kinds.iter().any(|named| named == kind))
        .map(text)
        .filter(|text| !text.bytes.is_empty())
        .collect();
    if texts.is_empty() {
        let problem = format!(
            "{}: no files that end in {}; name a folder with --files",
            folder.display(),
            kinds.join(", ")
        );
        return Err(BenchError::Usage(problem));
    }
    Ok(texts)
}

fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>());
    for entry in entries.unwrap_or_default() {
        if found.len() >= MAX_FILES {
            return;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => walk(&entry.path(), depth + 1, found),
            Ok(kind) if kind.is_file() => {
                let path = entry.path();
                if path.extension().is_some_and(|ending| KINDS.iter().any(|kind| ending == *kind)) {
                    found.push(path);
                }
            }
            _ => {}
        }
    }
}

/// The records of installed packages as a JSON array of objects.
fn packages() -> Vec<u8> {
    let status = fs::read_to_string(PACKAGES).unwrap_or_default();
    let records = status.split("\n\n").map(|record| {
        let fields = record.lines().filter_map(|line| line.split_once(": "));
        fields.map(|(name, value)| (name.to_lowercase(), value.to_owned().into())).collect()
    });
    let records: Vec<serde_json::Map<String, serde_json::Value>> = records.collect();
    serde_json::to_vec(&records).unwrap_or_default()
}
