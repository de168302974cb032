// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Versions of Intel's user-space library, from the name of its file, and what is wrong with them.

/// A release of qatlib and the number of its `libqat.so`.
///
/// Source: `LIBQAT_VERSION` in `configure.ac` of the tags of Intel's qatlib, `current:revision:age` of libtool.
const RELEASES: [(&str, &str); 7] = [
    ("4.0.0", "23.08"),
    ("4.1.0", "23.11"),
    ("4.2.0", "24.02"),
    ("4.3.0", "24.09"),
    ("4.4.0", "25.08"),
    ("4.5.0", "26.02"),
    ("4.6.0", "26.08"),
];

/// The release of a file such as `usr/lib/x86_64-linux-gnu/libqat.so.4.2.0`; none for links and other files.
#[must_use]
pub fn release(file: &str) -> Option<&'static str> {
    let (_, number) = file.rsplit_once("libqat.so.")?;
    RELEASES.iter().find(|(own, _)| *own == number).map(|(_, release)| *release)
}

/// The release that a program of qatlib names in its file: `24.02` of `QAT_SOFTWARE_VERSION=24.2.0`.
#[must_use]
pub fn software_version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("QAT_SOFTWARE_VERSION=")?;
    let mut numbers = rest.split('.').map(|number| number.parse::<u8>().ok());
    let (year, month) = (numbers.next()??, numbers.next()??);
    Some(format!("{year:02}.{month:02}"))
}

/// Releases that ask the kernel for services in a way that Linux 6.1 before 6.1.149 does not answer.
///
/// Source: release notes of qatlib 25.08.
pub const NEED_LINUX_6_1_149: [&str; 2] = ["24.09", "25.08"];

/// Releases that crash when they are polled after a device has failed with requests in flight (docs/backends/qat.md).
pub const CRASH_AFTER_FAILURES: [&str; 1] = ["24.02"];

/// Whether this kernel is Linux 6.1 before 6.1.149, by `/proc/sys/kernel/osrelease`: `6.1.0-37-amd64` is the name of
/// an interface at Debian, whose patch level stands in `/proc/version`.
#[must_use]
pub fn is_linux_6_1_before_149(version: &str) -> bool {
    // "Linux version 6.1.0-37-amd64 (…) #1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)"
    let words = version.split(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let patches =
        words.filter_map(|word| word.strip_prefix("6.1.")?.split('.').next()?.parse::<u32>().ok());
    patches.max().is_some_and(|patch| patch < 149)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_by_the_number_of_the_file() {
        assert_eq!(release("usr/lib/x86_64-linux-gnu/libqat.so.4.2.0"), Some("24.02"));
        assert_eq!(release("usr/lib64/libqat.so.4.6.0"), Some("26.08"));
        for other in
            ["usr/lib64/libqat.so.4", "usr/lib64/libqat_s.so", "libqat.so.4.2", "libqat.so.4.2.0.1"]
        {
            assert_eq!(release(other), None, "{other}");
        }
    }

    #[test]
    fn release_of_a_program_is_read_from_its_file() {
        for (text, release) in [
            ("\0-v, --version\0QAT_SOFTWARE_VERSION=24.2.0\0adf", Some("24.02")),
            ("QAT_SOFTWARE_VERSION=26.8.0\0", Some("26.08")),
            ("QAT_SOFTWARE_VERSION=26\0", None),
            ("QAT_SOFTWARE_VERSION=x.1.0\0", None),
            ("", None),
        ] {
            assert_eq!(software_version(text).as_deref(), release, "{text:?}");
        }
    }

    #[test]
    fn patch_level_of_linux_6_1_is_read() {
        for (version, before) in [
            (
                "Linux version 6.1.0-37-amd64 (x) #1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)",
                true,
            ),
            ("Linux version 6.1.0-40-amd64 (x) #1 SMP Debian 6.1.153-1", false),
            ("Linux version 6.1.100 (me@here)", true),
            ("Linux version 6.1.149", false),
            ("Linux version 6.12.41+deb13-amd64 (x) Debian 6.12.41-1", false),
            ("", false),
        ] {
            assert_eq!(is_linux_6_1_before_149(version), before, "{version}");
        }
    }
}
