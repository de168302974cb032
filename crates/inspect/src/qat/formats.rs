// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Parsers of the text files of QAT drivers. Pure: text in, values out.
//!
//! The input is foreign: unknown lines are skipped, numbers out of range are absent, and nothing panics. The
//! parsers read both families of drivers, the kernel's and Intel's, which print the same facts differently.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bound on the rings of a device: the largest has 64 pairs. The rows of one text are bounded by its length.
pub const MAX_ROWS: usize = 1024;

/// Counters of one acceleration engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QatEngineCounters {
    /// Engine number.
    pub engine: u32,
    /// Requests accepted by its firmware since the device came up.
    pub requests: u64,
    /// Responses. The difference to `requests` is in flight, or hangs.
    pub responses: u64,
    /// Memory errors seen by the firmware, if the driver prints them.
    pub ras_events: Option<u64>,
}

/// Whether this is a PCI bus address with its domain, as `lspci -D` prints it: `0000:6b:00.0`. Bus and device have two
/// hexadecimal digits, the function one up to 7; a domain has four, or five behind a controller of storage (VMD).
#[must_use]
pub fn is_bus_address(text: &str) -> bool {
    let hex = |text: &str, digits: RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = text.splitn(3, ':');
    let domain = parts.next();
    let bus = parts.next();
    let rest = parts.next();
    let device = rest.and_then(|rest| rest.split_once('.'));
    let is_device = |(device, function): (&str, &str)| {
        hex(device, 2..=2) && device < "20" && matches!(function.as_bytes(), [b'0'..=b'7'])
    };
    domain.is_some_and(|domain| hex(domain, 4..=5))
        && bus.is_some_and(|bus| hex(bus, 2..=2))
        && device.is_some_and(is_device)
}

/// A bus address with its domain, which old drivers leave out.
#[must_use]
pub fn full_address(address: &str) -> String {
    if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() }
}

/// Parses `fw_counters` of either family of drivers.
#[must_use]
pub fn fw_counters(text: &str) -> Vec<QatEngineCounters> {
    let mut engines: BTreeMap<u32, QatEngineCounters> = BTreeMap::new();
    for line in text.lines() {
        if let Some((what, engine, value)) = framed_counter(line) {
            let row = engines.entry(engine).or_default();
            row.engine = engine;
            if what.starts_with("Firmware Requests") {
                row.requests = value;
            } else if what.starts_with("Firmware Responses") {
                row.responses = value;
            } else if what.starts_with("RAS Events") {
                row.ras_events = Some(value);
            }
        } else if let Some(row) = tabled_counter(line) {
            engines.insert(row.engine, row);
        }
    }
    engines.into_values().collect()
}

/// `| Firmware Requests [AE  0]:              260640 |`
fn framed_counter(line: &str) -> Option<(&str, u32, u64)> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?.trim();
    let (what, rest) = inner.split_once("[AE")?;
    let (engine, value) = rest.split_once("]:")?;
    Some((what, number(engine)?, number(value)?))
}

/// A row of the table in `fw_counters`: ` 0:            83909            83909`
fn tabled_counter(line: &str) -> Option<QatEngineCounters> {
    let (engine, values) = line.split_once(':')?;
    let mut values = values.split_whitespace();
    let row = QatEngineCounters {
        engine: number(engine)?,
        requests: number(values.next()?)?,
        responses: number(values.next()?)?,
        ras_events: None,
    };
    values.next().is_none().then_some(row)
}

/// A number as drivers print it: with blanks, a line end, and sometimes a NUL.
#[must_use]
pub fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    trimmed(text).parse().ok()
}

/// The text without surrounding blanks, line ends and NULs. Heartbeat files end in a NUL.
#[must_use]
pub fn trimmed(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0')
}

/// Result of a device's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FirmwareHeartbeat {
    /// The firmware answers.
    Alive,
    /// The firmware does not answer, or this device has no heartbeat.
    Silent,
}

/// Parses `heartbeat/status`. (Reading that file makes the driver query the firmware.)
#[must_use]
pub fn heartbeat(text: &str) -> Option<FirmwareHeartbeat> {
    match number::<i64>(text)? {
        0 => Some(FirmwareHeartbeat::Alive),
        -1 => Some(FirmwareHeartbeat::Silent),
        _ => None,
    }
}

/// Sections of `dev_cfg` and of `/etc/*_dev*.conf`: `[SECTION]`, then `key = value`.
pub type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Parses a device's configuration.
#[must_use]
pub fn dev_cfg(text: &str) -> Sections {
    let mut sections = Sections::new();
    let mut section = String::new();
    for line in text.lines().map(trimmed) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
            sections.entry(section.clone()).or_default();
        } else if let Some((key, value)) = line.split_once('=') {
            let entry = sections.entry(section.clone()).or_default();
            entry.insert(key.trim().to_owned(), value.trim().trim_matches('"').to_owned());
        }
    }
    sections
}

/// Parses `device_data` of telemetry: each key with its current value. Minimum, maximum and average follow the
/// value on some lines and are skipped.
#[must_use]
pub fn telemetry(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let key = words.next()?;
            Some((key.to_owned(), number(words.next()?)?))
        })
        .collect()
}

/// Fill level of one ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ring {
    /// Bank and ring
    pub name: String,
    /// Bytes between head and tail: written, but not yet read
    pub used_bytes: u64,
    /// Bytes that fit into the ring
    pub size_bytes: u64,
}

/// Parses a ring's file (`transport/bank_NN/ring_NN`). Head and tail are hexadecimal offsets.
///
/// Source: `adf_transport_debug.c` of the kernel.
#[must_use]
pub fn ring(name: &str, text: &str) -> Option<Ring> {
    let after = |key: &str| {
        let rest = &text[text.find(key)? + key.len()..];
        let end = rest.find(|letter: char| !letter.is_ascii_hexdigit());
        Some(&rest[..end.unwrap_or(rest.len())])
    };
    let offset = |key| u64::from_str_radix(after(key)?, 16).ok();
    let head = offset("head ")?;
    let tail = offset("tail ")?;
    let size: u64 = after("ring size ")?.parse().ok().filter(|size| *size > 0)?;
    let used =
        if tail >= head { tail - head } else { size.checked_sub(head)?.checked_add(tail)? };
    (used <= size).then(|| Ring { name: name.to_owned(), used_bytes: used, size_bytes: size })
}

/// Service names in `rp2srv` and `cfg_services`.
#[must_use]
pub fn services(text: &str) -> Vec<String> {
    trimmed(text)
        .split(';')
        .map(str::trim)
        .filter(|service| !service.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The lines of `/proc/interrupts` that `is_one` selects, with their interrupts since boot on all processors.
pub fn interrupts(text: &str, is_one: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, u64)> {
    let lines = text.lines().filter(move |line| is_one(line));
    lines.map(|line| {
        let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        (line, counts.fold(0, u64::saturating_add))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_addresses_have_domain_bus_device_and_function() {
        for good in ["0000:6b:00.1", "ffff:FF:1f.7", "10000:e1:1F.0"] {
            assert!(is_bus_address(good), "{good}");
        }
        for wrong in [
            "",
            "1.2.3.4",
            "1:2:3.4",
            "6b:00.1",
            "000:6b:00.1",
            "100000:6b:00.1",
            "0000:6b:00",
            "0000:6b:00.",
            "0000:6b:00.8",
            "0000:6b:00.11",
            "0000:6b:20.0",
            "0000:6b:AF.0",
            "0000:6b:0.1",
            "0000:6g:00.1",
            "0000:6b:00.1 ",
            "0000:6b:00:1",
        ] {
            assert!(!is_bus_address(wrong), "{wrong}");
        }
    }

    #[test]
    fn counters_of_both_families_are_read() {
        let framed = "\
+------------------------------------------------+
| FW Statistics for Qat Device                   |
+------------------------------------------------+
| Firmware Requests [AE  0]:              260640 |
| Firmware Responses[AE  0]:              260639 |
| RAS Events        [AE  0]:                   2 |
+------------------------------------------------+
| Firmware Requests [AE 11]:                   7 |
| Firmware Responses[AE 11]:                   7 |
+------------------------------------------------+
";
        let rows = fw_counters(framed);
        assert_eq!(rows.len(), 2);
        let first = rows[0];
        assert_eq!(
            (first.requests, first.responses, first.ras_events),
            (260_640, 260_639, Some(2))
        );
        assert_eq!((rows[1].engine, rows[1].requests, rows[1].ras_events), (11, 7, None));

        let tabled = "AE          Requests        Responses\n 0:            83909            83908\n12:                1                1\n";
        let rows = fw_counters(tabled);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].engine, rows[0].requests, rows[0].responses), (0, 83_909, 83_908));
        assert_eq!(rows[1].engine, 12);
    }

    #[test]
    fn lines_of_other_formats_are_skipped() {
        for text in [
            "",
            "\0\0\0",
            "| Firmware Requests [AE  0]: 99999999999999999999999 |",
            "AE\n0:\n0: 1\n0: 1 2 3\n: : :",
            "[AE]: |||",
        ] {
            assert!(fw_counters(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn heartbeats_end_in_a_nul() {
        assert_eq!(heartbeat("0\n\0"), Some(FirmwareHeartbeat::Alive));
        assert_eq!(heartbeat("-1\n\0"), Some(FirmwareHeartbeat::Silent));
        assert_eq!(heartbeat("1"), None);
        assert_eq!(number::<u64>("123\n\0"), Some(123));
    }

    #[test]
    fn configurations_are_read() {
        let text = "[GENERAL]\nServicesEnabled = sym;asym\n[KERNEL]\nNumberCyInstances = 2\nCy0Name=\"IPSec0\"\n# no\n";
        let sections = dev_cfg(text);
        assert_eq!(sections["GENERAL"]["ServicesEnabled"], "sym;asym");
        assert_eq!(sections["KERNEL"]["NumberCyInstances"], "2");
        assert_eq!(sections["KERNEL"]["Cy0Name"], "IPSec0");
        assert_eq!(services("sym;asym\n\0"), ["sym", "asym"]);
    }

    #[test]
    fn rings_tell_how_full_they_are() {
        let text = |head: &str, tail: &str| {
            format!(
                "------- Ring configuration -------\nring name: Cy0RingSymTx\nring num 2, bank num 0\n\
                 head {head}, tail {tail}, empty: 0\nring size 65536, msg size 128\n"
            )
        };
        let used = |head, tail| ring("r", &text(head, tail)).map(|ring| ring.used_bytes);
        assert_eq!(used("0", "80"), Some(0x80));
        assert_eq!(used("ff80", "80"), Some(0x100), "around the end");
        assert_eq!(used("20", "20"), Some(0));
        assert_eq!(used("fffff", "0"), None, "outside of the ring");
        for text in ["", "head x, tail 1", "head 1, tail 2", "head 1, tail 2\nring size 0"] {
            assert_eq!(ring("r", text), None, "{text:?}");
        }
    }

    #[test]
    fn telemetry_and_interrupts_are_read() {
        let text = "sample_cnt                              5\nutil_pke0                              38                  1                 99                 40\n";
        let values = telemetry(text);
        assert_eq!((values["sample_cnt"], values["util_pke0"]), (5, 38));
        let text = "           CPU0       CPU1\n 90:   12   30   PCI-MSI 524288-edge   qat0-bundle0\n 91: 5 5 PCI-MSI eth0\n";
        let counts = interrupts(text, |line| line.contains("qat"));
        assert_eq!(counts.map(|(_, count)| count).collect::<Vec<_>>(), [42]);
    }
}
