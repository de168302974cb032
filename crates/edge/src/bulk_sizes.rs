// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The file with the sizes from which the kernel's ciphers were measured to be faster than libcrypto. `bench sizes
//! --save-crossovers` writes it, the provider uses it (`kernel_bulk`), and `inspect` and `doctor` show it.
//!
//! A line has the system, the interface, the algorithm, the size in bytes and the time of the measurement in seconds
//! since 1970, with tabs between; `-` stands for an algorithm that pays at no size.

/// The file, if nothing else is named.
pub const DEFAULT_FILE: &str = "/var/lib/millrace/kernel-bulk.tsv";

/// Bound on the file, in bytes: two interfaces with 13 algorithms on a few systems, in lines of 150 bytes.
pub const MAX_FILE_LEN: usize = 64 * 1024;

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkSize<'a> {
    /// The system on which it was measured, as [`system`] names it.
    pub system: &'a str,
    /// `af-alg` or `dev-crypto`.
    pub interface: &'a str,
    /// The algorithm, such as `aes-cbc`.
    pub algorithm: &'a str,
    /// The smallest size that pays, in bytes. `None` if no size does.
    pub least: Option<usize>,
    /// The time of the measurement, in seconds since 1970.
    pub measured_s: u64,
}

impl<'a> BulkSize<'a> {
    /// Reads a line. `None` if it is malformed.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut columns = line.split('\t');
        let [system, interface, algorithm, least, measured] = [(); 5].map(|()| columns.next());
        let least = match least? {
            "-" => None,
            // Without a measured size everything would go to the kernel.
            number => Some(number.parse().ok().filter(|least| *least > 0)?),
        };
        let found = Self {
            system: system?,
            interface: interface?,
            algorithm: algorithm?,
            least,
            measured_s: measured?.parse().ok()?,
        };
        columns.next().is_none().then_some(found)
    }

    /// The lines of a file, without malformed ones.
    pub fn all(text: &'a str) -> impl Iterator<Item = Self> {
        text.lines().filter_map(Self::parse)
    }
}

impl std::fmt::Display for BulkSize<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { system, interface, algorithm, least, measured_s } = self;
        let least = least.map_or_else(|| "-".to_owned(), |least| least.to_string());
        write!(f, "{system}\t{interface}\t{algorithm}\t{least}\t{measured_s}")
    }
}

/// The system on which a measurement holds: another kernel, libcrypto or processor needs another one. From
/// `/proc/sys/kernel/osrelease`, libcrypto's version with its date, and the start of `/proc/cpuinfo`.
#[must_use]
pub fn system(kernel: &str, libcrypto: &str, cpuinfo: &str) -> String {
    let processor = processor(cpuinfo);
    format!("Linux {}; {}; {processor}", kernel.trim(), libcrypto.trim()).replace(['\t', '\n'], " ")
}

/// Whether a system's name has this kernel and processor, with any libcrypto.
#[must_use]
pub fn is_of(system: &str, kernel: &str, cpuinfo: &str) -> bool {
    let wanted = self::system(kernel, "", cpuinfo);
    let (kernel, processor) = wanted.split_once("; ; ").unwrap_or_default();
    system.starts_with(&format!("{kernel}; ")) && system.ends_with(&format!("; {processor}"))
}

/// The first processor's model: x86 and Arm, MIPS, Arm without names.
fn processor(cpuinfo: &str) -> &str {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    ["model name", "cpu model", "CPU part"]
        .into_iter()
        .find_map(|key| fields.clone().find(|(name, _)| name.trim() == key))
        .map_or("?", |(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_was_written_is_read() {
        for least in [Some(1500), None] {
            let size = BulkSize {
                system: "Linux 6.1; OpenSSL 3.0.19; Cortex-A9",
                interface: "af-alg",
                algorithm: "aes-cbc",
                least,
                measured_s: 1_764_000_000,
            };
            assert_eq!(BulkSize::parse(&size.to_string()), Some(size));
        }
    }

    #[test]
    fn lines_that_mean_nothing_are_passed_over() {
        for line in [
            "one\taf-alg\taes-cbc",
            "one\taf-alg\taes-cbc\t5",
            "one\taf-alg\taes-cbc\t0\t6",
            "one\taf-alg\taes-cbc\t-1\t6",
            "one\taf-alg\taes-cbc\t5\t-6",
            "one\taf-alg\taes-cbc\t5\t6\t7",
        ] {
            assert_eq!(BulkSize::parse(line), None, "{line}");
        }
    }

    #[test]
    fn system_has_the_kernel_libcrypto_and_the_first_processor() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A\tB\n\nprocessor\t: 1\nmodel name\t: C\n";
        let found = system("6.1.0-44\n", "OpenSSL 3.0.19 27 Jan 2026", cpuinfo);
        assert_eq!(found, "Linux 6.1.0-44; OpenSSL 3.0.19 27 Jan 2026; A B");
        assert!(is_of(&found, "6.1.0-44", cpuinfo));
        assert!(!is_of(&found, "6.1.0-4", cpuinfo) && !is_of(&found, "6.1.0-44", ""));
        assert!(system("6.1", "x", "CPU part\t: 0xc09\n").ends_with("; 0xc09"));
        assert!(system("6.1", "x", "").ends_with("; ?"));
    }
}
