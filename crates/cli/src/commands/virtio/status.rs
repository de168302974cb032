// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace virtio status`: the devices of a process as a table, JSON, or metrics.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use millrace_virtio::control::{ControlAnswer, ControlRequest};
use serde_json::{Map, Value};

use crate::args::VirtioStatusArgs;
use crate::output::{self, Table, joined, or};

/// Numbers of a device that go up and down; every other number only grows.
const LEVELS: [&str; 3] = ["sessions", "keys", "in-flight"];

const ASYM: [&str; 4] =
    ["asym-encrypt-ops", "asym-decrypt-ops", "asym-sign-ops", "asym-verify-ops"];

const SYM: [&str; 4] = ["sym-encrypt-ops", "sym-decrypt-ops", "hash-ops", "mac-ops"];

pub(super) fn show(args: &VirtioStatusArgs) -> Result<()> {
    let ControlAnswer::Devices(devices) = super::ask(&args.socket_path, &ControlRequest::Status)?
    else {
        bail!("the process did not answer with its devices");
    };
    if args.json {
        return output::print_json(&devices);
    }
    let rows = devices.as_array().map(Vec::as_slice).unwrap_or_default();
    if args.metrics {
        return output::print(&metrics(rows));
    }
    let number = |row: &Value, name: &str| row["statistics"][name].as_u64().unwrap_or(0);
    let sum =
        |row: &Value, names: &[&str]| -> u64 { names.iter().map(|name| number(row, name)).sum() };
    let is_connected = |row: &Value| row["connected"] == Value::Bool(true);
    #[rustfmt::skip]
    let table = Table::of(rows.iter(), &[
        ("device", &|row| text(&row["socket"])),
        ("identity", &|row| text(&row["identity"])),
        ("machine", &|row| or(is_connected(row).then_some("connected"), "-")),
        (">asym ops", &|row| sum(row, &ASYM).to_string()),
        (">sym ops", &|row| sum(row, &SYM).to_string()),
        (">failed", &|row| number(row, "failed").to_string()),
        (">sessions", &|row| number(row, "sessions").to_string()),
        (">in flight", &|row| number(row, "in-flight").to_string()),
        ("served by", &|row| served(row)),
    ]);
    table.print()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn served_by(row: &Value) -> impl Iterator<Item = &Value> {
    row["statistics"]["served-by"].as_array().into_iter().flatten()
}

/// The operations with what served them: `asym-sign local/simd 12`.
fn served(row: &Value) -> String {
    let rows = served_by(row).map(|served| {
        let place = match (text(&served["place"]), text(&served["backend"])) {
            (place, backend) if backend == "none" => place,
            (place, backend) => format!("{place}/{backend}"),
        };
        format!("{} {place} {}", text(&served["operation"]), served["ops"])
    });
    joined(rows, "")
}

/// Every number of every device, in the text format of Prometheus.
fn metrics(devices: &[Value]) -> String {
    let mut text = String::new();
    let empty = Map::new();
    let first = devices.first().and_then(|row| row["statistics"].as_object());
    for (name, _) in first.unwrap_or(&empty).iter().filter(|(_, it)| it.is_u64()) {
        let is_level = LEVELS.contains(&name.as_str());
        let (metric, kind) = if is_level {
            (metric(name), "gauge")
        } else {
            (format!("{}_total", metric(name)), "counter")
        };
        let _ = writeln!(text, "# TYPE {metric} {kind}");
        for row in devices {
            let value = row["statistics"][name].as_u64().unwrap_or(0);
            let _ = writeln!(text, "{metric}{{{}}} {value}", device_labels(row));
        }
    }
    text.push_str("# TYPE millrace_virtio_connected gauge\n");
    for row in devices {
        let connected = u8::from(row["connected"] == Value::Bool(true));
        let labels = device_labels(row);
        let _ = writeln!(text, "millrace_virtio_connected{{{labels}}} {connected}");
    }
    text.push_str("# TYPE millrace_virtio_served_total counter\n");
    for row in devices {
        for one in served_by(row) {
            let _ = writeln!(
                text,
                "millrace_virtio_served_total{{{},operation={},place={},backend={}}} {}",
                device_labels(row),
                one["operation"],
                one["place"],
                one["backend"],
                one["ops"]
            );
        }
    }
    text
}

fn metric(name: &str) -> String {
    format!("millrace_virtio_{}", name.replace('-', "_"))
}

/// JSON strings are label values: the characters that must be escaped are escaped alike.
fn device_labels(row: &Value) -> String {
    format!("device={},identity={}", row["socket"], row["identity"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metrics_have_the_names_of_query_stats_and_a_row_per_server() {
        let devices = [json!({
            "socket": "/run/a\"b.sock", "identity": "vm:a", "connected": true,
            "statistics": {"asym-sign-ops": 3, "sessions": 2, "served-by": [
                {"operation": "asym-sign", "place": "local", "backend": "simd", "ops": 3},
            ]},
        })];
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
