// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Children that compute one known operation at a time, and their samples.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_hostfs::child::{OwnedChild, find_program};
use millrace_hostfs::trusted::{Sticky, Untrusted, check_entry, check_folder};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use super::{AgreementCurve, CalibratedWork, CalibrationRun};
use crate::samples::Samples;
use crate::target;
use crate::{Image, MAX_FREQUENCY, SampleError, Sampler, SymbolClass};

/// Sampling frequency of calibrations, per second: too few samples in a template shift shares to similar ones.
const FREQUENCY: u32 = MAX_FREQUENCY;

/// Sampled CPU time of the last operation.
const OPERATION_CPU_TIME: Duration = Duration::from_millis(600);

/// Interval of checks of the sampled CPU time: a run takes 5 % longer than it has to, at most.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Sampled CPU time of both sides of handshakes, which spread over many functions.
const HANDSHAKE_CPU_TIME: Duration = Duration::from_millis(400);

/// Time after the start of handshakes that is not sampled: libraries, configuration, the first handshake.
const START_TIME: Duration = Duration::from_millis(100);

/// Bound on one child: `openssl speed` takes a second per phase, more on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Smallest number of samples in a template: a share of 10 % is then off by about 3 points (one standard deviation).
const MIN_SAMPLES: u64 = 100;

/// Seconds per phase of the first and of the second attempt: on a busy machine a phase may get too little CPU time.
/// Operations that this libcrypto lacks fail at once each time.
const SHORT_PHASE_S: &str = "1";
const LONG_PHASE_S: &str = "5";

/// Run with every instruction that the processor has.
const ALL: Option<&str> = None;

/// `OPENSSL_ia32cap` without hardware AES (bit 57) and carry-less multiplication (bit 33) of the first capability
/// word: what a process does that hides them from OpenSSL. libcrypto then encrypts with other functions (vpaes, and
/// tables for GCM). The second word must be there, with nothing to turn off: a mask of one word clears the second as
/// well, and with it AVX2, AVX-512 and SHA (measured with OpenSSL 3.0).
pub const NO_AES: &str = "~0x200000200000000:~0x0";

/// The same without vectors: SSSE3 and AVX by the first word, what the second has (AVX2, AVX-512) with it. ChaCha20 and
/// Poly1305 then run in words.
pub const NO_VECTORS: &str = "~0x1000020000000000:0";

/// Runs of `openssl speed`: hidden instructions, arguments and phases.
#[rustfmt::skip]
const OPERATIONS: &[(Option<&str>, &[&str], &[CalibratedWork])] = {
    use SymbolClass::{Aes, ChaCha, EcPrivate, Hash, KeyAgreement, OtherPublicKey, Random, RsaPrivate};
    use CalibratedWork::Operation;
    const P256: Option<AgreementCurve> = Some(AgreementCurve::P256);
    const X25519: Option<AgreementCurve> = Some(AgreementCurve::X25519);
    &[
        (ALL, &["rsa2048"], &[Operation(RsaPrivate, None), Operation(OtherPublicKey, None)]),
        (ALL, &["rsa3072"], &[Operation(RsaPrivate, None)]),
        (ALL, &["rsa4096"], &[Operation(RsaPrivate, None)]),
        (ALL, &["ecdsap256"], &[Operation(EcPrivate, P256), Operation(OtherPublicKey, P256)]),
        (ALL, &["ecdsap384"], &[Operation(EcPrivate, None)]),
        (ALL, &["ed25519"], &[Operation(EcPrivate, X25519)]),
        (ALL, &["ecdhx25519"], &[Operation(KeyAgreement, X25519)]),
        (ALL, &["ecdhp256"], &[Operation(KeyAgreement, P256)]),
        (ALL, &["ecdhp384"], &[Operation(KeyAgreement, None)]),
        (ALL, &["-bytes", "1024", "-evp", "aes-128-gcm"], &[Operation(Aes, None)]),
        (ALL, &["-bytes", "1024", "-evp", "aes-128-cbc"], &[Operation(Aes, None)]),
        (ALL, &["-bytes", "1024", "-decrypt", "-evp", "aes-128-cbc"], &[Operation(Aes, None)]),
        (Some(NO_AES), &["-bytes", "1024", "-evp", "aes-128-gcm"], &[Operation(Aes, None)]),
        (Some(NO_AES), &["-bytes", "1024", "-evp", "aes-128-cbc"], &[Operation(Aes, None)]),
        (Some(NO_AES), &["-bytes", "1024", "-decrypt", "-evp", "aes-128-cbc"], &[Operation(Aes, None)]),
        (ALL, &["-bytes", "1024", "-evp", "aes-128-cbc-hmac-sha1"], &[Operation(Aes, None)]),
        (ALL, &["-bytes", "1024", "-evp", "chacha20-poly1305"], &[Operation(ChaCha, None)]),
        (Some(NO_VECTORS), &["-bytes", "1024", "-evp", "chacha20-poly1305"], &[Operation(ChaCha, None)]),
        (ALL, &["-bytes", "256", "-evp", "sha1"], &[Operation(Hash, None)]),
        (ALL, &["-bytes", "256", "-evp", "sha256"], &[Operation(Hash, None)]),
        (ALL, &["-bytes", "256", "-evp", "sha384"], &[Operation(Hash, None)]),
        (ALL, &["-bytes", "64", "rand"], &[Operation(Random, None)]),
    ]
};

/// A configuration for both sides of a handshake, and for the certificate.
const CONFIG: &str = "\
openssl_conf = init
[init]
ssl_conf = ssl
[ssl]
system_default = tls
[tls]
Groups = GROUP
[req]
distinguished_name = name
[name]
";

/// Runs all children.
pub(crate) fn run(
    image: &Image,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Vec<CalibrationRun>, SampleError> {
    let bench = Bench::new(image)?;
    let curves = [AgreementCurve::X25519, AgreementCurve::P256];
    let steps = OPERATIONS.len() + curves.len();
    let mut seen = Vec::new();
    for (step, (mask, args, phases)) in OPERATIONS.iter().enumerate() {
        progress(args.last().unwrap_or(&""), step, steps);
        // Other processors do not read the variable: the run would be the one before again.
        if mask.is_some() && !cfg!(target_arch = "x86_64") {
            continue;
        }
        let speed = |seconds| bench.speed(*mask, args, phases, seconds);
        match speed(SHORT_PHASE_S).or_else(|_| speed(LONG_PHASE_S)) {
            Ok(more) => seen.extend(more),
            // Builds without some algorithm are common; without the first one calibration is impossible.
            Err(error) if step == 0 => return Err(error),
            Err(_) => {}
        }
    }
    for (index, curve) in curves.into_iter().enumerate() {
        progress("handshakes", OPERATIONS.len() + index, steps);
        // Without handshakes only names identify overhead; the calibration then says so.
        let more = bench.handshakes(curve).or_else(|_| bench.handshakes(curve));
        seen.extend(more.unwrap_or_default());
    }
    Ok(seen)
}

/// The `openssl` program with one libcrypto.
struct Bench<'a> {
    image: &'a Image,
    openssl: PathBuf,
    /// Folder of the libcrypto.
    folder: PathBuf,
    dir: TempDir,
}

impl<'a> Bench<'a> {
    fn new(image: &'a Image) -> Result<Self, SampleError> {
        let folder = trusted_folder(image.path())?;
        let openssl = find_program("openssl")
            .ok_or_else(|| problem(image.path(), "the openssl program is missing"))?;
        let dir = tempfile::tempdir().map_err(SampleError::system("create a temporary folder"))?;
        Ok(Self { image, openssl, folder, dir })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.openssl);
        command
            .args(args)
            .env("OPENSSL_CONF", "/dev/null")
            .env_remove("OPENSSL_MODULES")
            .env_remove("LD_PRELOAD")
            .env("LD_LIBRARY_PATH", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// One run of `openssl speed` with several phases.
    fn speed(
        &self,
        mask: Option<&str>,
        args: &[&str],
        phases: &[CalibratedWork],
        seconds: &str,
    ) -> Result<Vec<CalibrationRun>, SampleError> {
        let mut command = self.command(&["speed", "-mr", "-seconds", seconds]);
        command.args(args).stderr(Stdio::piped());
        if let Some(mask) = mask {
            command.env("OPENSSL_ia32cap", mask);
        }
        let mut child = start(command)?;
        let lines = lines(child.stderr.take());
        let sampler = Sampler::start(&[child.id()], FREQUENCY)?;
        let mut windows = Vec::new();
        let deadline = Instant::now() + RUN_TIMEOUT;
        while windows.len() < phases.len() {
            let from = wait_for(&lines, "+D", deadline);
            let is_last = windows.len() + 1 == phases.len();
            let to = if is_last {
                wait_for_cpu_time(&lines, child.id(), deadline)
            } else {
                wait_for(&lines, "+R", deadline).map(|(time, _)| time)
            };
            let (Some((from, _)), Some(to)) = (from, to) else {
                return Err(self.problem("openssl speed did not do what it was asked to"));
            };
            windows.push((from, to));
        }
        let (finished, images) = sampler.finish()?;
        drop(child);
        let mut seen = Vec::new();
        for (window, what) in windows.into_iter().zip(phases) {
            let samples = finished.samples(images.clone(), Some(window));
            seen.push(self.seen(*what, &samples)?);
        }
        Ok(seen)
    }

    /// Handshakes with a temporary certificate over loopback.
    fn handshakes(&self, curve: AgreementCurve) -> Result<Vec<CalibrationRun>, SampleError> {
        let group = match curve {
            AgreementCurve::X25519 => "X25519",
            AgreementCurve::P256 => "P-256",
        };
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        let config = file("openssl.cnf");
        let key = file("key.pem");
        let certificate = file("cert.pem");
        fs::write(&config, CONFIG.replace("GROUP", group))
            .map_err(SampleError::system("write a configuration"))?;
        let own = |args: &[&str]| {
            let mut command = self.command(args);
            command.env("OPENSSL_CONF", &config);
            command
        };
        let made = own(&["req", "-x509", "-newkey", "rsa:2048", "-nodes"])
            .args(["-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate])
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return Err(self.problem("openssl req made no certificate"));
        }
        let mut server = own(&["s_server", "-accept", "127.0.0.1:0"]);
        server.args(["-cert", &certificate, "-key", &key]);
        // The server ends with its input, so the pipe stays open during its life.
        server.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = start(server)?;
        let lines = lines(server.stdout.take());
        let (_, address) = wait_for(&lines, "ACCEPT ", Instant::now() + RUN_TIMEOUT)
            .ok_or_else(|| self.problem("openssl s_server does not listen"))?;
        let mut client = own(&["s_time", "-connect", &address]);
        client.args(["-new", "-tls1_3", "-time", "20"]);
        let client = start(client)?;
        let client_sampler = Sampler::start(&[client.id()], FREQUENCY)?;
        let server_sampler = Sampler::start(&[server.id()], FREQUENCY)?;
        let from = now() + nanos(START_TIME);
        let deadline = Instant::now() + RUN_TIMEOUT;
        // By CPU time, because a busy machine gives little of it per second.
        let busy = |child: &OwnedChild| target::cpu_time([child.id()]) >= HANDSHAKE_CPU_TIME;
        while !(busy(&client) && busy(&server)) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        let window = Some((from, now()));
        let client_samples = client_sampler.stop_between(window)?;
        let server_samples = server_sampler.stop_between(window)?;
        Ok(vec![
            self.seen(CalibratedWork::Client(curve), &client_samples)?,
            self.seen(CalibratedWork::Server, &server_samples)?,
        ])
    }

    /// The samples inside the libcrypto under calibration.
    fn seen(&self, what: CalibratedWork, samples: &Samples) -> Result<CalibrationRun, SampleError> {
        let same = |image: &Image| match (image.build_id(), self.image.build_id()) {
            (Some(one), Some(other)) => one == other,
            _ => image.path() == self.image.path(),
        };
        let Some(index) = samples.images.iter().position(|image| same(image)) else {
            let used = samples.libcryptos();
            let used: Vec<_> = used.iter().map(|library| format!("{:?}", library.path())).collect();
            return Err(self.problem(&format!(
                "the openssl program does not run with it (it uses [{}])",
                used.join(", ")
            )));
        };
        let own = samples.counts.range((index, 0)..=(index, u64::MAX));
        let seen = CalibrationRun {
            what,
            counts: own.map(|((_, start), count)| (*start, *count)).collect(),
        };
        let count: u64 = seen.counts.values().sum();
        if count < MIN_SAMPLES {
            return Err(self.problem(&format!("only {count} samples of {what:?}")));
        }
        Ok(seen)
    }

    fn problem(&self, what: &str) -> SampleError {
        problem(self.image.path(), what)
    }
}

fn problem(libcrypto: &Path, problem: impl Into<String>) -> SampleError {
    SampleError::Calibration { path: libcrypto.to_owned(), problem: problem.into() }
}

/// The folder of a library that may run with our rights: one that only root or we can change. Another user chose
/// the library of a process, and calibration runs it.
fn trusted_folder(library: &Path) -> Result<PathBuf, SampleError> {
    let unreadable = |error: io::Error| problem(library, error.to_string());
    let real = fs::canonicalize(library).map_err(unreadable)?;
    let us = rustix::process::geteuid().as_raw();
    let folder = real.parent().ok_or_else(|| problem(library, "it is in no folder"))?;
    let can_run = |found: Untrusted| {
        problem(library, format!("{found}; calibrating means to run what is there"))
    };
    check_folder(folder, &[us], Sticky::Accept).map_err(can_run)?;
    // In a folder such as /tmp users cannot replace files of others; but in the library's own folder a new file would
    // be enough.
    for part in [folder, &real] {
        check_entry(part, &fs::metadata(part).map_err(unreadable)?, &[us]).map_err(can_run)?;
    }
    Ok(folder.to_owned())
}

fn start(mut command: Command) -> Result<OwnedChild, SampleError> {
    OwnedChild::spawn(&mut command).map_err(SampleError::system("start the openssl program"))
}

/// The lines of a child, each with its time. The thread ends with the child.
fn lines(from: Option<impl Read + Send + 'static>) -> Receiver<(u64, String)> {
    let (send, receive) = mpsc::channel();
    if let Some(from) = from {
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                if send.send((now(), line)).is_err() {
                    break;
                }
            }
        });
    }
    receive
}

/// Waits for a line with this beginning; returns the time of its arrival and the rest of the line.
fn wait_for(
    lines: &Receiver<(u64, String)>,
    start: &str,
    deadline: Instant,
) -> Option<(u64, String)> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (time, line) = lines.recv_timeout(left).ok()?;
        if let Some(rest) = line.strip_prefix(start) {
            return Some((time, rest.trim().to_owned()));
        }
    }
}

/// Waits until a process has used this CPU time, or has ended; returns the time.
fn wait_for_cpu_time(lines: &Receiver<(u64, String)>, pid: u32, deadline: Instant) -> Option<u64> {
    let enough = target::cpu_time([pid]) + OPERATION_CPU_TIME;
    while target::cpu_time([pid]) < enough && Instant::now() < deadline {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok((time, line)) if line.starts_with("+R") => return Some(time),
            Err(RecvTimeoutError::Disconnected) => return None,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Some(now())
}

/// The clock of the samples, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec);
    let nanos = u64::try_from(time.tv_nsec);
    seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn libraries_that_others_can_change_are_not_run() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = fs::canonicalize(dir.path()).expect("its real path").join("lib");
        fs::create_dir(&folder).expect("a folder");
        let library = folder.join("libcrypto.so.3");
        fs::write(&library, "").expect("a file");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
        };
        mode(&folder, 0o755);
        mode(&library, 0o644);
        assert_eq!(trusted_folder(&library).expect("trusted"), folder);
        for (path, bad, good) in [(&folder, 0o1777, 0o755), (&library, 0o666, 0o644)] {
            mode(path, bad);
            let error = trusted_folder(&library).expect_err("not trusted").to_string();
            assert!(
                error.contains("every user may write to") && error.contains("to run"),
                "{error}"
            );
            mode(path, good);
        }
        assert!(trusted_folder(Path::new("/nonexistent/libcrypto.so.3")).is_err());
    }
}
