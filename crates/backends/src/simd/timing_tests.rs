// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Constant time, shown in three ways.
//!
//! - *Statistics*, with `MILLRACE_LONG=1` (after Reparaz, Balasch and Verbauwhede, "Dude, is my code constant
//!   time?"): the time of many batches of two classes in random order, compared with Welch's t-test. Classes
//!   of exponents (all zero windows against random ones) and of ciphertexts (one fixed, others random).
//! - *Taint*, where valgrind is installed: the portable twin runs under memcheck with the secrets marked as
//!   undefined, and memcheck reports every branch and every address that depends on one. The lanes with
//!   instructions share all code with it but the single instructions, none of which takes a time that depends
//!   on its operands.
//! - *Disassembly*, where objdump is installed: the kernels hold no instruction that takes anything out of a
//!   vector or mask register into an ordinary register or the flags, so nothing in a lane can steer a branch
//!   or an address.

use std::process::Command;
use std::time::Instant;

use millrace_engine::Operation;
use millrace_testkit::keys as test_keys;

use super::super::lanes::Portable;
use super::super::operations;
use super::super::sys;
use super::tests::{OnLanes, Random, expected, is_long, lanes_of, loaded, on_all_lanes};
use super::*;

/// Batches per class and trial.
const BATCHES: usize = 20_000;

/// A difference shows as a t that grows with the number of batches; 4.5 is the usual sign of one with
/// undisturbed measurements. Other load on the machine makes t wander, so more is asked for, in every one of
/// several trials.
const SUSPICIOUS: f64 = 10.0;
const TRIALS: usize = 3;

/// Welch's t of two classes, of the faster nine tenths of all measurements: what is above was interrupted.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts and nanoseconds are small"
)]
fn welch(classes: &[Vec<u64>; 2]) -> f64 {
    let mut all = classes.concat();
    all.sort_unstable();
    let limit = all[all.len() * 9 / 10];
    let [a, b] = classes.each_ref().map(|class| {
        let kept: Vec<_> = class
            .iter()
            .filter(|time| **time <= limit)
            .map(|time| *time as f64)
            .collect();
        let count = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / count;
        let variance = kept.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    (a.0 - b.0) / (a.1 + b.1).sqrt()
}

/// Measures `run(class)` in random order until no trial or one trial is unsuspicious.
fn same_time(what: &str, mut run: impl FnMut(usize) -> u64) {
    let mut order = Random(3);
    for trial in 1..=TRIALS {
        let mut classes = [Vec::new(), Vec::new()];
        for _ in 0..2 * BATCHES {
            let class = order.below(2);
            classes[class].push(run(class));
        }
        let t = welch(&classes);
        println!("{what}: t = {t:.2} ({BATCHES} batches per class)");
        if t.abs() < SUSPICIOUS {
            return;
        }
        assert!(trial < TRIALS, "{what}: the classes take unlike times");
    }
}

fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

struct Statistics;

impl OnLanes for Statistics {
    fn run<L: Lanes>(&self, l: L, name: &str, is_fast: bool) {
        if !is_fast {
            return;
        }
        let key = loaded(&test_keys::rsa_2048());
        let mut random = Random(4);
        let mut workspace = Workspace::new(lanes_of(&key).size);
        let mut exponents = Random(5);
        same_time(&format!("{name}, exponents zero or random"), |class| {
            workspace.load(l, [lanes_of(&key); REQUESTS].into_iter(), Exponent::Private);
            for octet in &mut workspace.windows {
                // Drawn for both classes, so that the caches see the same.
                let windows = [0; LANES].map(|_: u64| exponents.word() & 15);
                octet.0 = windows.map(|window| window * class as u64);
            }
            let start = Instant::now();
            workspace.exponentiate(l);
            nanoseconds(start)
        });

        let fixed = random.input(key.modulus());
        let mut spare: Vec<Blinding> = Vec::new();
        same_time(&format!("{name}, ciphertexts fixed or random"), |class| {
            let other = random.input(key.modulus());
            let input = if class == 0 { &fixed } else { &other };
            while spare.len() < REQUESTS {
                let stored = lanes_of(&key).take_blinding();
                spare.push(stored.unwrap_or_else(|| {
                    workspace
                        .blind(l, &[lanes_of(&key)])
                        .remove(0)
                        .expect("a blinding pair")
                }));
            }
            let mut blocks = vec![input.clone(); REQUESTS];
            let requests = blocks
                .iter_mut()
                .zip(spare.drain(..))
                .map(|(block, blinding)| Request {
                    key: lanes_of(&key),
                    blinding,
                    block,
                })
                .collect();
            let start = Instant::now();
            let results = workspace.private(l, requests);
            let time = nanoseconds(start);
            assert!(results.iter().all(Result::is_ok));
            time
        });
    }
}

#[test]
fn batches_take_the_same_time_whatever_is_in_them() {
    if is_long() {
        on_all_lanes(&Statistics);
    } else {
        eprintln!("SKIPPED: timing statistics take minutes; MILLRACE_LONG=1 runs them");
    }
}

/// Set in the process that runs under valgrind.
const TAINTED: &str = "MILLRACE_TAINTED";

#[test]
fn no_branch_and_no_address_depends_on_a_secret() {
    if std::env::var_os(TAINTED).is_some() {
        return tainted_batch();
    }
    let test = std::thread::current().name().map(str::to_owned);
    let output = Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=9", "--track-origins=no"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .args(test)
        .env(TAINTED, "1")
        .output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: no valgrind here");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the detector works"), "{text}");
}

/// Whether an instruction, as objdump writes it, takes something out of a vector or mask register into an
/// ordinary one or the flags, or uses a vector as addresses.
fn leaves_the_lanes(instruction: &str) -> bool {
    let (name, operands) = instruction
        .trim()
        .split_once(' ')
        .unwrap_or((instruction, ""));
    let target = operands.rsplit(',').next().unwrap_or("").trim();
    let to_ordinary = target.starts_with("%r") || target.starts_with("%e");
    let from_lanes = operands.contains("mm") || operands.contains("%k");
    let to_flags = [
        "kortest", "ktest", "vptest", "vtest", "vucomi", "vcomi", "ptest", "ucomi", "comi",
    ];
    let by_vector = name.contains("gather") || name.contains("scatter");
    // `vptestnm` writes a mask register, not the flags.
    let flags = to_flags.iter().any(|flags| name.starts_with(flags)) && !target.starts_with("%k");
    (to_ordinary && from_lanes) || flags || by_vector || name.starts_with("kortest")
}

#[test]
fn nothing_leaves_the_lanes_for_a_branch_or_an_address() {
    for (instruction, leaves) in [
        ("kmovw  %k1,%eax", true),
        ("kmovw  %ecx,%k1", false),
        ("vmovq  %xmm0,%rax", true),
        ("vpextrq $0x1,%xmm0,%rax", true),
        ("kortestb %k1,%k1", true),
        ("vptest %ymm0,%ymm1", true),
        ("vptestnmq %zmm0,%zmm0,%k1", false),
        ("vpgatherqq (%rax,%zmm1,8),%zmm0{%k1}", true),
        ("vmovdqa64 %zmm0,0x40(%rsp)", false),
        ("vpmadd52luq 0x40(%rax),%zmm1,%zmm2", false),
    ] {
        assert_eq!(leaves_the_lanes(instruction), leaves, "{instruction}");
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new("objdump")
        .args(["--disassemble", "--no-show-raw-insn", "--demangle"])
        .arg(program)
        .output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: no objdump here");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut kernels, mut multiplications, mut inside) = (0, 0, false);
    for line in text.lines() {
        if line.ends_with(">:") {
            inside = line.contains("simd::sys::enter_");
            kernels += usize::from(inside);
        } else if let (true, Some((_, instruction))) = (inside, line.split_once(":\t")) {
            multiplications += usize::from(
                instruction.starts_with("vpmadd52") || instruction.starts_with("vfmadd"),
            );
            assert!(!leaves_the_lanes(instruction), "{line}");
        }
    }
    assert!(kernels >= 8, "only {kernels} kernels found");
    assert!(
        multiplications > 500,
        "only {multiplications} multiplications found"
    );
}

/// A batch of the twin with key, blinding and message undefined, as memcheck sees it.
fn tainted_batch() {
    let mut key = loaded(&test_keys::rsa_2048());
    let mut workspace = Workspace::new(lanes_of(&key).size);
    let mut blinding = workspace
        .blind(Portable, &[lanes_of(&key)])
        .remove(0)
        .expect("a blinding pair");
    let mut block = vec![0x11; 256];
    assert_eq!(sys::memcheck_undefined(&block), 0);
    // It has to be seen that memcheck knows: a copy of what is marked is undefined too.
    sys::memcheck_mark_undefined(&mut block);
    let copy = block.clone();
    assert_eq!(sys::memcheck_undefined(&copy), 256, "not under valgrind");
    println!("the detector works");

    let lanes = key.lanes.as_mut().expect("a key with lanes");
    for prime in &mut lanes.primes {
        let PrimeKey {
            prime,
            negative_inverse: _,
            one,
            square,
            cube,
            exponent,
            inverting_exponent: _,
        } = prime;
        for digits in [prime, one, square, cube] {
            sys::memcheck_mark_undefined(digits.as_mut_slice());
        }
        sys::memcheck_mark_undefined(exponent.as_mut_slice());
    }
    for digits in &mut lanes.recombine {
        sys::memcheck_mark_undefined(digits.as_mut_slice());
    }
    sys::memcheck_mark_undefined(blinding.factor.as_mut_slice());
    sys::memcheck_mark_undefined(blinding.inverse.as_mut_slice());

    let request = Request {
        key: lanes_of(&key),
        blinding,
        block: &mut block,
    };
    // `private` declares one thing public: whether a result verified.
    let results = workspace.private(Portable, vec![request]);
    assert_eq!(results, [Ok(())]);
    assert!(
        sys::memcheck_undefined(&block) > 0,
        "the result is not tainted"
    );
    sys::memcheck_mark_defined(&mut block);
    let operation = Operation::RsaRaw;
    let output = operations::finish(&key, &operation, &[0x11; 256], Zeroizing::new(block));
    assert_eq!(*output.expect("a result"), expected(&key, &[0x11; 256]));
}
