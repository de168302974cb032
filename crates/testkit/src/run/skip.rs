// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Records skipped tests. libtest hides the output of a test that passes, so a test that prints a line and
//! returns counts as a pass. A test that cannot run here calls [`skip!`](macro@crate::skip) instead:
//!
//! - the skip goes to the file `$MILLRACE_SKIPPED`, which `make test` prints at its end;
//! - with `CI=true` the test fails, unless `tests/allowed-skips.tsv` lists the reason.

use std::fs::OpenOptions;
use std::io::Write;

/// Reasons that CI accepts, one per line: the beginning of the reason, a tab, an explanation.
const ALLOWED: &str = include_str!("../../../../tests/allowed-skips.tsv");

/// Ends the calling test as skipped, with a reason as for `format!`. The reason names the missing thing ("no
/// valgrind"), so that a reader of the list knows what to install.
///
/// ```no_run
/// fn follows_secrets_with_memcheck() {
///     let valgrind = std::process::Command::new("valgrind").arg("--version").output();
///     if valgrind.is_err() {
///         millrace_testkit::skip!("no valgrind");
///     }
/// }
/// ```
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skip::record(concat!(file!(), ":", line!()), &format!($($reason)+));
        return;
    }};
}

/// Records that the calling test, or a part of it, is skipped. [`skip!`](macro@crate::skip) calls it and then
/// returns.
///
/// # Panics
/// With `CI=true`, if the list of allowed skips does not have the reason.
pub fn record(place: &str, reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    let line = format!("{reason}\t{test} ({place})\n");
    eprint!("SKIPPED: {line}");
    if let Some(path) = std::env::var_os("MILLRACE_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        // One write of one short line: lines of parallel tests do not mix.
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            panic!("cannot record a skipped test in {}: {error}", path.display());
        }
    }
    let in_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(
        !in_ci || is_allowed(ALLOWED, reason),
        "skipped in CI: {reason}: install what is missing, or list the reason in tests/allowed-skips.tsv"
    );
}

/// Whether a row of `list` covers `reason`.
fn is_allowed(list: &str, reason: &str) -> bool {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t')).any(
        |(start, why)| !start.is_empty() && !why.trim().is_empty() && reason.starts_with(start),
    )
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn only_listed_reasons_with_an_explanation_are_allowed() {
        let list =
            "# comment\twhy\nno AVX-512\tolder processors lack it\nno perf\t\n\teverything\n";
        assert!(is_allowed(list, "no AVX-512 IFMA"));
        assert!(!is_allowed(list, "no perf"), "no explanation");
        assert!(!is_allowed(list, "no valgrind"), "not listed");
        assert!(!is_allowed(list, "# comment"), "a comment is not a row");
    }
}
