// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Searches the memory of processes, logs and answers for private keys.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem::Finder;
use millrace_operation::der::{DerReader, tag};
use openssl::pkey::PKey;

use crate::pki::Identity;

/// Bytes of a number that identify it: 16 random bytes do not occur by chance.
const NEEDLE_LEN: usize = 16;

/// Bytes read at once from a process.
const WINDOW: usize = 1 << 20;

/// One form of a secret.
struct Needle {
    what: String,
    finder: Finder<'static>,
}

/// Every encoding in which a private key could be found.
pub struct Secret {
    needles: Vec<Needle>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} forms)", self.needles.len())
    }
}

impl Secret {
    /// The forms of a private key: each secret number big-endian, little-endian (limbs of x86-64) and
    /// in hexadecimal, and the base64 of the PEM.
    ///
    /// # Panics
    /// If the key does not parse.
    #[must_use]
    pub fn of(identity: &Identity) -> Self {
        let key = PKey::private_key_from_der(&identity.key_der).expect("a private key");
        let mut numbers = Vec::new();
        if let Ok(rsa) = key.rsa() {
            numbers.push(("d", rsa.d().to_vec()));
            let parts = [("p", rsa.p()), ("q", rsa.q()), ("dp", rsa.dmp1()), ("dq", rsa.dmq1())];
            for (name, number) in parts {
                numbers.push((name, number.expect("a CRT key").to_vec()));
            }
            numbers.push(("qinv", rsa.iqmp().expect("a CRT key").to_vec()));
        } else if let Ok(ec) = key.ec_key() {
            numbers.push(("d", ec.private_key().to_vec()));
        }
        let mut secret = Self { needles: Vec::new() };
        for (name, number) in numbers {
            secret.add_number(name, &number);
        }
        secret.add_pem(identity);
        secret
    }

    /// The forms of an ML-DSA private key as OpenSSL writes it: the seed, and of the expanded key (FIPS 204,
    /// algorithm 24) the secret K and the beginning of s1. What precedes K is public.
    ///
    /// # Panics
    /// If the PEM does not hold both forms.
    #[must_use]
    pub fn of_ml_dsa(pem: &str) -> Self {
        let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD.decode(base64).expect("base64");
        let both = || {
            let mut info = DerReader::new(DerReader::new(&der).take(tag::SEQUENCE)?);
            let _version = info.take(tag::INTEGER)?;
            let _algorithm = info.take(tag::SEQUENCE)?;
            let mut both = DerReader::new(info.take(tag::OCTET_STRING)?);
            let mut both = DerReader::new(both.take(tag::SEQUENCE)?);
            Some((both.take(tag::OCTET_STRING)?, both.take(tag::OCTET_STRING)?))
        };
        let (seed, expanded) = both().expect("a seed and an expanded key");
        let mut secret = Self { needles: Vec::new() };
        secret.add_number("seed", seed);
        secret.add_number("K", &expanded[32..64]);
        secret.add_number("s1", &expanded[128..160]);
        secret
    }

    fn add_number(&mut self, name: &str, big_endian: &[u8]) {
        let little_endian: Vec<u8> = big_endian.iter().rev().copied().collect();
        // The middle of the number is the same with or without a sign byte and padding.
        let middle = (big_endian.len() - NEEDLE_LEN) / 2;
        let cut = |bytes: &[u8]| bytes[middle..middle + NEEDLE_LEN].to_vec();
        self.add(format!("{name}, big-endian"), &cut(big_endian));
        self.add(format!("{name}, little-endian"), &cut(&little_endian));
        let digits = hex::encode(cut(big_endian));
        self.add(format!("{name}, hexadecimal"), digits.as_bytes());
        self.add(format!("{name}, hexadecimal"), digits.to_uppercase().as_bytes());
    }

    /// The lines of the PEM that contain only the secret part (in PKCS#8 of RSA, the public modulus comes
    /// first), and the same as one long line.
    fn add_pem(&mut self, identity: &Identity) {
        let lines: Vec<&str> =
            identity.key_pem.lines().filter(|line| !line.starts_with("-----")).collect();
        for line in &lines[lines.len() / 2..] {
            if line.len() >= 2 * NEEDLE_LEN {
                self.add("a line of the PEM".to_owned(), line.as_bytes());
            }
        }
        if lines.len() < 6 {
            // A short key: the private number of SEC 1 is in the first two lines.
            let der = &identity.key_der;
            let text = STANDARD.encode(der);
            self.add(
                "the first half of the PEM".to_owned(),
                &text.as_bytes()[text.len() / 4..][..32],
            );
        }
    }

    fn add(&mut self, what: String, bytes: &[u8]) {
        let finder = Finder::new(bytes).into_owned();
        self.needles.push(Needle { what, finder });
    }

    /// Names of the forms of the secret that `bytes` contains.
    #[must_use]
    pub fn found_in(&self, bytes: &[u8]) -> Vec<String> {
        let hits = self.needles.iter().filter(|needle| needle.finder.find(bytes).is_some());
        hits.map(|needle| needle.what.clone()).collect()
    }

    /// Forms of the secret in the memory of a process, each with its mapping. Needs root.
    ///
    /// # Panics
    /// If the memory cannot be read, or hardly any of it.
    #[must_use]
    pub fn found_in_process(&self, id: u32) -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{id}/maps")).expect("the maps of a process");
        let memory = File::open(format!("/proc/{id}/mem")).expect("the memory of a process");
        let mut hits = Vec::new();
        let mut scanned = 0;
        for map in maps.lines() {
            let Some((range, rest)) = map.split_once(' ') else {
                continue;
            };
            // Only writable mappings: read-only ones have the content of their file. Device memory is
            // excluded.
            if !rest.starts_with("rw") || rest.contains("[vvar") {
                continue;
            }
            let Some((start, end)) = range.split_once('-') else {
                continue;
            };
            let parse = |text| u64::from_str_radix(text, 16).expect("an address");
            scanned += self.scan(&memory, parse(start), parse(end), map, &mut hits);
        }
        assert!(scanned > 1 << 20, "only {scanned} bytes of process {id} could be read");
        hits.dedup();
        hits
    }

    fn scan(
        &self,
        memory: &File,
        start: u64,
        end: u64,
        map: &str,
        hits: &mut Vec<String>,
    ) -> usize {
        // Windows overlap, so that the search finds a secret across a border.
        const OVERLAP: u64 = 256;
        let mut buffer = vec![0; WINDOW];
        let mut at = start;
        let mut scanned = 0;
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW);
            let Ok(count) = memory.read_at(&mut buffer[..length], at) else {
                break;
            };
            if count == 0 {
                break;
            }
            for what in self.found_in(&buffer[..count]) {
                hits.push(format!("{what}, in {}", map.split_whitespace().last().unwrap_or("")));
            }
            scanned += count;
            if count < length || at + count as u64 >= end {
                at += count as u64;
            } else {
                at += count as u64 - OVERLAP;
            }
        }
        scanned
    }
}
