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
            gather: 128 * 1024,
            device: DeviceUse::default(),
            device_min: 64 * 1024,
            device_time: Duration::from_millis(50),
        }
    }
}

impl CompressionSettings {
    /// Reads the variables; a value that is not understood is named in the second part, and the default holds.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut found = Self::default();
        let mut problems = Vec::new();
        let mut set = |name: &str, wanted: &str, apply: &mut dyn FnMut(&str) -> bool| {
            if let Some(value) = variable(name).filter(|value| !value.is_empty() && !apply(value)) {
                problems.push(format!("{name}: {value:?} is not {wanted}; the default holds"));
            }
        };
        let scopes = [
            ("on", ServedPrograms::Servers),
            ("any", ServedPrograms::Any),
            ("off", ServedPrograms::Off),
        ];
        let goals = [("same", CompressionGoal::Same), ("cpu", CompressionGoal::Cpu)];
        let verifies = [
            ("auto", ChunkVerification::Auto),
            ("all", ChunkVerification::All),
            ("off", ChunkVerification::Off),
        ];
        set(SCOPE, "on, any or off", &mut |word| choose(&scopes, word, &mut found.scope));
        set(GOAL, "same or cpu", &mut |word| choose(&goals, word, &mut found.goal));
        set(VERIFY, "auto, all or off", &mut |word| choose(&verifies, word, &mut found.verify));
        set(ENGINES, "a list of isal and libdeflate", &mut |list| {
            let has = |kind: EngineKind| list.split(',').any(|word| word.trim() == kind.name());
            let (isal, libdeflate) = (has(EngineKind::Isal), has(EngineKind::Libdeflate));
            let known = list.split(',').count() == usize::from(isal) + usize::from(libdeflate);
            if known {
                (found.isal, found.libdeflate) = (isal, libdeflate);
            }
            known
        });
        set(GATHER, "16k to 256k", &mut |size| {
            let number = size.strip_suffix(['k', 'K']).and_then(|number| number.parse().ok());
            let good = number.filter(|number| GATHER_KIB.contains(number));
            found.gather = good.map_or(found.gather, |number| number * 1024);
            good.is_some()
        });
        let devices =
            [("off", DeviceUse::Off), ("failover", DeviceUse::Failover), ("only", DeviceUse::Only)];
        set(DEVICE, "off, failover or only", &mut |word| choose(&devices, word, &mut found.device));
        set(DEVICE_MIN, "128 to 262144, or 1k to 256k", &mut |size| {
            let (digits, unit) = match size.strip_suffix(['k', 'K']) {
                Some(kib) => (kib, 1024),
                None => (size, 1),
            };
            let bytes = digits.parse().ok().and_then(|number: usize| number.checked_mul(unit));
            let good = bytes.filter(|bytes| DEVICE_MIN_BYTES.contains(bytes));
            found.device_min = good.unwrap_or(found.device_min);
            good.is_some()
        });
        set(DEVICE_MS, "1 to 10000 milliseconds", &mut |time| {
            let good = time.parse().ok().filter(|time| DEVICE_MILLISECONDS.contains(time));
            found.device_time = good.map_or(found.device_time, Duration::from_millis);
            good.is_some()
        });
        (found, problems)
    }
}

/// Sets `place` to the value of this word, if there is such a word.
fn choose<T: Copy>(words: &[(&str, T)], word: &str, place: &mut T) -> bool {
    let found = words.iter().find(|(known, _)| *known == word);
    *place = found.map_or(*place, |(_, value)| *value);
    found.is_some()
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
