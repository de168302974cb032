// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The distribution of CPU time, and the bound on the gain by an accelerator.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::calibrate::Calibrations;
use super::rules::{FileClass, has_crypto_inside, kind, libcrypto_function_class, operation_class};
use super::samples::{Samples, SamplingScope};
use super::unmix::unmix;
use super::{Image, SymbolClass};

/// Quantile of the normal distribution for 95 % intervals.
const Z: f64 = 1.959_964;

/// Number of functions that a profile lists: one screen.
const MAX_FUNCTIONS: usize = 25;

/// A share of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Share {
    /// Number of samples; fractional if functions are divided.
    pub samples: f64,
    /// Share of all samples, 0 to 1.
    pub share: f64,
    /// Lower end of the 95 % interval (Wilson), 0 to 1.
    pub low: f64,
    /// Upper end of the 95 % interval, 0 to 1.
    pub high: f64,
}

impl Share {
    /// The share of `samples` in `total`, with its 95 % interval.
    #[must_use]
    pub fn of(samples: f64, total: u64) -> Self {
        if total == 0 {
            return Self { samples: 0.0, share: 0.0, low: 0.0, high: 1.0 };
        }
        let total = total as f64;
        let share = (samples / total).clamp(0.0, 1.0);
        let scale = 1.0 + Z * Z / total;
        let middle = (share + Z * Z / (2.0 * total)) / scale;
        let half =
            Z / scale * (share * (1.0 - share) / total + Z * Z / (4.0 * total * total)).sqrt();
        Self {
            samples,
            share,
            // At 0 and at 1 one end equals the share, except for rounding.
            low: (middle - half).clamp(0.0, share),
            high: (middle + half).clamp(share, 1.0),
        }
    }
}

/// Samples of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ClassShare {
    /// Class of the functions.
    pub class: SymbolClass,
    /// Part of the CPU time.
    #[serde(flatten)]
    pub share: Share,
}

/// Samples in one file.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ObjectShare {
    /// Path; `[kernel]` for the kernel, `[unknown]` for addresses outside all files.
    pub object: String,
    /// Part of the CPU time.
    #[serde(flatten)]
    pub share: Share,
}

/// Samples in one function.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FunctionShare {
    /// Name of the file.
    pub object: String,
    /// Name, or start address in the file.
    pub function: String,
    /// The class with the largest part of it.
    pub class: SymbolClass,
    /// Part of the CPU time.
    #[serde(flatten)]
    pub share: Share,
}

/// The distribution of the CPU time of processes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Profile {
    /// Number of samples.
    pub samples: u64,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// Duration of sampling, in seconds.
    pub seconds: f64,
    /// CPU time represented by the samples, in seconds.
    pub sampled_cpu_seconds: f64,
    /// CPU time counted by the system, in seconds; none if a process started or ended during sampling.
    pub cpu_seconds: Option<f64>,
    /// Whether the kernel's part was sampled; if not, it is the rest of the CPU time.
    pub kernel_visible: bool,
    /// Reasons why the classes in libcrypto are coarse; empty after a full calibration.
    pub notes: Vec<String>,
    /// The classes with samples, in table order.
    pub classes: Vec<ClassShare>,
    /// By file, the largest first.
    pub objects: Vec<ObjectShare>,
    /// The functions with the most samples, the largest first.
    pub functions: Vec<FunctionShare>,
}

/// Bound on the gain by an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Ceiling {
    /// Share of operations with long-lived private keys, which a pool can take over.
    pub private_key: Share,
    /// Share of bulk encryption, which inline accelerators can take over.
    pub symmetric: Share,
    /// Unclassified share: the ceiling could be higher by this.
    pub unclassified: Share,
    /// Largest possible speed-up if private-key operations cost the process nothing: 1 / (1 - share).
    pub gain: f64,
    /// The speed-up at the upper end of the interval.
    pub gain_high: f64,
}

impl Samples {
    /// Classifies the samples; inside libcrypto by calibration, else by name.
    #[must_use]
    pub fn profile(&self, calibrations: &Calibrations) -> Profile {
        let total = self.total();
        let share = |count: f64| Share::of(count, total);
        let mut sorter = Sorter::default();
        for (index, image) in self.images.iter().enumerate() {
            let own = self.counts.range((index, 0)..=(index, u64::MAX));
            let counts: BTreeMap<u64, u64> = own.map(|((_, start), n)| (*start, *n)).collect();
            sorter.sort(image, &counts, calibrations);
        }
        sorter.whole("[kernel]", SymbolClass::Kernel, self.kernel_estimate());
        sorter.whole("[unknown]", SymbolClass::Unknown, self.unresolved);
        let object = |(object, count)| ObjectShare { object, share: share(count as f64) };
        let mut objects: Vec<ObjectShare> = sorter.objects.into_iter().map(object).collect();
        objects.sort_by(|a, b| b.share.samples.total_cmp(&a.share.samples));
        let mut functions = sorter.functions;
        functions.sort_by_key(|function| Reverse(function.3));
        functions.truncate(MAX_FUNCTIONS);
        Profile {
            samples: total,
            lost: self.lost,
            seconds: self.elapsed.as_secs_f64(),
            sampled_cpu_seconds: self.sampled_time().as_secs_f64(),
            cpu_seconds: self.cpu_time.map(|time| time.as_secs_f64()),
            kernel_visible: self.scope == SamplingScope::UserAndKernel,
            notes: sorter.notes,
            classes: sorter
                .classes
                .into_iter()
                .map(|(class, count)| ClassShare { class, share: share(count) })
                .collect(),
            objects,
            functions: functions
                .into_iter()
                .map(|(object, function, class, count)| FunctionShare {
                    object,
                    function,
                    class,
                    share: share(count as f64),
                })
                .collect(),
        }
    }
}

/// Sorts the functions of files into classes.
#[derive(Default)]
struct Sorter {
    classes: BTreeMap<SymbolClass, f64>,
    objects: BTreeMap<String, u64>,
    functions: Vec<(String, String, SymbolClass, u64)>,
    notes: Vec<String>,
}

impl Sorter {
    fn whole(&mut self, object: &str, class: SymbolClass, count: u64) {
        if count > 0 {
            *self.classes.entry(class).or_default() += count as f64;
            *self.objects.entry(object.to_owned()).or_default() += count;
        }
    }

    fn sort(&mut self, image: &Image, counts: &BTreeMap<u64, u64>, calibrations: &Calibrations) {
        let all: u64 = counts.values().sum();
        let object = plain(&image.path().display().to_string());
        *self.objects.entry(object.clone()).or_default() += all;
        let kind = kind(image);
        let is_libcrypto = kind == FileClass::Libcrypto;
        let calibration = if is_libcrypto { calibrations.of(image) } else { None };
        if is_libcrypto && calibration.is_none() {
            self.notes.push(format!(
                "{object} is not calibrated: its functions are classified by name only"
            ));
        }
        if calibration.is_some_and(|calibration| !calibration.knows_handshakes()) {
            self.notes.push(format!(
                "no handshakes could be calibrated with {object}: making keys for key agreement may count as EC signatures"
            ));
        }
        let divided = calibration.map(|calibration| unmix(counts, calibration.templates()));
        let divided = divided.unwrap_or_default();
        let inside = kind == FileClass::Other && has_crypto_inside(image);
        for (start, count) in counts {
            let region = image.region(*start);
            let name = region.and_then(|region| region.name.as_deref());
            let class = match divided.get(start) {
                Some(parts) => {
                    for (class, part) in parts {
                        *self.classes.entry(*class).or_default() += part;
                    }
                    let largest = parts.iter().max_by(|a, b| a.1.total_cmp(b.1));
                    largest.map_or(SymbolClass::CryptoUnknown, |(class, _)| *class)
                }
                None => {
                    let class = class_by_rule(kind, name, inside);
                    *self.classes.entry(class).or_default() += *count as f64;
                    class
                }
            };
            let shown = name.map_or_else(|| format!("{start:#x}"), str::to_owned);
            let file = plain(image.file_name());
            self.functions.push((file, plain(&shown), class, *count));
        }
    }
}

/// Text from a foreign file, safe for a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The class of a function without calibration.
fn class_by_rule(kind: FileClass, name: Option<&str>, crypto_inside: bool) -> SymbolClass {
    match kind {
        FileClass::Whole(class) => class,
        FileClass::Libcrypto => {
            name.and_then(libcrypto_function_class).unwrap_or(SymbolClass::CryptoUnknown)
        }
        FileClass::Other if crypto_inside => {
            name.and_then(operation_class).unwrap_or(SymbolClass::Application)
        }
        FileClass::Other => SymbolClass::Application,
    }
}

impl Profile {
    /// Zero for a class without samples.
    #[must_use]
    pub fn class(&self, class: SymbolClass) -> Share {
        self.sum(|other| other == class)
    }

    /// The share of all classes for which `fits` holds.
    #[must_use]
    pub fn sum(&self, fits: impl Fn(SymbolClass) -> bool) -> Share {
        let fitting = self.classes.iter().filter(|row| fits(row.class));
        // A sum of nothing is -0.0, which would print as -0.
        let samples = fitting.map(|row| row.share.samples).fold(0.0, |a, b| a + b);
        Share::of(samples, self.samples)
    }

    /// The bound on the gain by an accelerator.
    #[must_use]
    pub fn ceiling(&self) -> Ceiling {
        let private_key = self.sum(SymbolClass::is_private_key);
        let gain = |share: f64| 1.0 / (1.0 - share).max(1e-3);
        Ceiling {
            private_key,
            symmetric: self.sum(SymbolClass::is_symmetric),
            unclassified: self.sum(SymbolClass::is_unclassified),
            gain: gain(private_key.share),
            gain_high: gain(private_key.high),
        }
    }
}

impl Ceiling {
    /// The ceiling in a sentence.
    #[must_use]
    pub fn words(&self) -> String {
        let Share { share, low, high, .. } = self.private_key;
        format!(
            "Private-key operations take {:.1} % ({:.1} to {:.1}) of the CPU time: no pool and no card that \
             takes them over can make this more than {:.2}x as fast.",
            share * 100.0,
            low * 100.0,
            high * 100.0,
            self.gain
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn intervals_follow_wilsons_formula() {
        let share = Share::of(50.0, 100);
        assert!((share.low - 0.4038).abs() < 1e-3 && (share.high - 0.5962).abs() < 1e-3);
        let none = Share::of(0.0, 100);
        assert!(none.low.abs() < 1e-12 && (none.high - 0.0370).abs() < 1e-3);
        let nothing = Share::of(0.0, 0);
        assert!((nothing.high - 1.0).abs() < 1e-12);
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        assert_eq!(plain("a\x1b[31mb\nc\u{9b}é"), "a?[31mb?c?é");
    }

    #[test]
    fn gain_follows_from_the_share() {
        let mut samples = Samples::new(
            Duration::from_millis(1),
            Duration::from_secs(1),
            SamplingScope::UserAndKernel,
        );
        samples.kernel = 100;
        samples.unresolved = 4;
        let mut profile = samples.profile(&Calibrations::without_cache());
        assert_eq!(profile.samples, 104);
        assert!((profile.ceiling().gain - 1.0).abs() < 1e-9);
        profile.classes =
            vec![ClassShare { class: SymbolClass::RsaPrivate, share: Share::of(52.0, 104) }];
        let ceiling = profile.ceiling();
        assert!((ceiling.gain - 2.0).abs() < 1e-9);
        assert!(ceiling.gain_high > 2.0);
        assert!(ceiling.words().contains("2.00x"), "{}", ceiling.words());
    }

    #[test]
    fn invisible_kernel_gets_the_rest_of_the_cpu_time() {
        let mut samples =
            Samples::new(Duration::from_millis(1), Duration::from_secs(1), SamplingScope::User);
        samples.unresolved = 300;
        samples.cpu_time = Some(Duration::from_millis(1000));
        let profile = samples.profile(&Calibrations::without_cache());
        assert_eq!(profile.samples, 1000);
        assert!((profile.class(SymbolClass::Kernel).share - 0.7).abs() < 1e-9);
    }
}
