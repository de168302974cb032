// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The names of the programs that are understood.

/// A program whose use of libssl is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// nginx, or one of its kin that has the same event loop.
    Nginx,
    /// HAProxy, which knows of jobs, but loses those of connections that it closes.
    Haproxy,
}

impl Program {
    /// The program with this name. The kernel appends a word to the name of a file that was deleted.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
        const NAMES: [(&[u8], Program); 5] = [
            (b"nginx", Program::Nginx),
            (b"openresty", Program::Nginx),
            (b"angie", Program::Nginx),
            (b"freenginx", Program::Nginx),
            (b"haproxy", Program::Haproxy),
        ];
        let known = NAMES.iter().find(|(known, _)| {
            // `nginx-debug`, `nginx.old`: the same program beside another.
            name.strip_prefix(*known)
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'-' | b'.')))
        });
        known.map(|(_, program)| *program)
    }
}

#[cfg(test)]
mod tests {
    use super::Program;

    #[test]
    fn nginx_and_its_forks_are_recognized_and_tools_are_not() {
        let known = [
            "nginx",
            "nginx-debug",
            "nginx.old",
            "openresty",
            "angie",
            "freenginx",
        ];
        for name in known {
            assert_eq!(
                Program::named(name.as_bytes()),
                Some(Program::Nginx),
                "{name}"
            );
        }
        assert_eq!(Program::named(b"nginx (deleted)"), Some(Program::Nginx));
        for name in ["", "curl", "nginxbeautifier", "python3", "mynginx", "ngin"] {
            assert_eq!(Program::named(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn haproxy_is_recognized() {
        for name in ["haproxy", "haproxy-3.0", "haproxy.old"] {
            assert_eq!(
                Program::named(name.as_bytes()),
                Some(Program::Haproxy),
                "{name}"
            );
        }
        for name in ["haproxyctl", "halog", "hap"] {
            assert_eq!(Program::named(name.as_bytes()), None, "{name}");
        }
    }
}
