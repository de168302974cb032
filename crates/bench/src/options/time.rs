// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The form of times on every command line: a number with a unit, such as `500ms`, `1.5s` or `90d`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Examples of times, for the help and for errors.
pub const TIMES: &str = "500ms, 30s, 5m, 24h or 7d";

/// The units, in seconds, the largest first.
const UNITS: [(&str, f64); 5] =
    [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

/// A value parser for times within a range. A number without a unit is in seconds.
pub fn time_within(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let time = time(text).ok_or_else(|| format!("expected a time like {TIMES}"))?;
        if range.contains(&time) {
            return Ok(time);
        }
        let least = written(*range.start());
        let most = written(*range.end());
        Err(format!("expected a time from {least} to {most}"))
    }
}

/// A value parser for the duration of a measurement, in seconds. The measurement has the bounds.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    let time = time_within(Duration::ZERO..=Duration::MAX)(text)?;
    Ok(time.as_secs_f64())
}

/// A value parser for the duration of a measurement that lasts whole seconds.
pub(crate) fn whole_seconds(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    let (least, most) = range.into_inner();
    let parse = time_within(Duration::from_secs(least)..=Duration::from_secs(most));
    move |text| {
        let time = parse(text)?;
        let whole = (time.subsec_nanos() == 0).then_some(time.as_secs());
        whole.ok_or_else(|| "expected whole seconds".to_owned())
    }
}

fn time(text: &str) -> Option<Duration> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = if unit.is_empty() { "s" } else { unit };
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// The time in the largest unit in which it is a whole number.
fn written(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let in_unit = |(unit, of): &(&str, f64)| {
        let number = seconds / of;
        (number >= 1.0 && number.fract() == 0.0).then(|| format!("{number}{unit}"))
    };
    let found = UNITS.iter().find_map(in_unit);
    found.unwrap_or_else(|| format!("{time:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bare_numbers_are_seconds() {
        for (text, time) in [
            ("500ms", Duration::from_millis(500)),
            ("30", Duration::from_secs(30)),
            ("0.15", Duration::from_millis(150)),
            ("1.5s", Duration::from_millis(1_500)),
            ("5m", Duration::from_secs(300)),
            ("24h", Duration::from_secs(86_400)),
            ("90d", Duration::from_secs(90 * 86_400)),
        ] {
            let parse = time_within(Duration::ZERO..=Duration::MAX);
            assert_eq!(parse(text), Ok(time), "{text}");
        }
        for wrong in ["", "s", ".", "1.2.3", "5w", "-1s", "1 s", "9e9", "99999999999999999999d"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn time_outside_of_its_range_is_refused_with_the_range() {
        let parse = time_within(Duration::from_millis(100)..=Duration::from_secs(5_400));
        assert!(parse("100ms").is_ok() && parse("90m").is_ok());
        for wrong in ["99ms", "91m"] {
            assert_eq!(parse(wrong), Err("expected a time from 100ms to 90m".to_owned()));
        }
        assert_eq!(whole_seconds(1..=60)("1m"), Ok(60));
        assert!(whole_seconds(1..=60)("1.5s").is_err());
    }
}
