// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! X25519 pairs that are made before they are needed.
//!
//! Eight pairs at once in the lanes of AVX-512 cost as much as two or three by AWS-LC. So a thread that needs a pair
//! and has none left makes eight, uses one and keeps seven for the next handshakes. A processor without these lanes
//! makes each pair when it is needed.
//!
//! - A pair is used once: its place is wiped when it is taken.
//! - It belongs to one thread of one process: a forked child has zeros in its place, which is not a pair.
//! - A thread keeps at most seven, and uses none that is older than [`OLDEST`].
//! - They lie in a page of their own, which no dump of the process contains, and are wiped at the end of the thread.
//!
//! A virtual machine that is copied or restored from a snapshot has its kept pairs twice, until they are too old. Two
//! handshakes may then have the same key share of the server. Their secrets differ by the client's share and the
//! transcript. An attacker that learns the scalar of such a pair within its second reads both.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use millrace_backends::simd::{Implementation, X25519_PAIRS, x25519_public_values};
use zeroize::Zeroizing;

use super::sys::{self, KEPT_PAIRS, Secret, SecretPage, X25519_LEN};
use crate::shared_cells::LocalEvent;
use crate::stats::Stats;

/// Age from which a pair is not used: it bounds what a snapshot, or a read of the memory, can reveal.
pub const OLDEST: Duration = Duration::from_secs(1);

const _: () = assert!(KEPT_PAIRS + 1 == X25519_PAIRS);

thread_local! {
    static PAGE: RefCell<Option<SecretPage>> = const { RefCell::new(None) };
}

/// How the page served a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    /// Whether the pair was kept from an earlier call.
    ahead: bool,
    /// Pairs that were wiped unused because they were too old.
    dropped: u64,
}

/// Whether this processor can precompute pairs.
#[must_use]
pub fn is_available() -> bool {
    Implementation::Avx512Ifma.is_available()
}

/// Measures whether eight pairs in lanes cost less than eight by AWS-LC, by the shortest of some runs. A fresh worker's
/// event loop waits for it in its first handshake, so one pair by AWS-LC stands for eight.
#[must_use]
pub fn is_faster() -> bool {
    const RUNS: usize = 3;
    if !is_available() {
        return false;
    }
    let mut alone = Duration::MAX;
    let mut in_lanes = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        std::hint::black_box(sys::x25519_pair());
        let middle = Instant::now();
        let mut scalars = Zeroizing::new([[0; X25519_LEN]; X25519_PAIRS]);
        scalars.iter_mut().for_each(|scalar| sys::random(scalar));
        std::hint::black_box(x25519_public_values(Implementation::Avx512Ifma, &scalars));
        alone = alone.min(middle - start);
        in_lanes = in_lanes.min(middle.elapsed());
    }
    let all_alone = alone * u32::try_from(X25519_PAIRS).unwrap_or(1);
    in_lanes < all_alone
}

/// Source of X25519 pairs.
#[derive(Clone, Copy, Debug)]
pub struct PairMaker<'a>(Option<&'a Stats>);

impl<'a> PairMaker<'a> {
    /// Each pair is made when it is needed.
    pub const FRESH: Self = Self(None);

    /// Precomputes pairs and counts them in `stats`. `None` if each is made when it is needed.
    #[must_use]
    pub fn new(stats: Option<&'a Stats>) -> Self {
        Self(stats)
    }

    /// A pair that nothing else has: public value and scalar.
    pub(super) fn x25519(self) -> ([u8; X25519_LEN], Secret) {
        let Some((stats, (public, scalar, origin))) =
            self.0.and_then(|stats| Some((stats, x25519_pair()?)))
        else {
            return sys::x25519_pair();
        };
        stats.happened(LocalEvent::PairAhead, origin.ahead.into());
        stats.happened(LocalEvent::PairDropped, origin.dropped);
        (public, scalar)
    }
}

/// A pair: public value and scalar. `None` where pairs cannot be precomputed.
fn x25519_pair() -> Option<([u8; X25519_LEN], Secret, Origin)> {
    // At the end of a thread the page is gone.
    PAGE.try_with(|page| {
        let mut page = page.try_borrow_mut().ok()?;
        if page.is_none() {
            *page = Some(SecretPage::new().filter(|_| is_available())?);
        }
        take_or_refill(page.as_mut()?, sys::now())
    })
    .ok()
    .flatten()
}

/// Takes a pair from a page, or makes eight and keeps seven of them in the page.
fn take_or_refill(page: &mut SecretPage, now: u64) -> Option<([u8; X25519_LEN], Secret, Origin)> {
    let oldest = u64::try_from(OLDEST.as_nanos()).unwrap_or(u64::MAX);
    let kept = page.pairs();
    // In a forked child the count is zero like everything else.
    let count = usize::try_from(kept.count).unwrap_or(0).min(KEPT_PAIRS);
    let is_young = now.checked_sub(kept.made).is_some_and(|age| age <= oldest);
    if count > 0 && is_young {
        let pair = &mut kept.pairs[count - 1];
        let public = pair.public;
        let scalar = Secret::new(pair.scalar);
        sys::wipe(pair);
        kept.count = count as u64 - 1;
        let origin = Origin { ahead: true, dropped: 0 };
        return Some((public, scalar, origin));
    }
    kept.pairs.iter_mut().for_each(sys::wipe);
    kept.count = 0;
    let mut scalars = Zeroizing::new([[0; X25519_LEN]; X25519_PAIRS]);
    scalars.iter_mut().for_each(|scalar| sys::random(scalar));
    let publics = x25519_public_values(Implementation::Avx512Ifma, &scalars)?;
    for ((pair, public), scalar) in kept.pairs.iter_mut().zip(&publics).zip(scalars.iter()) {
        pair.public = *public;
        pair.scalar = *scalar;
    }
    kept.made = now;
    kept.count = KEPT_PAIRS as u64;
    let origin = Origin { ahead: false, dropped: count as u64 };
    Some((publics[KEPT_PAIRS], Secret::new(scalars[KEPT_PAIRS]), origin))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn page() -> Option<SecretPage> {
        SecretPage::new().filter(|_| is_available())
    }

    #[test]
    fn pair_is_used_once_and_belongs_together() {
        let Some(mut page) = page() else {
            millrace_testkit::skip!("no AVX-512 IFMA: this processor makes no pairs ahead");
        };
        let mut seen = HashSet::new();
        let mut ahead = 0;
        for _ in 0..3 * X25519_PAIRS {
            let (public, scalar, origin) = take_or_refill(&mut page, 5).expect("a pair");
            assert_eq!(sys::x25519_public(&scalar), public);
            assert!(seen.insert(*scalar), "used twice");
            ahead += usize::from(origin.ahead);
            let kept = page.pairs();
            let count = usize::try_from(kept.count).expect("a count");
            for pair in &kept.pairs[count..] {
                assert_eq!((pair.public, pair.scalar), ([0; 32], [0; 32]), "wiped");
            }
        }
        assert_eq!(ahead, 3 * KEPT_PAIRS);
    }

    #[test]
    fn pair_that_is_too_old_or_from_the_future_is_never_used() {
        let Some(mut page) = page() else {
            millrace_testkit::skip!("no AVX-512 IFMA: this processor makes no pairs ahead");
        };
        let oldest = u64::try_from(OLDEST.as_nanos()).expect("a time");
        for now in [100 + oldest + 1, 99] {
            take_or_refill(&mut page, 100).expect("a pair");
            let waiting: Vec<_> = page.pairs().pairs.iter().map(|pair| pair.scalar).collect();
            let (_, scalar, origin) = take_or_refill(&mut page, now).expect("a pair");
            assert!(!waiting.contains(&scalar), "{now}");
            let dropped = KEPT_PAIRS as u64;
            assert_eq!(origin, Origin { ahead: false, dropped }, "{now}");
            page.pairs().count = 0;
        }
        take_or_refill(&mut page, 100).expect("a pair");
        let (_, _, origin) = take_or_refill(&mut page, 100 + oldest).expect("a pair");
        assert!(origin.ahead, "at the edge");
    }
}
