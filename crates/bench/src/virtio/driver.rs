// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The process with the devices, and a driver of one of them.

use std::collections::VecDeque;
use std::env;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::cipher::{AES_256, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use millrace_operation::Hash;
use millrace_operation::der::{DerReader, tag};
use millrace_virtio_guest::{
    EVENT_INDEX_FEATURE, Guest, INDIRECT_FEATURE, Response, Ticket, akcipher_request,
    cipher_request, cipher_session, control_request, rsa_session, words,
};
use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::error::BenchError;
use crate::process::{ChildProcess, command, temporary_folder};
use crate::stats::Latencies;

/// Length of a page to encrypt, in bytes.
pub(super) const PAGE: usize = 4096;
pub(super) const AES_KEY: [u8; 32] = [9; 32];
pub(super) const AES_IV: [u8; 16] = [5; 16];

/// Sessions that are made in one go.
const SESSIONS: usize = 256;

const MESSAGE: &[u8] = b"what a guest signs";
const DECRYPT: u32 = 0x401;
const DESTROY: u32 = 0x405;

fn failed(error: io::Error) -> BenchError {
    BenchError::Setup(format!("the device does not answer: {error}"))
}

/// `millrace virtio run` with two devices, on one core.
pub(super) struct GuestMachine {
    process: ChildProcess,
    socket: PathBuf,
    _folder: TempDir,
}

impl GuestMachine {
    pub(super) fn start(core: usize) -> Result<Self, BenchError> {
        let program = env::current_exe().map_err(BenchError::system("find this program"))?;
        let folder = temporary_folder()?;
        let socket = folder.path().join("vm");
        let mut run = command(&program);
        run.args(["virtio", "run", "--socket-count", "2", "--log", "warn"])
            .args(["--workers", "1", "--worker-priority", "low"])
            .args(["--backends", "software"])
            .arg("--socket-path")
            .arg(&socket);
        let log = folder.path().join("log");
        let mut process = ChildProcess::start("virtio", core, run, &log)?;
        let control = folder.path().join("vm.control");
        process.wait_until(|| UnixStream::connect(&control).is_ok())?;
        Ok(Self { process, socket, _folder: folder })
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }
}

/// An RSA-2048 key as a guest has it.
pub(super) struct RsaKey {
    /// PKCS#1.
    private: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

impl RsaKey {
    pub(super) fn generate() -> Result<Self, BenchError> {
        let failed = |reason: &str| BenchError::Setup(format!("cannot make an RSA key: {reason}"));
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)
            .map_err(|error| failed(&error.to_string()))?;
        let pkcs8 = Zeroizing::new(key.serialize_der());
        let private = DerReader::new(&pkcs8).take(tag::SEQUENCE).and_then(|body| {
            let mut fields = DerReader::new(body);
            fields.take(tag::INTEGER)?;
            fields.take(tag::SEQUENCE)?;
            fields.take(tag::OCTET_STRING)
        });
        let private = private.ok_or_else(|| failed("it is not PKCS#8"))?;
        Ok(Self {
            private: Zeroizing::new(private.to_vec()),
            public: key.public_key_raw().to_vec(),
        })
    }

    /// The block of a PKCS#1 v1.5 signature over [`MESSAGE`], as Linux pads it.
    fn block() -> Vec<u8> {
        let digest = digest(&SHA256, MESSAGE);
        let end = [Hash::Sha256.digest_info_prefix(), digest.as_ref()].concat();
        let mut block = vec![0, 1];
        block.resize(255 - end.len(), 0xff);
        block.push(0);
        block.extend(end);
        block
    }

    fn check(&self, signature: &[u8]) -> Result<(), BenchError> {
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public)
            .verify(MESSAGE, signature)
            .map_err(|_| BenchError::Wrong("RSA-2048 through the rings".to_owned()))
    }
}

/// The page of [`VirtioDriver::aes`], encrypted by AWS-LC.
pub(super) fn sealed_page() -> Result<Vec<u8>, BenchError> {
    let failed = |_| BenchError::Setup("AWS-LC refuses AES-256-CBC".to_owned());
    let key = UnboundCipherKey::new(&AES_256, &AES_KEY).map_err(failed)?;
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).map_err(failed)?;
    let mut page = vec![7; PAGE];
    let context = EncryptionContext::Iv128(FixedLength::from(AES_IV));
    key.less_safe_encrypt(&mut page, context).map_err(failed)?;
    page.truncate(PAGE);
    Ok(page)
}

/// A driver with an RSA and an AES session.
pub(super) struct VirtioDriver {
    guest: Guest,
    key: RsaKey,
    rsa: u64,
    aes: u64,
}

impl VirtioDriver {
    pub(super) fn connect(
        machine: &GuestMachine,
        number: usize,
        key: RsaKey,
    ) -> Result<Self, BenchError> {
        let mut socket = machine.socket.as_os_str().to_owned();
        socket.push(number.to_string());
        let features = INDIRECT_FEATURE | EVENT_INDEX_FEATURE;
        let mut guest = Guest::connect(&PathBuf::from(socket), 1, features).map_err(failed)?;
        let refused = |status| BenchError::Setup(format!("the device refuses a key: {status}"));
        let rsa = guest.create(&[&rsa_session(true, key.private.len(), 0, 0), &key.private]);
        let rsa = rsa.map_err(failed)?.map_err(refused)?;
        let aes = guest.create(&[&cipher_session(3, AES_KEY.len(), 1), &AES_KEY]);
        let aes = aes.map_err(failed)?.map_err(refused)?;
        Ok(Self { guest, key, rsa, aes })
    }

    /// Requests of one kind with `window` of them in flight, until `stop` says so. Returns the number per second.
    fn pipelined(
        guest: &mut Guest,
        window: usize,
        parts: &[&[u8]],
        room: usize,
        mut stop: impl FnMut() -> bool,
        check: impl Fn(&Response) -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        let mut under_way: VecDeque<Ticket> = VecDeque::new();
        let start = Instant::now();
        let mut answered = 0_u64;
        let mut ending = false;
        loop {
            ending = ending || stop();
            while !ending && under_way.len() < window {
                under_way.push_back(guest.ask(0, parts, room).map_err(failed)?);
            }
            guest.kick(0).map_err(failed)?;
            let Some(first) = under_way.pop_front() else {
                return Ok(answered as f64 / start.elapsed().as_secs_f64());
            };
            check(&guest.wait_batched(first).map_err(failed)?)?;
            answered += 1;
            while let Some(next) = under_way.front() {
                let Some(answer) = guest.take(*next).map_err(failed)? else {
                    break;
                };
                check(&answer)?;
                answered += 1;
                under_way.pop_front();
            }
        }
    }

    fn rsa_until(&mut self, window: usize, stop: impl FnMut() -> bool) -> Result<f64, BenchError> {
        let request = akcipher_request(DECRYPT, self.rsa, 256, 256);
        let block = RsaKey::block();
        let key = &self.key;
        let check = |answer: &Response| key.check(answer.result());
        Self::pipelined(&mut self.guest, window, &[&request, &block], 257, stop, check)
    }

    /// RSA-2048 private operations per second.
    pub(super) fn rsa(&mut self, window: usize, time: Duration) -> Result<f64, BenchError> {
        let start = Instant::now();
        self.rsa_until(window, || start.elapsed() >= time)
    }

    /// RSA-2048 until `stop` is set.
    pub(super) fn flood(&mut self, window: usize, stop: &AtomicBool) -> Result<(), BenchError> {
        self.rsa_until(window, || stop.load(Ordering::Relaxed)).map(drop)
    }

    /// Latencies of RSA-2048, one at a time, each `pause` after the last has ended.
    pub(super) fn rsa_alone(
        &mut self,
        time: Duration,
        pause: Duration,
    ) -> Result<Latencies, BenchError> {
        let request = akcipher_request(DECRYPT, self.rsa, 256, 256);
        let block = RsaKey::block();
        let mut latencies = Latencies::default();
        let start = Instant::now();
        while start.elapsed() < time {
            let began = Instant::now();
            let answer = self.guest.request(0, &[&request, &block], 257);
            latencies.push(began.elapsed());
            self.key.check(answer.map_err(failed)?.result())?;
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
        Ok(latencies)
    }

    /// Pages of AES-256-CBC per second.
    pub(super) fn aes(&mut self, window: usize, time: Duration) -> Result<f64, BenchError> {
        let request = cipher_request(0, self.aes, AES_IV.len(), PAGE, PAGE);
        let page = [7; PAGE];
        let sealed = sealed_page()?;
        let check = |answer: &Response| {
            if answer.result() == sealed {
                return Ok(());
            }
            Err(BenchError::Wrong("AES-256-CBC through the rings".to_owned()))
        };
        let start = Instant::now();
        let stop = || start.elapsed() >= time;
        let parts: [&[u8]; 3] = [&request, &AES_IV, &page];
        Self::pipelined(&mut self.guest, window, &parts, PAGE + 1, stop, check)
    }

    /// Time to make and destroy one session of the key, with [`SESSIONS`] under way, µs: from the kick to the last
    /// answer.
    pub(super) fn sessions(&mut self, time: Duration) -> Result<f64, BenchError> {
        let create = rsa_session(true, self.key.private.len(), 0, 0);
        let queue = self.guest.control_queue();
        let start = Instant::now();
        let mut busy = Duration::ZERO;
        let mut pairs = 0_u32;
        while start.elapsed() < time {
            let mut tickets = Vec::new();
            for _ in 0..SESSIONS {
                let parts: [&[u8]; 2] = [&create, &self.key.private];
                tickets.push(self.guest.ask(queue, &parts, 16).map_err(failed)?);
            }
            let (took, answers) = self.answers(tickets)?;
            busy += took;
            let mut tickets = Vec::new();
            for answer in answers {
                let id = answer.bytes.first_chunk::<8>().copied().unwrap_or_default();
                let id = u64::from_le_bytes(id);
                if answer.bytes[8] != 0 {
                    return Err(BenchError::Wrong("a session was refused".to_owned()));
                }
                let destroy = destroy(id);
                tickets.push(self.guest.ask(queue, &[&destroy], 1).map_err(failed)?);
                pairs += 1;
            }
            let (took, answers) = self.answers(tickets)?;
            busy += took;
            if answers.iter().any(|answer| answer.status() != 0) {
                return Err(BenchError::Wrong("a session does not end".to_owned()));
            }
        }
        Ok(busy.as_secs_f64() * 1e6 / f64::from(pairs.max(1)))
    }

    fn answers(&mut self, tickets: Vec<Ticket>) -> Result<(Duration, Vec<Response>), BenchError> {
        let queue = self.guest.control_queue();
        let start = Instant::now();
        self.guest.kick(queue).map_err(failed)?;
        // In their order, so the last answer is the end.
        let answers: Result<Vec<Response>, BenchError> =
            tickets.into_iter().map(|ticket| self.guest.wait(ticket).map_err(failed)).collect();
        Ok((start.elapsed(), answers?))
    }

    /// Makes and destroys sessions one at a time. Returns the time of each, µs.
    pub(super) fn sessions_alone(&mut self, time: Duration) -> Result<f64, BenchError> {
        let create = rsa_session(true, self.key.private.len(), 0, 0);
        let refused = |status| BenchError::Wrong(format!("a session was refused: {status}"));
        let start = Instant::now();
        let mut pairs = 0_u32;
        while start.elapsed() < time {
            let created = self.guest.create(&[&create, &self.key.private]);
            let session = created.map_err(failed)?.map_err(refused)?;
            if self.guest.destroy(4, session).map_err(failed)? != 0 {
                return Err(BenchError::Wrong("a session does not end".to_owned()));
            }
            pairs += 1;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(pairs.max(1)))
    }
}

fn destroy(session: u64) -> Vec<u8> {
    let halves = [session, session >> 32].map(|half| (half & 0xffff_ffff) as u32);
    control_request(DESTROY, &words(&halves))
}
