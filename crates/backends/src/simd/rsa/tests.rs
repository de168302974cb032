// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Batches, compared with AWS-LC on every implementation that this processor runs, and with flipped bits.

use millrace_testkit::is_long;
use millrace_testkit::keys::{self as test_keys, TestKey};
use millrace_testkit::random::SeededRandom;

use super::*;
use crate::simd::keys::{SIZES, SimdKey, load};
use crate::simd::lanes::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::sys::{Fp52, Ifma};
use crate::software::keys::Secret;
use crate::software::rsa::rsa_private;

/// A bit that flips.
#[derive(Clone, Copy, Debug)]
pub(in crate::simd) struct Strike {
    step: RsaStep,
    lane: usize,
    digit: usize,
    bit: u32,
}

impl Strike {
    pub(in crate::simd) fn new(step: RsaStep, lane: usize, digit: usize, bit: u32) -> Self {
        Self { step, lane, digit, bit }
    }

    /// Index of the request whose lane is hit.
    pub(in crate::simd) fn request(&self) -> usize {
        self.lane / 2
    }
}

impl Workspace {
    pub(super) fn hit<L: Lanes>(&mut self, l: L, step: RsaStep) {
        let Some(strike) = self.strike.filter(|strike| strike.step == step) else {
            return;
        };
        let numbers = match step {
            RsaStep::Modulus => &mut self.whole.modulus,
            RsaStep::Prime => &mut self.half.modulus,
            RsaStep::Recombination => &mut self.recombine,
            RsaStep::Input => &mut self.input,
            RsaStep::Factor => &mut self.factor,
            RsaStep::Inverse => &mut self.inverse,
            RsaStep::Blinded | RsaStep::Target => &mut self.blinded,
            RsaStep::Table => &mut self.table,
            RsaStep::Power => &mut self.power,
            RsaStep::Recombined => &mut self.result,
            RsaStep::Unblinded => &mut self.base,
            RsaStep::Verifying => &mut self.check,
        };
        let digit = strike.digit % (numbers.len() * BLOCK);
        let block = &mut numbers[digit / BLOCK..=digit / BLOCK];
        l.run(FromDigits(block));
        block[0][digit % BLOCK].0[strike.lane] ^= 1 << strike.bit;
        l.run(ToDigits(block));
    }
}

/// A number below the modulus: random, or an edge case.
pub(super) fn input(random: &mut SeededRandom, modulus: &[u8]) -> Vec<u8> {
    let mut number = vec![0; modulus.len()];
    match random.below(12) {
        0 => {}
        1 => number[modulus.len() - 1] = 1,
        2 => number[modulus.len() - 1] = 2,
        3 | 4 => {
            number.copy_from_slice(modulus);
            number[modulus.len() - 1] -=
                1 + u8::from(random.below(2) == 1 && modulus.ends_with(&[3]));
        }
        5 => number[1..].fill(0xff),
        6 => {
            // All ones below some bit, so every digit is the largest possible.
            let from = 1 + random.below(modulus.len() - 1);
            number[from..].fill(0xff);
        }
        7 => number[random.below(modulus.len() - 1) + 1] = 1 << random.below(8),
        _ => {
            for byte in &mut number {
                *byte = random.word().to_le_bytes()[0];
            }
            number[0] %= modulus[0];
        }
    }
    number
}

/// A test that runs on one implementation.
pub(in crate::simd) trait OnLanes {
    fn run<L: Lanes>(&self, lanes: L, name: &str, is_fast: bool);
}

/// Runs a test on every implementation that this processor has.
pub(in crate::simd) fn on_all_lanes(test: &impl OnLanes) {
    #[cfg(target_arch = "x86_64")]
    {
        match Ifma::detect() {
            Some(lanes) => test.run(lanes, "IFMA", true),
            None => millrace_testkit::skip::record(file!(), "no AVX-512 IFMA"),
        }
        match Fp52::detect() {
            Some(lanes) => test.run(lanes, "FP52", true),
            None => millrace_testkit::skip::record(file!(), "no AVX-512F"),
        }
    }
    test.run(Portable, "portable", false);
}

/// Number of rounds: more with `MILLRACE_LONG`.
fn rounds(short: usize, long: usize) -> usize {
    if is_long() { long } else { short }
}

pub(in crate::simd) fn loaded(key: &TestKey) -> SimdKey {
    load(key.der).expect("a good key")
}

pub(super) fn lanes_of(key: &SimdKey) -> &LaneKey {
    key.lanes.as_ref().expect("a key with lanes")
}

pub(in crate::simd) fn expected(key: &SimdKey, input: &[u8]) -> Vec<u8> {
    let Secret::Rsa(rsa) = &key.software.secret else { panic!("not an RSA key") };
    let mut output = vec![0; input.len()];
    rsa_private(rsa, input, &mut output).expect("AWS-LC computes it");
    output
}

/// Computes a batch of (key, input).
fn batch<L: Lanes>(
    l: L,
    workspace: &mut Workspace,
    tasks: &[(&SimdKey, Vec<u8>)],
) -> Vec<Result<Vec<u8>, BackendError>> {
    let keys: Vec<_> = tasks.iter().map(|(key, _)| lanes_of(key)).collect();
    let mut blindings = Vec::new();
    let strike = workspace.strike.take();
    for key in &keys {
        blindings.push(key.take_blinding().unwrap_or_else(|| {
            let fresh = workspace.blind(l, &[*key]).remove(0);
            fresh.expect("a blinding pair")
        }));
    }
    workspace.strike = strike;
    let mut blocks: Vec<_> = tasks.iter().map(|(_, input)| input.clone()).collect();
    let requests = keys
        .iter()
        .zip(blindings)
        .zip(&mut blocks)
        .map(|((key, blinding), block)| RsaRequest { key, blinding, block })
        .collect();
    let results = workspace.private(l, requests);
    assert!(
        workspace.table.as_flattened().iter().all(|octet| *octet == Octet::default()),
        "the table is left behind"
    );
    results
        .into_iter()
        .zip(blocks)
        .map(|(result, block)| {
            if result.is_err() {
                assert!(block.iter().all(|byte| *byte == 0), "a wrong result is left behind");
            }
            result.map(|()| block)
        })
        .collect()
}

struct Differential;

impl OnLanes for Differential {
    fn run<L: Lanes>(&self, l: L, name: &str, is_fast: bool) {
        let mut random = SeededRandom::new(1);
        // RSA-2048: a thousand operations on each implementation; with MILLRACE_LONG a million on the fast
        // ones and a hundred thousand on the twin. A round has 2.5 operations on average.
        for (key, [short, long], [twin_short, twin_long]) in [
            (test_keys::rsa_2048(), [400, 400_000], [400, 40_000]),
            (test_keys::rsa_3072(), [150, 15_000], [30, 3_000]),
            (test_keys::rsa_4096(), [80, 8_000], [15, 1_500]),
        ] {
            let key = loaded(&key);
            let size = lanes_of(&key).size;
            let mut workspace = Workspace::new(size);
            let rounds = if is_fast { rounds(short, long) } else { rounds(twin_short, twin_long) };
            for round in 0..rounds {
                let count = 1 + round % REQUESTS;
                let tasks: Vec<_> =
                    (0..count).map(|_| (&key, input(&mut random, key.modulus()))).collect();
                for ((_, input), result) in tasks.iter().zip(batch(l, &mut workspace, &tasks)) {
                    assert_eq!(
                        result.as_deref(),
                        Ok(&*expected(&key, input)),
                        "{name} {} bits, round {round}: {input:02x?}",
                        8 * input.len()
                    );
                }
            }
        }
    }
}

#[test]
fn lane_results_equal_aws_lc() {
    on_all_lanes(&Differential);
}

struct Faults;

impl OnLanes for Faults {
    fn run<L: Lanes>(&self, l: L, name: &str, is_fast: bool) {
        let mut random = SeededRandom::new(2);
        let key = loaded(&test_keys::rsa_2048());
        let mut workspace = Workspace::new(&SIZES[0]);
        let steps = [
            &RsaStep::LOADED[..],
            &[
                RsaStep::Blinded,
                RsaStep::Power,
                RsaStep::Recombined,
                RsaStep::Unblinded,
                RsaStep::Verifying,
                RsaStep::Target,
                RsaStep::Table,
            ],
        ]
        .concat();
        let per_lane = if is_fast { rounds(3, 500) } else { 1 };
        for lane in 0..LANES {
            for (number, step) in steps.iter().enumerate() {
                // The twin is slow: each step is tested in one lane, and each lane at some step.
                if !is_fast && number % LANES != lane {
                    continue;
                }
                for _ in 0..per_lane {
                    let strike = Strike {
                        step: *step,
                        lane,
                        digit: random.below(1_000),
                        bit: u32::try_from(random.below(52)).expect("a small number"),
                    };
                    faulted(l, &mut workspace, &key, strike, &mut random, name);
                }
            }
        }
    }
}

/// Runs one batch of four with a flipped bit.
fn faulted<L: Lanes>(
    l: L,
    workspace: &mut Workspace,
    key: &SimdKey,
    strike: Strike,
    random: &mut SeededRandom,
    name: &str,
) {
    let tasks: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let mut input: Vec<u8> = (0..256).map(|_| random.word().to_le_bytes()[0]).collect();
            input[0] &= 0x3f;
            (key, input)
        })
        .collect();
    workspace.strike = Some(strike);
    let results = batch(l, workspace, &tasks);
    workspace.strike = None;
    for (at, ((_, input), result)) in tasks.iter().zip(results).enumerate() {
        let right = expected(key, input);
        let struck = at == strike.lane / 2;
        // A table entry that no window selects may be wrong without harm.
        let harmless = strike.step == RsaStep::Table && result.as_ref() == Ok(&right);
        if struck && !harmless {
            assert_eq!(result, Err(BackendError::Fault), "{name} {strike:?}");
        } else {
            assert_eq!(result, Ok(right), "{name} {strike:?} hurt request {at}");
        }
    }
}

#[test]
fn bit_flip_at_any_step_fails_only_its_own_request() {
    on_all_lanes(&Faults);
}

/// Multiplication and squaring on numbers at the edges of digits, compared with `numbers`.
struct Products;

/// A number below 2^(52·digits − spare) whose digits are zeros, ones, all ones, or random.
fn edgy(random: &mut SeededRandom, digits: usize, spare: usize) -> Vec<u64> {
    let mask = super::super::lanes::DIGIT_MASK;
    let mut number: Vec<_> = (0..digits)
        .map(|_| match random.below(5) {
            0 => 0,
            1 => 1,
            2 | 3 => mask,
            _ => random.word() & mask,
        })
        .collect();
    number[digits - 1] &= mask >> spare;
    number
}

impl OnLanes for Products {
    fn run<L: Lanes>(&self, l: L, name: &str, is_fast: bool) {
        let mut random = SeededRandom::new(6);
        for round in 0..if is_fast { rounds(300, 100_000) } else { 10 } {
            let blocks = [4, 6, 8, 12, 16][round % 5];
            let digits = blocks * BLOCK;
            let mut constants = Constants::new(blocks);
            let (mut product, mut factor) = (room(blocks), room(blocks));
            let mut expected = Vec::new();
            for lane in 0..LANES {
                // Odd, with exactly 16 bits to spare: the most that a key leaves.
                let mut n = edgy(&mut random, digits, 16);
                n[0] |= 1;
                n[digits - 1] |= 1 << 35;
                let [mut a, mut b] = [0; 2].map(|_: u64| edgy(&mut random, digits, 17));
                if lane == 0 {
                    // n−1 is the largest value.
                    a.copy_from_slice(&numbers::subtract(&n, &[1]));
                    b.clone_from(&a);
                }
                let inverse = numbers::negative_inverse(&n);
                put(&mut constants.modulus, lane, &n);
                constants.negative_inverse.0[lane] = inverse;
                put(&mut product, lane, &a);
                put(&mut factor, lane, &b);
                expected.push((
                    numbers::montgomery(&a, &b, &n, inverse),
                    numbers::montgomery(&a, &a, &n, inverse),
                ));
            }
            for numbers in [&mut constants.modulus, &mut product, &mut factor] {
                l.run(ToDigits(numbers));
            }
            let mut square = product.clone();
            constants.multiply(l, &mut product, &factor);
            constants.square(l, &mut square);
            for numbers in [&mut product, &mut square] {
                constants.reduce(l, numbers);
                l.run(FromDigits(numbers));
            }
            for (lane, (a_b, a_a)) in expected.iter().enumerate() {
                assert_eq!(take(&product, lane), *a_b, "{name} {digits} digits, round {round}");
                assert_eq!(take(&square, lane), *a_a, "{name} {digits} digits, round {round}");
            }
        }
    }
}

#[test]
fn products_at_the_edges_of_digits_are_right() {
    on_all_lanes(&Products);
}

struct Blinds;

impl OnLanes for Blinds {
    fn run<L: Lanes>(&self, l: L, name: &str, _: bool) {
        let key = loaded(&test_keys::rsa_2048());
        let mut workspace = Workspace::new(&SIZES[0]);
        workspace.strike = Some(Strike { step: RsaStep::Power, lane: 3, digit: 7, bit: 11 });
        let pairs = workspace.blind(l, &[lanes_of(&key); REQUESTS]);
        let faults: Vec<_> = pairs.iter().map(|pair| pair.as_ref().err().copied()).collect();
        assert_eq!(faults, [None, Some(BackendError::Fault), None, None], "{name}");
        let mut seen: Vec<_> =
            pairs.into_iter().flatten().map(|pair| pair.inverse.to_vec()).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 3, "{name}: a pair came twice");
    }
}

#[test]
fn invalid_blinding_pair_is_a_fault() {
    on_all_lanes(&Blinds);
}
