// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Published figures of other measurements, each with its source and reliability. None of them was repeated here.

use serde::Serialize;

use super::fit::Fit;
use super::results::number;
use crate::table::ReportTable;

/// Block sizes of the router's figures, in bytes.
const SIZES: [f64; 5] = [16.0, 64.0, 256.0, 1024.0, 8192.0];

/// One line of `openssl speed`: algorithm, implementation, and 10⁶ bytes per second by block size.
type Published = (&'static str, &'static str, [f64; 5]);

/// Netgear R9000 (four Cortex-A15 at 1.7 GHz), `openssl speed`. The article's author measured them with
/// custom firmware and the vendor's; the method is known, and the points lie on a line, so they can be
/// calculated with.
const ROUTER: &str = include_str!("../../texts/published-router.txt");

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

const ROUTER_KEYS: &str = include_str!("../../texts/published-router-keys.txt");

const TUNNEL: &str = include_str!("../../texts/published-tunnel.txt");

/// One line of `openssl speed`, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct PublishedSpeed {
    machine: &'static str,
    algorithm: &'static str,
    implementation: &'static str,
    sizes: [f64; 5],
    mb_per_s: [f64; 5],
}

/// The figures from which lines are calculated.
pub(crate) fn speeds() -> Vec<PublishedSpeed> {
    let of = |&(algorithm, implementation, mb_per_s): &Published| PublishedSpeed {
        machine: "Netgear R9000",
        algorithm,
        implementation,
        sizes: SIZES,
        mb_per_s,
    };
    ROUTER_SPEEDS.iter().map(of).collect()
}

/// All figures as text, with the line through each row's points and its gain at packets of `packet` bytes.
pub(crate) fn render(packet: f64) -> String {
    let heads = ["MB/s by bytes", ""].map(str::to_owned).into_iter();
    let fitted = ["set-up µs", "then MB/s"].map(str::to_owned).into_iter();
    let sizes = SIZES.map(|size| format!("{size:.0}"));
    let gain_head = [format!("at {packet:.0}, x vendor's")];
    let mut speeds = ReportTable::new(heads.chain(sizes).chain(fitted).chain(gain_head));
    for (algorithm, implementation, mb_s) in &ROUTER_SPEEDS {
        let vendors = ROUTER_SPEEDS.iter().find(|(other, ..)| other == algorithm);
        let fits = line(mb_s).zip(vendors.and_then(|(.., mb_s)| line(mb_s)));
        let fitted = fits.map(|(fit, vendors)| {
            let gain = format!("{:.2}", fit.gain_over(&vendors, packet));
            [number(fit.setup_us), number(fit.speed_mb_s), gain]
        });
        let names = [algorithm, implementation].map(|name| (*name).to_owned()).into_iter();
        let mb_s = mb_s.iter().map(|mb_s| number(*mb_s));
        speeds.row(names.chain(mb_s).chain(fitted.into_iter().flatten()));
    }
    let speeds = speeds.render();
    format!("{ROUTER}\n\n{speeds}\n{ROUTER_KEYS}\n{TUNNEL}")
}

fn line(speeds: &[f64; 5]) -> Option<Fit> {
    let points = SIZES.iter().zip(speeds).map(|(size, speed)| (*size, size / speed));
    Fit::through(&points.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_row_makes_a_line_and_is_labelled() {
        for (algorithm, implementation, speeds) in &ROUTER_SPEEDS {
            let fit = line(speeds).expect(implementation);
            assert!(fit.deviation < 0.35, "{algorithm} {implementation}: {fit:?}");
        }
        let text = render(1420.0);
        assert_eq!(text.matches("Reliability: ").count(), 2);
        assert!(text.contains("/dev/crypto"));
    }
}
