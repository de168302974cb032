// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sampler on live processes with known work: `openssl speed` of one operation. Skipped where the system does
//! not permit sampling.
//!
//! The machine may be busy, so shares are compared at the end of their interval, among samples outside the
//! kernel. Kernel samples depend on the machine: interrupts, and, where the kernel is invisible, CPU time that
//! the hypervisor withheld.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_sampler::{
    Calibrations, DEFAULT_FREQUENCY, NO_AES, NO_VECTORS, Profile, SampleError, Sampler, Samples,
    Share, SymbolClass, libcryptos_of,
};
use millrace_testkit::wait::SOON;
/// Duration of `openssl speed` in seconds: longer than any test, because it ends afterwards.
const SECONDS: &str = "600";

/// Kills the child on drop.
struct Running(Child);

impl Running {
    /// `openssl speed` of one operation, in its first phase.
    fn speed(args: &[&str]) -> Self {
        Self::masked(args, None)
    }

    /// The same with a mask of the processor's instructions for OpenSSL.
    fn masked(args: &[&str], mask: Option<&str>) -> Self {
        let mut child = Command::new("openssl")
            .envs(mask.map(|mask| ("OPENSSL_ia32cap", mask)))
            .args(["speed", "-mr", "-seconds", SECONDS])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl");
        let mut first = String::new();
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
        lines.read_line(&mut first).expect("its first line");
        assert!(first.starts_with("+D"), "{first}");
        // The pipe stays open during the child's life; its later output fits into the pipe.
        std::mem::forget(lines);
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Samples a child until it has `wanted` samples.
fn samples(child: &Running, wanted: u64) -> Option<Samples> {
    let mut all: Option<Samples> = None;
    let deadline = Instant::now() + SOON;
    while all.as_ref().is_none_or(|all| all.total() < wanted) && Instant::now() < deadline {
        let sampler = match Sampler::start(&[child.0.id()], DEFAULT_FREQUENCY) {
            Err(error @ SampleError::NotPermitted { .. }) => {
                let reason = format!("sampling is not permitted: {error}");
                millrace_testkit::skip::record(file!(), &reason);
                return None;
            }
            other => other.expect("a sampler"),
        };
        std::thread::sleep(Duration::from_millis(300));
        let more = sampler.stop().expect("samples");
        match &mut all {
            Some(all) => all.add(&more),
            None => all = Some(more),
        }
    }
    all
}

/// The share of these classes among the samples outside the kernel.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the kernel's samples are counted, and not more than all"
)]
fn own(profile: &Profile, fits: impl Fn(SymbolClass) -> bool) -> Share {
    let kernel = profile.class(SymbolClass::Kernel).samples as u64;
    let total = profile.samples - kernel;
    assert!(total > 0, "{}", shares(profile));
    Share::of(profile.sum(fits).samples, total)
}

fn shares(profile: &Profile) -> String {
    let classes = profile.classes.iter();
    let text: Vec<_> =
        classes.map(|row| format!("{} {:.1} %", row.class, row.share.share * 100.0)).collect();
    format!("{}; {:?}", text.join(", "), profile.functions)
}

#[test]
fn known_operations_are_classified() {
    let mut calibrations = Calibrations::without_cache();
    let mut steps = 0;
    // An ECDSA signature also takes random numbers, hashes and memory, which count as such.
    for (mask, args, class, least) in [
        (None, &["rsa2048"][..], SymbolClass::RsaPrivate, 0.9),
        (None, &["ecdsap256"], SymbolClass::EcPrivate, 0.7),
        (None, &["ecdhx25519"], SymbolClass::KeyAgreement, 0.9),
        (None, &["-evp", "aes-128-gcm", "-bytes", "8192"], SymbolClass::Aes, 0.9),
        (Some(NO_AES), &["-evp", "aes-256-gcm", "-bytes", "8192"], SymbolClass::Aes, 0.9),
        (
            Some(NO_AES),
            &["-evp", "aes-256-cbc", "-bytes", "8192", "-decrypt"],
            SymbolClass::Aes,
            0.9,
        ),
        (
            Some(NO_VECTORS),
            &["-evp", "chacha20-poly1305", "-bytes", "8192"],
            SymbolClass::ChaCha,
            0.9,
        ),
        (None, &["-evp", "sha256", "-bytes", "8192"], SymbolClass::Hash, 0.9),
    ] {
        let child = Running::masked(args, mask);
        let Some(samples) = samples(&child, 500) else {
            return;
        };
        drop(child);
        for library in samples.libcryptos() {
            calibrations
                .ensure(&library, &mut |_, step, of| steps += usize::from(step < of))
                .expect("a calibration");
        }
        let profile = samples.profile(&calibrations);
        let of = |fits: &dyn Fn(SymbolClass) -> bool| own(&profile, fits);
        println!("{args:?}: {}", shares(&profile));
        let share = of(&|other| other == class);
        assert!(share.high > least, "{class}: {}", shares(&profile));
        // If all samples have one class, the interval ends at its share.
        assert!(share.low < share.share && share.share <= share.high && share.high <= 1.0);
        if !class.is_private_key() {
            let private = of(&SymbolClass::is_private_key);
            assert!(private.low < 0.1, "{}", profile.ceiling().words());
        }
        let unclassified = of(&SymbolClass::is_unclassified);
        assert!(unclassified.low < 0.05, "{}", shares(&profile));
    }
    assert!(steps > 10, "progress was called {steps} times");
    let (server, client, _dir) = handshakes();
    let samples = samples(&server, 1500).expect("it was possible before");
    drop((server, client));
    let profile = samples.profile(&calibrations);
    println!("handshakes: {}", shares(&profile));
    let share = |class| own(&profile, |other| other == class);
    // An Ed25519 signature spends its time in the same code as X25519 key generation.
    let signatures = share(SymbolClass::EcPrivate);
    assert!(signatures.low < 0.02, "{}", shares(&profile));
    for (class, least) in [
        // 8 % where RSA has wide vectors, 4 % where it is slower without them.
        (SymbolClass::KeyAgreement, 0.02),
        (SymbolClass::RsaPrivate, 0.15),
        (SymbolClass::Tls, 0.01),
    ] {
        assert!(share(class).high > least, "{class}: {}", shares(&profile));
    }
    let unclassified = own(&profile, SymbolClass::is_unclassified);
    assert!(unclassified.low < 0.08, "{}", shares(&profile));
}

/// A TLS 1.3 server with an RSA key, and a client that only makes handshakes.
fn handshakes() -> (Running, Running, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (key, certificate) = (file("key.pem"), file("cert.pem"));
    let openssl = |args: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(args).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        Running(command.spawn().expect("openssl"))
    };
    let make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"];
    let made = openssl(&[&make[..], &["-keyout", &key, "-out", &certificate]].concat()).0.wait();
    assert!(made.is_ok_and(|status| status.success()));
    let mut server =
        openssl(&["s_server", "-accept", "127.0.0.1:0", "-cert", &certificate, "-key", &key]);
    let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines();
    let address = lines.find_map(|line| Some(line.ok()?.strip_prefix("ACCEPT ")?.to_owned()));
    let address = address.expect("where it listens");
    // Its output about each connection must be read, or it blocks.
    std::thread::spawn(move || lines.count());
    let mut client = openssl(&["s_time", "-connect", &address, "-new", "-time", SECONDS]);
    let mut said = client.0.stdout.take().expect("a pipe");
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    (server, client, dir)
}

#[test]
fn samples_add_up_to_the_cpu_time_that_the_system_counts() {
    let child = Running::speed(&["rsa2048"]);
    let deadline = Instant::now() + SOON;
    // CPU time withheld by the hypervisor is counted but not sampled. Such noise only removes samples, and not
    // all the time: one undisturbed window is enough.
    let mut seen = Vec::new();
    while Instant::now() < deadline {
        let Some(samples) = samples(&child, 500) else {
            return;
        };
        let counted = samples.cpu_time().expect("it lives").as_secs_f64();
        let ratio = samples.sampled_time().as_secs_f64() / counted;
        if (0.9..1.1).contains(&ratio) {
            return;
        }
        seen.push(ratio);
    }
    panic!("sampled of what was counted: {seen:?}");
}

#[test]
fn missing_calibration_is_reported() {
    let child = Running::speed(&["rsa2048"]);
    let Some(samples) = samples(&child, 200) else {
        return;
    };
    let loaded = libcryptos_of(child.0.id());
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].build_id(), samples.libcryptos()[0].build_id());
    let profile = samples.profile(&Calibrations::without_cache());
    assert_eq!(profile.notes.len(), 1, "{:?}", profile.notes);
    let unknown = own(&profile, |class| class == SymbolClass::CryptoUnknown);
    assert!(unknown.high > 0.5, "{}", shares(&profile));
}

#[test]
fn children_are_sampled() {
    // The shell starts the computation after the sampler.
    let child = Command::new("/bin/sh")
        .args(["-c", "read go; openssl speed -seconds 600 -bytes 8192 -evp aes-128-gcm & wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell");
    let mut shell = Group(child);
    let sampler = match Sampler::start(&[shell.0.id()], DEFAULT_FREQUENCY) {
        Err(error @ SampleError::NotPermitted { .. }) => {
            millrace_testkit::skip!("sampling is not permitted: {error}");
        }
        other => other.expect("a sampler"),
    };
    drop(shell.0.stdin.take());
    let deadline = Instant::now() + SOON;
    // Until the child has used CPU time for a thousand samples, however busy the machine is.
    let busy = |pid: &u32| cpu_time(*pid) > Duration::from_secs(1);
    while !children(shell.0.id()).iter().any(busy) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let samples = sampler.stop().expect("samples");
    assert!(samples.total() > 100, "{samples:?}");
    assert_eq!(samples.libcryptos().len(), 1, "{samples:?}");
}

/// Kills the process group of the child on drop.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        drop(self.0.wait());
    }
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn cpu_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().next().unwrap_or("0");
    Duration::from_nanos(nanos.parse().unwrap_or(0))
}
