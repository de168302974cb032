// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sizes from which the kernel was measured to be faster than libcrypto, and the file that keeps them. `bench sizes
//! --save-crossovers` writes it, the provider reads it.
//!
//! A line has the system, the interface, the algorithm, and the size in bytes, with tabs between; `-` stands for an
//! algorithm that pays at no size.

use std::fmt::Write as _;

use super::{BulkAlgorithm, BulkInterface};

/// The file, if nothing else is named.
pub const DEFAULT_FILE: &str = "/var/lib/millrace/kernel-bulk.tsv";

/// Bound on the file, in bytes: two interfaces with 13 algorithms on a few systems, in lines of 100 bytes.
pub const MAX_FILE_LEN: usize = 64 * 1024;

/// Most systems that the file keeps: those of a few updates of the kernel and of OpenSSL.
const MAX_SYSTEMS: usize = 8;

/// The least size of a message for each algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossovers(Vec<Row>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    interface: BulkInterface,
    algorithm: BulkAlgorithm,
    /// None if it pays at no size.
    least: Option<usize>,
}

/// The system on which a measurement holds: another kernel or another libcrypto needs another one.
#[must_use]
pub fn system(kernel: &str, libcrypto: &str) -> String {
    format!("Linux {}; {}", kernel.trim(), libcrypto.trim()).replace(['\t', '\n'], " ")
}

impl Crossovers {
    /// Notes what was measured.
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
        let rows = self.0.iter().filter(|row| row.algorithm == algorithm);
        let rows = rows.filter_map(|row| Some((row.interface, row.least?)));
        rows.min_by_key(|(_, least)| *least)
    }

    /// Whether no algorithm was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rows of a file for this system. Lines that mean nothing are passed over.
    #[must_use]
    pub fn read(text: &str, system: &str) -> Self {
        let mut found = Self::default();
        for (known, row) in text.lines().filter_map(parse) {
            if known == system {
                found.set(row.interface, row.algorithm, row.least);
            }
        }
        found
    }

    /// The text of a file with these rows for this system, beside those of other systems in `before`.
    #[must_use]
    pub fn written(&self, before: &str, system: &str) -> String {
        let others =
            before.lines().filter(|line| parse(line).is_some_and(|(known, _)| known != system));
        let others: Vec<&str> = others.collect();
        let most = (MAX_SYSTEMS - 1) * BulkInterface::ALL.len() * BulkAlgorithm::ALL.len();
        let mut text = String::new();
        for line in &others[others.len().saturating_sub(most)..] {
            let _ = writeln!(text, "{line}");
        }
        for Row { interface, algorithm, least } in &self.0 {
            let least = least.map_or_else(|| "-".to_owned(), |least| least.to_string());
            let (interface, algorithm) = (interface.name(), algorithm.name());
            let _ = writeln!(text, "{system}\t{interface}\t{algorithm}\t{least}");
        }
        text
    }
}

fn parse(line: &str) -> Option<(&str, Row)> {
    let mut columns = line.split('\t');
    let (system, interface) = (columns.next()?, columns.next()?);
    let interface = BulkInterface::ALL.into_iter().find(|known| known.name() == interface)?;
    let algorithm = BulkAlgorithm::from_name(columns.next()?)?;
    let least = match columns.next()? {
        "-" => None,
        // Without a measured size everything would go to the kernel.
        number => Some(number.parse().ok().filter(|least| *least > 0)?),
    };
    columns.next().is_none().then_some((system, Row { interface, algorithm, least }))
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
        let text = rows.written("", "one");
        assert_eq!(Crossovers::read(&text, "one"), rows);
        assert!(Crossovers::read(&text, "two").is_empty());
        let both = Crossovers::default().written(&text, "two");
        assert_eq!(Crossovers::read(&both, "one"), rows, "another system keeps them");
        assert_eq!(rows.route(BulkAlgorithm::AesCbc), Some((BulkInterface::DevCrypto, 800)));
        assert_eq!(rows.route(BulkAlgorithm::Sha256), None, "it pays at no size");
        assert_eq!(rows.route(BulkAlgorithm::AesGcm), None, "it was not measured");
    }

    #[test]
    fn lines_that_mean_nothing_are_passed_over() {
        for line in [
            "one\taf-alg\taes-cbc",
            "one\taf-alg\taes-cbc\t0",
            "one\taf-alg\taes-cbc\t-1",
            "one\taf-alg\taes-xts\t5",
            "one\tswap\taes-cbc\t5",
            "one\taf-alg\taes-cbc\t5\t6",
        ] {
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
            text = rows.written(&text, &system(&format!("6.1.{number}"), &"long ".repeat(20)));
        }
        assert!(text.len() < MAX_FILE_LEN, "{}", text.len());
        assert_eq!(text.lines().count(), MAX_SYSTEMS * 2 * BulkAlgorithm::ALL.len());
    }
}
