// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Templates of one libcrypto: the distribution of each operation over functions.
//!
//! ```text
//!  openssl speed OPERATION   same libcrypto, one operation at a time       pure templates
//!  openssl s_time, s_server  handshakes without session, both sides        additions of handshakes:
//!                            key agreement with new keys, and all work around the operations
//! ```
//!
//! Both are children in a temporary folder, sampled like any process, for about twenty seconds in all.
//! The result is kept in a cache, by build id and processor (libcrypto has code for each kind of processor).

mod cache;
mod runs;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub(super) use self::runs::run;
pub use self::runs::{NO_AES, NO_VECTORS};
use super::unmix::Template;
use super::{Image, SampleError, SymbolClass};

/// The templates of one libcrypto.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    templates: Vec<Template>,
    /// Whether handshakes could be sampled as well.
    handshakes: bool,
}

/// Result of one run: an operation, and its samples by function of libcrypto.
#[derive(Clone, Debug)]
pub(super) struct CalibrationRun {
    pub(super) what: CalibratedWork,
    pub(super) counts: BTreeMap<u64, u64>,
}

/// The work during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalibratedWork {
    /// One repeated operation. The curve is the one whose key agreement it resembles.
    Operation(SymbolClass, Option<AgreementCurve>),
    /// The client of handshakes with key agreement on this curve, and an RSA certificate.
    Client(AgreementCurve),
    /// The server of such handshakes.
    Server,
}

impl CalibratedWork {
    /// The curve of the key agreement.
    fn agreement(self) -> Option<AgreementCurve> {
        match self {
            Self::Client(curve) => Some(curve),
            Self::Operation(..) | Self::Server => None,
        }
    }
}

/// A curve of key agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgreementCurve {
    X25519,
    P256,
}

impl Calibration {
    /// Measures the libcrypto in this file, for about twenty seconds. `progress` gets the name of each step, its
    /// number, and the number of steps.
    ///
    /// # Errors
    /// [`SampleError::Calibration`] if the `openssl` program is missing or uses another file, and the
    /// reasons of sampling.
    pub fn of(
        image: &Image,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<Self, SampleError> {
        Ok(Self::from_runs(&run(image, progress)?))
    }

    pub(super) fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// Whether key agreement can be distinguished from signatures on the same curve.
    pub(super) fn knows_handshakes(&self) -> bool {
        self.handshakes
    }

    /// Makes templates from the runs. Handshakes are mixtures: a function that is more frequent in them than in any
    /// operation is overhead; a function that resembles a curve's operations is its key agreement, which
    /// includes key generation, an operation that `openssl speed` lacks.
    fn from_runs(seen: &[CalibrationRun]) -> Self {
        let operation = |run: &CalibrationRun| match run.what {
            CalibratedWork::Operation(class, curve) => {
                let counts = run.counts.clone();
                Some((Template { class, counts }, curve))
            }
            CalibratedWork::Client(_) | CalibratedWork::Server => None,
        };
        let mut pure: Vec<(Template, Option<AgreementCurve>)> =
            seen.iter().filter_map(operation).collect();
        let mut agreements = Vec::new();
        let mut overhead: BTreeMap<u64, u64> = BTreeMap::new();
        for run in seen {
            if let CalibratedWork::Operation(..) = run.what {
                continue;
            }
            let curve = run.what.agreement();
            let whole = Template { class: SymbolClass::Overhead, counts: run.counts.clone() };
            let mut agreement = BTreeMap::new();
            for (&function, &count) in &run.counts {
                let shares =
                    pure.iter().map(|(template, curve)| (template.share(function), *curve));
                match shares.max_by(|a, b| a.0.total_cmp(&b.0)) {
                    Some((share, of)) if share > whole.share(function) => {
                        if of.is_some() && of == curve {
                            agreement.insert(function, count);
                        }
                    }
                    _ => *overhead.entry(function).or_default() += count,
                }
            }
            if !agreement.is_empty() {
                agreements.push(Template { class: SymbolClass::KeyAgreement, counts: agreement });
            }
        }
        // Handshakes are better evidence for key agreement on their curves than the bare operation, which would
        // assign key generation to the signatures that it resembles.
        let sampled: Vec<Option<AgreementCurve>> =
            seen.iter().map(|run| run.what.agreement()).collect();
        pure.retain(|(template, curve)| {
            template.class != SymbolClass::KeyAgreement
                || curve.is_none()
                || !sampled.contains(curve)
        });
        let mut templates: Vec<Template> = pure.into_iter().map(|(template, _)| template).collect();
        templates.extend(agreements);
        if !overhead.is_empty() {
            templates.push(Template { class: SymbolClass::Overhead, counts: overhead });
        }
        Self { templates, handshakes: seen.iter().any(|run| run.what.agreement().is_some()) }
    }
}

/// A set of calibrations, with an optional cache on disk.
#[derive(Debug)]
pub struct Calibrations {
    folder: Option<PathBuf>,
    known: Vec<(String, Calibration)>,
}

impl Calibrations {
    /// Calibrations with the cache of this user: `$XDG_CACHE_HOME/millrace`, `~/.cache/millrace`, for root
    /// `/var/cache/millrace`.
    #[must_use]
    pub fn with_cache() -> Self {
        Self { folder: cache::folder(), known: Vec::new() }
    }

    /// An empty set without cache on disk.
    #[must_use]
    pub fn without_cache() -> Self {
        Self { folder: None, known: Vec::new() }
    }

    /// Makes sure that this libcrypto is calibrated: from the cache, or by measuring it now.
    ///
    /// # Errors
    /// As [`Calibration::of`]. A profile without it is still possible, only coarser.
    pub fn ensure(
        &mut self,
        image: &Image,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<(), SampleError> {
        let name = cache::name(image);
        if self.known.iter().any(|(known, _)| *known == name) {
            return Ok(());
        }
        let file = self.folder.as_ref().map(|folder| folder.join(&name));
        let cached = file.as_deref().and_then(|file| cache::load(file, image));
        let calibration = match cached {
            Some(calibration) => calibration,
            None => {
                let measured = Calibration::of(image, progress)?;
                if let Some(file) = file.as_ref().filter(|_| measured.handshakes) {
                    cache::store(file, &measured);
                }
                measured
            }
        };
        self.known.push((name, calibration));
        Ok(())
    }

    /// The calibration of this libcrypto, if there is one.
    #[must_use]
    pub fn of(&self, image: &Image) -> Option<&Calibration> {
        let name = cache::name(image);
        let found = self.known.iter().find(|(known, _)| *known == name);
        found.map(|(_, calibration)| calibration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unmix::unmix;

    fn seen(what: CalibratedWork, counts: &[(u64, u64)]) -> CalibrationRun {
        CalibrationRun { what, counts: counts.iter().copied().collect() }
    }

    #[test]
    fn handshakes_add_key_agreement_and_overhead() {
        // 1: RSA, 2: field of the curve, 3: its fixed-base multiplication, 4: memory, 5: parsing.
        let calibration = Calibration::from_runs(&[
            seen(CalibratedWork::Operation(SymbolClass::RsaPrivate, None), &[(1, 98), (4, 2)]),
            seen(
                CalibratedWork::Operation(SymbolClass::EcPrivate, Some(AgreementCurve::P256)),
                &[(2, 60), (3, 40)],
            ),
            seen(
                CalibratedWork::Operation(SymbolClass::KeyAgreement, Some(AgreementCurve::P256)),
                &[(2, 100)],
            ),
            seen(
                CalibratedWork::Client(AgreementCurve::P256),
                &[(1, 10), (2, 40), (3, 10), (4, 20), (5, 20)],
            ),
        ]);
        let of = |class| -> Vec<_> {
            let all = calibration.templates().iter();
            all.filter(|template| template.class == class)
                .map(|template| template.counts.keys().copied().collect::<Vec<_>>())
                .collect()
        };
        assert_eq!(of(SymbolClass::Overhead), [[4, 5]]);
        assert_eq!(of(SymbolClass::KeyAgreement), [[2, 3]]);
    }

    /// A profile and the calibration of its libcrypto, by start of function.
    #[derive(serde::Deserialize)]
    struct Recorded {
        /// Templates of runs with every instruction.
        plain: Vec<Template>,
        /// Those of runs with hidden instructions.
        masked: Vec<Template>,
        /// The profile.
        counts: BTreeMap<u64, u64>,
    }

    #[test]
    fn aes_without_its_instructions_is_recognised_in_a_recorded_profile() {
        let text = include_str!("../../fixtures/aes-in-tables.json");
        let Recorded { plain, masked, counts } = serde_json::from_str(text).expect("a profile");
        let all: u64 = counts.values().sum();
        let encryption = |templates: &[Template]| {
            let divided = unmix(&counts, templates);
            let parts = divided.values().flatten();
            let aes: f64 =
                parts.filter(|(class, _)| class.is_symmetric()).map(|(_, part)| part).sum();
            aes / all as f64
        };
        // The functions have no names, so that nothing but a run with hidden instructions tells them.
        assert!(encryption(&plain) < 0.1, "{}", encryption(&plain));
        let everything = [plain, masked].concat();
        assert!(encryption(&everything) > 0.75, "{}", encryption(&everything));
    }
}
