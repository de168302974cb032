// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Memory mappings of this process.

/// `/proc/self/maps`, one mapping a line; empty where there is no `/proc`.
pub(crate) fn mappings() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default()
}

/// The first mapped file whose name begins with `start`.
pub(crate) fn mapped_file(start: &str) -> Option<String> {
    let maps = mappings();
    let mut files = maps.lines().filter_map(|line| line.rsplit('/').next());
    files.find(|file| file.starts_with(start)).map(str::to_owned)
}
