// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Lists of processors as the kernel writes them: `0-3,8`.

/// Bound on the number of a processor: the kernel's own, `NR_CPUS`.
pub const MAX_CPUS: usize = 8192;

/// The numbers in a list; none for an empty one, `None` for text that is not a list.
#[must_use]
pub fn parse(list: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_CPUS || processors.len() > MAX_CPUS {
            return None;
        }
        processors.extend(first..=last);
    }
    Some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_processors_are_read() {
        assert_eq!(parse("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("7"), Some(vec![7]));
        assert_eq!(parse(""), Some(Vec::new()));
        for wrong in ["x", "3-", "-", "0-8192", "0-99999999999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse("0-8191").map(|all| all.len()), Some(MAX_CPUS));
    }
}
