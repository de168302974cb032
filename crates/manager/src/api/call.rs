// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Call`]: a request that passed all checks of form, and its [`Reply`].

use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, mem};

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::auth::{Caller, role_name};
use super::problem::{Code, Problem};
use super::{Api, text_of};
use crate::model::command::Command;
use crate::model::core::Actor;

/// Bound on the items of a page, so that an answer stays below 4 MiB.
pub(super) const MAX_PAGE: usize = 1000;

/// Items of a page without `limit`: a few screens.
const DEFAULT_PAGE: usize = 100;

/// One page of a listing, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// The listed documents.
    pub items: Vec<T>,
    /// Pass it as `after` for the next page; `null` on the last.
    pub next: Option<String>,
}

/// Response of the API to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    status: u16,
    /// Revision of the document, as `ETag`.
    revision: Option<u64>,
    media_type: &'static str,
    pub(super) body: String,
    /// Whether the body has a token: it is wiped, and kept for no longer than a repetition needs.
    pub(super) is_secret: bool,
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.is_secret {
            self.body.zeroize();
        }
    }
}

impl Reply {
    const fn new(status: u16, media_type: &'static str, body: String) -> Self {
        Self { status, revision: None, media_type, body, is_secret: false }
    }

    pub(super) fn json(value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_string(value)
            .map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        Ok(Self::new(200, "application/json", body))
    }

    pub(super) fn created(mut self) -> Self {
        self.status = 201;
        self
    }

    /// Marks a body that has a token.
    pub(super) fn secret(mut self, is_secret: bool) -> Self {
        self.is_secret = is_secret;
        self
    }

    pub(super) fn at(mut self, revision: u64) -> Self {
        self.revision = Some(revision);
        self
    }

    pub(super) fn empty() -> Self {
        Self::new(204, "application/json", String::new())
    }

    pub(super) fn text(media_type: &'static str, body: String) -> Self {
        Self::new(200, media_type, body)
    }
}

impl IntoResponse for Reply {
    fn into_response(mut self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = (status, mem::take(&mut self.body)).into_response();
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let etag = self.revision.map(|revision| format!("\"{revision}\""));
        if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
            headers.insert(header::ETAG, etag);
        }
        answer
    }
}

/// A condition of a write, from its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precondition {
    None,
    /// `If-None-Match: *`: creates, and never replaces.
    Absent,
    /// `If-Match`: the document has this revision.
    Revision(u64),
}

impl Precondition {
    /// The condition in the headers of a request.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        if let Some(text) = text_of(headers, &header::IF_NONE_MATCH) {
            return match text.trim() {
                "*" => Ok(Self::Absent),
                _ => Err(Problem::new(Code::Invalid, "if-none-match: only * is known")),
            };
        }
        match text_of(headers, &header::IF_MATCH).map(str::trim) {
            None | Some("*") => Ok(Self::None),
            Some(etag) => {
                let revision = etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"'));
                let revision = revision.and_then(|revision| revision.parse().ok());
                let wrong = || Problem::new(Code::Invalid, "if-match: the etag of the document");
                revision.map(Self::Revision).ok_or_else(wrong)
            }
        }
    }
}

/// A request that passed all checks of form.
pub(super) struct Call {
    pub(super) api: Arc<Api>,
    pub(super) caller: Caller,
    /// The variable segments of the path, in their order.
    pub(super) path: Vec<String>,
    pub(super) query: Vec<(String, String)>,
    pub(super) condition: Precondition,
    /// Body of the request, zeroised: it may be a private key.
    pub(super) body: Zeroizing<Vec<u8>>,
}

impl Call {
    /// A variable segment of the path, as a checked name.
    pub(super) fn name<T: FromStr<Err: fmt::Display>>(&self) -> Result<T, Problem> {
        let text = self.path.first().map_or("", String::as_str);
        text.parse().map_err(|error: T::Err| Problem::new(Code::Invalid, error.to_string()))
    }

    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Problem::new(Code::Invalid, format!("the body: {error}")))
    }

    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A page of `all`, which is in the order of `key`.
    pub(super) fn page<T: Serialize>(
        &self,
        all: Vec<T>,
        key: impl Fn(&T) -> String,
    ) -> Result<Reply, Problem> {
        let (limit, after) = self.window()?;
        let mut items =
            all.into_iter().filter(|item| after.as_ref().is_none_or(|after| key(item) > *after));
        let page: Vec<T> = items.by_ref().take(limit).collect();
        let next = items.next().and_then(|_| page.last().map(&key));
        Reply::json(&Page { items: page, next })
    }

    /// `limit` and `after` of the query.
    pub(super) fn window(&self) -> Result<(usize, Option<String>), Problem> {
        let limit = match self.query("limit") {
            None => DEFAULT_PAGE,
            Some(text) => {
                text.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit)).ok_or_else(
                    || Problem::new(Code::Invalid, format!("limit: a number from 1 to {MAX_PAGE}")),
                )?
            }
        };
        Ok((limit, self.query("after").map(str::to_owned)))
    }
    /// Carries out an administrative change in the caller's name, under the request's condition.
    pub(super) fn change(&self, command: Command) -> Result<u64, Problem> {
        let expected = match self.condition {
            Precondition::None => None,
            // A command that creates refuses an existing document by itself.
            Precondition::Absent => Some(0),
            Precondition::Revision(revision) => Some(revision),
        };
        self.change_at(command, expected)
    }

    /// Executes a command like [`Self::change`], if the document still has the revision `expected`.
    pub(super) fn change_at(
        &self,
        command: Command,
        expected: Option<u64>,
    ) -> Result<u64, Problem> {
        let Caller::Principal(principal) = &self.caller else {
            return Err(Problem::new(Code::Forbidden, "only a principal changes the pool"));
        };
        let principal = &principal.value;
        let name = format!("{}:{}", role_name(principal.role), principal.name);
        let actor = Actor { name: &name, role: principal.role };
        Ok(self.api.manager.execute(actor, &command, expected)?)
    }
}

/// The pairs of a query. What is not decodable is left out.
pub(super) fn parse_query(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((unescaped(key)?, unescaped(value)?))
    };
    pairs.filter_map(pair).collect()
}

/// Decodes `%XX` and `+`.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;
    use crate::client::escaped;

    #[test]
    fn query_is_decoded_as_the_client_encodes_it() {
        let name = "a b&c=d%/é";
        let query = format!("after={}&limit=5&flag", escaped(name));
        let pairs = parse_query(&query);
        assert_eq!(pairs[0], ("after".to_owned(), name.to_owned()));
        assert_eq!(pairs[1], ("limit".to_owned(), "5".to_owned()));
        assert_eq!(pairs[2], ("flag".to_owned(), String::new()));
        assert!(parse_query("a=%zz&b=%2&c=%ff").is_empty());
    }

    #[test]
    fn precondition_is_an_etag_or_a_star() {
        let check = |name: HeaderName, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            Precondition::of(&headers).ok()
        };
        assert_eq!(check(header::IF_MATCH, "\"17\""), Some(Precondition::Revision(17)));
        assert_eq!(check(header::IF_MATCH, "*"), Some(Precondition::None));
        assert_eq!(check(header::IF_NONE_MATCH, "*"), Some(Precondition::Absent));
        assert_eq!(check(header::IF_MATCH, "17"), None);
        assert_eq!(check(header::IF_NONE_MATCH, "\"17\""), None);
    }
}
