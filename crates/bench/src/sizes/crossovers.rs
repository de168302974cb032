// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sizes from which the kernel's ciphers and hashes are faster than libcrypto, for the provider's `kernel_bulk`.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_hostfs::replace::replace_file;
use millrace_kernel_crypto::crossovers::{self, Crossovers};
use millrace_kernel_crypto::{BulkAlgorithm, BulkInterface};

use super::results::SizesReport;
use crate::error::BenchError;

/// The rows that stand for each algorithm of the kernel. A hash with a key has two blocks more on both sides, so it
/// pays from at most the same size on; the short hashes compute as the long ones do.
const ROWS: [(&[&str], &[BulkAlgorithm]); 6] = [
    (&["aes-128-cbc", "aes-256-cbc"], &[BulkAlgorithm::AesCbc]),
    (&["aes-256-ctr"], &[BulkAlgorithm::AesCtr]),
    (&["aes-128-gcm", "aes-256-gcm"], &[BulkAlgorithm::AesGcm]),
    (&["sha1"], &[BulkAlgorithm::Sha1, BulkAlgorithm::HmacSha1]),
    (
        &["sha256"],
        &[
            BulkAlgorithm::Sha224,
            BulkAlgorithm::Sha256,
            BulkAlgorithm::HmacSha224,
            BulkAlgorithm::HmacSha256,
        ],
    ),
    (
        &["sha512"],
        &[
            BulkAlgorithm::Sha384,
            BulkAlgorithm::Sha512,
            BulkAlgorithm::HmacSha384,
            BulkAlgorithm::HmacSha512,
        ],
    ),
];

impl SizesReport {
    /// The sizes from which each interface of the kernel was faster than libcrypto.
    fn crossovers(&self) -> Crossovers {
        let mut found = Crossovers::default();
        for interface in BulkInterface::ALL {
            for (rows, algorithms) in ROWS {
                // The largest of its rows: one at which it does not pay stands for all.
                let least = rows.iter().map(|row| self.pays_from(row, interface.name()));
                let measured: Vec<Option<usize>> = least.flatten().collect();
                let least: Option<Vec<usize>> = measured.iter().copied().collect();
                for algorithm in algorithms.iter().filter(|_| !measured.is_empty()) {
                    let least = least.as_ref().and_then(|sizes| sizes.iter().copied().max());
                    found.set(interface, *algorithm, least);
                }
            }
        }
        found
    }

    /// The smallest measured size from which on it was faster than libcrypto in every round; `None` in the inner value
    /// if there is none, and in the outer if it was not measured.
    fn pays_from(&self, row: &str, with: &str) -> Option<Option<usize>> {
        let mut measured = false;
        let mut least = None;
        for size in self.sizes().into_iter().rev() {
            let (Some(here), Some(there)) =
                (self.find(row, size, with), self.find(row, size, "openssl"))
            else {
                continue;
            };
            measured = true;
            let mut pairs = there.micros.iter().zip(&here.micros);
            if !pairs.all(|(there, here)| here < there) {
                break;
            }
            least = Some(size);
        }
        measured.then_some(least)
    }

    /// Writes the sizes to a file, beside those of other kernels and releases of libcrypto.
    ///
    /// # Errors
    /// Nothing of the kernel was measured beside libcrypto, or the file cannot be written.
    pub(super) fn save_crossovers(&self, path: &Path) -> Result<(), BenchError> {
        let found = self.crossovers();
        if found.is_empty() {
            let text =
                "no size was measured: name openssl and af-alg or dev-crypto in --implementations";
            return Err(BenchError::Usage(text.into()));
        }
        let openssl = self.implementations.iter().find(|one| one.name == "openssl");
        let described = openssl.map_or("", |one| &one.description);
        let libcrypto = described.split("; ").next().unwrap_or_default();
        let system = crossovers::this_system(libcrypto)
            .map_err(BenchError::system("read the release of the kernel"))?;
        let before = fs::read_to_string(path).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let text = found.written(&before, &system, now);
        replace_file(path, text.as_bytes(), Some(0o644)).map_err(BenchError::file("write", path))
    }
}

#[cfg(test)]
mod tests {
    use millrace_edge::bulk_sizes::BulkSize;

    use super::super::results::{Described, MeasuredPoint};
    use super::*;

    /// A size, with the times of the kernel and of libcrypto.
    type Point = (usize, f64, f64);

    /// Two rounds with these times.
    fn report(rows: &[(&str, [Point; 3])]) -> SizesReport {
        let mut report = SizesReport::default();
        let description = "OpenSSL 3.0.19 27 Jan 2026; CPUINFO: N/A".to_owned();
        report.implementations.push(Described { name: "openssl".to_owned(), description });
        for (row, points) in rows {
            for (size, kernel, openssl) in points {
                for (name, micros) in [("openssl", openssl), ("dev-crypto", kernel)] {
                    report.measured.push(MeasuredPoint {
                        algorithm: (*row).to_owned(),
                        size: *size,
                        implementation: name.to_owned(),
                        micros: vec![*micros, *micros],
                        cpu_micros: vec![*micros, *micros],
                    });
                }
            }
        }
        report
    }

    #[test]
    fn kernel_pays_from_the_size_at_which_it_was_faster_in_every_round() {
        let device = [(256, 12.0, 5.0), (1024, 14.0, 18.0), (8192, 27.0, 140.0)];
        let slower = [(256, 12.0, 5.0), (1024, 14.0, 10.0), (8192, 50.0, 40.0)];
        let mut report = report(&[
            ("aes-128-cbc", device),
            ("aes-256-cbc", device),
            ("aes-128-gcm", device),
            ("aes-256-gcm", slower),
            ("sha256", slower),
            ("sha1", device),
        ]);
        let found = report.crossovers();
        let least = |algorithm| found.route(algorithm);
        let device = Some((BulkInterface::DevCrypto, 1024));
        assert_eq!(least(BulkAlgorithm::AesCbc), device);
        assert_eq!(least(BulkAlgorithm::AesGcm), None, "one length of key does not pay");
        assert_eq!(least(BulkAlgorithm::HmacSha1), device);
        assert_eq!(least(BulkAlgorithm::Sha256), None);
        assert_eq!(least(BulkAlgorithm::AesCtr), None, "not measured");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bulk.tsv");
        report.save_crossovers(&path).expect("saved");
        let text = fs::read_to_string(&path).expect("text");
        let saved = |size: &BulkSize<'_>| {
            size.system.contains("; OpenSSL 3.0.19 27 Jan 2026; ")
                && (size.interface, size.algorithm) == ("dev-crypto", "aes-cbc")
                && size.least == Some(1024)
        };
        assert!(BulkSize::all(&text).any(|size| saved(&size)), "{text}");
        // A round in which it was slower at the largest size: it pays at none.
        if let Some(last) = report.measured.iter_mut().rev().find(|one| one.size == 8192) {
            last.micros[1] = 1000.0;
        }
        assert_eq!(report.crossovers().route(BulkAlgorithm::Sha1), None);
        assert!(SizesReport::default().save_crossovers(&path).is_err());
    }
}
