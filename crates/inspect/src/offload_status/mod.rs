// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a device serves a running tunnel or server: algorithm → implementation → device → counters that
//! move.
//!
//! ```text
//!  IPsec     SA's algorithm ─► the kernel's winner ─► a device? ─► its counters
//!  OpenVPN   data channel in the kernel? ─► as above;  in the process ─► libraries it has mapped
//!  servers   libraries that the process has mapped ─► a device's engine or provider? ─► its counters
//! ```
//!
//! The answer is *yes* only if a device's counters moved between two readings; a device that is up, or a loaded
//! library, proves nothing. Keys of security associations are never read.

mod counters;
mod states;

use millrace_hostfs::{Probe, Root, TABLE_BYTES, maps, process};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::counters::{CounterReading, Moved, POOL, Watched};
pub use self::states::{SecurityAssociation, security_associations};

use crate::kernel::crypto::{Algorithm, ComputeSite, algorithms, winner};
use crate::network::{InterfaceKind, Network};
use crate::section::{Section, SectionReader};

/// Bound on the tunnels and servers in the report. A user can start any number of processes that look like one.
const MAX_SUBJECTS: usize = 1024;

/// The users of cryptography on this machine, and whether a device serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Used {
    /// Running tunnels and servers
    pub subjects: Vec<CryptoUser>,
    /// Time between the two readings of counters, in milliseconds; null after a single reading
    pub watched_ms: Option<u64>,
    /// Counters of devices that moved between the readings
    pub moved: Vec<Moved>,
}

/// A tunnel or a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CryptoUser {
    /// The tunnel or server
    pub what: String,
    /// The algorithm, if known
    pub algorithm: Option<String>,
    /// Driver or library that computes it, by the kernel's or the library's name
    pub implementation: Option<String>,
    /// The device, if one computes it
    pub device: Option<String>,
    /// Whether a device computes it
    pub accelerated: Accelerated,
    /// The evidence for the answer
    pub evidence: Vec<String>,
}

impl CryptoUser {
    fn unknown(what: String) -> Self {
        Self {
            what,
            algorithm: None,
            implementation: None,
            device: None,
            accelerated: Accelerated::Unknown,
            evidence: Vec::new(),
        }
    }

    fn with(mut self, evidence: String) -> Self {
        self.evidence.push(evidence);
        self
    }
}

/// Whether a device other than the processor does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerated {
    /// Its counters moved
    Yes,
    /// The processor does it, or the device's counters did not move under load
    No,
    /// The configuration names a device, and nothing proves or refutes that the device is used
    Unknown,
}

/// Examines all running tunnels and servers; `watched` compares two readings of the counters.
#[must_use]
pub fn section(root: &Root, network: Option<&Network>, watched: Option<Watched>) -> Section<Used> {
    let mut reader = SectionReader::new(root);
    let table = reader.table("proc/crypto");
    let kernel = table.map(|text| algorithms(&text)).unwrap_or_default();
    let judge = Judge { kernel: &kernel, watched: watched.as_ref() };
    let mut subjects = ipsec(&mut reader, &judge);
    subjects.extend(processes(root, &judge, network));
    subjects.extend(network.and_then(|network| kernel_tls(&judge, network)));
    let subjects = reader.first("tunnels and servers", subjects, MAX_SUBJECTS);
    let watched_ms = watched.as_ref().map(|watched| watched.milliseconds);
    reader.section(Some(Used { subjects, watched_ms, moved: watched.unwrap_or_default().moved }))
}

/// The facts by which a tunnel or server is judged.
struct Judge<'a> {
    kernel: &'a [Algorithm],
    /// Watched counters; `None` after a single reading.
    watched: Option<&'a Watched>,
}

impl Judge<'_> {
    /// The kernel's implementation of an algorithm, with the answer.
    fn by_kernel(&self, what: String, algorithm: String) -> CryptoUser {
        let taken = winner(self.kernel, &algorithm);
        let mut subject = CryptoUser {
            algorithm: Some(algorithm.clone()),
            implementation: taken.map(|taken| taken.driver.clone()),
            device: taken.and_then(|taken| taken.device()).map(str::to_owned),
            ..CryptoUser::unknown(what)
        };
        let Some(taken) = taken else {
            return subject.with(format!("/proc/crypto has no {algorithm}"));
        };
        let driver = &taken.driver;
        let priority = taken.priority;
        subject = subject.with(format!("the kernel uses {driver} (priority {priority}) for it"));
        let others =
            self.kernel.iter().filter(|other| other.name == algorithm && other.driver != *driver);
        for (other, device) in others.filter_map(|other| Some((other, other.device()?))) {
            let driver = &other.driver;
            let priority = other.priority;
            subject = subject.with(format!(
                "{device} has {driver} for it with priority {priority}, which is lower"
            ));
        }
        let by_processor = match (taken.site(), subject.device.clone()) {
            (ComputeSite::Device, Some(device)) => {
                self.by_device(&mut subject, &device);
                return subject;
            }
            (ComputeSite::Instructions, _) => {
                "that uses the processor's instructions, not a device"
            }
            (ComputeSite::Generic, _) => "that is portable code: neither instructions nor a device",
            (ComputeSite::Device | ComputeSite::Other, _) => return subject,
        };
        subject.accelerated = Accelerated::No;
        subject.with(by_processor.to_owned())
    }

    /// The answer for a device that should do the work: do its counters move?
    fn by_device(&self, subject: &mut CryptoUser, device: &str) {
        let moved =
            self.watched.map(|watched| watched.moved.iter().find(|moved| moved.device == device));
        let (accelerated, evidence) = match moved {
            Some(Some(moved)) => (Accelerated::Yes, moved.to_string()),
            Some(None) => {
                (Accelerated::No, format!("no counter of {device} moved between the readings"))
            }
            None => (Accelerated::Unknown, format!("the counters of {device} were read only once")),
        };
        subject.accelerated = accelerated;
        subject.evidence.push(evidence);
    }

    /// The answer for a client of the pool with these identities: did the node of this machine do jobs for it?
    fn by_pool(&self, subject: &mut CryptoUser, identities: &[String]) {
        let is_own = |identity: &String| identities.contains(identity);
        let moved = self.watched.and_then(|watched| {
            let mut moved = watched.moved.iter();
            moved.find(|moved| moved.device == POOL && is_own(&moved.counter))
        });
        let clients = self.watched.map(|watched| &watched.clients);
        let known = clients.and_then(|clients| clients.iter().find(|identity| is_own(identity)));
        let (accelerated, evidence) = match (moved, known) {
            (Some(Moved { counter, by, .. }), _) => {
                (Accelerated::Yes, format!("the node of this machine did {by} jobs of {counter}"))
            }
            (None, Some(identity)) => (
                Accelerated::No,
                format!("the node of this machine knows {identity} and did none of its jobs between the readings"),
            ),
            (None, None) => (
                Accelerated::Unknown,
                "no node of this machine counts its jobs; `millrace gateway check` shows whether its handshakes \
                 are pooled"
                    .to_owned(),
            ),
        };
        subject.accelerated = accelerated;
        subject.evidence.push(evidence);
    }
}

// ---- IPsec ----------------------------------------------------------------------------------------

fn ipsec(reader: &mut SectionReader<'_>, judge: &Judge<'_>) -> Vec<CryptoUser> {
    let program = ["sbin/ip", "usr/sbin/ip", "bin/ip", "usr/bin/ip"];
    let has_states = reader.exists("proc/net/xfrm_stat");
    let program = program.into_iter().find(|path| reader.exists(path));
    let Some(program) = program.filter(|_| has_states) else {
        return Vec::new();
    };
    let question = Probe {
        name: "ip-xfrm-state".to_owned(),
        what: "security associations (needs root)",
        program: &format!("/{program}"),
        arguments: &["-s", "xfrm", "state", "list", "nokeys"],
        environment: &[],
    };
    let text = reader.ask(&question).unwrap_or_default();
    let judged = security_associations(&text).into_iter().map(|state| {
        let what = format!("IPsec {} to {}", state.source, state.destination);
        let mut subject = judge.by_kernel(what, state.algorithm.clone());
        if let Some(card) = &state.offload {
            subject.accelerated = Accelerated::Yes;
            subject.device = Some(card.clone());
            subject.evidence.push(format!("the association is offloaded to the card {card}"));
        }
        subject
    });
    judged.collect()
}

// ---- processes ------------------------------------------------------------------------------------

/// Programs of interest: name of the process, and description.
const PROGRAMS: [(&str, &str); 12] = [
    ("openvpn", "OpenVPN"),
    ("nginx", "nginx"),
    ("haproxy", "HAProxy"),
    ("apache2", "Apache"),
    ("httpd", "Apache"),
    ("lighttpd", "lighttpd"),
    ("stunnel", "stunnel"),
    ("stunnel4", "stunnel"),
    ("charon", "strongSwan"),
    ("charon-systemd", "strongSwan"),
    ("squid", "Squid"),
    ("traffic_server", "Traffic Server"),
];

/// The program whose processes have this name, if it is a tunnel or a server.
pub(crate) fn program_of(name: &str) -> Option<&'static str> {
    let row = PROGRAMS.iter().find(|(known, _)| *known == name);
    row.map(|(_, program)| *program)
}

/// Libraries that use a device: part of the file name, device, description.
#[rustfmt::skip]
const LIBRARIES: [(&str, &str, &str); 8] = [
    ("qatengine", "Intel QAT", "QAT's engine for OpenSSL"),
    ("qatprovider", "Intel QAT", "QAT's provider for OpenSSL"),
    ("libqat", "Intel QAT", "QAT's user-space library"),
    ("afalg.so", "the kernel (AF_ALG)", "OpenSSL's AF_ALG engine"),
    ("devcrypto.so", "the kernel (/dev/crypto)", "OpenSSL's /dev/crypto engine"),
    ("padlock.so", "VIA PadLock", "OpenSSL's PadLock engine"),
    ("millrace_provider", POOL, "Millrace's provider for OpenSSL"),
    ("libmillrace_preload", POOL, "Millrace's library for nginx"),
];

/// The tunnels and servers among the processes, at most one more than the report has.
fn processes(root: &Root, judge: &Judge<'_>, network: Option<&Network>) -> Vec<CryptoUser> {
    let running = process::named(root, |name| program_of(name).is_some());
    let mut subjects: Vec<CryptoUser> = Vec::new();
    for process in &running {
        let name = process.name.as_str();
        let pid = process.pid;
        let program = program_of(name).unwrap_or(name);
        // The master of a server runs as another user than its workers.
        let family = running.iter().filter(|other| other.name == name);
        let identities = family.filter_map(|other| Some(format!("uid:{}", other.uid?)));
        let subject = match root.text(&format!("proc/{pid}/maps"), TABLE_BYTES) {
            Ok(maps) => {
                of_process((program, pid), &maps, &identities.collect::<Vec<_>>(), judge, network)
            }
            Err(why) => CryptoUser {
                evidence: vec![format!("its libraries could not be read: {why}")],
                ..CryptoUser::unknown(format!("{program} (process {pid})"))
            },
        };
        // Workers of one server are alike: one is enough.
        let same = |known: &CryptoUser| {
            known.evidence == subject.evidence && known.what.starts_with(program)
        };
        if !subjects.iter().any(same) && subjects.len() <= MAX_SUBJECTS {
            subjects.push(subject);
        }
    }
    subjects
}

fn of_process(
    (program, pid): (&str, u32),
    maps: &str,
    identities: &[String],
    judge: &Judge<'_>,
    network: Option<&Network>,
) -> CryptoUser {
    let libraries = mapped(maps);
    let what = format!("{program} (process {pid})");
    let in_kernel = network.is_some_and(|network| {
        network.interfaces.iter().any(|interface| interface.kind == InterfaceKind::Ovpn)
    });
    if program == "OpenVPN" && in_kernel {
        let mut subject = judge.by_kernel(what, "gcm(aes)".to_owned());
        let text = "its data channel is in the kernel (an ovpn interface exists)";
        subject.evidence.insert(0, text.to_owned());
        return subject;
    }
    let libcrypto = libraries.iter().find(|path| path.contains("libcrypto.so"));
    let mut subject = CryptoUser {
        implementation: libcrypto.cloned(),
        accelerated: Accelerated::No,
        ..CryptoUser::unknown(what)
    };
    match libcrypto {
        Some(path) => subject.evidence.push(format!("it has mapped {path}")),
        None => {
            subject.accelerated = Accelerated::Unknown;
            let text =
                "it has not mapped libcrypto: it uses another library, or one that is linked in";
            subject.evidence.push(text.to_owned());
        }
    }
    let known =
        LIBRARIES.iter().filter(|(part, ..)| libraries.iter().any(|path| path.contains(part)));
    for (_, device, what) in known {
        let again =
            subject.device.replace((*device).to_owned()).is_some_and(|before| before == *device);
        subject.evidence.push(format!("it has mapped {what}"));
        match *device {
            _ if again => {}
            POOL => judge.by_pool(&mut subject, identities),
            device => judge.by_device(&mut subject, device),
        }
    }
    if subject.device.is_none() && libcrypto.is_some() {
        let text = "it has no engine or provider of a device: the processor computes";
        subject.evidence.push(text.to_owned());
    }
    subject
}

/// The libraries that a process has mapped, each once.
fn mapped(maps: &str) -> Vec<String> {
    let libraries = maps::files(maps).into_iter().map(|file| {
        let suffix = if file.deleted { " (deleted)" } else { "" };
        format!("{}{suffix}", file.path.display())
    });
    libraries.filter(|path| path.contains(".so")).collect()
}

// ---- kernel TLS -----------------------------------------------------------------------------------

fn kernel_tls(judge: &Judge<'_>, network: &Network) -> Option<CryptoUser> {
    let stat = network.ktls.as_ref()?;
    let count = |name: &str| stat.get(name).copied().unwrap_or(0);
    let (software, device) =
        (count("TlsTxSw") + count("TlsRxSw"), count("TlsTxDevice") + count("TlsRxDevice"));
    if software + device == 0 {
        return None;
    }
    let mut subject = judge.by_kernel("kernel TLS".to_owned(), "gcm(aes)".to_owned());
    subject.evidence.push(format!(
        "connections since boot: {software} encrypted by the kernel, {device} by a card"
    ));
    if device > 0 {
        subject.accelerated = Accelerated::Yes;
        subject.device = Some("a network card".to_owned());
    }
    Some(subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRYPTO: &str = "\
name : rfc4106(gcm(aes))
driver : rfc4106-gcm-aesni
priority : 400
selftest : passed
internal : no

name : authenc(hmac(sha256),cbc(aes))
driver : qat_aes_cbc_hmac_sha256
priority : 4001
selftest : passed
internal : no
";

    fn watched(device: &str, counter: &str) -> Watched {
        Watched {
            moved: vec![Moved { device: device.to_owned(), counter: counter.to_owned(), by: 1000 }],
            milliseconds: 2000,
            clients: ["uid:33".to_owned()].into(),
        }
    }

    fn answer(algorithm: &str, watched: Option<&Watched>) -> CryptoUser {
        let kernel = algorithms(CRYPTO);
        let judge = Judge { kernel: &kernel, watched };
        judge.by_kernel("a tunnel".to_owned(), algorithm.to_owned())
    }

    #[test]
    fn only_counters_that_move_prove_a_device() {
        let cbc = "authenc(hmac(sha256),cbc(aes))";
        let (moved, still) = (watched("Intel QAT", "requests"), Watched::default());
        assert_eq!(answer(cbc, Some(&moved)).accelerated, Accelerated::Yes);
        assert_eq!(answer(cbc, Some(&still)).accelerated, Accelerated::No);
        assert_eq!(answer(cbc, None).accelerated, Accelerated::Unknown);
        // A device that is busy with other algorithms does not serve AES-GCM.
        let gcm = answer("rfc4106(gcm(aes))", Some(&moved));
        assert_eq!((gcm.accelerated, gcm.device), (Accelerated::No, None));
        assert_eq!(answer("rot13", Some(&moved)).accelerated, Accelerated::Unknown);
    }

    const LIBCRYPTO: &str = "7f00-7f01 r-xp 00000000 fe:00 12 /usr/lib/libcrypto.so.3\n\
        7f02-7f03 rw-p 0 00:00 0 [heap]\n";

    fn nginx(maps: &str, uid: u32, watched: &Watched) -> CryptoUser {
        let judge = Judge { kernel: &[], watched: Some(watched) };
        of_process(("nginx", 1), maps, &[format!("uid:{uid}")], &judge, None)
    }

    #[test]
    fn libraries_of_a_process_tell_who_computes() {
        let still = Watched::default();
        let subject = nginx(LIBCRYPTO, 33, &still);
        assert_eq!((subject.accelerated, subject.device), (Accelerated::No, None));
        let engine =
            format!("{LIBCRYPTO}7f05-7f06 r-xp 0 fe:00 13 /usr/lib/engines-3/qatengine.so\n");
        let subject = nginx(&engine, 33, &still);
        assert_eq!(subject.accelerated, Accelerated::No, "{:?}", subject.evidence);
        assert_eq!(subject.device.as_deref(), Some("Intel QAT"));
        assert_eq!(nginx("", 33, &still).accelerated, Accelerated::Unknown);
    }

    #[test]
    fn jobs_at_the_local_node_prove_that_a_server_is_pooled() {
        let maps = format!(
            "{LIBCRYPTO}7f05-7f06 r-xp 0 fe:00 13 /usr/lib/ossl-modules/millrace_provider.so\n"
        );
        let answer = |uid, watched: &Watched| nginx(&maps, uid, watched).accelerated;
        assert_eq!(answer(33, &watched(POOL, "uid:33")), Accelerated::Yes);
        assert_eq!(answer(33, &watched(POOL, "uid:34")), Accelerated::No);
        let stranger = nginx(&maps, 35, &watched(POOL, "uid:33"));
        assert_eq!(stranger.accelerated, Accelerated::Unknown);
        let said = stranger.evidence.last().expect("evidence");
        assert!(said.contains("millrace gateway check"), "{said}");
    }
}
