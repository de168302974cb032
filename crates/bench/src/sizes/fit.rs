// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The cost of an operation by its size, as a line: `t(n) = a + n / b`.
//!
//! `a` is what every operation costs however small it is (a system call, a context switch, the set-up
//! of a device), `b` the speed once it runs. An accelerator has a large `a` and a large `b`: it wins
//! above some size and loses below it. Tables that end at 8 KB hide that, because a packet has 1.4 KB.

use serde::{Deserialize, Serialize};

/// The line through measured points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fit {
    /// Microseconds per operation, at size zero.
    pub(crate) setup_us: f64,
    /// Megabytes (10⁶ bytes) per second beyond that.
    pub(crate) speed_mb_s: f64,
    /// The largest deviation of a point from the line, as a fraction of the point.
    pub(crate) deviation: f64,
}

impl Fit {
    /// The line through points of (bytes, microseconds), each weighted so that *relative* deviations
    /// count: otherwise the largest size decides alone. Nothing below three different sizes, or where
    /// larger is not slower.
    pub(crate) fn through(points: &[(f64, f64)]) -> Option<Self> {
        const MIN_SIZES: usize = 3;
        let mut sizes: Vec<f64> = points.iter().map(|(size, _)| *size).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        if sizes.len() < MIN_SIZES || points.iter().any(|(_, time)| *time <= 0.0) {
            return None;
        }
        let sum = |f: &dyn Fn(f64, f64) -> f64| {
            points.iter().map(|(n, t)| f(*n, *t) / (t * t)).sum::<f64>()
        };
        let (w, wn, wt) = (sum(&|_, _| 1.0), sum(&|n, _| n), sum(&|_, t| t));
        let (wnn, wnt) = (sum(&|n, _| n * n), sum(&|n, t| n * t));
        let slope = (w * wnt - wn * wt) / (w * wnn - wn * wn);
        if !slope.is_finite() || slope <= 0.0 {
            return None;
        }
        let mut fit = Self {
            setup_us: ((wt - slope * wn) / w).max(0.0),
            speed_mb_s: 1.0 / slope,
            deviation: 0.0,
        };
        fit.deviation = points
            .iter()
            .map(|(size, time)| (fit.time_us(*size) / time - 1.0).abs())
            .fold(0.0, f64::max);
        Some(fit)
    }

    /// Microseconds for this number of bytes.
    pub(crate) fn time_us(&self, bytes: f64) -> f64 {
        self.setup_us + bytes / self.speed_mb_s
    }

    /// Speed at a size, divided by that of `peer`.
    pub(crate) fn gain_over(&self, peer: &Self, bytes: f64) -> f64 {
        peer.time_us(bytes) / self.time_us(bytes)
    }

    /// Sizes at which this implementation beats `peer`.
    pub(crate) fn crossover(&self, peer: &Self) -> Crossover {
        let per_byte = 1.0 / peer.speed_mb_s - 1.0 / self.speed_mb_s;
        let setup = self.setup_us - peer.setup_us;
        match (setup > 0.0, per_byte > 0.0) {
            (false, false) if setup == 0.0 && per_byte == 0.0 => Crossover::Never,
            (true, true) => Crossover::Above(setup / per_byte),
            (false, true) => Crossover::Always,
            (true, false) => Crossover::Never,
            (false, false) => Crossover::Below(setup / per_byte),
        }
    }
}

/// Sizes at which one implementation beats another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Crossover {
    /// At every size.
    Always,
    /// At no size.
    Never,
    /// Above this number of bytes.
    Above(f64),
    /// Below this number of bytes.
    Below(f64),
}

impl Crossover {
    /// Description in words.
    pub(crate) fn show(&self) -> String {
        match self {
            Self::Always => "at every size".to_owned(),
            Self::Never => "never".to_owned(),
            Self::Above(bytes) => format!("above {bytes:.0} bytes"),
            Self::Below(bytes) => format!("below {bytes:.0} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes, megabytes per second: AES-256-CBC through /dev/crypto on an Arm router (Netgear R9000).
    const DEVICE: [(f64, f64); 5] = [
        (16.0, 1.313_02),
        (64.0, 5.265_17),
        (256.0, 20.732_59),
        (1024.0, 70.701_06),
        (8192.0, 305.261_23),
    ];

    /// Measured times of the same router's processor.
    const PROCESSOR: [(f64, f64); 5] = [
        (16.0, 55.345_12),
        (64.0, 57.141_60),
        (256.0, 58.567_85),
        (1024.0, 58.935_30),
        (8192.0, 59.026_09),
    ];

    fn points(speeds: &[(f64, f64)]) -> Vec<(f64, f64)> {
        speeds.iter().map(|(n, speed)| (*n, n / speed)).collect()
    }

    #[test]
    fn device_of_a_router_pays_off_above_800_bytes() {
        let device = Fit::through(&points(&DEVICE)).expect("a line");
        assert!((device.setup_us - 12.2).abs() < 0.3, "{device:?}");
        assert!((device.speed_mb_s - 558.0).abs() < 25.0, "{device:?}");
        assert!(device.deviation < 0.05, "{device:?}");
        let processor = Fit::through(&points(&PROCESSOR)).expect("a line");
        let Crossover::Above(bytes) = device.crossover(&processor) else {
            panic!("{:?}", device.crossover(&processor));
        };
        assert!((780.0..830.0).contains(&bytes), "{bytes}");
        let gain = device.gain_over(&processor, 1400.0);
        assert!((1.5..1.7).contains(&gain), "{gain}, not the 5.2 of 8 KB blocks");
    }

    #[test]
    fn lines_that_do_not_cross_say_so() {
        let line = |setup_us, speed_mb_s| Fit { setup_us, speed_mb_s, deviation: 0.0 };
        let base = line(1.0, 100.0);
        assert_eq!(line(0.5, 200.0).crossover(&base), Crossover::Always);
        assert_eq!(line(2.0, 50.0).crossover(&base), Crossover::Never);
        assert_eq!(base.crossover(&base), Crossover::Never);
        assert_eq!(line(2.0, 200.0).crossover(&base), Crossover::Above(200.0));
        assert_eq!(line(0.5, 50.0).crossover(&base), Crossover::Below(50.0));
    }

    #[test]
    fn line_through_too_few_points_is_refused() {
        assert_eq!(Fit::through(&[]), None);
        assert_eq!(Fit::through(&[(16.0, 1.0), (64.0, 2.0)]), None);
        assert_eq!(Fit::through(&[(16.0, 1.0), (16.0, 2.0), (64.0, 3.0)]), None);
        assert_eq!(Fit::through(&[(16.0, 3.0), (64.0, 2.0), (256.0, 1.0)]), None, "falling");
        assert_eq!(Fit::through(&[(16.0, 0.0), (64.0, 2.0), (256.0, 3.0)]), None, "no time");
    }
}
