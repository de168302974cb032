// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where CPU time goes, and what that means for an accelerator.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::calibrate::Calibrations;
use super::rules::{Kind, by_name, has_crypto_inside, kind};
use super::samples::Samples;
use super::unmix::unmix;
use super::{Class, Image};

/// Quantile of the normal distribution for intervals that hold 95 of 100 times.
const Z: f64 = 1.959_964;

/// Functions that a profile lists: enough to see what matters.
const MAX_FUNCTIONS: usize = 25;

/// A share of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// How many samples; not whole where a function is divided.
    pub samples: f64,
    /// Of all samples, 0 to 1.
    pub share: f64,
    /// 95 % interval (Wilson) for the number of samples that there were, 0 to 1.
    pub low: f64,
    /// The other end of it.
    pub high: f64,
}

impl Share {
    /// `samples` of `total`.
    #[must_use]
    pub fn of(samples: f64, total: u64) -> Self {
        if total == 0 {
            return Self {
                samples: 0.0,
                share: 0.0,
                low: 0.0,
                high: 1.0,
            };
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
            // At 0 and at 1 one end is the share itself, but for rounding.
            low: (middle - half).clamp(0.0, share),
            high: (middle + half).clamp(share, 1.0),
        }
    }
}

/// Samples of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassShare {
    /// Which.
    pub class: Class,
    /// How much.
    #[serde(flatten)]
    pub share: Share,
}

/// Samples in one file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectShare {
    /// Its path; `[kernel]` for the kernel, `[unknown]` for what belongs to no file.
    pub object: String,
    /// How much.
    #[serde(flatten)]
    pub share: Share,
}

/// Samples in one function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionShare {
    /// The file's name.
    pub object: String,
    /// Its name, or where it begins in the file.
    pub function: String,
    /// The class that most of it belongs to.
    pub class: Class,
    /// How much.
    #[serde(flatten)]
    pub share: Share,
}

/// Where the CPU time of processes goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// How many samples.
    pub samples: u64,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// For how long was sampled, in seconds.
    pub seconds: f64,
    /// CPU time that the samples stand for, in seconds.
    pub sampled_cpu_seconds: f64,
    /// CPU time that the system counted, in seconds; none if a process began or ended meanwhile.
    pub cpu_seconds: Option<f64>,
    /// Whether the kernel's side could be seen; if not, it is what the CPU time leaves.
    pub kernel_visible: bool,
    /// Why the classes in libcrypto are coarser than they could be; empty if they are not.
    pub notes: Vec<String>,
    /// By class, all that have samples, in their order.
    pub classes: Vec<ClassShare>,
    /// By file, the largest first.
    pub objects: Vec<ObjectShare>,
    /// The functions with the most samples, the largest first.
    pub functions: Vec<FunctionShare>,
}

/// What an accelerator could give at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// Operations with long-lived private keys: what a pool can take.
    pub private_key: Share,
    /// Work on the data itself: what inline accelerators can take.
    pub symmetric: Share,
    /// What nothing says: the ceiling could be higher by this.
    pub unclassified: Share,
    /// How many times as fast the process can become at most if the private-key work costs it nothing:
    /// 1 / (1 - share).
    pub gain: f64,
    /// The same at the upper end of the interval.
    pub gain_high: f64,
}

impl Samples {
    /// Classifies the samples, inside libcrypto as far as there are calibrations.
    #[must_use]
    pub fn profile(&self, calibrations: &Calibrations) -> Profile {
        let total = self.total();
        let mut sorter = Sorter::default();
        for (index, image) in self.images.iter().enumerate() {
            let own = self.counts.range((index, 0)..=(index, u64::MAX));
            let counts: BTreeMap<u64, u64> = own.map(|((_, start), n)| (*start, *n)).collect();
            sorter.sort(image, &counts, calibrations);
        }
        sorter.whole("[kernel]", Class::Kernel, self.kernel_estimate());
        sorter.whole("[unknown]", Class::Unknown, self.unresolved);
        let classes = sorter.classes.iter();
        let mut objects: Vec<ObjectShare> = sorter
            .objects
            .into_iter()
            .map(|(object, count)| ObjectShare {
                object,
                share: Share::of(count as f64, total),
            })
            .collect();
        objects.sort_by(|a, b| b.share.samples.total_cmp(&a.share.samples));
        let mut functions = sorter.functions;
        functions.sort_by_key(|one| Reverse(one.3));
        functions.truncate(MAX_FUNCTIONS);
        Profile {
            samples: total,
            lost: self.lost,
            seconds: self.elapsed.as_secs_f64(),
            sampled_cpu_seconds: self.sampled_time().as_secs_f64(),
            cpu_seconds: self.cpu_time.map(|time| time.as_secs_f64()),
            kernel_visible: self.kernel_visible,
            notes: sorter.notes,
            classes: classes
                .map(|(class, count)| ClassShare {
                    class: *class,
                    share: Share::of(*count, total),
                })
                .collect(),
            objects,
            functions: functions
                .into_iter()
                .map(|(object, function, class, count)| FunctionShare {
                    object,
                    function,
                    class,
                    share: Share::of(count as f64, total),
                })
                .collect(),
        }
    }
}

/// Sorts the functions of files into classes.
#[derive(Default)]
struct Sorter {
    classes: BTreeMap<Class, f64>,
    objects: BTreeMap<String, u64>,
    functions: Vec<(String, String, Class, u64)>,
    notes: Vec<String>,
}

impl Sorter {
    fn whole(&mut self, object: &str, class: Class, count: u64) {
        if count > 0 {
            *self.classes.entry(class).or_default() += count as f64;
            *self.objects.entry(object.to_owned()).or_default() += count;
        }
    }

    fn sort(&mut self, image: &Image, counts: &BTreeMap<u64, u64>, calibrations: &Calibrations) {
        let all: u64 = counts.values().sum();
        let object = plain(&image.path().display().to_string());
        *self.objects.entry(object).or_default() += all;
        let kind = kind(image);
        let calibration = match kind {
            Kind::Libcrypto => calibrations.of(image),
            _ => None,
        };
        if kind == Kind::Libcrypto && calibration.is_none() {
            self.notes.push(format!(
                "{} is not calibrated: only what its names tell is classified",
                plain(&image.path().display().to_string())
            ));
        }
        if calibration.is_some_and(|calibration| !calibration.knows_handshakes()) {
            self.notes.push(format!(
                "no handshakes could be calibrated with {}: making keys for key agreement may count as EC signatures",
                plain(&image.path().display().to_string())
            ));
        }
        let divided = calibration.map(|calibration| unmix(counts, calibration.templates()));
        let divided = divided.unwrap_or_default();
        let inside = kind == Kind::Other && has_crypto_inside(image);
        for (start, count) in counts {
            let region = image.region(*start);
            let name = region.and_then(|region| region.name.as_deref());
            let class = match divided.get(start) {
                Some(parts) => {
                    for (class, part) in parts {
                        *self.classes.entry(*class).or_default() += part;
                    }
                    let largest = parts.iter().max_by(|a, b| a.1.total_cmp(b.1));
                    largest.map_or(Class::CryptoUnknown, |(class, _)| *class)
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

/// Text of somebody's file as a terminal may have it.
fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

/// The class of a function that no calibration knows.
fn class_by_rule(kind: Kind, name: Option<&str>, crypto_inside: bool) -> Class {
    match kind {
        Kind::Whole(class) => class,
        Kind::Libcrypto => name
            .and_then(|name| by_name(name, true))
            .unwrap_or(Class::CryptoUnknown),
        Kind::Other if crypto_inside => name
            .and_then(|name| by_name(name, false))
            .unwrap_or(Class::Application),
        Kind::Other => Class::Application,
    }
}

impl Profile {
    /// How much belongs to a class.
    #[must_use]
    pub fn class(&self, class: Class) -> Share {
        self.sum(|other| other == class)
    }

    /// How much belongs to all classes that fit.
    #[must_use]
    pub fn sum(&self, fits: impl Fn(Class) -> bool) -> Share {
        let fitting = self.classes.iter().filter(|one| fits(one.class));
        // Adding to -0.0 would show as -0.
        let samples = fitting.map(|one| one.share.samples).fold(0.0, |a, b| a + b);
        Share::of(samples, self.samples)
    }

    /// What an accelerator could give this process at most.
    #[must_use]
    pub fn ceiling(&self) -> Ceiling {
        let private_key = self.sum(Class::is_private_key);
        let gain = |share: f64| 1.0 / (1.0 - share).max(1e-3);
        Ceiling {
            private_key,
            symmetric: self.sum(Class::is_symmetric),
            unclassified: self.sum(Class::is_unclassified),
            gain: gain(private_key.share),
            gain_high: gain(private_key.high),
        }
    }
}

impl Ceiling {
    /// The ceiling in a sentence.
    #[must_use]
    pub fn words(&self) -> String {
        let Share {
            share, low, high, ..
        } = self.private_key;
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
    fn intervals_are_wilsons() {
        let share = Share::of(50.0, 100);
        assert!((share.low - 0.4038).abs() < 1e-3 && (share.high - 0.5962).abs() < 1e-3);
        let none = Share::of(0.0, 100);
        assert!(none.low.abs() < 1e-12 && (none.high - 0.0370).abs() < 1e-3);
        let nothing = Share::of(0.0, 0);
        assert!((nothing.high - 1.0).abs() < 1e-12);
    }

    #[test]
    fn names_of_others_do_not_reach_a_terminal_as_they_are() {
        assert_eq!(plain("a\x1b[31mb\nc\u{9b}é"), "a?[31mb?c?é");
    }

    #[test]
    fn the_gain_follows_from_the_share() {
        let mut samples = Samples::new(Duration::from_millis(1), Duration::from_secs(1), true);
        samples.kernel = 100;
        samples.unresolved = 4;
        let mut profile = samples.profile(&Calibrations::without_cache());
        assert_eq!(profile.samples, 104);
        assert!((profile.ceiling().gain - 1.0).abs() < 1e-9);
        profile.classes = vec![ClassShare {
            class: Class::RsaPrivate,
            share: Share::of(52.0, 104),
        }];
        let ceiling = profile.ceiling();
        assert!((ceiling.gain - 2.0).abs() < 1e-9);
        assert!(ceiling.gain_high > 2.0);
        assert!(ceiling.words().contains("2.00x"), "{}", ceiling.words());
    }

    #[test]
    fn a_kernel_that_is_not_visible_is_what_the_cpu_time_leaves() {
        let mut samples = Samples::new(Duration::from_millis(1), Duration::from_secs(1), false);
        samples.unresolved = 300;
        samples.cpu_time = Some(Duration::from_millis(1000));
        let profile = samples.profile(&Calibrations::without_cache());
        assert_eq!(profile.samples, 1000);
        assert!((profile.class(Class::Kernel).share - 0.7).abs() < 1e-9);
    }
}
