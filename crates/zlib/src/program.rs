// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Programs that are served, and the streams of each that are responses.

use millrace_deflate::settings::ServedPrograms;
use millrace_edge::servers::{NGINX, is_one_of};

use crate::stream::Format;

/// A program whose use of zlib is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// nginx and its kin. The gzip filter gives memory of the request; it calls `deflateEnd` only for responses
    /// that it completes.
    Nginx,
    /// Apache. `mod_deflate` writes the head and the trailer of gzip itself.
    Apache,
    /// lighttpd: zlib writes the head and the trailer of gzip.
    Lighttpd,
    /// Any other program, where the administrator wants that.
    Other,
}

/// Programs by the names of their files.
const NAMES: [(&[&str], Program); 3] = [
    (&NGINX, Program::Nginx),
    (&["apache2", "httpd"], Program::Apache),
    (&["lighttpd"], Program::Lighttpd),
];

/// Arguments of `deflateInit2_`, and whether the caller brings its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) level: i32,
    pub(crate) method: i32,
    pub(crate) window_bits: i32,
    pub(crate) memory_level: i32,
    pub(crate) strategy: i32,
    pub(crate) own_memory: bool,
}

/// Why a stream is left to zlib.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The format shows that the stream is not a response of this program.
    Format,
    /// Level 0, or a strategy.
    Level,
}

/// Number of zlib's only compression method, deflate (`Z_DEFLATED`).
pub(crate) const DEFLATED: i32 = 8;

/// Level for which zlib's -1 stands (`Z_DEFAULT_COMPRESSION`).
pub(crate) const DEFAULT_LEVEL: u8 = 6;

impl Program {
    /// The program with this name, under this setting. `None` if it is left alone.
    pub(crate) fn named(name: &[u8], scope: ServedPrograms) -> Option<Self> {
        let known = NAMES.iter().find(|(names, _)| is_one_of(names, name));
        match (scope, known) {
            (ServedPrograms::Off, _) | (ServedPrograms::Servers, None) => None,
            (_, Some((_, program))) => Some(*program),
            (ServedPrograms::Any, None) => Some(Self::Other),
        }
    }

    /// Format and level of a stream that is taken over.
    pub(crate) fn takes(self, wanted: &Wanted) -> Result<(Format, u8), NotTaken> {
        if !(1..=9).contains(&wanted.memory_level) || wanted.method != DEFLATED {
            return Err(NotTaken::Format);
        }
        let format = match (self, wanted.window_bits) {
            // gzip says nothing of the window: every reader has one of 32 KiB.
            (Self::Nginx, 25..=31) if wanted.own_memory => Format::Gzip,
            (Self::Lighttpd | Self::Other, 25..=31) => Format::Gzip,
            (Self::Apache | Self::Lighttpd | Self::Other, -15) => Format::Raw,
            (Self::Lighttpd | Self::Other, 15) => Format::Zlib,
            (Self::Nginx | Self::Apache | Self::Lighttpd | Self::Other, _) => {
                return Err(NotTaken::Format);
            }
        };
        let level = match (wanted.level, wanted.strategy) {
            (-1, 0) => DEFAULT_LEVEL,
            (1..=9, 0) => u8::try_from(wanted.level).map_err(|_| NotTaken::Level)?,
            _ => return Err(NotTaken::Level),
        };
        Ok((format, level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GZIP: Wanted = Wanted {
        level: 1,
        method: DEFLATED,
        window_bits: 31,
        memory_level: 8,
        strategy: 0,
        own_memory: true,
    };

    #[test]
    fn servers_are_known_by_name_and_other_programs_are_left_alone() {
        let named = |name: &str| Program::named(name.as_bytes(), ServedPrograms::Servers);
        for name in ["nginx", "nginx-debug", "nginx.old", "openresty", "angie", "nginx (deleted)"] {
            assert_eq!(named(name), Some(Program::Nginx), "{name}");
        }
        assert_eq!(named("apache2"), Some(Program::Apache));
        assert_eq!(named("lighttpd"), Some(Program::Lighttpd));
        for name in
            ["", "git", "rsync", "postgres", "python3.11", "mynginx", "nginxbeautifier", "haproxy"]
        {
            assert_eq!(named(name), None, "{name}");
            assert_eq!(
                Program::named(name.as_bytes(), ServedPrograms::Any),
                Some(Program::Other),
                "{name}"
            );
        }
        assert_eq!(Program::named(b"nginx", ServedPrograms::Off), None);
    }

    #[test]
    fn only_responses_are_taken() {
        let nginx = |wanted| Program::Nginx.takes(&wanted);
        assert_eq!(nginx(GZIP), Ok((Format::Gzip, 1)));
        assert_eq!(nginx(Wanted { level: -1, ..GZIP }), Ok((Format::Gzip, 6)));
        for (wanted, left) in [
            (Wanted { own_memory: false, ..GZIP }, NotTaken::Format),
            (Wanted { window_bits: 15, ..GZIP }, NotTaken::Format),
            (Wanted { window_bits: -15, ..GZIP }, NotTaken::Format),
            (Wanted { window_bits: 24, ..GZIP }, NotTaken::Format),
            (Wanted { window_bits: 32, ..GZIP }, NotTaken::Format),
            (Wanted { memory_level: 0, ..GZIP }, NotTaken::Format),
            (Wanted { memory_level: 10, ..GZIP }, NotTaken::Format),
            (Wanted { method: 9, ..GZIP }, NotTaken::Format),
            (Wanted { level: 0, ..GZIP }, NotTaken::Level),
            (Wanted { level: 10, ..GZIP }, NotTaken::Level),
            (Wanted { strategy: 2, ..GZIP }, NotTaken::Level),
        ] {
            assert_eq!(nginx(wanted), Err(left), "{wanted:?}");
        }
        let raw = Wanted { window_bits: -15, own_memory: false, ..GZIP };
        assert_eq!(Program::Apache.takes(&raw), Ok((Format::Raw, 1)));
        assert_eq!(Program::Apache.takes(&GZIP), Err(NotTaken::Format));
        // A reader with a smaller window could not follow.
        assert_eq!(
            Program::Other.takes(&Wanted { window_bits: 12, ..GZIP }),
            Err(NotTaken::Format)
        );
        assert_eq!(
            Program::Other.takes(&Wanted { window_bits: 15, ..GZIP }),
            Ok((Format::Zlib, 1))
        );
    }
}
