// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The manager's API: HTTP and JSON over TLS.
//!
//! ```text
//!  TLS (listener) ─► Host, Origin ─► path ─► caller: certificate or token ─► its class (standing) ─► role
//!      ─► body, bounded ─► idempotency key ─► the row's function, on a blocking thread ─► JSON or problem document
//! ```
//!
//! `routes::ROUTES` is the whole API: one row per request with its path, the role that it needs, the types of body
//! and answer, and the function that carries it out. The router and the `OpenAPI` document both come from it, so they
//! agree.

mod auth;
mod call;
#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod hostile_tests;
mod idempotency;
mod keys;
mod listener;
mod metrics;
mod openapi;
mod pool_events;
mod pool_overview;
#[cfg(test)]
mod principal_tests;
mod problem;
mod route;
mod routes;
mod standing;
mod state;
#[cfg(test)]
mod state_tests;
mod views;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use millrace_server::web::{self, Addressed};
use millrace_service::admission::Activity;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::error;
use zeroize::Zeroizing;

use crate::Manager;
use crate::model::principal::Role;
use auth::{Access, Caller};
use call::{Call, Precondition, Reply, parse_query};
use idempotency::Answered;
use listener::Peer;
use metrics::ApiMetrics;
use route::{Route, Verb};
use standing::{CountedPlaces, Rooms};
use state::PoolState;

pub use auth::fresh_token;
pub use call::Page;
pub use keys::{KeyView, NewKey};
pub use listener::{ServerTls, TlsError};
pub use problem::{Code, Problem};
pub use routes::openapi_document;
pub use views::{
    GrantedNode, HeartbeatReport, Leave, NewToken, NodeView, PrincipalView, QuotaBody,
    RecordFindings, TenantGrants, Token,
};

/// Bound on a body, in bytes: a tenant with 1,024 identities, or the report of a node, has 200 KiB.
pub const MAX_BODY: usize = 1 << 20;

/// Bound on callers that are identified at once, each on a thread of the runtime, while it waits for the records: no
/// request waits for the store there.
const IDENTIFIED_AT_ONCE: usize = 16;

/// Interval at which answers are dropped whose time is over.
const FORGET_INTERVAL: Duration = Duration::from_secs(5);

/// The API of one manager.
struct Api {
    manager: Manager,
    /// Names that a `Host` may have: those in the certificate.
    hosts: BTreeSet<String>,
    answered: Answered,
    metrics: ApiMetrics,
    state: PoolState,
    /// The latest overview of the pool, as JSON.
    overview: watch::Receiver<Arc<str>>,
    connections: CountedPlaces,
    rooms: Rooms,
    identified: Semaphore,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Who gets the stream of the page.
const WATCHER: Access = Access::Role(Role::Viewer);

/// Interval at which a stream looks whether its caller may still watch: that of the events themselves.
const SIGHT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time for requests under way after the order to stop: a write takes milliseconds, and one that waits for a store that
/// is away would not end.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves the API until `stop` completes.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    tls: &ServerTls,
    hosts: BTreeSet<String>,
    manager: Manager,
    pool: &str,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let api = Api::new(manager, hosts, pool);
    let listener = listener::listen(listener, tls, &api.connections.places)?;
    let service = router(&api).into_make_service_with_connect_info::<Peer>();
    let stopping = Arc::new(Notify::new());
    let stopped = Arc::clone(&stopping);
    let served = axum::serve(listener, service).with_graceful_shutdown(async move {
        stop.await;
        stopped.notify_one();
    });
    // Requests under way end; the streams of pages, which never would, are cut.
    let cut = async {
        stopping.notified().await;
        sleep(DRAIN).await;
    };
    tokio::select! {
        ended = served => ended?,
        () = cut => {}
    }
    Ok(())
}

impl Api {
    fn new(manager: Manager, hosts: BTreeSet<String>, pool: &str) -> Arc<Self> {
        let state = PoolState::new(manager.clone(), pool);
        let overview = state.publish();
        let api = Arc::new(Self {
            manager,
            hosts,
            answered: Answered::default(),
            metrics: ApiMetrics::default(),
            state,
            overview,
            connections: CountedPlaces::default(),
            rooms: Rooms::default(),
            identified: Semaphore::new(IDENTIFIED_AT_ONCE),
        });
        // Also while no request comes: an answer may have a token.
        let kept = Arc::downgrade(&api);
        tokio::spawn(async move {
            while let Some(api) = kept.upgrade() {
                api.answered.forget(Instant::now());
                drop(api);
                sleep(FORGET_INTERVAL).await;
            }
        });
        api
    }

    /// The server that a request is meant for; another one if a foreign page made it.
    fn addressed(&self, request: &Request) -> Addressed {
        let known = |name: &str| self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        match Addressed::of(request, known) {
            Addressed::Here if !web::same_origin(request.headers()) => Addressed::Elsewhere,
            addressed => addressed,
        }
    }

    /// The caller of a request. Its connection moves to the class and the source of the caller.
    ///
    /// # Errors
    /// A token that is not valid.
    async fn identify(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Problem> {
        let caller = self.caller(peer, auth::bearer(headers)?).await?;
        if let Some(source) = caller.source() {
            peer.place().pass(caller.standing().class(), source);
        }
        Ok(caller)
    }

    async fn caller(
        &self,
        peer: &Peer,
        token: Option<Zeroizing<String>>,
    ) -> Result<Caller, Problem> {
        if token.is_none() && peer.identity().is_none() {
            return Ok(Caller::Anonymous);
        }
        let _place = self.identified.acquire().await;
        let (manager, known) = (self.manager.clone(), peer.clone());
        let find = move || Caller::of(&manager, &known, token.as_deref().map(String::as_str));
        spawn_blocking(find).await.map_err(|error| internal(&error))?
    }

    /// Completes when the caller may no longer watch: the certificate has to be verified again, or the token was
    /// removed, has expired, or has another role.
    async fn loses_sight(self: Arc<Self>, peer: Peer, token: Option<Zeroizing<String>>) {
        let checks = async {
            loop {
                sleep(SIGHT_CHECK_INTERVAL).await;
                let caller = self.caller(&peer, token.clone()).await;
                if caller.and_then(|caller| caller.require(WATCHER)).is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = checks => {}
            () = peer.clone().outdated() => {}
        }
    }
}

/// The router, from the table of requests.
fn router(api: &Arc<Api>) -> Router {
    let mut router = Router::new();
    for route in routes::ROUTES {
        let filter = method_filter(route.method);
        let act = move |State(api): State<Arc<Api>>,
                        ConnectInfo(peer): ConnectInfo<Peer>,
                        params: RawPathParams,
                        request: Request| async move {
            let path = params.iter().map(|(_, value)| value.to_owned()).collect();
            let unread = route.body.is_none() && !request.body().is_end_stream();
            let reply = answer(&api, route, &peer, path, request).await;
            api.metrics.count(route, &reply);
            let mut answer =
                reply.map_or_else(IntoResponse::into_response, IntoResponse::into_response);
            if unread {
                answer.headers_mut().insert(header::CONNECTION, CLOSE);
            }
            answer
        };
        router = router.route(route.path, on(filter, act));
    }
    router
        .route("/v1/events", get(events))
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::Method, "see /v1/openapi.json")
        })
        .fallback(|| async {
            Problem::new(Code::NotFound, "there is no such path: see /v1/openapi.json")
        })
        .merge(web::page())
        .layer(from_fn_with_state(Arc::clone(api), guard))
        .with_state(Arc::clone(api))
}

fn method_filter(method: Verb) -> MethodFilter {
    match method {
        Verb::Get => MethodFilter::GET,
        Verb::Post => MethodFilter::POST,
        Verb::Put => MethodFilter::PUT,
        Verb::Delete => MethodFilter::DELETE,
    }
}

/// Refuses requests for other hosts (DNS rebinding) and of foreign pages: a browser may hold a certificate for us.
async fn guard(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let has_body = !request.body().is_end_stream();
    let detail = "name this manager by a name in its certificate, and from no other site's page";
    let refusal = api.addressed(&request).refusal(Problem::new(Code::Misdirected, detail));
    let mut response = match refusal {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    // A refusal may leave the body unread, and the connection ends then: the client is not to send more on it. It also
    // ends for a certificate that has to be verified again.
    let refused = response.status();
    if has_body && refused.is_client_error() || refused == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::CONNECTION, CLOSE);
    }
    response
}

/// Ends the connection after an answer.
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// The stream of the page: the overview of the pool, at each change.
async fn events(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let watch = async {
        api.identify(&peer, &headers).await?.require(WATCHER)?;
        peer.place().mark(Activity::Watching);
        let token = auth::bearer(&headers)?;
        let end = Arc::clone(&api).loses_sight(peer, token);
        Ok(web::event_stream(api.overview.clone(), end))
    };
    watch.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

fn internal(error: &dyn fmt::Display) -> Problem {
    error!(%error, "a request failed by a defect of the manager");
    Problem::new(Code::Internal, "see the manager's log")
}

async fn answer(
    api: &Arc<Api>,
    route: &'static Route,
    peer: &Peer,
    path: Vec<String>,
    request: Request,
) -> Result<Reply, Problem> {
    let (head, body) = request.into_parts();
    let condition = Precondition::of(&head.headers)?;
    let key = text_of(&head.headers, &HeaderName::from_static("idempotency-key"));
    let key = key.filter(|_| head.method != Method::GET).map(str::to_owned);
    // Before the body is read: a caller without rights sends at most a header.
    let caller = api.identify(peer, &head.headers).await?;
    caller.require(route.access)?;
    let standing = caller.standing();
    let body = match route.body {
        Some(_) => {
            let _place = api.rooms.body(standing).await;
            read_body(&head.headers, body).await?
        }
        None => Zeroizing::default(),
    };
    let _place = api.rooms.request(standing).await;
    peer.place().mark(Activity::Working);
    let request = digest_of(&head.method, head.uri.path(), &body);
    let call = Call {
        api: Arc::clone(api),
        caller,
        path,
        query: parse_query(head.uri.query().unwrap_or_default()),
        condition,
        body,
    };
    let work = move || {
        let api = Arc::clone(&call.api);
        let caller = call.caller.generation();
        if let Some(key) = &key
            && let Some(earlier) = api.answered.begin(&caller, key, request, Instant::now())?
        {
            return earlier;
        }
        let reply = (route.act)(&call);
        if let Some(key) = &key {
            api.answered.finish(&caller, key, &reply);
        }
        reply
    };
    spawn_blocking(work).await.map_err(|error| internal(&error))?
}

/// The body of a request with one.
async fn read_body(headers: &HeaderMap, body: Body) -> Result<Zeroizing<Vec<u8>>, Problem> {
    let media_type = text_of(headers, &header::CONTENT_TYPE).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(Code::MediaType, "send application/json"));
    }
    let body = timeout(listener::TIMEOUT, to_bytes(body, MAX_BODY)).await;
    let body = body.ok().and_then(Result::ok).ok_or_else(|| {
        Problem::new(
            Code::TooLarge,
            format!("a body has at most {MAX_BODY} bytes, sent without a pause"),
        )
    })?;
    Ok(Zeroizing::new(body.to_vec()))
}

fn text_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn digest_of(method: &Method, path: &str, body: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in [method.as_str().as_bytes(), path.as_bytes(), body] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_separates_its_parts() {
        let put = |path: &str, body: &[u8]| digest_of(&Method::PUT, path, body);
        assert_ne!(put("/a", b"b"), put("/ab", b""));
        assert_eq!(put("/a", b"b"), put("/a", b"b"));
    }
}
