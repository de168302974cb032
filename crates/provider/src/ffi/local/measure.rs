// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures each primitive against the installed OpenSSL, as it is used in a handshake of a server: a pair and an
//! agreement, or an encapsulation, or one expansion of the key schedule; ciphers and digests with records of a VPN.
//! Both sides alternate, and the shortest time of each counts, so that other work on the machine disturbs neither
//! more than the other.

use std::ffi::{CStr, c_int};
use std::fs;
use std::io::Read as _;
use std::ptr;
use std::time::Instant;

use millrace_operation::KeyType as KeyOfEngine;

use super::aead::AeadSample;
use super::digest::DigestSample;
use super::kdf::ScheduleSample;
use super::sign::SignatureSample;
use super::stack;
use crate::algorithms::{Aead, Exchange, Primitive, Sha2, Share};
use crate::config::Here;
use crate::error::{Error, Result};
use crate::ffi::ids::{self, select};
use crate::ffi::inner::{self, InnerAlgorithm, InnerContext, call};
use crate::ffi::key::succeeded;
use crate::ffi::libcrypto::Ptr;
use crate::ffi::state::{Chosen, Provider};
use crate::ffi::types::{Callback, Param};
use crate::local::ahead::{self, PairMaker};
use crate::local::choice::{self, Cost, Costs};
use crate::local::share::ShareKey;

/// Times that each side runs. The first ones find cold caches.
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

    /// Makes X25519 pairs as the configuration says, and counts those made ahead.
    pub(crate) fn pair_maker(&'static self) -> PairMaker<'static> {
        let ahead = self.chosen().pairs_ahead;
        PairMaker::new(ahead.then_some(&*self.stats))
    }
}

impl Chosen {
    /// Chooses as the configuration says.
    fn of(provider: &'static Provider) -> Self {
        let config = provider.config;
        let mut chosen = Self {
            primitives: [false; Primitive::ALL.len()],
            pairs_ahead: config.computes_here() && config.pairs_ahead && ahead::is_faster(),
        };
        let asked = config.local.contains(&Here::IfFaster);
        let costs = if asked { costs(provider) } else { Costs::default() };
        let has_assembly = has_assembly(provider);
        for &primitive in Primitive::ALL {
            let cost = costs[primitive as usize];
            if let Some(cost) = cost {
                let there = cost.there.unwrap_or(0);
                provider.stats.set_costs(primitive, cost.here, there);
            }
            let is_asked_for = match config.local(primitive) {
                Here::No => false,
                Here::Yes => true,
                // What cannot be measured is left as it is.
                Here::IfFaster => {
                    cost.is_some_and(|cost| cost.is_lower_here(primitive, has_assembly))
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
    let (file, system) = (provider.config.choice_file.as_deref(), system(provider));
    let mut costs = Costs::default();
    if let Some(path) = file {
        match choice::read(path, &system, user) {
            Ok(known) => costs = known,
            Err(error) => provider.log(&format!("{}: {error}", path.display())),
        }
    }
    let wanted = || Primitive::ALL.iter().filter(|known| is_possible(**known));
    if wanted().all(|primitive| costs[*primitive as usize].is_some()) {
        return costs;
    }
    for &primitive in wanted() {
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

/// Whether the primitive could be offered: keys that sign here are OpenSSL's own, and an OpenSSL may have none of the
/// type. ML-DSA needs more stack than a thread has on musl.
fn is_possible(primitive: Primitive) -> bool {
    if let Some(kind) = bulk(primitive) {
        return inner::context().is_ok_and(|context| match kind {
            Bulk::Aead(kind) => context.aeads[kind as usize].is_some(),
            Bulk::Digest(kind) => context.sha2[kind as usize].is_some(),
        });
    }
    primitive.row().signs.is_none_or(|keys| {
        let has_room = cfg!(target_env = "gnu") || !matches!(keys.exact, KeyOfEngine::MlDsa(_));
        has_room && inner::key_functions(keys.key_type).is_ok()
    })
}

/// An algorithm of whole records.
#[derive(Clone, Copy)]
enum Bulk {
    Aead(Aead),
    Digest(Sha2),
}

/// The algorithm that stands for a primitive of whole records: the one that most applications choose.
fn bulk(primitive: Primitive) -> Option<Bulk> {
    match primitive {
        Primitive::AesGcm => Some(Bulk::Aead(Aead::Aes256Gcm)),
        Primitive::ChaCha20Poly1305 => Some(Bulk::Aead(Aead::ChaCha20Poly1305)),
        Primitive::Sha256 => Some(Bulk::Digest(Sha2::Sha256)),
        Primitive::Sha512 => Some(Bulk::Digest(Sha2::Sha512)),
        _ => None,
    }
}

fn measure_bulk(provider: &'static Provider, kind: Bulk) -> Result<Cost> {
    let per_record = RECORDS as u64;
    let many = |one: &dyn Fn() -> Result<()>| (0..RECORDS).try_for_each(|_| one());
    let (here, there) = match kind {
        Bulk::Aead(kind) => {
            let sample = AeadSample::new(provider, kind, RECORD)?;
            alternate(|| many(&|| sample.encrypt_here()), || many(&|| sample.encrypt_there()))
        }
        Bulk::Digest(kind) => {
            let sample = DigestSample::new(kind, RECORD)?;
            alternate(|| many(&|| sample.digest_here()), || many(&|| sample.digest_there()))
        }
    }?;
    Ok(Cost { here: here / per_record, there: Some(there / per_record) })
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

/// Facts on which the costs depend: the build of libcrypto, the processor, and this library.
fn system(provider: &Provider) -> String {
    /// `OPENSSL_VERSION`, `OPENSSL_CFLAGS`, `OPENSSL_BUILT_ON`, `OPENSSL_PLATFORM`
    const ABOUT_BUILD: [c_int; 5] = [0, 1, 2, 3, CPU_INFO];
    let build = ABOUT_BUILD.map(|what| about_build(provider, what));
    let mut head = Vec::new();
    if let Ok(file) = fs::File::open("/proc/cpuinfo") {
        /// The first processor's lines.
        const HEAD: u64 = 4096;
        // What cannot be read is left out.
        let _ = file.take(HEAD).read_to_end(&mut head);
    }
    let head = String::from_utf8_lossy(&head);
    let model = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let name = name.trim();
        ["model name", "CPU part", "uarch"].contains(&name).then(|| value.trim().to_owned())
    });
    let version = env!("CARGO_PKG_VERSION");
    let words = [build.join(" "), model.unwrap_or_default(), version.to_owned()];
    words.join("; ").replace(['\t', '\n'], " ")
}

/// The shorter times of two computations that alternate, in nanoseconds.
fn alternate(
    mut here: impl FnMut() -> Result<()>,
    mut there: impl FnMut() -> Result<()>,
) -> Result<(u64, u64)> {
    let (mut least_here, mut least_there) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        here()?;
        let middle = Instant::now();
        there()?;
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        least_here = least_here.min(nanos(middle - start));
        least_there = least_there.min(nanos(middle.elapsed()));
    }
    Ok((least_here, least_there))
}

fn measure(provider: &'static Provider, primitive: Primitive) -> Result<Cost> {
    let context = inner::context()?;
    if let Some(kind) = bulk(primitive) {
        return measure_bulk(provider, kind);
    }
    if let Some(keys) = primitive.row().signs {
        let sample = SignatureSample::new(provider, keys)?;
        let (here, there) = alternate(|| sample.sign_here(), || sample.sign_there())?;
        return Ok(Cost { here, there: Some(there) });
    }
    let share = Share::ALL.iter().find(|share| share.row().primitive == primitive);
    let Some(&share) = share else {
        let sample = ScheduleSample::new()?;
        let theirs = context.tls13_kdf.is_some();
        let there = || {
            if theirs { sample.derive_there() } else { Ok(()) }
        };
        let (here, there) = alternate(|| sample.derive_here(), there)?;
        return Ok(Cost { here, there: theirs.then_some(there) });
    };
    let peer = stack::with_room(provider, || ShareKey::generate(share, PairMaker::FRESH))?;
    let here = || {
        stack::with_room(provider, || {
            if share.is_agreement() {
                ShareKey::generate(share, PairMaker::FRESH)?.agree(&peer).map(drop)
            } else {
                peer.encapsulate(PairMaker::FRESH).map(drop)
            }
        })
    };
    let Some(theirs) = StockShare::new(context, share)? else {
        return Ok(Cost { here: alternate(here, || Ok(()))?.0, there: None });
    };
    let (here, there) = alternate(here, || theirs.run())?;
    Ok(Cost { here, there: Some(there) })
}

/// A fresh key of the installed OpenSSL, which the caller frees. `settings` ends with [`Param::END`].
pub(super) fn generated(keys: &InnerAlgorithm, settings: &[Param]) -> Result<Ptr> {
    debug_assert!(settings.last().is_some_and(|param| param.key.is_null()));
    let (provctx, settings) = (inner::context()?.provctx, settings.as_ptr());
    let both = select::PRIVATE_KEY | select::PUBLIC_KEY | select::DOMAIN_PARAMETERS;
    // SAFETY: `keymgmt_gen_init` takes the context of its provider, a selection, and parameters with their end.
    let start = unsafe {
        call!(keys, ids::keymgmt::GEN_INIT,
            fn(provctx => Ptr, both => c_int, settings => *const Param) -> Ptr)
    }?;
    if start.is_null() {
        return Err(Error::library());
    }
    let (callback, argument): (Option<Callback>, Ptr) = (None, ptr::null_mut());
    // SAFETY: `keymgmt_gen` takes what `gen_init` gave, and no callback.
    let pair = unsafe {
        call!(keys, ids::keymgmt::GEN,
            fn(start => Ptr, callback => Option<Callback>, argument => Ptr) -> Ptr)
    };
    // SAFETY: `keymgmt_gen_cleanup` takes the same, which is not used again.
    unsafe { call!(keys, ids::keymgmt::GEN_CLEANUP, fn(start => Ptr) -> ()) }?;
    pair.and_then(|pair| if pair.is_null() { Err(Error::library()) } else { Ok(pair) })
}

/// A key share of the installed OpenSSL, and what does the work with it.
struct StockShare {
    context: &'static InnerContext,
    keys: &'static InnerAlgorithm,
    work: &'static InnerAlgorithm,
    is_agreement: bool,
    peer: Ptr,
}

impl StockShare {
    /// The share in the installed OpenSSL; `None` if that does not have it.
    fn new(context: &'static InnerContext, share: Share) -> Result<Option<Self>> {
        let is_agreement = share.is_agreement();
        let work = if is_agreement {
            &context.exchanges[Exchange::X25519 as usize]
        } else {
            &context.kems[share as usize]
        };
        let (Some(keys), Some(work)) = (&context.shares[share as usize], work) else {
            return Ok(None);
        };
        let mut stock = Self { context, keys, work, is_agreement, peer: ptr::null_mut() };
        stock.peer = stock.pair()?;
        Ok(Some(stock))
    }

    fn pair(&self) -> Result<Ptr> {
        generated(self.keys, &[Param::END])
    }

    fn free_key(&self, key: Ptr) {
        // SAFETY: `keymgmt_free` takes a key of this key manager, which is not used again; every one has it.
        let _ = unsafe { call!(self.keys, ids::keymgmt::FREE, fn(key => Ptr) -> ()) };
    }

    fn run(&self) -> Result<()> {
        let provctx = self.context.provctx;
        let (new, free) = if self.is_agreement {
            (ids::keyexch::NEWCTX, ids::keyexch::FREECTX)
        } else {
            (ids::kem::NEWCTX, ids::kem::FREECTX)
        };
        // SAFETY: both constructors take the context of their provider.
        let context = unsafe { call!(self.work, new, fn(provctx => Ptr) -> Ptr) }?;
        if context.is_null() {
            return Err(Error::library());
        }
        let done = if self.is_agreement { self.agree(context) } else { self.encapsulate(context) };
        // SAFETY: takes the context made above, which is not used again.
        let freed = unsafe { call!(self.work, free, fn(context => Ptr) -> ()) };
        done.and(freed)
    }

    fn agree(&self, context: Ptr) -> Result<()> {
        let key = self.pair()?;
        let derived = self.derive(context, key);
        self.free_key(key);
        derived
    }

    fn derive(&self, context: Ptr, key: Ptr) -> Result<()> {
        let (none, peer): (*const Param, Ptr) = (ptr::null(), self.peer);
        // SAFETY: `keyexch_init` takes a fresh context, a live key of its key manager, and no parameters.
        succeeded(unsafe {
            call!(self.work, ids::keyexch::INIT,
                fn(context => Ptr, key => Ptr, none => *const Param) -> c_int)
        }?)?;
        // SAFETY: `keyexch_set_peer` takes the context and a live key of its key manager.
        succeeded(unsafe {
            call!(self.work, ids::keyexch::SET_PEER, fn(context => Ptr, peer => Ptr) -> c_int)
        }?)?;
        let mut secret = [0_u8; 32];
        let mut written = 0;
        let (start, written, room) = (secret.as_mut_ptr(), &raw mut written, secret.len());
        // SAFETY: `keyexch_derive` takes a buffer with its length, and a place for the length of the result.
        succeeded(unsafe {
            call!(self.work, ids::keyexch::DERIVE,
                fn(context => Ptr, start => *mut u8, written => *mut usize, room => usize) -> c_int)
        }?)
    }

    fn encapsulate(&self, context: Ptr) -> Result<()> {
        /// Room for a ciphertext and a secret: more than any share here has.
        const ROOM: usize = 2048;
        let (none, peer): (*const Param, Ptr) = (ptr::null(), self.peer);
        // SAFETY: `kem_encapsulate_init` takes a fresh context, a live key of its key manager, and no parameters.
        succeeded(unsafe {
            call!(self.work, ids::kem::ENCAPSULATE_INIT,
                fn(context => Ptr, peer => Ptr, none => *const Param) -> c_int)
        }?)?;
        let (mut out, mut secret) = ([0_u8; ROOM], [0_u8; ROOM]);
        let (mut out_len, mut secret_len) = (ROOM, ROOM);
        let (out, secret) = (out.as_mut_ptr(), secret.as_mut_ptr());
        let (out_len, secret_len) = (&raw mut out_len, &raw mut secret_len);
        // SAFETY: `kem_encapsulate` takes two buffers with places that have their lengths.
        succeeded(unsafe {
            call!(self.work, ids::kem::ENCAPSULATE,
                fn(context => Ptr, out => *mut u8, out_len => *mut usize, secret => *mut u8,
                    secret_len => *mut usize) -> c_int)
        }?)
    }
}

impl Drop for StockShare {
    fn drop(&mut self) {
        if !self.peer.is_null() {
            self.free_key(self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;

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
        let (here, there) =
            alternate(|| pause(&mut runs.0), || pause(&mut runs.1)).expect("no error");
        let all = u64::try_from(first.elapsed().as_nanos()).expect("a time");
        assert_eq!(runs, (ROUNDS as u64, ROUNDS as u64));
        assert!(here + there < all / 2, "{here} {there} of {all}");
        let wrong = Error::new(Reason::Internal, "none");
        let failed = alternate(|| Ok(()), || Err(wrong.clone()));
        assert!(failed.is_err());
    }
}
