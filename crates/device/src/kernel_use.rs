// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's algorithms that the cards have: which of them the kernel prefers, and where the processor is faster.
//!
//! The kernel takes the implementation with the highest priority, not the fastest. Drivers of QAT registered with
//! priority 4001 until August 2025, above AES-NI; since then with 100, below it (`qat_algs.c`). IPsec through a card
//! then takes an explicit driver name, which only `crypto_user` (`crconf`) can give it.

use millrace_inspect::kernel::crypto::ComputeSite;
use millrace_inspect::kernel::{AlgorithmChoice, Kernel};
use schemars::JsonSchema;
use serde::Serialize;

/// One algorithm that a card has registered with the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KernelUse {
    /// The kernel's name of the algorithm
    pub algorithm: String,
    /// Its users
    pub for_what: String,
    /// The card's driver
    pub driver: String,
    /// Priority of the card's driver
    pub priority: i64,
    /// The implementation that the kernel prefers
    pub preferred: String,
    /// Priority of the preferred implementation
    pub preferred_priority: i64,
    /// Whether the preferred implementation is the card's
    pub by_card: bool,
    /// Why a change of that would matter; null if there is nothing to warn about
    pub warning: Option<String>,
}

/// The algorithms that cards have registered, in the kernel's order.
#[must_use]
pub fn kernel_uses(kernel: &Kernel) -> Vec<KernelUse> {
    kernel.choices.iter().filter_map(card_use).collect()
}

fn card_use(choice: &AlgorithmChoice) -> Option<KernelUse> {
    let card = choice
        .candidates
        .iter()
        .find(|candidate| candidate.driver.to_ascii_lowercase().starts_with("qat"))?;
    let preferred = choice.candidates.first()?;
    let by_card = card.driver == preferred.driver;
    let with_instructions =
        choice.candidates.iter().find(|candidate| candidate.site == ComputeSite::Instructions);
    let warning = with_instructions.filter(|_| by_card).map(|other| {
        format!(
            "the processor has {}: for packets of a network (1,500 bytes and less) it is faster, and the card adds \
             latency; measure both (`millrace inspect ceiling`) before you keep the card's priority",
            other.driver
        )
    });
    Some(KernelUse {
        algorithm: choice.algorithm.clone(),
        for_what: choice.for_what.clone(),
        driver: card.driver.clone(),
        priority: card.priority,
        preferred: preferred.driver.clone(),
        preferred_priority: preferred.priority,
        by_card,
        warning,
    })
}

#[cfg(test)]
mod tests {
    use millrace_inspect::kernel::AlgorithmCandidate;

    use super::*;

    fn candidate(driver: &str, priority: i64, site: ComputeSite) -> AlgorithmCandidate {
        AlgorithmCandidate { driver: driver.to_owned(), priority, site, device: None, tested: true }
    }

    #[test]
    fn card_above_the_processors_instructions_is_warned_of_and_below_it_is_idle() {
        let choice = |card| {
            let mut candidates = vec![
                candidate("qat_aes_cbc", card, ComputeSite::Device),
                candidate("cbc-aes-aesni", 400, ComputeSite::Instructions),
            ];
            candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.priority));
            AlgorithmChoice {
                algorithm: "cbc(aes)".to_owned(),
                for_what: "IPsec".to_owned(),
                candidates,
            }
        };
        let above = card_use(&choice(4001)).expect("a card");
        assert!(above.by_card && above.warning.is_some_and(|text| text.contains("cbc-aes-aesni")));
        let below = card_use(&choice(100)).expect("a card");
        assert_eq!(
            (below.by_card, below.warning, &*below.preferred),
            (false, None, "cbc-aes-aesni")
        );
    }
}
