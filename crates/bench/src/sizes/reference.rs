// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Figures that others published, to hold one's own against: each with where it comes from and how far
//! it can be trusted. None of them was repeated here.

use super::fit::Fit;
use super::results::{number, size_name};
use crate::report::Table;

/// Speeds by block size: bytes, then 10⁶ bytes per second.
type Speeds = &'static [(f64, f64)];

struct Published {
    algorithm: &'static str,
    what: &'static str,
    speeds: Speeds,
}

/// Netgear R9000 (four Cortex-A15 at 1.7 GHz), `openssl speed`. The article's author measured them with
/// his own firmware and the vendor's; the method is known, and the points lie on a line, so they can be
/// calculated with.
const ROUTER: &str = "\
Netgear R9000 router (Arm Cortex-A15, 1.7 GHz), openssl speed, article of 2019.
Reliability: measured by its author with a known method; points lie on a line. Usable.";

const SIZES: [f64; 5] = [16.0, 64.0, 256.0, 1024.0, 8192.0];

const ROUTER_SPEEDS: [Published; 9] = [
    Published {
        algorithm: "aes-256-cbc",
        what: "vendor's OpenSSL",
        speeds: &[
            (16.0, 44.746_83),
            (64.0, 45.857_66),
            (256.0, 47.048_96),
            (1024.0, 47.419_08),
            (8192.0, 47.363_41),
        ],
    },
    Published {
        algorithm: "aes-256-cbc",
        what: "built with assembly",
        speeds: &[
            (16.0, 55.345_12),
            (64.0, 57.141_60),
            (256.0, 58.567_85),
            (1024.0, 58.935_30),
            (8192.0, 59.026_09),
        ],
    },
    Published {
        algorithm: "aes-256-cbc",
        what: "/dev/crypto",
        speeds: &[
            (16.0, 1.313_02),
            (64.0, 5.265_17),
            (256.0, 20.732_59),
            (1024.0, 70.701_06),
            (8192.0, 305.261_23),
        ],
    },
    Published {
        algorithm: "aes-128-cbc",
        what: "vendor's OpenSSL",
        speeds: &[
            (16.0, 57.205_07),
            (64.0, 60.562_69),
            (256.0, 62.545_32),
            (1024.0, 63.109_12),
            (8192.0, 63.310_51),
        ],
    },
    Published {
        algorithm: "aes-128-cbc",
        what: "built with assembly",
        speeds: &[
            (16.0, 76.702_52),
            (64.0, 80.093_80),
            (256.0, 83.207_17),
            (1024.0, 84.156_70),
            (8192.0, 83.875_16),
        ],
    },
    Published {
        algorithm: "sha256",
        what: "vendor's OpenSSL",
        speeds: &[
            (16.0, 13.311_57),
            (64.0, 29.732_76),
            (256.0, 50.673_44),
            (1024.0, 61.281_28),
            (8192.0, 65.227_43),
        ],
    },
    Published {
        algorithm: "sha256",
        what: "built with assembly",
        speeds: &[
            (16.0, 24.173_65),
            (64.0, 56.915_65),
            (256.0, 102.226_09),
            (1024.0, 128.476_16),
            (8192.0, 139.047_56),
        ],
    },
    Published {
        algorithm: "sha512",
        what: "vendor's OpenSSL",
        speeds: &[
            (16.0, 3.768_93),
            (64.0, 14.927_25),
            (256.0, 21.400_58),
            (1024.0, 29.089_11),
            (8192.0, 32.216_41),
        ],
    },
    Published {
        algorithm: "sha512",
        what: "built with assembly",
        speeds: &[
            (16.0, 11.151_64),
            (64.0, 44.457_20),
            (256.0, 66.356_57),
            (1024.0, 93.356_71),
            (8192.0, 105.865_22),
        ],
    },
];

/// Name, vendor's OpenSSL, built with assembly: operations per second.
const ROUTER_KEYS: [(&str, f64, f64); 4] = [
    ("rsa-2048-sign", 27.4, 114.7),
    ("rsa-2048-verify", 908.0, 4709.8),
    ("dsa-2048-sign", 82.3, 424.1),
    ("dsa-2048-verify", 74.6, 402.4),
];

const TUNNEL: &str = "\
IPsec through an Intel Atom C3000 with QAT, iperf3, Mbit/s.
Reliability: only the row marked 'official' is in the router's own documentation (2019). The others come
from a third party's page whose outputs are partly invented; two of them cannot be: the driver in the
kernel's tree has no AES-GCM, and since August 2025 its priority is below that of AES-NI.";

/// Name, without, with, whether the maker documents it.
const TUNNEL_SPEEDS: [(&str, f64, f64, &str); 6] = [
    ("aes256 + sha256", 270.0, 778.0, "official"),
    ("aes128 + sha1", 320.0, 850.0, "claimed"),
    ("aes128gcm", 380.0, 920.0, "claimed; not possible in-tree"),
    ("aes256gcm", 310.0, 815.0, "claimed; not possible in-tree"),
    ("3des + sha1", 145.0, 420.0, "claimed; never use 3DES"),
    ("chacha20poly1305", 450.0, 450.0, "claimed"),
];

/// All of it as text, with the lines that the points make and what they mean at a packet's size.
pub(crate) fn render(packet: f64) -> String {
    let mut text = format!("{ROUTER}\n\n");
    let sizes = SIZES.map(size_name);
    let packet_name = format!("at {packet:.0}, x vendor's");
    let mut head = vec!["MB/s by bytes", ""];
    head.extend(sizes.iter().map(String::as_str));
    head.extend(["set-up µs", "then MB/s", &packet_name]);
    let mut table = Table::new(&head);
    for published in &ROUTER_SPEEDS {
        let fit = line(published);
        let vendors = ROUTER_SPEEDS
            .iter()
            .find(|other| other.algorithm == published.algorithm)
            .and_then(line);
        let gain = fit
            .zip(vendors)
            .map(|(fit, vendors)| fit.gain_over(&vendors, packet));
        let speeds = published.speeds.iter().map(|(_, speed)| number(*speed));
        let fitted = [
            fit.map(|fit| number(fit.setup_us)).unwrap_or_default(),
            fit.map(|fit| number(fit.speed_mb_s)).unwrap_or_default(),
            gain.map(|gain| format!("{gain:.2}")).unwrap_or_default(),
        ];
        let names = [published.algorithm.to_owned(), published.what.to_owned()];
        table.row(names.into_iter().chain(speeds).chain(fitted));
    }
    text.push_str(&table.render());
    let mut table = Table::new(&[
        "operations/s",
        "vendor's OpenSSL",
        "built with assembly",
        "ratio",
    ]);
    for (name, before, after) in ROUTER_KEYS {
        table.row([
            name.to_owned(),
            number(before),
            number(after),
            format!("{:.1}", after / before),
        ]);
    }
    text.push_str(&format!("\n{}\n{TUNNEL}\n\n", table.render()));
    let mut table = Table::new(&["Mbit/s", "without", "with", "ratio", ""]);
    for (name, without, with, reliability) in TUNNEL_SPEEDS {
        let ratio = format!("{:.2}", with / without);
        table.row([
            name.to_owned(),
            number(without),
            number(with),
            ratio,
            reliability.to_owned(),
        ]);
    }
    text.push_str(&table.render());
    text
}

fn line(published: &Published) -> Option<Fit> {
    let points: Vec<(f64, f64)> = published
        .speeds
        .iter()
        .map(|(n, speed)| (*n, n / speed))
        .collect();
    Fit::through(&points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_row_makes_a_line_and_is_labelled() {
        for published in &ROUTER_SPEEDS {
            let fit = line(published).expect(published.what);
            assert!(
                fit.deviation < 0.35,
                "{} {}: {fit:?}",
                published.algorithm,
                published.what
            );
            assert!(published.speeds.iter().map(|(size, _)| *size).eq(SIZES));
        }
        let text = render(1420.0);
        assert_eq!(text.matches("Reliability: ").count(), 2);
        assert!(text.contains("/dev/crypto"));
    }
}
