// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace up --with-manager`: a manager in the process of its only node. It keeps its records in a SQLite file of
//! the state folder. The node registers like any other, over HTTPS with a token of its own, so that further nodes
//! may join later.
//!
//! ```text
//!  STATE/manager/   as for `millrace manager`, and pool.db
//!  STATE/node/      as for `millrace node run`, and the access of this node
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use millrace_manager::api;
use millrace_manager::client::Access;
use millrace_manager::managed_node::make_folder;
use millrace_manager::model::command::Command;
use millrace_manager::model::core::Actor;
use millrace_manager::model::name::PrincipalName;
use millrace_manager::model::principal::{Credential, Principal, Role, TokenHash};
use millrace_server::config::{MembershipConfig, NodeConfig};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::error;

use super::manager::Running;
use crate::args::{InsideManagerArgs, ManagerArgs};
use crate::exit::{ContextCode, Failure, fail};
use crate::manager_access::admin_access;

/// The actor of what this process does by itself, in the audit log.
const ACTOR: Actor<'_> = Actor { name: "this machine", role: Role::Admin };

/// A manager that does not answer yet.
pub(super) struct InsideManager {
    running: Running,
    access: PathBuf,
}

impl InsideManager {
    /// Opens the pool's records, and gives the node its access.
    pub(super) fn prepare(args: &InsideManagerArgs, node: &NodeConfig) -> Result<Self> {
        let keys = &node.store.directory;
        let state =
            keys.parent().ok_or_else(|| anyhow!("{} has no folder above it", keys.display()))?;
        let running = Running::prepare(&ManagerArgs {
            store: format!("sqlite:{}", state.join("manager/pool.db").display()),
            listen: args.manager_listen,
            host: args.manager_host.clone(),
            pool: "pool".to_owned(),
            state: Some(state.to_owned()),
            grant_lifetime: args.grant_lifetime,
            new_kek: false,
            accept_records: false,
            log: None,
        })?;
        let access = state.join("node/access");
        give_access(&running, &node.name, &access)?;
        Ok(Self { running, access })
    }

    /// How the node joins.
    pub(super) fn membership(&self) -> MembershipConfig {
        MembershipConfig { access: Some(self.access.clone()), ..MembershipConfig::default() }
    }

    /// Starts to answer.
    pub(super) async fn start(self) -> Result<ServedManager> {
        let running = Arc::new(self.running);
        let listener = running.listen().await?;
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Arc::clone(&running);
        let served = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            if let Err(error) = served.serve(listener, stopped).await {
                error!("the manager does not answer any more: {error:#}");
            }
        });
        note!("{}", running.summary());
        Ok(ServedManager { running, stop, served })
    }
}

/// A manager that answers.
pub(super) struct ServedManager {
    running: Arc<Running>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl ServedManager {
    /// Ends it, after the node has left the pool.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.served.await;
        let manager = self.running.manager.clone();
        // Joins threads that may be waiting for the store.
        let _ = spawn_blocking(move || manager.stop()).await;
    }
}

/// Writes an access file with a token for the node. One of an earlier start is kept while the manager knows its name.
fn give_access(running: &Running, node: &str, path: &Path) -> Result<()> {
    let name: PrincipalName = node.parse().or_fail(Failure::Usage, || "--name".to_owned())?;
    let known = running.manager.view(|view| view.principals.contains_key(&name));
    let admin = Access::read(&admin_access(running.state()))
        .context("reading the administrator's access")?;
    if known && Access::read(path).is_ok_and(|access| access.managers == admin.managers) {
        return Ok(());
    }
    let token = api::fresh_token().map_err(|problem| fail(Failure::Failed, problem.to_string()))?;
    let principal = Principal {
        name,
        role: Role::Node,
        credential: Credential::Token(TokenHash::of(&token)),
        expires_ms: None,
    };
    let access = Access { managers: vec![running.url()], token: Some(token.into()), ..admin };
    if let Some(folder) = path.parent() {
        make_folder(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    access.write(path)?;
    running
        .manager
        .execute(ACTOR, &Command::SetPrincipal(principal), None)
        .context("giving the node its access")?;
    Ok(())
}
