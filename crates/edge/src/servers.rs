// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Names of the server programs that edges recognise.

/// nginx and the forks with its event loop and its filters.
pub const NGINX: [&str; 4] = ["nginx", "openresty", "angie", "freenginx"];

/// The one name of HAProxy's program.
pub const HAPROXY: [&str; 1] = ["haproxy"];

/// Processors on which the preload library has stacks for asynchronous handshakes, by Rust's names. On others nginx's
/// handshakes block.
pub const JOB_STACKS: [&str; 2] = ["x86_64", "aarch64"];

/// Whether a program's name is one of `known`, or that of another build beside it (`nginx-debug`, `nginx.old`). The
/// kernel appends a word to the name of a file that was deleted.
#[must_use]
pub fn is_one_of(known: &[&str], name: &[u8]) -> bool {
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    known.iter().any(|known| {
        name.strip_prefix(known.as_bytes())
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'-' | b'.')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_and_forks_of_a_server_are_recognised_and_other_programs_are_not() {
        for name in [
            "nginx",
            "nginx-debug",
            "nginx.old",
            "nginx (deleted)",
            "openresty",
            "angie",
            "freenginx",
        ] {
            assert!(is_one_of(&NGINX, name.as_bytes()), "{name}");
            assert!(!is_one_of(&HAPROXY, name.as_bytes()), "{name}");
        }
        for name in ["", "curl", "nginxbeautifier", "python3", "mynginx", "ngin"] {
            assert!(!is_one_of(&NGINX, name.as_bytes()), "{name}");
        }
        for name in ["haproxyctl", "halog", "hap"] {
            assert!(!is_one_of(&HAPROXY, name.as_bytes()), "{name}");
        }
    }
}
