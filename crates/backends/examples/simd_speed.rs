// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How fast the simd backend is, beside AWS-LC (through the software backend) and the system's OpenSSL, on
//! one core.
//!
//! ```sh
//! taskset -c 1 cargo run --release -p millrace-backends --example simd_speed -- --rounds 15
//! OPENSSL_ia32cap=:~0x200000 taskset -c 1 cargo run …      # AWS-LC and OpenSSL without IFMA
//! ```
//!
//! Options: `--rounds N` (default 9), `--ms N` per contender and round (default 100), `--bits N` for one size
//! only, `--only TEXT` for the contenders with that in their names, beside AWS-LC (for a profiler).
//!
//! In each round every contender signs for the same time, one after another, in an order that rotates from
//! round to round. What counts is the processor time of the thread, so that other programs on the same core
//! take their share from nobody's result (they still share caches and clock). A ratio is taken within each round; its median, minimum and maximum over the rounds are
//! shown, since other load makes rounds unlike. Four keys take turns. Every signature is compared with one
//! that OpenSSL made before.

use std::collections::VecDeque;
use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_backends::Software;
use millrace_backends::simd::{Implementation, Simd};
use millrace_engine::backend::{BackendKey, Done, Queue, Task};
use millrace_engine::{Backend, Hash, Operation, PrivateKey};
use openssl::md::Md;
use openssl::pkey::{PKey, Private};
use openssl::pkey_ctx::PkeyCtx;
use openssl::rsa::{Padding, Rsa};
use rustix::time::{ClockId, clock_gettime};
use zeroize::Zeroizing;

/// How many keys take turns: one for each request of a batch, so that no two share anything.
const KEYS: usize = 4;

/// How many digests are signed over and over, per key.
const DIGESTS: usize = 16;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What is signed, with the right answers.
struct Work {
    bits: u32,
    ders: Vec<Vec<u8>>,
    /// Key, digest, signature.
    cases: Vec<(usize, [u8; 32], Vec<u8>)>,
}

impl Work {
    fn new(bits: u32) -> Outcome<Self> {
        let mut ders = Vec::new();
        let mut cases = Vec::new();
        for at in 0..KEYS {
            let key = PKey::from_rsa(Rsa::generate(bits)?)?;
            ders.push(key.private_key_to_pkcs8()?);
            for number in 0..DIGESTS {
                let digest =
                    openssl::sha::sha256(&[at.to_le_bytes(), number.to_le_bytes()].concat());
                let signature = openssl_sign(&key, &digest)?;
                cases.push((at, digest, signature));
            }
        }
        // Neighbours in a batch have different keys.
        cases.sort_by_key(|(key, digest, _)| (digest[0], *key));
        let mut turn: Vec<_> = (0..KEYS)
            .map(|key| {
                cases
                    .iter()
                    .filter(move |case| case.0 == key)
                    .cloned()
                    .collect::<VecDeque<_>>()
            })
            .collect();
        let cases = (0..KEYS * DIGESTS)
            .filter_map(|number| turn[number % KEYS].pop_front())
            .collect();
        Ok(Self { bits, ders, cases })
    }
}

fn openssl_sign(key: &PKey<Private>, digest: &[u8]) -> Outcome<Vec<u8>> {
    let mut context = PkeyCtx::new(key)?;
    context.sign_init()?;
    context.set_rsa_padding(Padding::PKCS1)?;
    context.set_signature_md(Md::sha256())?;
    let mut signature = Vec::new();
    context.sign_to_vec(digest, &mut signature)?;
    Ok(signature)
}

/// Somebody who signs.
struct Contender {
    name: String,
    /// How many tasks are handed over at once.
    batch: usize,
    with: With,
    /// Signatures per second, by round.
    rates: Vec<f64>,
}

enum With {
    OpenSsl(Vec<PKey<Private>>),
    Queue {
        queue: Box<dyn Queue>,
        keys: Vec<BackendKey>,
        /// Keeps the keys open.
        _backend: Box<dyn Backend>,
    },
}

impl Contender {
    fn openssl(work: &Work) -> Outcome<Self> {
        let keys = work
            .ders
            .iter()
            .map(|der| PKey::private_key_from_pkcs8(der));
        Ok(Self {
            name: "OpenSSL".to_owned(),
            batch: 1,
            with: With::OpenSsl(keys.collect::<Result<_, _>>()?),
            rates: Vec::new(),
        })
    }

    fn backend(
        name: String,
        backend: Box<dyn Backend>,
        batch: usize,
        work: &Work,
    ) -> Outcome<Self> {
        let mut keys = Vec::new();
        for der in &work.ders {
            let key = PrivateKey::from_pkcs8(Zeroizing::new(der.clone()));
            keys.push(backend.open_key(&key)?.key);
        }
        let queue = backend.open_queue()?;
        Ok(Self {
            name,
            batch,
            with: With::Queue {
                queue,
                keys,
                _backend: backend,
            },
            rates: Vec::new(),
        })
    }

    /// Signs for some time, and keeps the rate.
    fn round(&mut self, work: &Work, time: Duration) -> Outcome<()> {
        let start = Instant::now();
        let busy = processor_time()?;
        let mut count = 0_usize;
        while start.elapsed() < time {
            for first in (0..work.cases.len()).step_by(self.batch) {
                let cases = &work.cases[first..(first + self.batch).min(work.cases.len())];
                self.with.sign(work, cases)?;
                count += cases.len();
                if start.elapsed() >= time {
                    break;
                }
            }
        }
        let busy = processor_time()?.saturating_sub(busy);
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        self.rates.push(count as f64 / busy.as_secs_f64());
        Ok(())
    }
}

impl With {
    fn sign(&mut self, work: &Work, cases: &[(usize, [u8; 32], Vec<u8>)]) -> Outcome<()> {
        match self {
            Self::OpenSsl(keys) => {
                for (key, digest, expected) in cases {
                    if openssl_sign(&keys[*key], digest)? != *expected {
                        return Err(format!("OpenSSL: a wrong RSA-{} signature", work.bits).into());
                    }
                }
            }
            Self::Queue { queue, keys, .. } => {
                let mut tasks: VecDeque<_> = (0..)
                    .zip(cases)
                    .map(|(token, (key, digest, _))| Task {
                        token,
                        key: keys[*key],
                        operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                        input: digest.to_vec(),
                    })
                    .collect();
                queue.submit(&mut tasks);
                let mut done: Vec<Done> = Vec::new();
                while queue.poll(&mut done) > 0 {}
                let right = done.len() == cases.len()
                    && done.iter().all(|done| {
                        let expected = &cases[done.task.token as usize].2;
                        done.result
                            .as_ref()
                            .is_ok_and(|signature| **signature == *expected)
                    });
                if !right {
                    return Err(format!("a wrong RSA-{} signature", work.bits).into());
                }
            }
        }
        Ok(())
    }
}

/// What this thread has had of its processor.
fn processor_time() -> Outcome<Duration> {
    Ok(clock_gettime(ClockId::ThreadCPUTime).try_into()?)
}

/// Median, minimum, maximum.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    )
}

fn contenders(work: &Work) -> Outcome<Vec<Contender>> {
    let mut all = vec![
        Contender::backend("AWS-LC".to_owned(), Box::new(Software::new()), 1, work)?,
        Contender::openssl(work)?,
    ];
    for implementation in [Implementation::Avx512Ifma, Implementation::Avx512Fp52] {
        if !implementation.is_available() {
            println!("SKIPPED: no {} here", implementation.name());
            continue;
        }
        for batch in [1, 2, 3, 4, 8] {
            let simd = Box::new(Simd::with(implementation));
            let name = format!("{}, {batch} at once", implementation.name());
            all.push(Contender::backend(name, simd, batch, work)?);
        }
        let simd = Box::new(Simd::with(implementation).lanes_from(1));
        let name = format!("{}, 1 in lanes", implementation.name());
        all.push(Contender::backend(name, simd, 1, work)?);
    }
    Ok(all)
}

fn measure(bits: u32, rounds: usize, time: Duration, only: &str) -> Outcome<()> {
    let work = Work::new(bits)?;
    let mut all = contenders(&work)?;
    let mut at = 0;
    all.retain(|contender| {
        at += 1;
        at == 1 || contender.name.contains(only)
    });
    for contender in &mut all {
        contender.round(&work, time / 10)?; // warm up: blinding pairs, caches
        contender.rates.clear();
    }
    for round in 0..rounds {
        for turn in 0..all.len() {
            let at = (round + turn) % all.len();
            all[at].round(&work, time)?;
        }
    }
    let peer = all[0].rates.clone();
    println!("\n### RSA-{bits}, signatures per second on one core\n");
    println!("| | best | median | µs per call | ratio to AWS-LC: median (min to max) |");
    println!("|---|---:|---:|---:|---:|");
    for contender in &all {
        let (median, _, best) = spread(contender.rates.clone());
        let ratios = contender
            .rates
            .iter()
            .zip(&peer)
            .map(|(ours, peer)| ours / peer);
        let (ratio, low, high) = spread(ratios.collect());
        #[expect(clippy::cast_precision_loss, reason = "batches are small")]
        let call = contender.batch as f64 * 1e6 / best;
        println!(
            "| {} | {best:.0} | {median:.0} | {call:.0} | {ratio:.2} ({low:.2} to {high:.2}) |",
            contender.name
        );
    }
    Ok(())
}

/// The first line of a file or command that begins so, for the report.
fn machine() {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(": ").nth(1))
            .unwrap_or("?")
            .to_owned()
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cores = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    println!(
        "{} (family {}, model {}, stepping {}), core {}",
        field("model name"),
        field("cpu family"),
        field("model\t"),
        field("stepping"),
        cores.unwrap_or("?").trim()
    );
    println!(
        "kernel {}, {}, commit {}",
        run("uname", &["-r"]).unwrap_or_default(),
        openssl::version::version(),
        run("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_default()
    );
    println!("{}", Software::new().describe().version);
    println!(
        "{}",
        std::fs::read_to_string("/proc/loadavg")
            .unwrap_or_default()
            .trim()
    );
    if let Ok(mask) = std::env::var("OPENSSL_ia32cap") {
        println!("OPENSSL_ia32cap={mask}");
    }
}

fn main() -> Outcome<()> {
    let (mut rounds, mut ms, mut sizes) = (9, 100, vec![2048, 3072, 4096]);
    let mut only = String::new();
    let mut args = std::env::args().skip(1);
    while let Some(option) = args.next() {
        let value = args.next().ok_or("a value is missing")?;
        match option.as_str() {
            "--rounds" => rounds = value.parse::<u32>()?.max(1),
            "--ms" => ms = value.parse()?,
            "--bits" => sizes = vec![value.parse()?],
            "--only" => only = value,
            _ => return Err(format!("unknown option {option}").into()),
        }
    }
    machine();
    for bits in sizes {
        measure(
            bits,
            usize::try_from(rounds)?,
            Duration::from_millis(ms),
            &only,
        )?;
    }
    Ok(())
}
