// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Published figures for the same tables. None of them was repeated here: they come from other machines, other
//! servers, an accelerator card. Their ratios can be compared with those of a run, their rates cannot.

use super::TlsVersion;
use super::plan::Handshake;
use super::short::ShortPath;
use crate::bench_key::BenchKey;

/// A row of the article about a QAT card under a patched nginx, tested with `ab`, 100 at a time.
pub(super) struct PublishedRow {
    work: Handshake,
    signer: Signer,
    pub(super) per_s: f64,
    /// Time per request as the article prints it.
    pub(super) ms: f64,
}

/// Place of the private-key work in a published row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    Processor,
    Card,
}

/// The article's table. Rate times time is 100 requests in all rows but ECC with TLS 1.2, where it is
/// 130: one of the two is a misprint. There are no rows of ECC with the card. The text beside it says
/// 40 % better; the figures say 68 and 65 %.
const ROWS: [PublishedRow; 6] = [
    row(BenchKey::Rsa2048, TlsVersion::Tls12, Signer::Processor, 316.20, 316.254),
    row(BenchKey::Rsa2048, TlsVersion::Tls12, Signer::Card, 530.48, 188.507),
    row(BenchKey::Rsa2048, TlsVersion::Tls13, Signer::Processor, 303.01, 330.017),
    row(BenchKey::Rsa2048, TlsVersion::Tls13, Signer::Card, 499.29, 200.285),
    row(BenchKey::P256, TlsVersion::Tls12, Signer::Processor, 639.39, 203.319),
    row(BenchKey::P256, TlsVersion::Tls13, Signer::Processor, 627.39, 159.390),
];

const fn row(key: BenchKey, tls: TlsVersion, signer: Signer, per_s: f64, ms: f64) -> PublishedRow {
    let work = Handshake { key, tls };
    PublishedRow { work, signer, per_s, ms }
}

/// The published row of this combination, if there is one.
pub(super) fn published(work: Handshake, signer: Signer) -> Option<&'static PublishedRow> {
    ROWS.iter().find(|row| (row.work, row.signer) == (work, signer))
}

/// Requests/s of a gateway in a virtual machine with two cores (four hyper-threads), AES128-SHA over short
/// connections: its own cores, and with a pool of accelerators behind virtio-crypto. A talk of 2024; the
/// columns of its table have no clear heads, these are the likely ones.
pub(super) fn published_short(path: ShortPath) -> (f64, f64) {
    match path {
        ShortPath::Files => (2207.0, 7902.0),
        ShortPath::Proxy => (2082.0, 6314.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_times_are_of_a_hundred_requests_except_one() {
        let odd = ROWS.iter().filter(|row| (row.per_s * row.ms / 1e3 - 100.0).abs() > 0.1);
        let odd: Vec<_> = odd.map(|row| (row.work.key, row.work.tls, row.signer)).collect();
        assert_eq!(odd, [(BenchKey::P256, TlsVersion::Tls12, Signer::Processor)]);
    }
}
