// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures each primitive against the installed OpenSSL, and chooses those that this process computes.
//!
//! A primitive is measured as a server's handshake uses it: a pair and an agreement, an encapsulation, a signature, or
//! one expansion of the key schedule. Ciphers and digests are measured with records of a VPN. Both sides alternate, and
//! the shortest time of each counts, so that other work on the machine disturbs both alike.

use std::ffi::{CStr, c_int};
use std::fs;
use std::io::Read as _;
use std::time::{Duration, Instant};

use millrace_operation::KeyType as KeyOfEngine;

use super::aead::AeadSample;
use super::digest::DigestSample;
use super::kdf::ScheduleSample;
use super::sign::SignatureSample;
use super::stock::StockShare;
use crate::algorithms::{Aead, Primitive, Sha2, Share};
use crate::config::LocalUse;
use crate::error::Result;
use crate::ffi::inner;
use crate::ffi::stack;
use crate::ffi::state::{Chosen, Provider};
use crate::local::choice::{self, Cost, Costs};
use crate::local::precomputed::{self, PairMaker};
use crate::local::share::ShareKey;

/// Runs of each side, of which the shortest counts: the first ones find cold caches.
const ROUNDS: usize = 9;

/// Bytes of a record: what a VPN sends in a packet. TLS has longer ones, which say less about the work around them.
const RECORD: usize = 1350;

/// Records of a round, so that its time is long against the clock's steps.
const RECORDS: usize = 8;

impl Provider {
    /// Primitives that this process computes itself: chosen at the first question.
    pub(crate) fn chosen(&'static self) -> &'static Chosen {
        self.shared.chosen.get_or_init(|| Chosen::of(self))
    }

    /// Makes X25519 pairs as the configuration says, and counts those made ahead. Whether that pays is measured here,
    /// not with the other choices: most processes that load the provider make no handshake.
    pub(crate) fn pair_maker(&'static self) -> PairMaker<'static> {
        let is_faster = || self.config.pairs_ahead && precomputed::is_faster();
        let ahead = self.shared.pairs_ahead.get_or_init(is_faster);
        PairMaker::new(ahead.then_some(&*self.stats))
    }
}

impl Chosen {
    /// Chooses as the configuration says.
    fn of(provider: &'static Provider) -> Self {
        let config = provider.config;
        let mut chosen = Self { primitives: [false; Primitive::ALL.len()] };
        let costs = if config.local.contains(&LocalUse::IfFaster) {
            costs(provider)
        } else {
            Costs::default()
        };
        let has_assembly = has_assembly(provider);
        for &primitive in Primitive::ALL {
            let cost = costs[primitive as usize];
            if let Some(Cost { local_ns, openssl_ns }) = cost {
                provider.stats.set_costs(primitive, local_ns, openssl_ns.unwrap_or(0));
            }
            let is_asked_for = match config.local(primitive) {
                LocalUse::Off => false,
                LocalUse::Always => true,
                // What cannot be measured is left as it is.
                LocalUse::IfFaster => {
                    cost.is_some_and(|cost| cost.is_lower_locally(primitive, has_assembly))
                }
            };
            chosen.primitives[primitive as usize] = is_asked_for && is_possible(primitive);
        }
        chosen
    }
}

/// The costs on this system, from the file or measured now.
fn costs(provider: &'static Provider) -> Costs {
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    let file = provider.config.choice_file.as_deref();
    let system = system(provider);
    let mut costs = Costs::default();
    if let Some(path) = file {
        match choice::read(path, &system, user) {
            Ok(known) => costs = known,
            Err(error) => provider.log(&format!("{}: {error}", path.display())),
        }
    }
    let wanted: Vec<Primitive> =
        Primitive::ALL.iter().copied().filter(|known| is_possible(*known)).collect();
    if wanted.iter().all(|primitive| costs[*primitive as usize].is_some()) {
        return costs;
    }
    for primitive in wanted {
        match measure(provider, primitive) {
            Ok(cost) => costs[primitive as usize] = Some(cost),
            Err(error) => {
                provider.log(&format!("{} was not measured: {error}", primitive.row().name))
            }
        }
    }
    if let Some(path) = file
        && let Err(error) = choice::save(path, &system, &costs, user)
    {
        provider.log(&format!("{}: {error}", path.display()));
    }
    costs
}

/// Whether the primitive could be offered: this OpenSSL has the algorithm or the keys around it, and the thread has the
/// stack for it.
fn is_possible(primitive: Primitive) -> bool {
    if let Some(algorithm) = RecordAlgorithm::of(primitive) {
        return inner::context().is_ok_and(|context| match algorithm {
            RecordAlgorithm::Aead(kind) => context.aeads[kind as usize].is_some(),
            RecordAlgorithm::Digest(kind) => context.sha2[kind as usize].is_some(),
        });
    }
    primitive.row().signs.is_none_or(|keys| {
        // ML-DSA needs more stack than a thread has on musl.
        let has_room = cfg!(target_env = "gnu") || !matches!(keys.exact, KeyOfEngine::MlDsa(_));
        has_room && inner::key_functions(keys.key_type).is_ok()
    })
}

/// An algorithm of whole records.
#[derive(Clone, Copy)]
enum RecordAlgorithm {
    Aead(Aead),
    Digest(Sha2),
}

impl RecordAlgorithm {
    /// The algorithm that stands for a primitive: the one that most applications choose.
    fn of(primitive: Primitive) -> Option<Self> {
        match primitive {
            Primitive::AesGcm => Some(Self::Aead(Aead::Aes256Gcm)),
            Primitive::ChaCha20Poly1305 => Some(Self::Aead(Aead::ChaCha20Poly1305)),
            Primitive::Sha256 => Some(Self::Digest(Sha2::Sha256)),
            Primitive::Sha512 => Some(Self::Digest(Sha2::Sha512)),
            _ => None,
        }
    }

    fn measure(self, provider: &'static Provider) -> Result<Cost> {
        let round = match self {
            Self::Aead(kind) => {
                let sample = AeadSample::new(provider, kind, RECORD)?;
                compare(records(|| sample.encrypt_local()), records(|| sample.encrypt_openssl()))
            }
            Self::Digest(kind) => {
                let sample = DigestSample::new(kind, RECORD)?;
                compare(records(|| sample.digest_local()), records(|| sample.digest_openssl()))
            }
        }?;
        let per_record = RECORDS as u64;
        Ok(Cost {
            local_ns: round.local_ns / per_record,
            openssl_ns: round.openssl_ns.map(|time| time / per_record),
        })
    }
}

/// A round of records.
fn records(one: impl Fn() -> Result<()>) -> impl Fn() -> Result<()> {
    move || (0..RECORDS).try_for_each(|_| one())
}

/// `OPENSSL_CPU_INFO`: the instructions that libcrypto's assembly may use.
const CPU_INFO: c_int = 9;

/// Text that libcrypto has about its build, by the number of `OpenSSL_version`.
fn about_build(provider: &Provider, what: c_int) -> String {
    let Some(version) = provider.lib.OpenSSL_version else {
        return String::new();
    };
    // SAFETY: takes any number, and returns a C string that is never freed.
    let text = unsafe { CStr::from_ptr(version(what)) };
    text.to_string_lossy().into_owned()
}

/// Whether libcrypto was built with assembly: it then says which instructions it found (`OPENSSL_ia32cap=`,
/// `OPENSSL_armcap=`). MIPS has assembly without such a choice, and counts as a build without.
fn has_assembly(provider: &Provider) -> bool {
    about_build(provider, CPU_INFO).contains("cap=")
}

/// The name of this system in the file of costs: the build of libcrypto, the processor, and this library's version.
fn system(provider: &Provider) -> String {
    /// `OPENSSL_VERSION`, `OPENSSL_CFLAGS`, `OPENSSL_BUILT_ON`, `OPENSSL_PLATFORM`
    const ABOUT_BUILD: [c_int; 5] = [0, 1, 2, 3, CPU_INFO];
    let build = ABOUT_BUILD.map(|what| about_build(provider, what));
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open("/proc/cpuinfo") {
        /// Bytes with the lines of the first processor.
        const FIRST: u64 = 4096;
        // What cannot be read is left out.
        let _ = file.take(FIRST).read_to_end(&mut bytes);
    }
    let cpuinfo = String::from_utf8_lossy(&bytes);
    let model = cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        ["model name", "CPU part", "uarch"].contains(&name.trim()).then(|| value.trim().to_owned())
    });
    let version = env!("CARGO_PKG_VERSION");
    let words = [build.join(" "), model.unwrap_or_default(), version.to_owned()];
    words.join("; ").replace(['\t', '\n'], " ")
}

/// The shortest times of two computations that alternate.
fn compare(
    mut local: impl FnMut() -> Result<()>,
    mut openssl: impl FnMut() -> Result<()>,
) -> Result<Cost> {
    let mut local_time = Duration::MAX;
    let mut openssl_time = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        local()?;
        let middle = Instant::now();
        openssl()?;
        openssl_time = openssl_time.min(middle.elapsed());
        local_time = local_time.min(middle - start);
    }
    Ok(Cost { local_ns: nanoseconds(local_time), openssl_ns: Some(nanoseconds(openssl_time)) })
}

/// The cost of a computation that the installed OpenSSL lacks.
fn without_openssl(local: impl FnMut() -> Result<()>) -> Result<Cost> {
    Ok(Cost { openssl_ns: None, ..compare(local, || Ok(()))? })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn measure(provider: &'static Provider, primitive: Primitive) -> Result<Cost> {
    if let Some(algorithm) = RecordAlgorithm::of(primitive) {
        return algorithm.measure(provider);
    }
    if let Some(keys) = primitive.row().signs {
        let sample = SignatureSample::new(provider, keys)?;
        return compare(|| sample.sign_local(), || sample.sign_openssl());
    }
    match Share::ALL.iter().find(|share| share.row().primitive == primitive) {
        Some(share) => measure_share(provider, *share),
        None => measure_schedule(),
    }
}

fn measure_share(provider: &'static Provider, share: Share) -> Result<Cost> {
    let peer = stack::with_room(provider, || ShareKey::generate(share, PairMaker::FRESH))?;
    let local = || {
        stack::with_room(provider, || {
            if share.is_agreement() {
                ShareKey::generate(share, PairMaker::FRESH)?.agree(&peer).map(drop)
            } else {
                peer.encapsulate(PairMaker::FRESH).map(drop)
            }
        })
    };
    match StockShare::new(inner::context()?, share)? {
        Some(stock) => compare(local, || stock.run()),
        None => without_openssl(local),
    }
}

fn measure_schedule() -> Result<Cost> {
    let sample = ScheduleSample::new()?;
    if inner::context()?.tls13_kdf.is_some() {
        compare(|| sample.derive_local(), || sample.derive_openssl())
    } else {
        without_openssl(|| sample.derive_local())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Reason};

    #[test]
    fn shorter_time_of_each_side_counts() {
        let mut runs = (0, 0);
        let pause = |times: &mut u64| {
            *times += 1;
            // The first round is the slow one of a cold start.
            let spin = if *times == 1 { 3_000_000 } else { 1_000 };
            (0..spin).for_each(|number| {
                std::hint::black_box(number);
            });
            Ok(())
        };
        let first = Instant::now();
        let cost = compare(|| pause(&mut runs.0), || pause(&mut runs.1)).expect("no error");
        let both = cost.local_ns + cost.openssl_ns.expect("it was measured");
        let all = u64::try_from(first.elapsed().as_nanos()).expect("a time");
        assert_eq!(runs, (ROUNDS as u64, ROUNDS as u64));
        assert!(both < all / 2, "{cost:?} of {all}");
        let wrong = Error::new(Reason::Internal, "none");
        let failed = compare(|| Ok(()), || Err(wrong.clone()));
        assert!(failed.is_err());
    }
}
