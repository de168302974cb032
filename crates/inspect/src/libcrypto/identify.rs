// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Maker, version and build of a library, from the texts that its makers leave in the file.

use memchr::memmem;
use schemars::JsonSchema;
use serde::Serialize;

use super::masks::VARIABLES;
use super::{Container, Slow};
use crate::elf::Elf;

/// Project or company that develops a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
pub enum Maker {
    /// The OpenSSL project; also distributions that patch it
    #[strum(serialize = "OpenSSL")]
    OpenSsl,
    /// OpenBSD's LibreSSL
    #[strum(serialize = "LibreSSL")]
    LibreSsl,
    /// Google's BoringSSL
    #[strum(serialize = "BoringSSL")]
    BoringSsl,
    /// Amazon's AWS-LC
    #[serde(rename = "aws-lc")]
    #[strum(serialize = "AWS-LC")]
    AwsLc,
    /// wolfSSL Inc.
    #[strum(serialize = "wolfSSL")]
    WolfSsl,
    /// Trusted Firmware's Mbed TLS
    #[strum(serialize = "Mbed TLS")]
    MbedTls,
    /// GnuTLS; its ciphers are in Nettle
    #[strum(serialize = "GnuTLS")]
    GnuTls,
    /// Nettle, which GnuTLS computes with
    Nettle,
    /// GNU's libgcrypt
    Libgcrypt,
    /// Botan, a library in C++
    Botan,
}

impl Maker {
    /// The displayed name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Maker and release of a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LibraryIdentity {
    /// Project or company that develops it
    pub maker: Maker,
    /// Version as its maker writes it; null if the file does not contain one
    pub version: Option<String>,
}

impl LibraryIdentity {
    /// Whether the version is known and at least this.
    #[must_use]
    pub fn since(&self, wanted: (u32, u32, u32)) -> bool {
        let version = self.version.as_deref().map(version_numbers);
        version.is_some_and(|version| version >= wanted)
    }
}

/// The first three numbers of a version, without the letters behind them: `1.0.2k-fips`, `6.12.48+deb13`.
pub(crate) fn version_numbers(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split(['.', '-', '+', '~']).map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    });
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// Build options that the library itself names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Build {
    /// Target of its `Configure` run, such as `linux-x86_64`
    pub platform: Option<String>,
    /// Command line of the compiler, of which the library keeps a copy
    pub compiler: Option<String>,
    /// The effective optimisation level: `-O2`, `-Os`
    pub optimisation: Option<String>,
    /// Flags that select the processor: `-march`, `-mcpu`, `-mfpu`, `-mfloat-abi`
    pub target: Vec<String>,
    /// `OPENSSL_SMALL_FOOTPRINT`: small tables and loops instead of fast ones
    pub small_footprint: bool,
    /// Whether the library can report the processor, which a build without assembly cannot
    pub reports_processor: bool,
}

/// Longest line that is read from a library: command lines of compilers have a few hundred characters.
const MAX_LINE: usize = 4_096;

/// Maker and build of a file, if it is a crypto library, or a program with one linked in.
pub(super) fn identify(
    bytes: &[u8],
    path: &str,
    elf: &Elf,
    container: Container,
) -> Option<(LibraryIdentity, Build)> {
    let identity = maker(bytes, path)?;
    let build = build(bytes);
    if container == Container::Program {
        // A program that uses OpenSSL names the version that it was compiled with; only the library itself
        // has the compiler's command line.
        let needs = elf.needed.iter().any(|name| name.starts_with("libcrypto"));
        if needs || build.compiler.is_none() {
            return None;
        }
    }
    Some((identity, build))
}

/// A maker, and the text before its version.
const MARKS: &[(Maker, &str)] = &[
    // Before OpenSSL: these also name the OpenSSL that they are compatible with.
    (Maker::AwsLc, "(compatible; AWS-LC "),
    (Maker::LibreSsl, "LibreSSL "),
    (Maker::OpenSsl, "OpenSSL "),
    (Maker::MbedTls, "Mbed TLS "),
    (Maker::MbedTls, "mbed TLS "),
    (Maker::Libgcrypt, "Libgcrypt "),
    (Maker::Botan, "Botan "),
    (Maker::WolfSsl, "wolfSSL "),
];

/// Libraries that are recognised only by their file name.
const FILES: &[(Maker, &str)] = &[
    (Maker::GnuTls, "libgnutls"),
    (Maker::Nettle, "libnettle"),
    (Maker::WolfSsl, "libwolfssl"),
    (Maker::MbedTls, "libmbedcrypto"),
    (Maker::MbedTls, "libtfpsacrypto"),
    (Maker::Libgcrypt, "libgcrypt"),
    (Maker::Botan, "libbotan"),
    (Maker::BoringSsl, "libboringssl"),
];

fn maker(bytes: &[u8], path: &str) -> Option<LibraryIdentity> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if let Some((maker, _)) = FILES.iter().find(|(_, start)| name.starts_with(start)) {
        let mut marks = MARKS.iter().filter(|(of, _)| of == maker);
        let version = marks
            .find_map(|(_, mark)| version_after(bytes, mark))
            .or_else(|| version_of_file(name));
        return Some(LibraryIdentity { maker: *maker, version });
    }
    if memmem::find(bytes, b"(compatible; BoringSSL)").is_some() {
        return Some(LibraryIdentity { maker: Maker::BoringSsl, version: None });
    }
    MARKS.iter().find_map(|(maker, mark)| {
        let version = version_after(bytes, mark)?;
        Some(LibraryIdentity { maker: *maker, version: Some(version) })
    })
}

/// The version after a mark, at any of its occurrences: `OpenSSL 3.0.22 25 Aug 2026`.
fn version_after(bytes: &[u8], mark: &str) -> Option<String> {
    memmem::find_iter(bytes, mark.as_bytes()).find_map(|at| {
        let rest = bytes.get(at + mark.len()..)?;
        // The longest known is `1.1.1zd-fips`.
        const MAX_VERSION: usize = 32;
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.' || *byte == b'-';
        let length = rest.iter().take(MAX_VERSION).take_while(|byte| allowed(byte)).count();
        let version = std::str::from_utf8(&rest[..length]).ok()?.trim_end_matches(['.', '-']);
        let numbers =
            version.split('.').filter(|part| part.starts_with(|c: char| c.is_ascii_digit()));
        (version.starts_with(|c: char| c.is_ascii_digit()) && numbers.count() >= 2)
            .then(|| version.to_owned())
    })
}

/// `libnettle.so.8.6`: the number after `.so.`.
fn version_of_file(name: &str) -> Option<String> {
    let (_, version) = name.split_once(".so.")?;
    (!version.is_empty()).then(|| format!("so {version}"))
}

fn build(bytes: &[u8]) -> Build {
    let compiler = line_after(bytes, "compiler: ");
    let words: Vec<&str> =
        compiler.as_deref().unwrap_or_default().split_ascii_whitespace().collect();
    let optimisation = words.iter().rev().find(|word| {
        word.strip_prefix("-O")
            .is_some_and(|level| ["0", "1", "2", "3", "s", "z", "g", "fast"].contains(&level))
    });
    let of_target = ["-march=", "-mcpu=", "-mtune=", "-mfpu=", "-mfloat-abi="];
    let target = words.iter().filter(|word| of_target.iter().any(|start| word.starts_with(start)));
    Build {
        platform: line_after(bytes, "platform: "),
        optimisation: optimisation.map(|word| (*word).to_owned()),
        target: target.map(|word| (*word).to_owned()).collect(),
        small_footprint: words.contains(&"-DOPENSSL_SMALL_FOOTPRINT"),
        reports_processor: VARIABLES.iter().any(|variable| {
            memmem::find(bytes, format!("CPUINFO: {variable}").as_bytes()).is_some()
        }),
        compiler,
    }
}

/// The text after a mark, up to the end of the string.
fn line_after(bytes: &[u8], mark: &str) -> Option<String> {
    memmem::find_iter(bytes, mark.as_bytes()).find_map(|at| {
        // At the beginning of a string, not in the middle of another one.
        if at > 0 && (bytes[at - 1].is_ascii_graphic() || bytes[at - 1] == b' ') {
            return None;
        }
        let rest = bytes.get(at + mark.len()..)?;
        let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let length = rest.iter().take(MAX_LINE).take_while(|byte| printable(byte)).count();
        let line = std::str::from_utf8(&rest[..length]).ok()?.trim();
        // Texts of `openssl version` itself: `compiler: %s`, `platform: information not available`.
        let real = !line.is_empty() && !line.contains('%') && !line.contains("not available");
        real.then(|| line.to_owned())
    })
}

/// Build options that make a library slow.
pub(super) fn slow(build: &Build) -> Vec<Slow> {
    let mut slow = Vec::new();
    if let Some(level) = build.optimisation.as_deref()
        && ["-Os", "-Oz", "-O0", "-Og", "-O1"].contains(&level)
    {
        slow.push(Slow {
            what: "all code except assembly".to_owned(),
            evidence: format!(
                "compiled with {level}, for size or for debugging rather than for speed"
            ),
        });
    }
    if build.small_footprint {
        slow.push(Slow {
            what: "AES, big numbers".to_owned(),
            evidence: "compiled with OPENSSL_SMALL_FOOTPRINT".to_owned(),
        });
    }
    slow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &[u8], path: &str) -> Option<(Maker, Option<String>)> {
        maker(text, path).map(|identity| (identity.maker, identity.version))
    }

    #[test]
    fn text_in_the_file_gives_maker_and_version() {
        let cases: &[(&[u8], Maker, &str)] = &[
            (b"\0OpenSSL 3.0.22 25 Aug 2026\0", Maker::OpenSsl, "3.0.22"),
            (
                b"see OpenSSL docs\0OpenSSL 1.0.2k-fips  26 Jan 2017\0",
                Maker::OpenSsl,
                "1.0.2k-fips",
            ),
            (b"LibreSSL 3.8.2\0OpenSSL 1.1.1 x\0", Maker::LibreSsl, "3.8.2"),
            (b"OpenSSL 1.1.1 (compatible; AWS-LC 1.29.0)\0", Maker::AwsLc, "1.29.0"),
            (b"\0Mbed TLS 3.6.0\0", Maker::MbedTls, "3.6.0"),
        ];
        for (text, maker, version) in cases {
            let found = identity(text, "usr/lib/libcrypto.so.3");
            assert_eq!(found, Some((*maker, Some((*version).to_owned()))));
        }
        let boring = identity(b"OpenSSL 1.1.1 (compatible; BoringSSL)\0", "libcrypto.so");
        assert_eq!(boring, Some((Maker::BoringSsl, None)));
        let nettle = identity(b"", "usr/lib/libnettle.so.8.6");
        assert_eq!(nettle, Some((Maker::Nettle, Some("so 8.6".to_owned()))));
        assert_eq!(identity(b"OpenSSL is fine", "libcrypto.so"), None);
    }

    #[test]
    fn versions_compare_by_their_numbers() {
        let identity = |version: &str| LibraryIdentity {
            maker: Maker::OpenSsl,
            version: Some(version.to_owned()),
        };
        assert!(identity("3.0.22").since((3, 0, 0)));
        assert!(identity("1.1.1w").since((1, 1, 1)));
        assert!(!identity("1.0.2k-fips").since((1, 1, 0)));
        assert!(identity("10.0").since((3, 0, 0)));
    }

    #[test]
    fn last_level_of_optimisation_wins() {
        let build = build(b"x\0compiler: gcc -fPIC -O3 -Os -march=armv7-a -mfpu=vfpv3-d16 -DOPENSSL_SMALL_FOOTPRINT\0");
        assert_eq!(build.optimisation.as_deref(), Some("-Os"));
        assert_eq!(build.target, ["-march=armv7-a", "-mfpu=vfpv3-d16"]);
        assert!(build.small_footprint && !build.reports_processor);
        assert_eq!(slow(&build).len(), 2);
    }

    #[test]
    fn formats_are_no_lines() {
        assert_eq!(
            line_after(b"compiler: %s\0compiler: gcc\0", "compiler: ").as_deref(),
            Some("gcc")
        );
        assert_eq!(line_after(b"compiler: ", "compiler: "), None);
        assert_eq!(line_after(b"no compiler: gcc", "compiler: "), None);
    }
}
