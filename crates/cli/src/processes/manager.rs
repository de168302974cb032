// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A manager: assembles store, signing key, certificates and API.
//!
//! ```text
//!  STATE/tls/            the private authority, shared with a node and with `millrace cert`
//!  STATE/manager/        0700
//!    manager.crt .key    the API's certificate, new at each start, each day and on SIGHUP
//!    grant.key           signs grants
//!    pool.kek            the key-encryption key of the pool's private keys
//!    audit-head          the newest entry of the audit log that this manager has seen
//!    access              the administrator's token, made with an empty store
//! ```

use std::collections::BTreeSet;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_hostfs::ordinary::{self, Links};
use millrace_manager::Manager;
use millrace_manager::api::{self, ServerTls};
use millrace_manager::client::Access;
use millrace_manager::managed_node::make_folder;
use millrace_manager::model::command::Command;
use millrace_manager::model::core::{Actor, LeaseTimes};
use millrace_manager::model::principal::{Credential, Principal, Role, TokenHash};
use millrace_manager::store;
use millrace_manager::vault::Vault;
use millrace_operation::MAX_PRIVATE_KEY_LEN;
use millrace_server::config::TlsFiles;
use millrace_server::tls::{ensure_authority, issue_node_certificate, revocation_list};
use millrace_service::grant::{GrantKeys, GrantSigner};
use millrace_service::store::pem::MAX_PEM_LEN;
use millrace_service::store::{IfExists, write_private};
use rustix::system::uname;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::args::ManagerArgs;
use crate::backends;
use crate::exit::{ContextCode, Failure, fail};
use crate::manager_access::admin_access;
use crate::paths;

/// Time between two certificates of the API: far less than the validity of one, and open pages connect again.
const RENEWAL: Duration = Duration::from_secs(24 * 3600);

/// Name of the first administrator.
const FIRST_ADMIN: &str = "first-admin";

/// A manager whose parts are in place.
pub(crate) struct Running {
    pub(crate) manager: Manager,
    tls: TlsFiles,
    hosts: BTreeSet<String>,
    listen: SocketAddr,
    pool: String,
    state: PathBuf,
}

impl Running {
    /// Opens the store and makes what is missing.
    pub(crate) fn prepare(args: &ManagerArgs) -> Result<Self> {
        let state = match &args.state {
            Some(state) => state.clone(),
            None => paths::state_dir()?,
        };
        let folder = state.join("manager");
        make_folder(&folder).with_context(|| format!("making {}", folder.display()))?;
        let hosts = hosts(args);
        let tls = certificates(&state, &hosts)?;
        let signer = signer(&folder.join("grant.key"))?;
        let store = store::open(&args.store)
            .or_fail(Failure::Usage, || format!("opening the store {}", args.store))?;
        let times = LeaseTimes { ttl: args.grant_lifetime, ..LeaseTimes::default() };
        let kek = folder.join("pool.kek");
        let vault = Vault::open(&kek, Arc::clone(&store), args.new_kek, backends::check_key)
            .or_fail(Failure::Usage, || "opening the pool's keys".to_owned())?
            .accepting_records(args.accept_records);
        let keys = GrantKeys::default();
        let manager = Manager::start_with_vault(store, signer, &keys, times, Some(vault))
            .context("opening the pool's records")?;
        let running =
            Self { manager, tls, hosts, listen: args.listen, pool: args.pool.clone(), state };
        running.make_admin()?;
        Ok(running)
    }

    pub(crate) async fn listen(&self) -> Result<TcpListener> {
        let listener = TcpListener::bind(self.listen).await;
        listener.or_fail(Failure::Usage, || {
            format!("cannot listen on {}: is another manager running?", self.listen)
        })
    }

    pub(crate) async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let tls = ServerTls::new(&self.tls)?;
        let manager = self.manager.clone();
        let hangup = signal(SignalKind::hangup()).context("catching SIGHUP")?;
        tokio::select! {
            served = api::serve(listener, &tls, self.hosts.clone(), manager, &self.pool, stop) => {
                served.context("serving the API")
            }
            () = self.renew(&tls, hangup) => Ok(()),
        }
    }

    /// Each day and on each SIGHUP: issues the certificate again, and reads the authority's certificate and revocation
    /// list. Never returns.
    async fn renew(&self, tls: &ServerTls, mut hangup: Signal) {
        loop {
            tokio::select! {
                _ = hangup.recv() => {}
                () = sleep(RENEWAL) => {}
            }
            let files = certificates(&self.state, &self.hosts);
            match files.and_then(|files| Ok(tls.reload(&files)?)) {
                Ok(()) => info!("the certificate is renewed"),
                Err(error) => warn!("the former certificate stays in force: {error:#}"),
            }
        }
    }

    /// The addresses and the next steps.
    pub(crate) fn summary(&self) -> String {
        let url = self.url();
        format!(
            "the manager answers at {url}, which is its page, too\n\
             next: millrace token create NODE --role node -o NODE.access\n\
             and:  millrace tenant create NAME --ops N"
        )
    }

    /// The state folder.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// The address for clients.
    pub(crate) fn url(&self) -> String {
        let ip = self.listen.ip();
        let host = if ip.is_unspecified() {
            uname().nodename().to_string_lossy().into_owned()
        } else if ip.is_ipv6() {
            format!("[{ip}]")
        } else {
            ip.to_string()
        };
        format!("https://{host}:{}", self.listen.port())
    }

    /// Makes an administrator and writes its access, if the store has no principals.
    fn make_admin(&self) -> Result<()> {
        if self.manager.view(|view| !view.principals.is_empty()) {
            return Ok(());
        }
        let token =
            api::fresh_token().map_err(|problem| fail(Failure::Failed, problem.to_string()))?;
        let principal = Principal {
            name: FIRST_ADMIN.parse().context("a name of this program")?,
            role: Role::Admin,
            credential: Credential::Token(TokenHash::of(&token)),
            expires_ms: None,
        };
        let actor = Actor { name: "first start", role: Role::Admin };
        let ca = ordinary::read_text(&self.tls.client_ca, Links::Follow, MAX_PEM_LEN)
            .or_fail(Failure::Usage, || format!("cannot read {}", self.tls.client_ca.display()))?;
        let access =
            Access { managers: vec![self.url()], ca, token: Some(token.into()), certificate: None };
        // Before the principal: a token that is lost would lock everyone out.
        access.write(&admin_access(&self.state))?;
        // Two managers may start at once on one store; only one creates the administrator.
        self.manager
            .execute(actor, &Command::SetPrincipal(principal), Some(0))
            .context("making the first administrator")?;
        Ok(())
    }
}

/// The names under which this manager may be addressed.
fn hosts(args: &ManagerArgs) -> BTreeSet<String> {
    let mut hosts: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    hosts.extend(args.host.iter().cloned());
    let ip = args.listen.ip();
    if !ip.is_unspecified() {
        hosts.insert(ip.to_string());
    }
    let own = uname().nodename().to_string_lossy().into_owned();
    if own.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        && !own.is_empty()
    {
        hosts.insert(own);
    }
    hosts
}

/// Issues the API's certificate again: that costs a millisecond, and no certificate expires unnoticed. Where the
/// authority is elsewhere, the files are what an operator has put there.
fn certificates(state: &Path, hosts: &BTreeSet<String>) -> Result<TlsFiles> {
    let authority = state.join("tls");
    let folder = state.join("manager");
    ensure_authority(&authority).context("making the authority")?;
    let files = TlsFiles {
        certificate: folder.join("manager.crt"),
        key: folder.join("manager.key"),
        client_ca: authority.join("ca.crt"),
        crl: Some(revocation_list(&authority)).filter(|list| list.exists()),
    };
    if !authority.join("ca.key").exists() && files.certificate.exists() {
        return Ok(files);
    }
    let names: Vec<String> = hosts.iter().cloned().collect();
    let issued =
        issue_node_certificate(&authority, &names).context("issuing the manager's certificate")?;
    write_private(&files.key, issued.key.as_bytes(), IfExists::Replace)
        .and_then(|()| {
            write_private(&files.certificate, issued.certificate.as_bytes(), IfExists::Replace)
        })
        .with_context(|| format!("writing into {}", folder.display()))?;
    Ok(files)
}

/// The key that signs grants; made the first time.
fn signer(path: &Path) -> Result<GrantSigner> {
    match ordinary::read(path, Links::Refuse, MAX_PRIVATE_KEY_LEN) {
        Ok(pkcs8) => GrantSigner::from_pkcs8(&zeroize::Zeroizing::new(pkcs8))
            .with_context(|| path.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (signer, pkcs8) = GrantSigner::generate()?;
            write_private(path, &pkcs8, IfExists::Fail)
                .with_context(|| format!("writing {}", path.display()))?;
            Ok(signer)
        }
        Err(error) => {
            Err(error).or_fail(Failure::Usage, || format!("cannot read {}", path.display()))
        }
    }
}
