// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The names of the programs that are understood.

use millrace_edge::servers::{HAPROXY, NGINX, is_one_of};

/// A program whose use of libssl is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostProgram {
    /// nginx, or one of its kin that has the same event loop.
    Nginx,
    /// HAProxy, which knows of jobs, but loses those of connections that it closes.
    Haproxy,
}

impl HostProgram {
    /// The program with this name.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        if is_one_of(&NGINX, name) {
            Some(Self::Nginx)
        } else {
            is_one_of(&HAPROXY, name).then_some(Self::Haproxy)
        }
    }
}
