// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parts of HTTP that a node and the manager share: the page, its stream of events, and the checks of `Host` and
//! `Origin`.
//!
//! The page is three static files of `web/`. It loads nothing from another host and sends nothing but `GET`; its
//! content security policy holds a browser to that. It reads `v1/state` and `v1/events`, which the node or the manager
//! that serves it provides.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Request, StatusCode, Version};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_core::Stream;
use tokio::sync::{mpsc, watch};

/// The files of the page: path, media type, content.
#[rustfmt::skip]
const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("../../../web/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../../../web/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../../../web/page.js")),
];

/// Bound on the size of the page, in bytes: it must load at once over a bad link.
pub const MAX_PAGE_LEN: usize = 60 * 1024;

/// Headers of every file of the page. Nothing but its own files runs, and no other site may frame it.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// Interval after which a client that lost its stream connects again.
const RETRY: Duration = Duration::from_secs(2);

/// The routes of the page.
pub fn page<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, media_type, content)| {
        let answer = move || async move {
            let mut answer = content.into_response();
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
            for (name, value) in HEADERS {
                headers.insert(name, HeaderValue::from_static(value));
            }
            answer
        };
        router.route(path, get(answer))
    })
}

/// The server that a request is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressed {
    /// This one.
    Here,
    /// Another one.
    Elsewhere,
    /// The request names none although it has to (HTTP/1.1), or several (RFC 9112, section 3.2).
    Malformed,
}

impl Addressed {
    /// Judges `Host`, which a target with an authority has to repeat. `is_ours` knows the names of this server, and
    /// says by the empty one whether it serves requests of HTTP/1.0 without a name. The check of every HTTP listener.
    pub fn of<B>(request: &Request<B>, is_ours: impl Fn(&str) -> bool) -> Self {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let target = request.uri().authority().map(Authority::as_str);
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok(),
            (None, None) if request.version() < Version::HTTP_11 => {
                Some(target.unwrap_or_default())
            }
            (None, None) | (_, Some(_)) => return Self::Malformed,
        };
        let valid = |host: &&str| host.is_empty() || host.parse::<Authority>().is_ok();
        let Some(host) = host.filter(valid) else {
            return Self::Malformed;
        };
        let is_target = target.is_none_or(|target| target.eq_ignore_ascii_case(host));
        // A name of a user in front of the host is not part of it, and a browser would hide it.
        let ours = is_target && !host.contains('@') && is_ours(host_name(host));
        if ours { Self::Here } else { Self::Elsewhere }
    }

    /// The answer to a request that this server does not serve; `elsewhere` is that to one for another server, and has
    /// the status 421.
    pub fn refusal(self, elsewhere: impl IntoResponse) -> Option<Response> {
        match self {
            Self::Here => None,
            Self::Elsewhere => {
                let mut answer = elsewhere.into_response();
                *answer.status_mut() = StatusCode::MISDIRECTED_REQUEST;
                Some(answer)
            }
            Self::Malformed => {
                let reason = "send one host header, with the name of this server\n";
                Some((StatusCode::BAD_REQUEST, reason).into_response())
            }
        }
    }
}

/// Whether a request that a web page makes comes from the page of this very host. Requests of programs have no
/// `Origin`, and browsers leave it out of a `GET` to the same host.
#[must_use]
pub fn same_origin(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match (headers.get(header::ORIGIN), host) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(origin), Some(host)) => origin.to_str().is_ok_and(|origin| {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
        }),
    }
}

/// The name in a `Host` header, without the port and the brackets of an IPv6 address.
pub(crate) fn host_name(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.trim_start_matches('[').trim_end_matches(']')
}

/// Server-sent events: the present document, and each that follows. A client that reads slowly misses some, and
/// always gets the latest. The stream ends with the sender of `documents`, and when `until` does.
#[must_use]
pub fn event_stream(
    mut documents: watch::Receiver<Arc<str>>,
    until: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut until = pin!(until);
        let mut number: u64 = 0;
        documents.mark_changed();
        loop {
            let ended = tokio::select! {
                changed = documents.changed() => changed.is_err(),
                () = send.closed() => true,
                () = &mut until => true,
            };
            if ended {
                return;
            }
            let document = Arc::clone(&documents.borrow_and_update());
            number += 1;
            let event = Event::default()
                .event("state")
                .id(number.to_string())
                .retry(RETRY)
                .data(&*document);
            if send.send(event).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Sse::new(Events(receive)).into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

struct Events(mpsc::Receiver<Event>);

impl Stream for Events {
    type Item = Result<Event, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_its_server_once_in_header_and_target() {
        let check = |version: Version, target: &str, hosts: &[&str]| {
            let mut request = Request::builder().version(version).uri(target);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            let ours = |name: &str| name.eq_ignore_ascii_case("pool.example") || name == "::1";
            Addressed::of(&request.body(()).unwrap(), ours)
        };
        let new = |target: &str, hosts: &[&str]| check(Version::HTTP_11, target, hosts);
        for host in ["pool.example", "pool.example:7500", "[::1]:7500", "[::1]"] {
            assert_eq!(new("/", &[host]), Addressed::Here, "{host}");
        }
        let whole = "https://pool.example:7500/";
        assert_eq!(new(whole, &["Pool.Example:7500"]), Addressed::Here);
        assert_eq!(new(whole, &["pool.example"]), Addressed::Elsewhere, "the header repeats it");
        assert_eq!(new("http://evil.example/", &["pool.example"]), Addressed::Elsewhere);
        assert_eq!(new(whole, &["evil.example"]), Addressed::Elsewhere);
        for host in ["evil.example", "pool.example.evil", "x@pool.example", ""] {
            assert_eq!(new("/", &[host]), Addressed::Elsewhere, "{host}");
        }
        for hosts in
            [&[][..], &["pool.example"; 2], &["pool.example", "evil.example"], &["a b"], &["a/b"]]
        {
            assert_eq!(new("/", hosts), Addressed::Malformed, "{hosts:?}");
        }
        let old = |target: &str, hosts: &[&str]| check(Version::HTTP_10, target, hosts);
        assert_eq!(old("/", &["pool.example"]), Addressed::Here);
        assert_eq!(old("/", &[]), Addressed::Elsewhere);
        assert_eq!(old("/", &["pool.example"; 2]), Addressed::Malformed);
    }

    #[test]
    fn page_names_no_foreign_host_and_stays_small() {
        let all: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(all < MAX_PAGE_LEN, "{all}");
        for (path, _, content) in FILES {
            for (at, _) in content.match_indices("://") {
                // The name space of SVG is not an address.
                let around = &content[at.saturating_sub(4)..content.len().min(at + 24)];
                assert!(
                    around.contains("www.w3.org/2000/svg") || around.contains("'://'"),
                    "{path}: {around}"
                );
            }
            for danger in ["innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!content.contains(danger), "{path} uses {danger}");
            }
        }
    }

    #[test]
    fn origin_passes_only_if_it_is_the_host() {
        let check = |origin: Option<&str>, host: Option<&str>| {
            let mut headers = HeaderMap::new();
            for (name, value) in [(header::ORIGIN, origin), (header::HOST, host)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_str(value).unwrap());
                }
            }
            same_origin(&headers)
        };
        assert!(check(None, Some("127.0.0.1:9464")));
        assert!(check(Some("https://pool.example:7500"), Some("pool.example:7500")));
        assert!(!check(Some("https://evil.example"), Some("pool.example:7500")));
        assert!(!check(Some("null"), Some("pool.example:7500")));
        assert!(!check(Some("https://pool.example:7500"), None));
    }
}
