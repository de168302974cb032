// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Divides counts of functions among known operations: the mixture of templates that makes the counts
//! most likely, found by expectation maximisation.
//!
//! Each template says how often an operation is found in which function. A function of one template
//! alone is evidence for it; a function of several is divided as the evidence says. Functions of no
//! template are left alone.

use std::collections::BTreeMap;

use super::Class;

/// Bound on the rounds. Two hundred bring the shares of a handshake to the fourth digit.
const MAX_ROUNDS: usize = 500;

/// When no share moves more than this, it is done.
const CLOSE_ENOUGH: f64 = 1e-7;

/// What an operation has to explain to be counted, in samples: templates are samples themselves, and with
/// many of them there is always one that happens to resemble the noise.
const LEAST: f64 = 2.0;

/// Functions with this share of an operation are its core: what it cannot do without.
const CORE: f64 = 0.01;

/// An operation whose core explains less than this does not happen.
const PRESENT: f64 = 0.002;

/// The same for operations with private keys, which make the ceiling: one in a handshake is ten times
/// this, and what other operations resemble them by is less.
const PRESENT_PRIVATE: f64 = 0.015;

/// How often an operation is found in which function.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template {
    pub(super) class: Class,
    /// By address of the function.
    pub(super) counts: BTreeMap<u64, u64>,
}

impl Template {
    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// What it has to explain at its core to be counted.
    fn least(&self) -> f64 {
        match self.class {
            Class::Overhead => 0.0,
            class if class.is_private_key() => PRESENT_PRIVATE,
            _ => PRESENT,
        }
    }

    /// Only the functions that it spends its time in.
    fn core(&self) -> Self {
        let least = CORE * self.total() as f64;
        let core = self
            .counts
            .iter()
            .filter(|(_, count)| **count as f64 >= least);
        Self {
            class: self.class,
            counts: core.map(|(function, count)| (*function, *count)).collect(),
        }
    }

    /// The share of this operation's time that is in this function.
    pub(super) fn share(&self, function: u64) -> f64 {
        let count = self.counts.get(&function).copied().unwrap_or(0);
        count as f64 / self.total().max(1) as f64
    }
}

/// For each function that is in a template: its counts by class.
///
/// First only with the functions that each operation spends its time in, which says which operations
/// there are at all; then with all functions of those. Otherwise a function that only ECDSA's
/// calibration happened to be seen in would be evidence for ECDSA in a server that has no such key.
pub(super) fn unmix(
    counts: &BTreeMap<u64, u64>,
    templates: &[Template],
) -> BTreeMap<u64, BTreeMap<Class, f64>> {
    let cores: Vec<Template> = templates.iter().map(Template::core).collect();
    let present = weights(&rows(counts, &cores), cores.len());
    let present: Vec<Template> = templates
        .iter()
        .zip(present)
        .filter(|(template, weight)| *weight >= template.least())
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
        let classes: &mut BTreeMap<Class, f64> = divided.entry(*function).or_default();
        for ((template, weight), share) in present.iter().zip(&weights).zip(shares) {
            *classes.entry(template.class).or_default() += count * weight * share / whole;
        }
        classes.retain(|_, part| *part > 0.0);
    }
    divided.retain(|_, classes| !classes.is_empty());
    divided
}

/// A function that counts and templates know: its count, and its likelihood under each template.
type Row = (u64, f64, Vec<f64>);

fn rows(counts: &BTreeMap<u64, u64>, templates: &[Template]) -> Vec<Row> {
    let all = counts.iter().map(|(&function, &count)| {
        let shares = templates.iter().map(|one| one.share(function)).collect();
        (function, count as f64, shares)
    });
    all.filter(|(_, _, shares): &Row| shares.iter().any(|share| *share > 0.0))
        .collect()
}

/// How much of the whole each template is.
fn weights(rows: &[Row], templates: usize) -> Vec<f64> {
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
            *share = (*share - LEAST / all).max(0.0);
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
        if moved < CLOSE_ENOUGH {
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

    fn template(class: Class, counts: &[(u64, u64)]) -> Template {
        Template {
            class,
            counts: counts.iter().copied().collect(),
        }
    }

    #[test]
    fn what_is_shared_is_divided_as_the_evidence_says() {
        // Function 1 is RSA's own, 2 is ECDSA's, 9 is the multiplication of both.
        let templates = [
            template(Class::RsaPrivate, &[(1, 50), (9, 50)]),
            template(Class::EcPrivate, &[(2, 25), (9, 75)]),
        ];
        // 800 samples of RSA, 400 of ECDSA.
        let counts = [(1, 400), (9, 400 + 300), (2, 100), (77, 5)].into();
        let classes = unmix(&counts, &templates);
        let sum = |class| -> f64 { classes.values().filter_map(|parts| parts.get(&class)).sum() };
        assert!((sum(Class::RsaPrivate) - 800.0).abs() < 4.0, "{classes:?}");
        assert!((sum(Class::EcPrivate) - 400.0).abs() < 4.0, "{classes:?}");
        assert!(!classes.contains_key(&77));
    }

    #[test]
    fn what_is_not_there_at_its_core_is_not_there() {
        // Both allocate (8); only the calibration of ECDSA was seen in function 7 meanwhile.
        let templates = [
            template(Class::RsaPrivate, &[(1, 995), (8, 5)]),
            template(Class::EcPrivate, &[(2, 990), (7, 5), (8, 5)]),
        ];
        let classes = unmix(&[(1, 1000), (7, 20), (8, 5)].into(), &templates);
        assert!(
            classes
                .values()
                .all(|parts| !parts.contains_key(&Class::EcPrivate))
        );
        assert!(!classes.contains_key(&7), "{classes:?}");
    }

    #[test]
    fn nothing_known_is_nothing_divided() {
        let templates = [template(Class::Aes, &[(1, 1)])];
        assert!(unmix(&[(2, 3)].into(), &templates).is_empty());
        assert!(unmix(&BTreeMap::new(), &templates).is_empty());
        assert!(unmix(&[(1, 0)].into(), &templates).is_empty());
        assert!(unmix(&[(1, 3)].into(), &[]).is_empty());
        let empty = [template(Class::Aes, &[])];
        assert!(unmix(&[(1, 3)].into(), &empty).is_empty());
    }
}
