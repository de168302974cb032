// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Samples, counted by file and function.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::image::Image;
use super::rules::{FileClass, kind};

/// Part of a process's CPU time that is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SamplingScope {
    UserAndKernel,
    /// Without the kernel's part, which needs a privilege.
    User,
}

/// Samples, counted by file and function. Runs can be added.
#[derive(Clone, Debug)]
pub struct Samples {
    pub(super) images: Vec<Arc<Image>>,
    /// Number of samples by index of the file and start address of the function.
    pub(super) counts: BTreeMap<(usize, u64), u64>,
    pub(super) kernel: u64,
    pub(super) unresolved: u64,
    pub(super) lost: u64,
    pub(super) period: Duration,
    pub(super) elapsed: Duration,
    pub(super) cpu_time: Option<Duration>,
    pub(super) scope: SamplingScope,
}

impl Samples {
    pub(super) fn new(period: Duration, elapsed: Duration, scope: SamplingScope) -> Self {
        Self {
            images: Vec::new(),
            counts: BTreeMap::new(),
            kernel: 0,
            unresolved: 0,
            lost: 0,
            period,
            elapsed,
            cpu_time: None,
            scope,
        }
    }

    pub(super) fn count(&mut self, image: usize, start: u64) {
        *self.counts.entry((image, start)).or_default() += 1;
    }

    /// Number of samples. Each represents one period of CPU time.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.user() + self.kernel_estimate()
    }

    /// The CPU time represented by the samples.
    #[must_use]
    pub fn sampled_time(&self) -> Duration {
        Duration::from_secs_f64(self.period.as_secs_f64() * self.total() as f64)
    }

    /// The CPU time counted by the system. `None` if a process started or ended during sampling.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        self.cpu_time
    }

    /// The libcryptos that contain samples, for [`Calibrations::ensure`](super::Calibrations::ensure).
    #[must_use]
    pub fn libcryptos(&self) -> Vec<Arc<Image>> {
        let images = self.images.iter();
        images.filter(|image| kind(image) == FileClass::Libcrypto).cloned().collect()
    }

    /// Adds the samples of another run with the same settings.
    pub fn add(&mut self, other: &Self) {
        let Self { images, counts, kernel, unresolved, lost, period: _, elapsed, cpu_time, scope } =
            other;
        let places: Vec<usize> = images.iter().map(|image| self.place(image)).collect();
        for ((image, start), count) in counts {
            if let Some(place) = places.get(*image) {
                *self.counts.entry((*place, *start)).or_default() += count;
            }
        }
        self.kernel += kernel;
        self.unresolved += unresolved;
        self.lost += lost;
        self.elapsed += *elapsed;
        self.cpu_time = self.cpu_time.zip(*cpu_time).map(|(a, b)| a + b);
        if *scope == SamplingScope::User {
            self.scope = SamplingScope::User;
        }
    }

    /// Samples outside the kernel.
    fn user(&self) -> u64 {
        self.counts.values().sum::<u64>() + self.unresolved
    }

    /// Samples in the kernel: counted, or the rest of the CPU time if the kernel is invisible.
    pub(super) fn kernel_estimate(&self) -> u64 {
        match self.cpu_time {
            Some(time) if self.scope == SamplingScope::User => {
                let all = time.as_nanos() / self.period.as_nanos().max(1);
                u64::try_from(all).unwrap_or(0).saturating_sub(self.user())
            }
            _ => self.kernel,
        }
    }

    fn place(&mut self, image: &Arc<Image>) -> usize {
        let same = |known: &Arc<Image>| Arc::ptr_eq(known, image) || known == image;
        self.images.iter().position(same).unwrap_or_else(|| {
            self.images.push(Arc::clone(image));
            self.images.len() - 1
        })
    }
}
