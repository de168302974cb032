// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Figures that others published, for comparison: each with its source and how far it can be trusted. None
//! of them was repeated here.

use super::fit::Fit;
use super::results::{number, size_name};
use crate::report::Table;

/// Block sizes of the router's figures, in bytes.
const SIZES: [f64; 5] = [16.0, 64.0, 256.0, 1024.0, 8192.0];

/// One line of `openssl speed`: algorithm, implementation, and 10⁶ bytes per second by block size.
type Published = (&'static str, &'static str, [f64; 5]);

/// Netgear R9000 (four Cortex-A15 at 1.7 GHz), `openssl speed`. The article's author measured them with
/// his own firmware and the vendor's; the method is known, and the points lie on a line, so they can be
/// calculated with.
const ROUTER: &str = "\
Netgear R9000 router (Arm Cortex-A15, 1.7 GHz), openssl speed, article of 2019.
Reliability: measured by its author with a known method; points lie on a line. Usable.";

#[rustfmt::skip]
const ROUTER_SPEEDS: [Published; 9] = [
    ("aes-256-cbc", "vendor's OpenSSL",    [44.746_83, 45.857_66, 47.048_96, 47.419_08, 47.363_41]),
    ("aes-256-cbc", "built with assembly", [55.345_12, 57.141_60, 58.567_85, 58.935_30, 59.026_09]),
    ("aes-256-cbc", "/dev/crypto",         [1.313_02, 5.265_17, 20.732_59, 70.701_06, 305.261_23]),
    ("aes-128-cbc", "vendor's OpenSSL",    [57.205_07, 60.562_69, 62.545_32, 63.109_12, 63.310_51]),
    ("aes-128-cbc", "built with assembly", [76.702_52, 80.093_80, 83.207_17, 84.156_70, 83.875_16]),
    ("sha256",      "vendor's OpenSSL",    [13.311_57, 29.732_76, 50.673_44, 61.281_28, 65.227_43]),
    ("sha256",      "built with assembly", [24.173_65, 56.915_65, 102.226_09, 128.476_16, 139.047_56]),
    ("sha512",      "vendor's OpenSSL",    [3.768_93, 14.927_25, 21.400_58, 29.089_11, 32.216_41]),
    ("sha512",      "built with assembly", [11.151_64, 44.457_20, 66.356_57, 93.356_71, 105.865_22]),
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

/// All figures as text, with the line through each row's points and its gain at packets of `packet` bytes.
pub(crate) fn render(packet: f64) -> String {
    let mut text = format!("{ROUTER}\n\n");
    let sizes = SIZES.map(size_name);
    let packet_name = format!("at {packet:.0}, x vendor's");
    let mut head = vec!["MB/s by bytes", ""];
    head.extend(sizes.iter().map(String::as_str));
    head.extend(["set-up µs", "then MB/s", &packet_name]);
    let mut table = Table::new(&head);
    for (algorithm, implementation, speeds) in &ROUTER_SPEEDS {
        let fit = line(speeds);
        let vendors = ROUTER_SPEEDS.iter().find(|(other, ..)| other == algorithm);
        let gain = fit.zip(vendors.and_then(|(_, _, speeds)| line(speeds)));
        let gain = gain.map(|(fit, vendors)| format!("{:.2}", fit.gain_over(&vendors, packet)));
        let fitted = [
            fit.map(|fit| number(fit.setup_us)),
            fit.map(|fit| number(fit.speed_mb_s)),
            gain,
        ];
        let names = [*algorithm, *implementation].map(str::to_owned).into_iter();
        let speeds = speeds.iter().map(|speed| number(*speed));
        table.row(
            names
                .chain(speeds)
                .chain(fitted.map(Option::unwrap_or_default)),
        );
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

fn line(speeds: &[f64; 5]) -> Option<Fit> {
    let points = SIZES
        .iter()
        .zip(speeds)
        .map(|(size, speed)| (*size, size / speed));
    Fit::through(&points.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_row_makes_a_line_and_is_labelled() {
        for (algorithm, implementation, speeds) in &ROUTER_SPEEDS {
            let fit = line(speeds).expect(implementation);
            assert!(
                fit.deviation < 0.35,
                "{algorithm} {implementation}: {fit:?}"
            );
        }
        let text = render(1420.0);
        assert_eq!(text.matches("Reliability: ").count(), 2);
        assert!(text.contains("/dev/crypto"));
    }
}
