// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How the two ends agree. A client offers a range of versions and a set of features; the node
//! answers with the highest common version and with those of the features that it has, too.
//!
//! Every code and layout of a version is fixed. What is new comes either with a version or with a
//! feature, and is sent only where that version or feature is in force; so a decoder can refuse
//! what it does not know, and old and new ends still understand each other.

use crate::error::WireError;
use crate::message::{Hello, Welcome};

/// Lowest protocol version spoken here.
pub const VERSION_MIN: u16 = 1;

/// Highest protocol version spoken here.
pub const VERSION_MAX: u16 = 1;

/// Feature: the client may send [`Report`](crate::ClientMessage::Report).
pub const FEATURE_REPORTS: u64 = 1 << 0;

/// Features known here.
pub const FEATURES: u64 = FEATURE_REPORTS;

/// Node side: the version and the features that are in force after this `Hello`.
///
/// # Errors
/// [`WireError::NoCommonVersion`].
pub fn negotiate(hello: &Hello) -> Result<(u16, u64), WireError> {
    let (min, max) = (hello.min_version, hello.max_version);
    let version = max.min(VERSION_MAX);
    if version < min.max(VERSION_MIN) {
        return Err(WireError::NoCommonVersion { min, max });
    }
    Ok((version, hello.features & FEATURES))
}

/// Client side: whether this `Welcome` is an answer to that `Hello`.
///
/// # Errors
/// [`WireError::VersionNotOffered`] or [`WireError::FeaturesNotOffered`]: the node is broken.
pub fn accept(hello: &Hello, welcome: &Welcome) -> Result<(), WireError> {
    if !(hello.min_version..=hello.max_version).contains(&welcome.version) {
        return Err(WireError::VersionNotOffered(welcome.version));
    }
    match welcome.features & !hello.features {
        0 => Ok(()),
        excess => Err(WireError::FeaturesNotOffered(excess)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(min_version: u16, max_version: u16) -> Hello {
        Hello {
            min_version,
            max_version,
            features: u64::MAX,
            agent: String::new(),
        }
    }

    #[test]
    fn the_highest_common_version_wins_and_unknown_features_are_ignored() {
        assert_eq!(negotiate(&hello(1, 1)), Ok((1, FEATURES)));
        assert_eq!(negotiate(&hello(1, u16::MAX)), Ok((VERSION_MAX, FEATURES)));
        assert_eq!(negotiate(&hello(0, 1)), Ok((1, FEATURES)));
    }

    #[test]
    fn ranges_that_do_not_meet_are_a_version_fault() {
        for (min, max) in [(VERSION_MAX + 1, u16::MAX), (0, VERSION_MIN - 1)] {
            let error = negotiate(&hello(min, max)).unwrap_err();
            assert_eq!(error, WireError::NoCommonVersion { min, max });
            assert_eq!(error.fault(), crate::Fault::Version);
        }
    }

    #[test]
    fn a_welcome_must_answer_the_hello() {
        let hello = Hello {
            min_version: 1,
            max_version: 2,
            features: 0b101,
            agent: String::new(),
        };
        let welcome = |version, features| Welcome {
            version,
            features,
            node: String::new(),
            max_in_flight: 1,
            max_keys: 1,
        };
        assert_eq!(accept(&hello, &welcome(2, 0b100)), Ok(()));
        assert_eq!(
            accept(&hello, &welcome(3, 0)),
            Err(WireError::VersionNotOffered(3))
        );
        assert_eq!(
            accept(&hello, &welcome(0, 0)),
            Err(WireError::VersionNotOffered(0))
        );
        assert_eq!(
            accept(&hello, &welcome(1, 0b110)),
            Err(WireError::FeaturesNotOffered(0b010))
        );
    }
}
