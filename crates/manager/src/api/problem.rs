// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors of the API: problem documents (RFC 9457), with a code from a closed set.

use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ManagerError;
use crate::model::command::Refusal;
use crate::store::StoreError;

/// Why the API refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The code, for programs.
    #[serde(rename = "type")]
    pub code: Code,
    /// The HTTP status.
    pub status: u16,
    /// The code in words.
    pub title: String,
    /// Cause of this problem, and the next step.
    pub detail: String,
}

/// The closed set of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The request is malformed or a value is out of its bounds.
    Invalid,
    /// There is no valid token or certificate.
    Unauthenticated,
    /// The caller's role does not allow it.
    Forbidden,
    /// There is no such document or path.
    NotFound,
    /// The path exists, but not with this method.
    Method,
    /// The document exists already, or the state forbids the change.
    Conflict,
    /// A node's registration is out of date: it registers again.
    Fenced,
    /// The node was removed from the pool.
    Removed,
    /// The document was changed since it was read.
    Changed,
    /// The body is too large.
    TooLarge,
    /// The body is not JSON, or not declared as such.
    MediaType,
    /// The `Host` names another server, or a foreign page sent the request.
    Misdirected,
    /// The pool has not the capacity.
    Capacity,
    /// The store does not answer. Try again.
    Unavailable,
    /// The store holds what no manager wrote: a record or an entry of the audit log was damaged or changed there.
    Damaged,
    /// A defect of the manager. Its log has the details.
    Internal,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict | Self::Fenced | Self::Capacity => StatusCode::CONFLICT,
            Self::Removed => StatusCode::GONE,
            Self::Changed => StatusCode::PRECONDITION_FAILED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Damaged | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Invalid => "the request is not valid",
            Self::Unauthenticated => "no valid token or certificate",
            Self::Forbidden => "not allowed for this role",
            Self::NotFound => "not found",
            Self::Method => "not with this method",
            Self::Conflict => "in conflict with the present state",
            Self::Fenced => "the registration is out of date",
            Self::Removed => "removed from the pool",
            Self::Changed => "changed since it was read",
            Self::TooLarge => "too large",
            Self::MediaType => "not JSON",
            Self::Misdirected => "for another server",
            Self::Capacity => "not enough capacity",
            Self::Unavailable => "the store does not answer",
            Self::Damaged => "the store is damaged",
            Self::Internal => "a defect of the manager",
        }
    }
}

/// Bound on the detail, in bytes: it may quote what the caller sent.
const MAX_DETAIL: usize = 1024;

impl Problem {
    /// A problem with its explanation, cut after 1,024 bytes.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > MAX_DETAIL {
            let end = (0..=MAX_DETAIL).rfind(|end| detail.is_char_boundary(*end));
            detail.truncate(end.unwrap_or_default());
            detail.push('…');
        }
        Self { code, status: code.status().as_u16(), title: code.title().to_owned(), detail }
    }

    /// Problem for a response without a problem document, such as one from a proxy.
    pub(crate) fn unreadable(status: u16) -> Self {
        Self {
            status,
            ..Self::new(Code::Internal, format!("the server answered {status} without a reason"))
        }
    }
}

impl From<ManagerError> for Problem {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::Refused(refusal) => refusal.into(),
            ManagerError::Store(error) if error.may_pass() => {
                Self::new(Code::Unavailable, error.to_string())
            }
            ManagerError::Store(StoreError::Damaged(_)) | ManagerError::Audit(_) => {
                tracing::error!(%error, "the store is damaged");
                Self::new(Code::Damaged, error.to_string())
            }
            ManagerError::Store(_) | ManagerError::Grant(_) => {
                tracing::error!(%error, "a request failed");
                Self::new(Code::Internal, error.to_string())
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NotFound(..) => Code::NotFound,
            Refusal::Exists(..)
            | Refusal::IdentityTaken { .. }
            | Refusal::HasKeys { .. }
            | Refusal::TooMany(..) => Code::Conflict,
            Refusal::Changed { .. } => Code::Changed,
            Refusal::Invalid(_) => Code::Invalid,
            Refusal::Role(_) | Refusal::Identities(_) => Code::Forbidden,
            Refusal::Removed(_) => Code::Removed,
            Refusal::Fenced { .. } => Code::Fenced,
            Refusal::Damaged(_) => Code::Damaged,
            Refusal::Schema { .. } => Code::Internal,
        };
        Self::new(code, refusal.to_string())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let body = serde_json::to_string(&self).unwrap_or_default();
        let mut answer = (status, body).into_response();
        let headers = answer.headers_mut();
        let media_type = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, media_type);
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code == Code::Unavailable {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}
