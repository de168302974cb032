// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Names of nginx and of its kin that have the same core.

/// Whether a program of this name has nginx's event loop.
pub(crate) fn is_nginx_name(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [b"nginx", b"openresty", b"angie", b"freenginx"];
    NAMES.iter().any(|known| {
        // `nginx-debug`, `nginx.old`: the same program beside another.
        name.strip_prefix(*known)
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'-' | b'.')))
    })
}

#[cfg(test)]
mod tests {
    use super::is_nginx_name;

    #[test]
    fn kin_of_nginx_is_told_from_tools_around_it() {
        for name in ["nginx", "nginx-debug", "nginx.old", "openresty", "angie"] {
            assert!(is_nginx_name(name.as_bytes()), "{name}");
        }
        for name in ["", "curl", "nginxbeautifier", "python3", "mynginx", "ngin"] {
            assert!(!is_nginx_name(name.as_bytes()), "{name}");
        }
    }
}
