// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace virtio status`: the devices of a process as a table, JSON, or metrics.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use anyhow::{Context, Result, bail};
use millrace_virtio::control::{ControlAnswer, ControlRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::VirtioStatusArgs;
use crate::output::{self, Table, joined, or};

/// Numbers of a device that go up and down; every other number only grows.
const LEVELS: [&str; 3] = ["sessions", "keys", "in-flight"];

const ASYM: [&str; 4] =
    ["asym-encrypt-ops", "asym-decrypt-ops", "asym-sign-ops", "asym-verify-ops"];

const SYM: [&str; 4] = ["sym-encrypt-ops", "sym-decrypt-ops", "hash-ops", "mac-ops"];

/// A device and its counters.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct VirtioDevice {
    /// Path by which commands name the device
    socket: String,
    /// The name under which the service accounts for it
    identity: String,
    /// Whether a monitor is connected
    connected: bool,
    /// Seconds since the monitor connected
    connected_seconds: Option<u64>,
    /// Connections to the socket since the start of the front process
    connections: u64,
    /// Requests per second; null without a limit
    throttle_ops: Option<u64>,
    /// Bytes per second; null without a limit
    throttle_bps: Option<u64>,
    statistics: VirtioStatistics,
    /// `no-monitor`, `moves-with-the-machine` or `unmigratable`
    #[serde(skip_serializing_if = "Option::is_none")]
    device_state: Option<String>,
    /// Whether guests shall use the device
    ready: bool,
    /// Starts of the device process after the first one
    restarts: u64,
    /// Process id of the device process
    device_process: Option<u32>,
}

/// The counters of all connections, under the names of QEMU's query-stats.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct VirtioStatistics {
    /// The operations by what served them
    served_by: Vec<ServedRow>,
    #[serde(flatten)]
    numbers: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct ServedRow {
    operation: String,
    /// `local` or `node`
    place: String,
    /// `none` where no backend took part
    backend: String,
    ops: u64,
}

impl VirtioDevice {
    fn number(&self, name: &str) -> u64 {
        self.statistics.numbers.get(name).copied().unwrap_or(0)
    }

    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.number(name)).sum()
    }

    /// The operations with what served them: `asym-sign local/simd 12`.
    fn served(&self) -> String {
        let rows = self.statistics.served_by.iter();
        joined(rows.map(ToString::to_string), "")
    }

    /// JSON strings are label values: the characters that must be escaped are escaped alike.
    fn labels(&self) -> String {
        format!("device={},identity={}", json!(self.socket), json!(self.identity))
    }
}

impl fmt::Display for ServedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, place, backend, ops } = self;
        match backend.as_str() {
            "none" => write!(f, "{operation} {place} {ops}"),
            _ => write!(f, "{operation} {place}/{backend} {ops}"),
        }
    }
}

pub(super) fn show(args: &VirtioStatusArgs) -> Result<()> {
    let answer = super::ask(&args.socket.socket_path, &ControlRequest::Status)?;
    let ControlAnswer::Devices(devices) = answer else {
        bail!("the process did not answer with its devices");
    };
    let devices: Vec<VirtioDevice> = serde_json::from_value(devices)
        .context("the answer is not understood: is the process of another version?")?;
    if args.json {
        return output::print_json(&devices);
    }
    if args.format.metrics {
        return output::print(&metrics(&devices));
    }
    #[rustfmt::skip]
    let table = Table::of(&devices, &[
        ("device", &|device| device.socket.clone()),
        ("identity", &|device| device.identity.clone()),
        ("machine", &|device| or(device.connected.then_some("connected"), "-")),
        (">asym ops", &|device| device.sum(&ASYM).to_string()),
        (">sym ops", &|device| device.sum(&SYM).to_string()),
        (">failed", &|device| device.number("failed").to_string()),
        (">sessions", &|device| device.number("sessions").to_string()),
        (">in flight", &|device| device.number("in-flight").to_string()),
        ("served by", &|device| device.served()),
    ]);
    table.print()
}

/// Every number of every device, in the text format of Prometheus.
fn metrics(devices: &[VirtioDevice]) -> String {
    let mut text = String::new();
    let names = devices.first().into_iter().flat_map(|device| device.statistics.numbers.keys());
    for name in names {
        let (metric, kind) = if LEVELS.contains(&name.as_str()) {
            (metric(name), "gauge")
        } else {
            (format!("{}_total", metric(name)), "counter")
        };
        let _ = writeln!(text, "# TYPE {metric} {kind}");
        for device in devices {
            let _ = writeln!(text, "{metric}{{{}}} {}", device.labels(), device.number(name));
        }
    }
    text.push_str("# TYPE millrace_virtio_connected gauge\n");
    for device in devices {
        let connected = u8::from(device.connected);
        let _ = writeln!(text, "millrace_virtio_connected{{{}}} {connected}", device.labels());
    }
    text.push_str("# TYPE millrace_virtio_served_total counter\n");
    for device in devices {
        for ServedRow { operation, place, backend, ops } in &device.statistics.served_by {
            let labels = device.labels();
            let _ = writeln!(
                text,
                "millrace_virtio_served_total{{{labels},operation={operation:?},place={place:?},backend={backend:?}}} {ops}",
            );
        }
    }
    text
}

fn metric(name: &str) -> String {
    format!("millrace_virtio_{}", name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_names_of_query_stats_and_a_row_per_server() {
        let device = json!({
            "socket": "/run/a\"b.sock", "identity": "vm:a", "connected": true, "connections": 1,
            "ready": true, "restarts": 0, "statistics": {"asym-sign-ops": 3, "sessions": 2, "served-by": [
                {"operation": "asym-sign", "place": "local", "backend": "simd", "ops": 3},
            ]},
        });
        let devices = [serde_json::from_value(device).unwrap()];
        let labels = r#"device="/run/a\"b.sock",identity="vm:a""#;
        let expected = format!(
            "# TYPE millrace_virtio_asym_sign_ops_total counter\n\
             millrace_virtio_asym_sign_ops_total{{{labels}}} 3\n\
             # TYPE millrace_virtio_sessions gauge\n\
             millrace_virtio_sessions{{{labels}}} 2\n\
             # TYPE millrace_virtio_connected gauge\n\
             millrace_virtio_connected{{{labels}}} 1\n\
             # TYPE millrace_virtio_served_total counter\n\
             millrace_virtio_served_total{{{labels},operation=\"asym-sign\",place=\"local\",backend=\"simd\"}} 3\n"
        );
        assert_eq!(metrics(&devices), expected);
    }
}
