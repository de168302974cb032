// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Settings of an administrator, by environment variables. Everything else about a response (types, lengths, level,
//! buffers) stays with the server's own directives.

use std::time::Duration;

use millrace_edge::compression::EngineKind;

/// Names of the variables; nginx forgets variables that no `env` directive names.
pub const VARIABLES: [&str; 8] =
    [SCOPE, GOAL, VERIFY, ENGINES, GATHER, DEVICE, DEVICE_MIN, DEVICE_MS];

const SCOPE: &str = "MILLRACE_GZIP";
const GOAL: &str = "MILLRACE_GZIP_GOAL";
const VERIFY: &str = "MILLRACE_GZIP_VERIFY";
const ENGINES: &str = "MILLRACE_GZIP_ENGINES";
const GATHER: &str = "MILLRACE_GZIP_GATHER";
const DEVICE: &str = "MILLRACE_GZIP_DEVICE";
const DEVICE_MIN: &str = "MILLRACE_GZIP_DEVICE_MIN";
const DEVICE_MS: &str = "MILLRACE_GZIP_DEVICE_MS";

/// Bounds of the first chunk of a stream, in KiB. Below, output grows; above, the first byte comes later than from
/// zlib, which holds back 40 to 100 KiB of text.
const GATHER_KIB: std::ops::RangeInclusive<usize> = 16..=256;

/// Bounds of the shortest chunk for a device, in bytes: what QATzip takes, and the longest chunk.
const DEVICE_MIN_BYTES: std::ops::RangeInclusive<usize> = 128..=256 * 1024;

/// Bounds of the time for an answer of a device, in milliseconds: a worker stands still for it when a request is lost.
const DEVICE_MILLISECONDS: std::ops::RangeInclusive<u64> = 1..=10_000;

/// Programs that are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServedPrograms {
    /// The web servers that the library knows.
    #[default]
    Servers,
    /// Every program.
    Any,
    /// None: every call is passed on to zlib.
    Off,
}

/// Purpose of the levels above 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionGoal {
    /// The size that zlib's level has, for less time.
    #[default]
    Same,
    /// The least time; the output is 5 to 18 % longer.
    Cpu,
}

/// Whether a device compresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceUse {
    /// The processor alone.
    #[default]
    Off,
    /// The device; the processor for short chunks, and where the device cannot.
    Failover,
    /// The device alone: what it cannot compress is sent as it is.
    Only,
}

/// Outputs that are decompressed and compared before they are sent. The output of a device always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkVerification {
    /// Outputs of libdeflate from level 2 and 32 KiB on, where it costs about a tenth; of the others one in 64.
    #[default]
    Auto,
    /// All outputs.
    All,
    /// No outputs but those of a device.
    Off,
}

/// Settings of a process, from its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionSettings {
    /// `MILLRACE_GZIP`: `on`, `any`, `off`.
    pub scope: ServedPrograms,
    /// `MILLRACE_GZIP_GOAL`: `same`, `cpu`.
    pub goal: CompressionGoal,
    /// `MILLRACE_GZIP_VERIFY`: `auto`, `all`, `off`.
    pub verify: ChunkVerification,
    /// `MILLRACE_GZIP_ENGINES`: whether `isal` is in the list.
    pub isal: bool,
    /// `MILLRACE_GZIP_ENGINES`: whether `libdeflate` is in the list.
    pub libdeflate: bool,
    /// `MILLRACE_GZIP_GATHER`: bytes to gather before the first ones are sent, unless the server flushes.
    pub gather: usize,
    /// `MILLRACE_GZIP_DEVICE`: `off`, `failover`, `only`.
    pub device: DeviceUse,
    /// `MILLRACE_GZIP_DEVICE_MIN`: bytes of the shortest chunk for a device.
    pub device_min: usize,
    /// `MILLRACE_GZIP_DEVICE_MS`: time for an answer of a device.
    pub device_time: Duration,
}

impl Default for CompressionSettings {
    fn default() -> Self {
        Self {
            scope: ServedPrograms::default(),
            goal: CompressionGoal::default(),
            verify: ChunkVerification::default(),
            isal: true,
            libdeflate: true,
            // About what zlib holds back.
            gather: 128 * 1024,
            device: DeviceUse::default(),
            // Below, one core is faster than the way to a card and back.
            device_min: 64 * 1024,
            // A card answers within 0.2 ms, and a worker stands still this long when a request is lost.
            device_time: Duration::from_millis(50),
        }
    }
}

impl CompressionSettings {
    /// Reads the variables; a value that is not understood is named in the second part, and the default holds.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut found = Self::default();
        let mut problems = Vec::new();
        for name in VARIABLES {
            if let Some(value) = variable(name).filter(|value| !value.is_empty())
                && found.set(name, &value).is_none()
            {
                let wanted = accepted(name);
                problems.push(format!("{name}: {value:?} is not {wanted}; the default holds"));
            }
        }
        (found, problems)
    }

    /// Sets the field of a variable. `None` for a value that the variable does not accept: then nothing is set.
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match (name, value) {
            (SCOPE, "on") => self.scope = ServedPrograms::Servers,
            (SCOPE, "any") => self.scope = ServedPrograms::Any,
            (SCOPE, "off") => self.scope = ServedPrograms::Off,
            (GOAL, "same") => self.goal = CompressionGoal::Same,
            (GOAL, "cpu") => self.goal = CompressionGoal::Cpu,
            (VERIFY, "auto") => self.verify = ChunkVerification::Auto,
            (VERIFY, "all") => self.verify = ChunkVerification::All,
            (VERIFY, "off") => self.verify = ChunkVerification::Off,
            (ENGINES, list) => (self.isal, self.libdeflate) = engines(list)?,
            (GATHER, size) => {
                let kib: usize = size.strip_suffix(['k', 'K'])?.parse().ok()?;
                self.gather = Some(kib).filter(|kib| GATHER_KIB.contains(kib))? * 1024;
            }
            (DEVICE, "off") => self.device = DeviceUse::Off,
            (DEVICE, "failover") => self.device = DeviceUse::Failover,
            (DEVICE, "only") => self.device = DeviceUse::Only,
            (DEVICE_MIN, size) => {
                self.device_min = bytes(size).filter(|size| DEVICE_MIN_BYTES.contains(size))?;
            }
            (DEVICE_MS, time) => {
                let time = time.parse().ok().filter(|time| DEVICE_MILLISECONDS.contains(time))?;
                self.device_time = Duration::from_millis(time);
            }
            _ => return None,
        }
        Some(())
    }
}

/// The values that a variable accepts.
fn accepted(name: &str) -> String {
    match name {
        SCOPE => "on, any or off".to_owned(),
        GOAL => "same or cpu".to_owned(),
        VERIFY => "auto, all or off".to_owned(),
        ENGINES => "a list of isal and libdeflate".to_owned(),
        GATHER => {
            let (min, max) = GATHER_KIB.into_inner();
            format!("{min}k to {max}k")
        }
        DEVICE => "off, failover or only".to_owned(),
        DEVICE_MIN => {
            let (min, max) = DEVICE_MIN_BYTES.into_inner();
            format!("{min} to {max}, or 1k to {}k", max / 1024)
        }
        _ => {
            let (min, max) = DEVICE_MILLISECONDS.into_inner();
            format!("{min} to {max} milliseconds")
        }
    }
}

/// Whether a list has ISA-L, and whether it has libdeflate.
fn engines(list: &str) -> Option<(bool, bool)> {
    let has = |kind: EngineKind| list.split(',').any(|word| word.trim() == kind.name());
    let isal = has(EngineKind::Isal);
    let libdeflate = has(EngineKind::Libdeflate);
    let known = usize::from(isal) + usize::from(libdeflate);
    (list.split(',').count() == known).then_some((isal, libdeflate))
}

/// A number of bytes, or of KiB with the suffix `k`.
fn bytes(size: &str) -> Option<usize> {
    match size.strip_suffix(['k', 'K']) {
        Some(kib) => kib.parse::<usize>().ok()?.checked_mul(1024),
        None => size.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (CompressionSettings, Vec<String>) {
        CompressionSettings::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_variable_is_read_and_defaults_hold_without_them() {
        assert_eq!(read(&[]), (CompressionSettings::default(), vec![]));
        let (found, problems) = read(&[
            (SCOPE, "any"),
            (GOAL, "cpu"),
            (VERIFY, "all"),
            (ENGINES, "libdeflate"),
            (GATHER, "64k"),
            (DEVICE, "failover"),
            (DEVICE_MIN, "256"),
            (DEVICE_MS, "20"),
        ]);
        let wanted = CompressionSettings {
            scope: ServedPrograms::Any,
            goal: CompressionGoal::Cpu,
            verify: ChunkVerification::All,
            isal: false,
            libdeflate: true,
            gather: 64 * 1024,
            device: DeviceUse::Failover,
            device_min: 256,
            device_time: Duration::from_millis(20),
        };
        assert_eq!((found, problems), (wanted, vec![]));
    }

    #[test]
    fn unknown_values_are_named_and_change_nothing() {
        for (name, value) in [
            (SCOPE, "On"),
            (GOAL, "size"),
            (VERIFY, "1"),
            (ENGINES, "isal,qat"),
            (ENGINES, "isal,isal"),
            (GATHER, "15k"),
            (GATHER, "257k"),
            (GATHER, "65536"),
            (DEVICE, "on"),
            (DEVICE_MIN, "127"),
            (DEVICE_MIN, "257k"),
            (DEVICE_MIN, "18446744073709551615k"),
            (DEVICE_MS, "0"),
            (DEVICE_MS, "10001"),
        ] {
            let (found, problems) = read(&[(name, value)]);
            assert_eq!(found, CompressionSettings::default(), "{name}={value}");
            assert!(problems.len() == 1 && problems[0].contains(name), "{problems:?}");
        }
        assert_eq!(read(&[(GATHER, "16k")]).0.gather, 16 * 1024);
        assert_eq!(read(&[(GATHER, "256k")]).0.gather, 256 * 1024);
        assert_eq!(read(&[(DEVICE_MIN, "128")]).0.device_min, 128);
        assert_eq!(read(&[(DEVICE_MIN, "256k")]).0.device_min, 256 * 1024);
    }
}
