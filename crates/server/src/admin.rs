// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Administration of a running node: HTTP and JSON on a separate unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | as on the status socket |
//! | `GET /sessions` | [`Sessions`]: identity, agent, age and jobs in flight of each |
//! | `GET /keys` | [`KeyReport`](millrace_service::keys::KeyReport): versions in service, files that cannot be used |
//! | `GET /keys?name=NAME` | the same of one key: the whole list has megabytes for thousands of keys |
//! | `GET /settings` | the settings in force, with their revision |
//! | `POST /reload` | what SIGHUP does; [`ReloadReport`](crate::ReloadReport) |
//!
//! The kernel names the user at the other end: root, the node's own user, or one that the configuration
//! names. Connections of other users are closed unanswered. Everything that changes a
//! node goes through here, never through the sockets of [`crate::http`].

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::{IncomingStream, Listener};
use millrace_service::admission::Activity;
use millrace_service::log_limit::RateLimit;
use millrace_service::status::Sessions;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::handle::NodeHandle;
use crate::http::{ADMIN, Bounded, json as answer, refuse_ambiguous};
use crate::listener::{unix_source, unix_user};
use crate::places::Place;

/// Mode of the socket: closed to other users, unless the configuration names some. Then every user can connect,
/// and [`Authenticated`] closes the connections of users without a right.
pub(crate) fn socket_mode(uids: &[u32]) -> u32 {
    if uids.is_empty() { 0o600 } else { 0o666 }
}

/// The peer of a connection, with the user that the kernel reports (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: u32,
}

/// The user of a request, and the place of its connection.
#[derive(Clone, Debug)]
struct Administrator {
    uid: u32,
    place: Arc<Place>,
}

/// A listener that closes connections of other users.
struct Authenticated {
    listener: UnixListener,
    uids: Vec<u32>,
    complaints: RateLimit,
}

impl Listener for Authenticated {
    type Io = UnixStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (UnixStream, Peer) {
        loop {
            let (stream, _) = Listener::accept(&mut self.listener).await;
            let refused = match unix_user(&stream) {
                Ok(uid) if self.uids.contains(&uid) => return (stream, Peer { uid }),
                Ok(uid) => format!("uid {uid}; name it in admin.uids of node.toml"),
                Err(error) => error.to_string(),
            };
            if let Some(suppressed) = self.complaints.pass(Instant::now()) {
                warn!(refused, suppressed, "a user may not administer the node: connection closed");
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { uid: rustix::process::geteuid().as_raw() })
    }
}

impl Connected<IncomingStream<'_, Bounded<Authenticated>>> for Administrator {
    fn connect_info(stream: IncomingStream<'_, Bounded<Authenticated>>) -> Self {
        let place = Arc::clone(stream.io().place());
        Self { uid: stream.remote_addr().uid, place }
    }
}

/// Serves `listener` until the task is dropped. Besides root and the node's own user, `uids` may administer.
pub(crate) async fn serve(
    listener: UnixListener,
    mut uids: Vec<u32>,
    node: NodeHandle,
) -> io::Result<()> {
    uids.extend([0, rustix::process::geteuid().as_raw()]);
    let listener = Bounded::new(
        Authenticated { listener, uids, complaints: RateLimit::default() },
        node.service().clone(),
        ADMIN,
        |stream, _| unix_source(stream),
    );
    let router = Router::new()
        .route("/status", get(status))
        .route("/sessions", get(sessions))
        .route("/keys", get(keys))
        .route("/settings", get(settings))
        .route("/reload", post(reload))
        .layer(from_fn(refuse_ambiguous))
        .with_state(node);
    let service = router.into_make_service_with_connect_info::<Administrator>();
    axum::serve(listener, service).await
}

async fn status(State(node): State<NodeHandle>) -> Response {
    answer(&node.status())
}

async fn sessions(State(node): State<NodeHandle>) -> Response {
    let sessions = node.service().sessions();
    answer(&Sessions { sessions })
}

async fn keys(State(node): State<NodeHandle>, RawQuery(query): RawQuery) -> Response {
    let report = move || {
        let name = query.as_deref().and_then(|query| query.strip_prefix("name="));
        name.map_or_else(|| node.service().keys(), |name| node.service().keys_of(name))
    };
    // A reload holds the lock of the keys while it reads the disk.
    match spawn_blocking(report).await {
        Ok(report) => answer(&report),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn settings(State(node): State<NodeHandle>) -> Response {
    let now = node.service().settings();
    answer(&json!({ "revision": now.revision, "settings": now.settings }))
}

async fn reload(
    State(node): State<NodeHandle>,
    ConnectInfo(peer): ConnectInfo<Administrator>,
) -> Response {
    // While it reads the disk, it does not give way to a connection that only waits.
    peer.place.mark(Activity::Working);
    info!(uid = peer.uid, "reload asked for");
    match spawn_blocking(move || node.reload_all(&format!("uid:{}", peer.uid))).await {
        Ok(Ok(report)) => answer(&report),
        Ok(Err(error)) => (StatusCode::CONFLICT, error.to_string()).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
