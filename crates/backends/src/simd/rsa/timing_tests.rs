// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Three kinds of constant-time tests.
//!
//! - *Statistics*: Welch's t-test compares the times of many batches of two classes in random order
//!   (`millrace_testkit::timing`). Here the classes are exponents (all zero windows against random ones) and
//!   ciphertexts (one fixed against random ones) in the kernels; `tests/timing.rs` has keys and messages at
//!   the queues. An ordinary run is coarse, `MILLRACE_LONG=1` is fine.
//! - *Taint*, where valgrind is installed: the portable twin runs under memcheck with the secrets marked as
//!   undefined. Memcheck reports every branch and every address that depends on one. The other
//!   implementations share all code with the twin except single instructions, whose time does not depend on
//!   their operands.
//! - *Disassembly*, where objdump is installed: no instruction of the kernels moves data from a vector or
//!   mask register to an ordinary register or the flags. So no value in a lane can reach a branch or an
//!   address.

use std::process::Command;

use millrace_operation::Operation;
use millrace_testkit::keys as test_keys;
use millrace_testkit::random::SeededRandom;
use millrace_testkit::timing::{Timing, nanoseconds};

use super::tests::{OnLanes, expected, input, lanes_of, loaded, on_all_lanes};
use super::*;
use crate::simd::lanes::Portable;
use crate::simd::operations;
use crate::simd::sys;

struct Statistics;

impl OnLanes for Statistics {
    fn run<L: Lanes>(&self, l: L, name: &str, is_fast: bool) {
        if !is_fast {
            return;
        }
        let key = loaded(&test_keys::rsa_2048());
        let mut random = SeededRandom::new(4);
        let mut workspace = Workspace::new(lanes_of(&key).size);
        let mut exponents = SeededRandom::new(5);
        let timing = Timing::from_environment();
        timing.same_time(&format!("{name}, exponents zero or random"), |class| {
            workspace.load(l, [lanes_of(&key); REQUESTS].into_iter(), Exponent::Private);
            for octet in &mut workspace.windows {
                // Random windows are drawn for both classes, so that the caches are in the same state.
                let windows = [0; LANES].map(|_: u64| exponents.word() & 15);
                octet.0 = windows.map(|window| window * class as u64);
            }
            nanoseconds(|| workspace.exponentiate(l))
        });

        let fixed = input(&mut random, key.modulus());
        let mut spare: Vec<Blinding> = Vec::new();
        timing.same_time(&format!("{name}, ciphertexts fixed or random"), |class| {
            let other = input(&mut random, key.modulus());
            let input = if class == 0 { &fixed } else { &other };
            while spare.len() < REQUESTS {
                let stored = lanes_of(&key).take_blinding();
                spare.push(stored.unwrap_or_else(|| {
                    workspace.blind(l, &[lanes_of(&key)]).remove(0).expect("a blinding pair")
                }));
            }
            let mut blocks = vec![input.clone(); REQUESTS];
            let requests = blocks
                .iter_mut()
                .zip(spare.drain(..))
                .map(|(block, blinding)| RsaRequest { key: lanes_of(&key), blinding, block })
                .collect();
            let mut results = Vec::new();
            let time = nanoseconds(|| results = workspace.private(l, requests));
            assert!(results.iter().all(Result::is_ok));
            time
        });
    }
}

#[test]
fn batches_of_any_content_take_the_same_time() {
    on_all_lanes(&Statistics);
}

/// Set in the process that runs under valgrind.
const TAINTED: &str = "MILLRACE_TAINTED";

#[test]
fn memcheck_finds_no_branch_or_address_that_depends_on_a_secret() {
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
        millrace_testkit::skip::record(file!(), "no valgrind");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the detector works"), "{text}");
}

/// Whether an instruction, as objdump writes it, moves data from a vector or mask register to an ordinary
/// register or the flags, or uses a vector as addresses.
fn leaves_the_lanes(instruction: &str) -> bool {
    // A remark names the nearest symbol.
    let instruction = instruction.split('#').next().unwrap_or_default();
    let (name, operands) = instruction.trim().split_once(' ').unwrap_or((instruction, ""));
    let target = operands.rsplit(',').next().unwrap_or("").trim();
    let to_ordinary = target.starts_with("%r") || target.starts_with("%e");
    let from_lanes = operands.contains("mm") || operands.contains("%k");
    let to_flags =
        ["kortest", "ktest", "vptest", "vtest", "vucomi", "vcomi", "ptest", "ucomi", "comi"];
    let by_vector = name.contains("gather") || name.contains("scatter");
    // `vptestnm` writes a mask register, not the flags.
    let flags = to_flags.iter().any(|flags| name.starts_with(flags)) && !target.starts_with("%k");
    (to_ordinary && from_lanes) || flags || by_vector || name.starts_with("kortest")
}

#[test]
fn kernels_move_no_lane_value_to_a_branch_or_address() {
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
        ("lea    0x4a5281(%rip),%rcx        # 6560d0 <__frame_dummy_init_array_entry+0x48>", false),
    ] {
        assert_eq!(leaves_the_lanes(instruction), leaves, "{instruction}");
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new("objdump")
        .args(["--disassemble", "--no-show-raw-insn", "--demangle"])
        .arg(program)
        .output();
    let Ok(output) = output else {
        millrace_testkit::skip::record(file!(), "no objdump");
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
    assert!(multiplications > 500, "only {multiplications} multiplications found");
}

/// Runs a batch on the twin with key, blinding and message marked undefined for memcheck.
fn tainted_batch() {
    let mut key = loaded(&test_keys::rsa_2048());
    let mut workspace = Workspace::new(lanes_of(&key).size);
    let mut blinding =
        workspace.blind(Portable, &[lanes_of(&key)]).remove(0).expect("a blinding pair");
    let mut block = vec![0x11; 256];
    assert_eq!(sys::memcheck_undefined(&block), 0);
    // Proves that memcheck is active: a copy of marked bytes is undefined too.
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

    let request = RsaRequest { key: lanes_of(&key), blinding, block: &mut block };
    // `private` declares one fact public: whether a result verified.
    let results = workspace.private(Portable, vec![request]);
    assert_eq!(results, [Ok(())]);
    assert!(sys::memcheck_undefined(&block) > 0, "the result is not tainted");
    sys::memcheck_mark_defined(&mut block);
    let operation = Operation::RsaRaw;
    let output = operations::finish(&key, &operation, &[0x11; 256], Zeroizing::new(block));
    assert_eq!(*output.expect("a result"), expected(&key, &[0x11; 256]));
}
