// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace watch`: the clock, the signals and the channels. The observation, which decides on alerts, is in
//! the inspect crate.

mod channels;

use std::mem;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use millrace_inspect::doctor::watch::{Alert, CounterRates, Line, Watcher};
use millrace_inspect::doctor::{self, Observation};
use millrace_inspect::qat::formats::FirmwareHeartbeat;

use self::channels::send;
use crate::args::{Channel, WatchArgs};
use crate::commands::inspect;
use crate::exit::{Failure, fail};
use crate::output;
use crate::page::plain;
use crate::progress::while_doing;
use crate::screen::Pauses;

/// Default time between two readings. It does not disturb an idle firmware, and delays an alert by at most
/// half a minute.
const INTERVAL: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &WatchArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(watch(args))
}

async fn watch(args: &WatchArgs) -> Result<()> {
    let selection = &args.selection;
    let wanted =
        doctor::select(&selection.only).map_err(|error| fail(Failure::Usage, error.to_string()))?;
    let root = inspect::open(&selection.tree)?;
    let mut pauses = Pauses::new()?;
    let interval = args.interval.unwrap_or(INTERVAL);
    let mut observation = while_doing("reading everything", || Observation::start(&root));
    let begun = Instant::now();
    let mut read_at = begun;
    let mut watcher = Watcher::new();
    let mut readings = 0_u64;
    loop {
        let mut findings = observation.diagnosis(&wanted).findings;
        findings.retain(|found| found.severity <= selection.severity);
        for alert in watcher.observe(read_at.duration_since(begun), &findings) {
            tell(&alert, args)?;
        }
        readings += 1;
        if args.count.is_some_and(|count| readings >= count) {
            return Ok(());
        }
        if !pauses.wait(interval).await {
            return Ok(());
        }
        observation.repeat();
        let before = mem::replace(&mut read_at, Instant::now());
        if let Some(rates) = observation.rates(read_at.duration_since(before)) {
            show(rates, args.json)?;
        }
    }
}

fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// `2026-11-22 00:15:02`, UTC.
fn clock(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!(
        "{} {:02}:{:02}:{:02}",
        output::date(seconds),
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60
    )
}

fn show(rates: CounterRates, as_json: bool) -> Result<()> {
    let now = seconds();
    if as_json {
        return json_line(&Line { time: now, rates: Some(rates), alert: None });
    }
    let mut parts = Vec::new();
    for device in &rates.qat {
        let requests =
            device.requests_per_second.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.0}"));
        let state = match (device.up, device.heartbeat) {
            (Some(false), _) => ", down",
            (_, Some(FirmwareHeartbeat::Silent)) => ", silent",
            _ => "",
        };
        let address = plain(&device.address);
        let open = device.open;
        parts.push(format!("QAT {address} {requests} requests/s, {open} open{state}"));
    }
    for interface in &rates.interfaces {
        parts.push(format!(
            "{} in {} out {}",
            plain(&interface.name),
            bits(interface.received_bytes_per_second),
            bits(interface.sent_bytes_per_second)
        ));
    }
    if let Some(rate) = rates.ktls_per_second.filter(|rate| *rate > 0.0) {
        parts.push(format!("kernel TLS {rate:.1} connections/s"));
    }
    if let Some(rate) = rates.ipsec_errors_per_second.filter(|rate| *rate > 0.0) {
        parts.push(format!("IPsec {rate:.1} drops/s"));
    }
    if parts.is_empty() {
        parts.push("no traffic".to_owned());
    }
    line(&format!("{}  {}", clock(now), parts.join("; ")))
}

/// Formats bytes per second as bits per second, in the unit that fits.
fn bits(bytes: f64) -> String {
    let bits = bytes * 8.0;
    match bits {
        _ if bits >= 1e9 => format!("{:.2} Gbit/s", bits / 1e9),
        _ if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.0} kbit/s", bits / 1e3),
    }
}

fn tell(alert: &Alert, args: &WatchArgs) -> Result<()> {
    let default = [Channel::Stdout];
    let channels = if args.alert.is_empty() { &default[..] } else { &args.alert };
    let now = seconds();
    for channel in channels {
        let sent = match channel {
            Channel::Stdout if args.json => {
                json_line(&Line { time: now, rates: None, alert: Some(alert.clone()) })?;
                Ok(())
            }
            Channel::Stdout => {
                line(&format!("{}  {}", clock(now), channels::sentence(alert)))?;
                Ok(())
            }
            other => send(alert, other),
        };
        // The watch continues after an alert that could not be sent.
        if let Err(error) = sent {
            note!("an alert was not sent: {error:#}");
        }
    }
    Ok(())
}

fn json_line(value: &Line) -> Result<()> {
    line(&serde_json::to_string(value).context("composing the JSON")?)
}

fn line(text: &str) -> Result<()> {
    output::print(&format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bits(125_000_000.0), "1.00 Gbit/s");
        assert_eq!(bits(125.0), "1 kbit/s");
        assert_eq!(clock(1_795_306_502), "2026-11-22 00:15:02");
    }
}
