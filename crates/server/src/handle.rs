// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`NodeHandle`]: state and reload of a running node, for its administration.

use std::fmt;
use std::sync::{Arc, Mutex};

use millrace_operation::sync::lock;
use millrace_service::Service;
use millrace_service::keys::Reloaded;
use millrace_service::settings::{Applied, Problems};
use millrace_service::status::Status;
use millrace_service::store::StoreError;
use serde::Serialize;
use thiserror::Error;

use crate::tls::{Acceptor, TlsError};

/// A reload action that replaces [`NodeHandle::reload`] and also reads the settings again.
///
/// The argument names the origin of the request, for the audit log.
pub type ReloadAction = Arc<dyn Fn(&str) -> Result<ReloadReport, ReloadError> + Send + Sync>;

/// The changes made by a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// Changed settings.
    pub settings: Applied,
    /// Changed keys.
    pub keys: Reloaded,
    /// Changed keys of the configuration file that take effect only after a restart.
    pub needs_restart: Vec<String>,
}

/// Why a node does not take its files again.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// The configuration cannot be read; with the reason in words for the operator.
    #[error("{0}")]
    Configuration(String),
    /// The settings are not valid.
    #[error(transparent)]
    Settings(#[from] Problems),
    /// A certificate file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads the state of a running node and reloads it. Cheap to clone.
#[derive(Clone)]
pub struct NodeHandle {
    service: Service,
    /// The TLS of the TCP listener, if there is one.
    acceptor: Option<Arc<Acceptor>>,
    /// The reload action of the composition root, if it has set one.
    action: Arc<Mutex<Option<ReloadAction>>>,
}

impl NodeHandle {
    pub(crate) fn new(service: Service, acceptor: Option<&Arc<Acceptor>>) -> Self {
        Self { service, acceptor: acceptor.cloned(), action: Arc::default() }
    }

    /// The current state of the node: the answer of `/status`.
    #[must_use]
    pub fn status(&self) -> Status {
        self.service.status()
    }

    /// The service behind the node.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Reads keys, policies and certificates again. Blocks on disk and key checks.
    ///
    /// # Errors
    /// The first file that could not be read; the previous state of that part stays in force.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let keys = self.service.reload_keys();
        if let Some(acceptor) = &self.acceptor {
            let metrics = self.service.metrics();
            match acceptor.reload() {
                Ok(()) => {
                    metrics.reloads.add(1);
                    self.service.set_certificate(acceptor.certificate());
                }
                Err(error) => {
                    metrics.reloads_failed.add(1);
                    return Err(error.into());
                }
            }
        }
        Ok(keys?)
    }

    /// Sets the action of [`Self::reload_all`].
    pub fn on_reload(&self, action: ReloadAction) {
        *lock(&self.action) = Some(action);
    }

    /// Reads everything again that can change in a running node, as SIGHUP does: settings, keys, policies,
    /// certificates. Blocks on disk and key checks.
    ///
    /// # Errors
    /// The part that is unreadable or wrong stays unchanged.
    pub fn reload_all(&self, actor: &str) -> Result<ReloadReport, ReloadError> {
        let action = lock(&self.action).clone();
        if let Some(action) = action {
            return action(actor);
        }
        let keys = self.reload()?;
        let revision = self.service().settings().revision;
        Ok(ReloadReport {
            settings: Applied { revision, changes: Vec::new() },
            keys,
            needs_restart: Vec::new(),
        })
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeHandle")
    }
}
