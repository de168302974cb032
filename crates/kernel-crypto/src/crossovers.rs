// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sizes from which the kernel was measured to be faster than libcrypto, as the provider uses them. [`bulk_sizes`]
//! defines the lines of their file.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};

use millrace_edge::bulk_sizes::{self, BulkSize};

use crate::algorithm::{BulkAlgorithm, BulkInterface};

/// Most systems in the file: enough for a few updates of the kernel and of OpenSSL.
const MAX_SYSTEMS: usize = 8;

/// Bytes of `/proc/cpuinfo` that are read: the first processor takes 1.5 KiB.
const CPUINFO_LEN: u64 = 4096;

/// The least size of a message for each algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossovers(Vec<Row>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    interface: BulkInterface,
    algorithm: BulkAlgorithm,
    /// `None` if the kernel is faster at no size.
    least: Option<usize>,
}

/// The name of this system with this libcrypto, as [`bulk_sizes::system`] makes it.
///
/// # Errors
/// `/proc/sys/kernel/osrelease` cannot be read. A `/proc/cpuinfo` that cannot be read makes the model unknown.
pub fn this_system(libcrypto: &str) -> io::Result<String> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut start = Vec::new();
    let _ = File::open("/proc/cpuinfo")
        .and_then(|cpuinfo| cpuinfo.take(CPUINFO_LEN).read_to_end(&mut start));
    Ok(bulk_sizes::system(&kernel, libcrypto, &String::from_utf8_lossy(&start)))
}

impl Crossovers {
    /// Replaces the least size of a message for an algorithm on an interface.
    pub fn set(
        &mut self,
        interface: BulkInterface,
        algorithm: BulkAlgorithm,
        least: Option<usize>,
    ) {
        self.0.retain(|row| (row.interface, row.algorithm) != (interface, algorithm));
        self.0.push(Row { interface, algorithm, least });
    }

    /// The interface to use for an algorithm, and the least size of a message: the interface that pays from the
    /// smaller size.
    #[must_use]
    pub fn route(&self, algorithm: BulkAlgorithm) -> Option<(BulkInterface, usize)> {
        self.0
            .iter()
            .filter(|row| row.algorithm == algorithm)
            .filter_map(|row| Some((row.interface, row.least?)))
            .min_by_key(|(_, least)| *least)
    }

    /// Whether no algorithm was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rows of a file for this system. Lines that cannot be parsed are skipped.
    #[must_use]
    pub fn read(text: &str, system: &str) -> Self {
        let mut found = Self::default();
        for (_, row) in rows(text).filter(|(size, _)| size.system == system) {
            found.set(row.interface, row.algorithm, row.least);
        }
        found
    }

    /// The text of a file with these rows for this system, and the rows of other systems in `before`. The measurement
    /// ended `measured_s` seconds after 1970.
    #[must_use]
    pub fn written(&self, before: &str, system: &str, measured_s: u64) -> String {
        let others: Vec<BulkSize<'_>> =
            rows(before).map(|(size, _)| size).filter(|size| size.system != system).collect();
        let most = (MAX_SYSTEMS - 1) * BulkInterface::ALL.len() * BulkAlgorithm::ALL.len();
        let own = self.0.iter().map(|Row { interface, algorithm, least }| BulkSize {
            system,
            interface: interface.name(),
            algorithm: algorithm.name(),
            least: *least,
            measured_s,
        });
        let mut text = String::new();
        for size in others[others.len().saturating_sub(most)..].iter().copied().chain(own) {
            let _ = writeln!(text, "{size}");
        }
        text
    }
}

/// The lines whose interface and algorithm are known.
fn rows(text: &str) -> impl Iterator<Item = (BulkSize<'_>, Row)> {
    BulkSize::all(text).filter_map(|size| {
        let interface =
            BulkInterface::ALL.into_iter().find(|known| known.name() == size.interface)?;
        let algorithm = BulkAlgorithm::from_name(size.algorithm)?;
        Some((size, Row { interface, algorithm, least: size.least }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_written_are_read_for_their_system_alone() {
        let mut rows = Crossovers::default();
        rows.set(BulkInterface::AfAlg, BulkAlgorithm::AesCbc, Some(4000));
        rows.set(BulkInterface::DevCrypto, BulkAlgorithm::AesCbc, Some(800));
        rows.set(BulkInterface::AfAlg, BulkAlgorithm::Sha256, None);
        let text = rows.written("", "one", 5);
        assert_eq!(Crossovers::read(&text, "one"), rows);
        assert!(Crossovers::read(&text, "two").is_empty());
        let both = Crossovers::default().written(&text, "two", 6);
        assert_eq!(Crossovers::read(&both, "one"), rows, "another system keeps them");
        assert_eq!(rows.route(BulkAlgorithm::AesCbc), Some((BulkInterface::DevCrypto, 800)));
        assert_eq!(rows.route(BulkAlgorithm::Sha256), None, "it pays at no size");
        assert_eq!(rows.route(BulkAlgorithm::AesGcm), None, "it was not measured");
    }

    #[test]
    fn lines_of_unknown_interfaces_and_algorithms_are_passed_over() {
        for line in ["one\taf-alg\taes-xts\t5\t6", "one\tswap\taes-cbc\t5\t6"] {
            assert!(Crossovers::read(line, "one").is_empty(), "{line}");
        }
    }

    #[test]
    fn file_keeps_a_bounded_number_of_rows() {
        let mut rows = Crossovers::default();
        for interface in BulkInterface::ALL {
            for algorithm in BulkAlgorithm::ALL {
                rows.set(interface, *algorithm, Some(1500));
            }
        }
        let mut text = String::new();
        for number in 0..3 * MAX_SYSTEMS {
            let system = format!("Linux 6.1.{number}; {}", "long ".repeat(24));
            text = rows.written(&text, &system, 1_764_000_000);
        }
        assert!(text.len() < bulk_sizes::MAX_FILE_LEN, "{}", text.len());
        assert_eq!(text.lines().count(), MAX_SYSTEMS * 2 * BulkAlgorithm::ALL.len());
    }
}
