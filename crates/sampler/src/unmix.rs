// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Divides counts of functions among known operations: the mixture of templates that makes the counts
//! most likely, found by expectation maximisation.
//!
//! A template is the distribution of one operation over functions. A function in one template only is evidence
//! for that operation; a function in several templates is divided according to the evidence. Functions without
//! template are left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SymbolClass;

/// Bound on iterations. Two hundred give the shares of a handshake to four digits.
const MAX_ROUNDS: usize = 500;

/// Change of a share below which the iteration has converged.
const CONVERGENCE: f64 = 1e-7;

/// Samples that an operation must explain to count: with many templates, which are samples themselves, one always
/// happens to resemble the noise.
const MIN_SAMPLES: f64 = 2.0;

/// Share of an operation from which a function belongs to its core.
const CORE_SHARE: f64 = 0.01;

/// Share that the core of an operation must explain for the operation to count.
const MIN_EXPLAINED_SHARE: f64 = 0.002;

/// Least share for private-key operations, which make the ceiling: a real one in a handshake explains ten times this,
/// an accidental resemblance less.
const MIN_PRIVATE_KEY_SHARE: f64 = 0.015;

/// Distribution of one operation over functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Template {
    pub(super) class: SymbolClass,
    /// Number of samples in each function, by its start address.
    pub(super) counts: BTreeMap<u64, u64>,
}

impl Template {
    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Share that its core must explain for the operation to count.
    fn min_explained_share(&self) -> f64 {
        match self.class {
            SymbolClass::Overhead => 0.0,
            class if class.is_private_key() => MIN_PRIVATE_KEY_SHARE,
            _ => MIN_EXPLAINED_SHARE,
        }
    }

    /// The core of the template.
    fn core(&self) -> Self {
        let least_count = CORE_SHARE * self.total() as f64;
        let core = self.counts.iter().filter(|(_, count)| **count as f64 >= least_count);
        Self {
            class: self.class,
            counts: core.map(|(function, count)| (*function, *count)).collect(),
        }
    }

    /// The function's share of the operation's time.
    pub(super) fn share(&self, function: u64) -> f64 {
        let count = self.counts.get(&function).copied().unwrap_or(0);
        count as f64 / self.total().max(1) as f64
    }
}

/// The counts by class of each function that occurs in a template.
///
/// The first pass uses only the cores and finds which operations occur at all; the second uses all functions of
/// those. Otherwise a function that occurred by chance only in ECDSA's calibration would be evidence for ECDSA
/// in a server without such a key.
pub(super) fn unmix(
    counts: &BTreeMap<u64, u64>,
    templates: &[Template],
) -> BTreeMap<u64, BTreeMap<SymbolClass, f64>> {
    let cores: Vec<Template> = templates.iter().map(Template::core).collect();
    let present = weights(&rows(counts, &cores), cores.len());
    let present: Vec<Template> = templates
        .iter()
        .zip(present)
        .filter(|(template, weight)| *weight >= template.min_explained_share())
        .map(|(template, _)| template.clone())
        .collect();
    let rows = rows(counts, &present);
    let weights = weights(&rows, present.len());
    let mut divided = BTreeMap::new();
    for (function, count, shares) in &rows {
        let whole = dot(&weights, shares);
        if whole <= 0.0 {
            continue;
        }
        let classes: &mut BTreeMap<SymbolClass, f64> = divided.entry(*function).or_default();
        for ((template, weight), share) in present.iter().zip(&weights).zip(shares) {
            *classes.entry(template.class).or_default() += count * weight * share / whole;
        }
        classes.retain(|_, part| *part > 0.0);
    }
    divided.retain(|_, classes| !classes.is_empty());
    divided
}

/// A function that has samples and occurs in templates: its count, and its likelihood under each template.
type FunctionRow = (u64, f64, Vec<f64>);

fn rows(counts: &BTreeMap<u64, u64>, templates: &[Template]) -> Vec<FunctionRow> {
    let all = counts.iter().map(|(&function, &count)| {
        let shares = templates.iter().map(|template| template.share(function)).collect();
        (function, count as f64, shares)
    });
    all.filter(|(_, _, shares): &FunctionRow| shares.iter().any(|share| *share > 0.0)).collect()
}

/// The share of each template.
fn weights(rows: &[FunctionRow], templates: usize) -> Vec<f64> {
    let all: f64 = rows.iter().map(|(_, count, _)| count).sum();
    let mut weights = vec![1.0 / templates.max(1) as f64; templates];
    if all <= 0.0 {
        return weights;
    }
    for _ in 0..MAX_ROUNDS {
        let mut next = vec![0.0; templates];
        for (_, count, shares) in rows {
            let whole = dot(&weights, shares);
            if whole <= 0.0 {
                continue;
            }
            for ((next, weight), share) in next.iter_mut().zip(&weights).zip(shares) {
                *next += count * weight * share / whole / all;
            }
        }
        for share in &mut next {
            *share = (*share - MIN_SAMPLES / all).max(0.0);
        }
        let sum: f64 = next.iter().sum();
        if sum <= 0.0 {
            break;
        }
        for share in &mut next {
            *share /= sum;
        }
        let moved = weights
            .iter()
            .zip(&next)
            .map(|(before, after)| (before - after).abs())
            .fold(0.0, f64::max);
        weights = next;
        if moved < CONVERGENCE {
            break;
        }
    }
    weights
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(class: SymbolClass, counts: &[(u64, u64)]) -> Template {
        Template { class, counts: counts.iter().copied().collect() }
    }

    #[test]
    fn shared_function_is_divided_by_evidence() {
        // Function 1 belongs to RSA, 2 to ECDSA, 9 is the multiplication shared by both.
        let templates = [
            template(SymbolClass::RsaPrivate, &[(1, 50), (9, 50)]),
            template(SymbolClass::EcPrivate, &[(2, 25), (9, 75)]),
        ];
        // 800 samples of RSA, 400 of ECDSA.
        let counts = [(1, 400), (9, 400 + 300), (2, 100), (77, 5)].into();
        let classes = unmix(&counts, &templates);
        let sum = |class| -> f64 { classes.values().filter_map(|parts| parts.get(&class)).sum() };
        assert!((sum(SymbolClass::RsaPrivate) - 800.0).abs() < 4.0, "{classes:?}");
        assert!((sum(SymbolClass::EcPrivate) - 400.0).abs() < 4.0, "{classes:?}");
        assert!(!classes.contains_key(&77));
    }

    #[test]
    fn operation_without_core_samples_is_absent() {
        // Both allocate (8); by chance only ECDSA's calibration has samples in function 7.
        let templates = [
            template(SymbolClass::RsaPrivate, &[(1, 995), (8, 5)]),
            template(SymbolClass::EcPrivate, &[(2, 990), (7, 5), (8, 5)]),
        ];
        let classes = unmix(&[(1, 1000), (7, 20), (8, 5)].into(), &templates);
        assert!(classes.values().all(|parts| !parts.contains_key(&SymbolClass::EcPrivate)));
        assert!(!classes.contains_key(&7), "{classes:?}");
    }

    #[test]
    fn unknown_functions_are_left_out() {
        let templates = [template(SymbolClass::Aes, &[(1, 1)])];
        assert!(unmix(&[(2, 3)].into(), &templates).is_empty());
        assert!(unmix(&BTreeMap::new(), &templates).is_empty());
        assert!(unmix(&[(1, 0)].into(), &templates).is_empty());
        assert!(unmix(&[(1, 3)].into(), &[]).is_empty());
        let empty = [template(SymbolClass::Aes, &[])];
        assert!(unmix(&[(1, 3)].into(), &empty).is_empty());
    }
}
