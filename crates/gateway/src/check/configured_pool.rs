// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pool that a file of a gateway names, for a question to its nodes without a running server.

use std::path::{Path, PathBuf};

use millrace_hostfs::process::User;
use millrace_hostfs::{Root, Unavailable};
use thiserror::Error;

use super::evidence;
use super::judge::Provider;
use super::keys::{self, KeyFile};
use super::pool::{KeyStub, Question};
use super::server::{self, ServerConfig};
use super::{Server, utf8};
use crate::system_conf::read_cnf;

/// The pool that a file of a gateway names, and the stubs of the servers on this machine.
#[derive(Clone, Debug)]
pub struct ConfiguredPool {
    /// Question to the nodes of the pool.
    pub question: Question,
    /// The user of the first server that has stubs, if there is one.
    pub user: Option<User>,
}

impl ConfiguredPool {
    /// Reads an `openssl.cnf`, or a `client.toml` by its extension, below `root`.
    pub fn read(root: &Root, path: &Path) -> Result<Self, PoolFileError> {
        let unreadable = |reason| PoolFileError::Unreadable { path: path.to_owned(), reason };
        let provider = if path.extension().is_some_and(|extension| extension == "toml") {
            let table = evidence::read_client(root, utf8(path)).map_err(unreadable)?;
            Provider::in_file(&table)
        } else {
            let cnf = read_cnf(root, path).map_err(unreadable)?;
            let client = evidence::client_file(None, root);
            let client = client.and_then(|(_, table)| table.ok());
            Provider::in_section(&cnf, None, client.as_ref())
                .ok_or_else(|| PoolFileError::NoSection(path.to_owned()))?
        };
        let mut keys = Vec::new();
        let mut user = None;
        for server in [Server::Haproxy, Server::Nginx] {
            let config = installed(root, &server);
            let stubs = config.keys.iter().filter_map(|path| match keys::look(root, path) {
                KeyFile::Stub(stub) => Some(stub),
                KeyFile::Plain | KeyFile::Other | KeyFile::Unreadable(_) => None,
            });
            let stubs: Vec<KeyStub> = stubs.filter(|stub| !keys.contains(stub)).collect();
            if !stubs.is_empty() && user.is_none() {
                user = evidence::server_user(root, &server, "", &config);
            }
            keys.extend(stubs);
        }
        Ok(Self {
            question: Question {
                nodes: provider.nodes,
                tls: provider.tls,
                keys,
                files: Vec::new(),
            },
            user,
        })
    }
}

/// Why a file does not name a pool.
#[derive(Debug, Error)]
pub enum PoolFileError {
    /// The file cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// As the user named it.
        path: PathBuf,
        /// Why it cannot be read.
        reason: Unavailable,
    },
    /// The file has no section for the provider.
    #[error("{} has no section for the provider that its openssl_conf leads to", .0.display())]
    NoSection(PathBuf),
}

/// The configuration of a server at its usual place.
fn installed(root: &Root, server: &Server) -> ServerConfig {
    match server {
        Server::Haproxy => server::haproxy::read(root, &[server::haproxy::DEFAULT_FILE.into()]),
        Server::Other(_) => ServerConfig::default(),
        Server::Nginx => {
            let mut files = server::nginx::DEFAULT_FILES.iter();
            let file = files.find(|file| root.exists(file));
            file.map_or_else(ServerConfig::default, |file| {
                server::nginx::read(root, Path::new(file))
            })
        }
    }
}
