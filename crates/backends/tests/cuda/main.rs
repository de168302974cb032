// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The cuda backend on a simulated device, which runs the CPU twin of the kernels, and on a real device if
//! this machine has one.
//!
//! `MILLRACE_LONG=1` computes 10⁵ operations instead of hundreds, and runs the conformance suite with every
//! task on the device.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::sync::Arc;

use millrace_backends::cuda::device::CudaDevice;
use millrace_backends::cuda::{Arithmetic, Cuda, VARIANTS, Variant};
use millrace_backends::software::Software;
use millrace_engine::BackendError;
use millrace_engine::backend::{Backend, Done, OpenedKey, Queue, Task};
use millrace_operation::{BackendKind, Hash, KeyError, Operation};
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::random::SeededRandom;
use millrace_testkit::{is_long, keys, skip, verify};
use openssl::bn::{BigNum, BigNumContext, BigNumRef};
use openssl::pkey::PKey;
use openssl::rsa::Rsa;

mod driver;
mod engine;
mod faults;
mod simulated;

use simulated::{Plan, Simulated};

/// A backend that runs every task on the device, with one kernel.
fn on(device: &Arc<Simulated>, variant: &'static Variant) -> Cuda {
    let device = Arc::clone(device);
    Cuda::on(device).only(|known| known == variant).device_from(1)
}

/// PKCS#8 of the key with these primes.
fn key_of(p: &BigNum, q: &BigNum, e: u32) -> Vec<u8> {
    let mut context = BigNumContext::new().expect("a context");
    let one = BigNum::from_u32(1).expect("a number");
    let e = BigNum::from_u32(e).expect("a number");
    let mut n = BigNum::new().expect("a number");
    n.checked_mul(p, q, &mut context).expect("a product");
    let less = |number: &BigNum| {
        let mut out = BigNum::new().expect("a number");
        out.checked_sub(number, &one).expect("a difference");
        out
    };
    let p1 = less(p);
    let q1 = less(q);
    let mut order = BigNum::new().expect("a number");
    order.checked_mul(&p1, &q1, &mut context).expect("a product");
    let mut d = BigNum::new().expect("a number");
    d.mod_inverse(&e, &order, &mut context).expect("an exponent that is prime to the order");
    let mut remainder = |modulus: &BigNum| {
        let mut out = BigNum::new().expect("a number");
        out.checked_rem(&d, modulus, &mut context).expect("a remainder");
        out
    };
    let dp = remainder(&p1);
    let dq = remainder(&q1);
    let mut qinv = BigNum::new().expect("a number");
    qinv.mod_inverse(q, p, &mut context).expect("primes that differ");
    let copy = |number: &BigNumRef| number.to_owned().expect("a copy");
    let rsa = Rsa::from_private_components(n, e, d, copy(p), copy(q), dp, dq, qinv).expect("a key");
    let key = PKey::from_rsa(rsa).expect("a key");
    key.private_key_to_pkcs8().expect("DER")
}

fn prime(bits: i32) -> BigNum {
    loop {
        let mut prime = BigNum::new().expect("a number");
        // The two highest bits are set, so that the product of two primes has its full length.
        prime.generate_prime(bits, false, None, None).expect("a prime");
        if prime.mod_word(65_537).expect("a remainder") != 1 {
            return prime;
        }
    }
}

/// 2^exponent + offset.
fn near_power(exponent: i32, offset: i32) -> BigNum {
    let mut number = BigNum::new().expect("a number");
    number.set_bit(exponent).expect("room");
    let magnitude = offset.unsigned_abs();
    if offset < 0 {
        number.sub_word(magnitude).expect("a difference");
    } else {
        number.add_word(magnitude).expect("a sum");
    }
    number
}

fn raw(token: u32, opened: &OpenedKey, input: Vec<u8>) -> Task {
    Task { token, key: opened.key, operation: Operation::RsaRaw, input }
}

fn random_task(token: u32, opened: &OpenedKey, random: &mut SeededRandom) -> Task {
    let mut input = random.bytes(opened.info.key_type.modulus_len());
    input[0] &= 0x3f;
    raw(token, opened, input)
}

/// Runs all tasks through a queue and returns the results by token.
fn drive(queue: &mut dyn Queue, mut tasks: VecDeque<Task>) -> BTreeMap<u32, Done> {
    let count = tasks.len();
    let mut finished = BTreeMap::new();
    while finished.len() < count {
        queue.submit(&mut tasks);
        let mut done = Vec::new();
        queue.poll(&mut done);
        if done.is_empty() {
            std::thread::yield_now();
        }
        for done in done {
            assert!(finished.insert(done.task.token, done).is_none());
        }
    }
    finished
}

fn open(cuda: &Cuda, der: &[u8]) -> OpenedKey {
    cuda.open_key(&keys::private_key(der)).expect("a good key")
}

/// Checks the results of these tasks.
fn check(done: &BTreeMap<u32, Done>, opened: &[OpenedKey], what: &str) {
    for done in done.values() {
        let key = opened.iter().find(|opened| opened.key == done.task.key).expect("a known key");
        let output = done.result.as_ref().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(verify::rsa_public(&key.info.spki, output), done.task.input, "{what}");
    }
}

#[test]
fn kernels_agree_with_openssl_on_random_keys_and_messages() {
    // Keys are pairs of a few primes: as good as random ones, and quickly made.
    let mut random = SeededRandom::new(1);
    for half_bits in [1024, 1536, 2048] {
        let primes: Vec<_> = (0..6).map(|_| prime(half_bits)).collect();
        for variant in VARIANTS.iter().filter(|v| v.half_bits == half_bits.unsigned_abs() as usize)
        {
            let (key_count, rounds) = match (is_long(), half_bits) {
                (true, 1024) => (15, 1_600),
                (true, _) => (15, 100),
                (false, 1024) => (6, 10),
                (false, _) => (3, 5),
            };
            let cuda = on(&Simulated::new(), variant);
            let pairs = (0..6).flat_map(|p| (0..p).map(move |q| (p, q)));
            let opened: Vec<_> = pairs
                .take(key_count)
                .map(|(p, q)| open(&cuda, &key_of(&primes[p], &primes[q], 65_537)))
                .collect();
            let mut queue = cuda.open_queue().expect("a queue");
            for _ in 0..rounds {
                let tasks = (0..)
                    .zip(&opened)
                    .map(|(token, key)| random_task(token, key, &mut random))
                    .collect();
                check(&drive(&mut *queue, tasks), &opened, variant.name);
            }
            let tally = cuda.tally();
            assert_eq!((tally.on_cpu, tally.faults), (0, 0), "{}", variant.name);
            assert_eq!(tally.launched, (key_count * rounds) as u64);
        }
    }
}

/// The numbers with the longest chains of carries and borrows.
fn edges(der: &[u8]) -> Vec<Vec<u8>> {
    let rsa = Rsa::private_key_from_der(
        &PKey::private_key_from_pkcs8(der)
            .and_then(|key| key.rsa()?.private_key_to_der())
            .expect("a key"),
    )
    .expect("a key");
    let n = rsa.n().to_owned().expect("a number");
    let length = n.num_bytes();
    let bits = n.num_bits();
    let mut numbers: Vec<BigNum> =
        [0, 1, 2].into_iter().map(|small| BigNum::from_u32(small).expect("a number")).collect();
    for less in [1, 2] {
        let mut number = n.to_owned().expect("a number");
        number.sub_word(less).expect("a difference");
        numbers.push(number);
    }
    for prime in [rsa.p(), rsa.q()].into_iter().flatten() {
        let multiple = |by: u32| {
            let mut number = prime.to_owned().expect("a number");
            number.mul_word(by).expect("a product");
            number
        };
        numbers.extend([multiple(1), multiple(3)]);
        let mut below = BigNum::new().expect("a number");
        below.checked_sub(&n, prime).expect("a difference");
        numbers.push(below);
    }
    // Limbs of all ones and single bits, at the edges of limbs, digits and halves.
    for position in [31, 32, 51, 52, 63, 64, bits / 2 - 1, bits / 2, bits / 2 + 1, bits - 2] {
        numbers.extend([near_power(position, 0), near_power(position, -1)]);
    }
    numbers
        .into_iter()
        .map(|number| number.to_vec_padded(length).expect("shorter than the modulus"))
        .collect()
}

#[test]
fn kernels_are_right_at_edges_of_numbers_and_moduli() {
    // The largest and the smallest primes of 1024 bits: one is just below R, the other just above R/2.
    let [large, small] = [near_power(1024, -105), near_power(1023, 1155)];
    let ders = [
        key_of(&large, &small, 65_537),
        key_of(&small, &large, 65_537),
        keys::rsa_2048().der.to_vec(),
    ];
    for variant in VARIANTS.iter().filter(|v| v.half_bits == 1024) {
        let cuda = on(&Simulated::new(), variant);
        let mut queue = cuda.open_queue().expect("a queue");
        for der in &ders {
            let opened = [open(&cuda, der)];
            // Few at a time, because each needs a blinding pair.
            for inputs in edges(der).chunks(4) {
                let tasks = (0..)
                    .zip(inputs)
                    .map(|(token, input)| raw(token, &opened[0], input.clone()))
                    .collect();
                check(&drive(&mut *queue, tasks), &opened, variant.name);
            }
        }
        assert_eq!(cuda.tally().on_cpu, 0);
    }
}

#[test]
fn launch_has_keys_of_one_public_exponent() {
    let ders = [3_u32, 17, 65_537, 0x7fff_ffff].map(|e| {
        let e = BigNum::from_u32(e).expect("a number");
        let rsa = Rsa::generate_with_e(2048, &e).expect("a key");
        let key = PKey::from_rsa(rsa).expect("a key");
        key.private_key_to_pkcs8().expect("DER")
    });
    for variant in VARIANTS.iter().filter(|v| v.half_bits == 1024) {
        let cuda = on(&Simulated::new(), variant);
        let mut queue = cuda.open_queue().expect("a queue");
        let mut random = SeededRandom::new(2);
        let opened: Vec<_> = ders.iter().map(|der| open(&cuda, der)).collect();
        let tasks =
            (0..).zip(&opened).map(|(token, key)| random_task(token, key, &mut random)).collect();
        check(&drive(&mut *queue, tasks), &opened, variant.name);
        assert_eq!(cuda.tally().launches, 4);
    }
}

#[test]
fn key_between_two_sizes_uses_the_larger_kernel() {
    let rsa = Rsa::generate(2560).expect("a key");
    let der = PKey::from_rsa(rsa).and_then(|key| key.private_key_to_pkcs8()).expect("DER");
    for variant in VARIANTS.iter().filter(|variant| variant.half_bits == 1536) {
        let cuda = on(&Simulated::new(), variant);
        let opened = [open(&cuda, &der)];
        let mut queue = cuda.open_queue().expect("a queue");
        let mut random = SeededRandom::new(3);
        let tasks = (0..4).map(|token| random_task(token, &opened[0], &mut random)).collect();
        check(&drive(&mut *queue, tasks), &opened, variant.name);
        assert_eq!(cuda.tally().launched, 4);
    }
}

#[test]
fn closed_key_is_erased_from_the_device() {
    let device = Simulated::new();
    let cuda = on(&device, &VARIANTS[0]);
    let mut queue = cuda.open_queue().expect("a queue");
    let mut random = SeededRandom::new(7);
    let opened = [open(&cuda, keys::rsa_2048().der), open(&cuda, keys::rsa_2048().der)];
    let mut tasks: VecDeque<_> =
        (0..8).map(|token| random_task(token, &opened[token as usize % 2], &mut random)).collect();
    assert_eq!(queue.submit(&mut tasks), 8);
    let mut done = Vec::new();
    // A key is closed while its tasks are in flight: they still end, and then the key is erased.
    queue.poll(&mut done);
    for opened in &opened {
        cuda.close_key(opened.key);
    }
    assert!(device.bytes_in_use() > 0);
    while queue.poll(&mut done) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(done.len(), 8);
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert_eq!(device.bytes_in_use(), 0);
}

#[test]
fn waiting_tasks_share_a_launch_and_few_tasks_run_on_aws_lc() {
    let device = Simulated::new();
    let cuda = Cuda::on(Arc::clone(&device) as Arc<dyn CudaDevice>).device_from(4);
    let [small, large] = [keys::rsa_2048(), keys::rsa_3072()].map(|key| open(&cuda, key.der));
    let mut queue = cuda.open_queue().expect("a queue");
    let mut random = SeededRandom::new(8);
    // Five of one size and three of the other: one launch, and three tasks on AWS-LC.
    let tasks = (0..8)
        .map(|token| {
            let key = if token % 3 == 1 { &large } else { &small };
            random_task(token, key, &mut random)
        })
        .collect();
    let done = drive(&mut *queue, tasks);
    check(&done, &[small, large], "mixed sizes");
    let tally = cuda.tally();
    assert_eq!((tally.launches, tally.launched, tally.on_cpu), (1, 5, 3), "{tally:?}");
}

#[test]
fn queue_accepts_no_task_above_its_capacity() {
    let device = Simulated::new();
    let cuda = on(&device, &VARIANTS[2]);
    let opened = open(&cuda, keys::rsa_2048().der);
    let mut queue = cuda.open_queue().expect("a queue");
    let mut random = SeededRandom::new(9);
    let capacity = u32::try_from(queue.capacity()).expect("small");
    let mut tasks: VecDeque<_> =
        (0..capacity + 10).map(|token| random_task(token, &opened, &mut random)).collect();
    assert_eq!(queue.submit(&mut tasks), capacity as usize);
    let mut done = Vec::new();
    queue.poll(&mut done);
    // Tasks on the device count too.
    assert_eq!(queue.submit(&mut tasks), done.len());
    assert_eq!(tasks.len(), 10 - done.len());
    device.plan(Plan { lost_after: Some(0), ..Plan::default() });
    while queue.poll(&mut done) > 0 {}
    assert_eq!(done.len(), capacity as usize);
}

#[test]
fn bad_task_does_not_affect_the_others_of_its_launch() {
    let cuda = on(&Simulated::new(), &VARIANTS[0]);
    let opened = open(&cuda, keys::rsa_2048().der);
    let mut queue = cuda.open_queue().expect("a queue");
    let mut random = SeededRandom::new(10);
    let mut tasks: VecDeque<_> =
        (0..4).map(|token| random_task(token, &opened, &mut random)).collect();
    tasks[0].input.fill(0xff);
    tasks[2].operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
    let done = drive(&mut *queue, tasks);
    for token in [0, 2] {
        assert_eq!(done[&token].result, Err(BackendError::BadInput));
    }
    for token in [1, 3] {
        assert!(done[&token].result.is_ok());
    }
}

#[test]
fn blinding_pair_is_renewed_after_its_last_use() {
    let device = Simulated::new();
    let cuda = on(&device, &VARIANTS[2]);
    let opened = [open(&cuda, keys::rsa_2048().der)];
    let mut queue = cuda.open_queue().expect("a queue");
    let mut random = SeededRandom::new(13);
    // One pair, for more than its number of uses.
    for _ in 0..70 {
        let task = random_task(0, &opened[0], &mut random);
        check(&drive(&mut *queue, [task].into()), &opened, "one after another");
    }
    assert_eq!(cuda.tally().launched, 70);
}

#[test]
fn memcheck_finds_no_branch_or_address_that_depends_on_a_number() {
    if !cfg!(target_arch = "x86_64") {
        skip!("memcheck follows the arithmetic on x86-64 only");
    }
    // Integers, integers with separate squaring, doubles.
    // The last case has a branch and shows that the test notices it.
    for (variant, control) in [(0, false), (1, false), (3, false), (3, true)] {
        let Ok(output) = simulated::under_memcheck(variant, control) else {
            skip!("no valgrind");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let name = VARIANTS[variant].name;
        assert_eq!(output.status.success(), !control, "{name}:\n{said}");
        let noticed = said.contains("depends on uninitialised value");
        assert_eq!(noticed, control, "{name}:\n{said}");
    }
}

/// Runs the suite and checks that it ran.
fn conform(cuda: Cuda, rounds: usize) {
    let options = Options { reference: Some(Arc::new(Software::new())), rounds };
    let cuda = Arc::new(cuda);
    let report = conformance::run(Arc::clone(&cuda) as Arc<dyn Backend>, &options);
    println!("{cuda:?} {:?}\n{report}", cuda.tally());
    assert!(report.total() > 1_000, "only {} tests ran", report.total());
    for part in ["rsa_2048", "rsa_3072", "rsa_4096"] {
        assert!(report.executed.contains_key(&format!("comparison, {part}")));
    }
}

#[test]
fn simulated_device_conforms() {
    // Only a long run has every task on the device: the twin takes up to 0.2 s for one. Otherwise the device
    // gets the batches, and AWS-LC the single tasks.
    let (arithmetics, device_from) = if is_long() {
        (&[Arithmetic::Integer, Arithmetic::Fp52][..], 1)
    } else {
        (&[Arithmetic::Fp52][..], 24)
    };
    for arithmetic in arithmetics {
        let cuda = Cuda::on(Simulated::new())
            .only(|variant| variant.arithmetic == *arithmetic)
            .device_from(device_from);
        conform(cuda, 1);
    }
}

#[test]
fn real_device_conforms_and_agrees_with_openssl_on_many_keys() {
    let cuda = Cuda::new();
    if let Err(reason) = cuda.probe() {
        skip!("no GPU: {reason}");
    }
    conform(Cuda::new().device_from(1), 10);
    for variant in &VARIANTS {
        let cuda = Cuda::new().only(|known| known == variant).device_from(1);
        let half_bits = i32::try_from(variant.half_bits).expect("small");
        // n primes give n·(n−1)/2 keys.
        let primes: Vec<_> =
            (0..if is_long() { 448 } else { 46 }).map(|_| prime(half_bits)).collect();
        let mut queue = cuda.open_queue().expect("a queue");
        let mut random = SeededRandom::new(14);
        for p in 1..primes.len() {
            let opened: Vec<_> =
                (0..p).map(|q| open(&cuda, &key_of(&primes[p], &primes[q], 65_537))).collect();
            let tasks = (0..)
                .zip(&opened)
                .map(|(token, key)| random_task(token, key, &mut random))
                .collect();
            check(&drive(&mut *queue, tasks), &opened, variant.name);
            for key in opened {
                cuda.close_key(key.key);
            }
        }
        assert_eq!((cuda.tally().on_cpu, cuda.tally().faults), (0, 0), "{}", variant.name);
    }
}

#[test]
fn cuda_describes_itself_and_refuses_other_keys() {
    let cuda = Cuda::new();
    assert_eq!(cuda.describe().kind, BackendKind::Cuda);
    assert!(!cuda.describe().on_cpu);
    match cuda.probe() {
        Ok(()) => assert!(cuda.open_queue().is_ok()),
        Err(reason) => {
            let reason = reason.to_string();
            assert!(reason.contains("CUDA") || reason.contains("compute capability"), "{reason}");
            assert!(cuda.open_queue().is_err());
        }
    }
    for key in [keys::p_256(), keys::rsa_8192(), keys::dsa_2048()] {
        let refused = cuda.open_key(&key.private_key()).map(|opened| opened.info.key_type);
        assert_eq!(refused, Err(KeyError::NotOffered), "{}", key.name);
    }
    open(&cuda, keys::rsa_2048().der);
    assert!(format!("{cuda:?}").ends_with(", 1 keys)"), "{cuda:?}");
}

#[test]
fn committed_ptx_matches_the_kernel_sources() {
    // Must equal the hash in scripts/cuda.sh.
    let mut hash = openssl::sha::Sha256::new();
    let names = ["fp52.h", "integer.h", "kernels.cu", "lanes.h", "rates.h", "rsa.h", "variants.h"];
    for name in names {
        hash.update(format!("{name}\n").as_bytes());
        hash.update(&fs::read(simulated::kernels().join(name)).expect("a source"));
    }
    let hash: String = hash.finish().iter().map(|byte| format!("{byte:02x}")).collect();
    let ptx = fs::read_to_string(simulated::kernels().join("kernels.ptx")).expect("the PTX");
    assert!(
        ptx.contains(&format!("// sources: {hash}\n")),
        "kernels.ptx was made from other sources: run `make cuda` and commit the result"
    );
    // `make cuda` has checked the machine code of these sources: no spills, no local memory, no divergent
    // branch.
    let found = fs::read_to_string(simulated::kernels().join("machine_code.txt"));
    let found = found.expect("what was found in the machine code");
    assert!(
        found.contains(&format!("# sources: {hash}\n")),
        "machine_code.txt is of other sources: run `make cuda` and commit the result"
    );
    for architecture in [80, 89, 90, 100] {
        for variant in &VARIANTS {
            let line = format!("sm_{architecture} {} ", variant.name);
            assert!(found.contains(&line), "{line}");
        }
    }
    // The driver of CUDA 12.0 accepts PTX up to this version.
    assert!(ptx.contains("\n.version 8.0\n.target sm_80\n"));
    for variant in &VARIANTS {
        assert!(ptx.contains(&format!(".visible .entry {}(", variant.name)));
    }
}
