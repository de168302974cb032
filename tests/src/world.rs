// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The fixture of most tests: a folder, an authority, a client that trusts it.

use std::path::Path;

use tempfile::TempDir;

use crate::drive::Client;
use crate::edge::EdgeOptions;
use crate::gateway::{Gateway, Server, Site};
use crate::node::Node;
use crate::pki::{Authority, Identity, KeyKind};
use crate::temp_dir;

/// The fixture of one test.
#[derive(Debug)]
pub struct World {
    /// Signs all certificates.
    pub authority: Authority,
    /// Trusts the authority.
    pub client: Client,
    // Last, so that it is removed after everything in it.
    dir: TempDir,
}

impl World {
    /// Creates the fixture.
    #[must_use]
    pub fn new() -> Self {
        let dir = temp_dir();
        let authority = Authority::new(dir.path());
        let client = Client::trusting(&authority);
        Self { authority, client, dir }
    }

    /// The folder of this test.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a node.
    #[must_use]
    pub fn node(&self, name: &str) -> Node {
        Node::start(self.dir(), name)
    }

    /// A key with its certificate.
    #[must_use]
    pub fn identity(&self, kind: KeyKind) -> Identity {
        self.authority.identity(kind)
    }

    /// Starts a gateway with this configuration of the provider.
    #[must_use]
    pub fn gateway(&self, server: Server, edge: EdgeOptions, sites: &[Site]) -> Gateway {
        Gateway::start(server, self.dir(), &edge.write(self.dir()), sites)
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
