// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sampler on live processes of which it is known what they do: `openssl speed` of one thing.
//! Skipped aloud where the system does not let processes be sampled.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_inspect::sampler::{
    Calibrations, Class, DEFAULT_FREQUENCY, Profile, SampleError, Sampler, Samples, libcryptos_of,
};

/// A child that does not outlive this value.
struct Running(Child);

impl Running {
    /// `openssl speed` of one operation, in its first phase.
    fn speed(args: &[&str]) -> Self {
        let mut child = Command::new("openssl")
            .args(["speed", "-mr", "-seconds", "60"])
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
        // The pipe stays open as long as the child: what it writes later fits into it.
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

/// Samples a child until there are so many samples.
fn samples(child: &Running, wanted: u64) -> Option<Samples> {
    let mut all: Option<Samples> = None;
    let deadline = Instant::now() + Duration::from_secs(60);
    while all.as_ref().is_none_or(|all| all.total() < wanted) && Instant::now() < deadline {
        let sampler = match Sampler::start(&[child.0.id()], DEFAULT_FREQUENCY) {
            Err(error @ SampleError::NotPermitted { .. }) => {
                eprintln!("skipped: {error}");
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

fn shares(profile: &Profile) -> String {
    let classes = profile.classes.iter();
    let text: Vec<_> = classes
        .map(|one| format!("{} {:.1} %", one.class, one.share.share * 100.0))
        .collect();
    format!("{}; {:?}", text.join(", "), profile.functions)
}

#[test]
fn known_work_is_told_by_class() {
    let mut calibrations = Calibrations::without_cache();
    let mut told = 0;
    // An ECDSA signature also takes random numbers, hashes and memory, which count as such.
    for (args, class, least) in [
        (&["rsa2048"][..], Class::RsaPrivate, 0.9),
        (&["ecdsap256"], Class::EcPrivate, 0.7),
        (&["ecdhx25519"], Class::KeyAgreement, 0.9),
        (&["-evp", "aes-128-gcm", "-bytes", "8192"], Class::Aes, 0.9),
        (&["-evp", "sha256", "-bytes", "8192"], Class::Hash, 0.9),
    ] {
        let child = Running::speed(args);
        let Some(samples) = samples(&child, 500) else {
            return;
        };
        drop(child);
        for library in samples.libcryptos() {
            calibrations
                .ensure(&library, &mut |_, step, of| told += usize::from(step < of))
                .expect("a calibration");
        }
        let profile = samples.profile(&calibrations);
        let share = profile.class(class);
        assert!(share.share > least, "{class}: {}", shares(&profile));
        // All samples may be of one class; the interval ends at its share then.
        assert!(share.low < share.share && share.share <= share.high && share.high <= 1.0);
        let ceiling = profile.ceiling();
        if class.is_private_key() {
            assert!(ceiling.gain > 1.0 / (1.0 - least), "{}", ceiling.words());
        } else {
            assert!(
                ceiling.gain < 1.1,
                "{}: {}",
                ceiling.words(),
                shares(&profile)
            );
        }
        assert!(
            profile.sum(Class::is_unclassified).share < 0.05,
            "{}",
            shares(&profile)
        );
    }
    assert!(told > 10, "progress was told {told} times");
    let (server, client, _dir) = handshakes();
    let samples = samples(&server, 1500).expect("it was possible before");
    drop((server, client));
    let profile = samples.profile(&calibrations);
    let share = |class| profile.class(class).share;
    // Making a key for X25519 is what an Ed25519 signature spends its time on.
    assert!(share(Class::EcPrivate) < 0.02, "{}", shares(&profile));
    assert!(share(Class::KeyAgreement) > 0.03, "{}", shares(&profile));
    assert!(share(Class::RsaPrivate) > 0.15, "{}", shares(&profile));
    assert!(share(Class::Tls) > 0.01, "{}", shares(&profile));
    assert!(
        profile.sum(Class::is_unclassified).share < 0.08,
        "{}",
        shares(&profile)
    );
}

/// A TLS 1.3 server with an RSA key, and a client that does nothing but handshakes.
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
    let make = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
    ];
    let made = openssl(&[&make[..], &["-keyout", &key, "-out", &certificate]].concat())
        .0
        .wait();
    assert!(made.is_ok_and(|status| status.success()));
    let mut server = openssl(&[
        "s_server",
        "-accept",
        "127.0.0.1:0",
        "-cert",
        &certificate,
        "-key",
        &key,
    ]);
    let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines();
    let address = lines.find_map(|line| Some(line.ok()?.strip_prefix("ACCEPT ")?.to_owned()));
    let address = address.expect("where it listens");
    // What it says about each connection has to be read, or it waits.
    std::thread::spawn(move || lines.count());
    let mut client = openssl(&["s_time", "-connect", &address, "-new", "-time", "120"]);
    let mut said = client.0.stdout.take().expect("a pipe");
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    (server, client, dir)
}

#[test]
fn samples_add_up_to_the_cpu_time_that_the_system_counts() {
    let child = Running::speed(&["rsa2048"]);
    let Some(samples) = samples(&child, 1000) else {
        return;
    };
    let counted = samples.cpu_time().expect("it lives").as_secs_f64();
    let sampled = samples.sampled_time().as_secs_f64();
    assert!(
        (0.9..1.1).contains(&(sampled / counted)),
        "{sampled} s sampled, {counted} s counted"
    );
}

#[test]
fn what_is_not_calibrated_is_told() {
    let child = Running::speed(&["rsa2048"]);
    let Some(samples) = samples(&child, 200) else {
        return;
    };
    let loaded = libcryptos_of(child.0.id());
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].build_id(), samples.libcryptos()[0].build_id());
    let profile = samples.profile(&Calibrations::without_cache());
    assert_eq!(profile.notes.len(), 1, "{:?}", profile.notes);
    assert!(
        profile.class(Class::CryptoUnknown).share > 0.5,
        "{}",
        shares(&profile)
    );
}

#[test]
fn children_are_followed() {
    // The shell starts what computes after the sampler has begun.
    let mut shell = Command::new("/bin/sh")
        .args([
            "-c",
            "read go; openssl speed -seconds 60 -bytes 8192 -evp aes-128-gcm & wait",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell");
    let sampler = match Sampler::start(&[shell.id()], DEFAULT_FREQUENCY) {
        Err(error @ SampleError::NotPermitted { .. }) => {
            eprintln!("skipped: {error}");
            end_group(&mut shell);
            return;
        }
        other => other.expect("a sampler"),
    };
    drop(shell.stdin.take());
    let deadline = Instant::now() + Duration::from_secs(30);
    // Until what it started has used enough of a processor, however busy that is.
    let busy = |pid: &u32| cpu_time(*pid) > Duration::from_millis(300);
    while !children(shell.id()).iter().any(busy) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let samples = sampler.stop();
    end_group(&mut shell);
    let samples = samples.expect("samples");
    assert!(samples.total() > 100, "{samples:?}");
    assert_eq!(samples.libcryptos().len(), 1, "{samples:?}");
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn cpu_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().next().unwrap_or("0");
    Duration::from_nanos(nanos.parse().unwrap_or(0))
}

/// Ends a child and what it started: they are a group of their own.
fn end_group(child: &mut Child) {
    let group = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    drop(child.wait());
}
