// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Route`]: a row of the table of requests.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::auth::Access;
use super::call::{Call, Reply};
use super::problem::Problem;

/// The methods of HTTP that the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

/// Endpoint of the API.
pub(super) struct Route {
    pub(super) method: Verb,
    pub(super) path: &'static str,
    pub(super) access: Access,
    /// Summary of the endpoint for the `OpenAPI` document, one sentence.
    pub(super) summary: &'static str,
    /// Schema of the body; `None` for a request without one.
    pub(super) body: Option<SchemaOf>,
    /// Schema of the answer; `None` for one without a body.
    pub(super) answer: Option<SchemaOf>,
    /// Whether the answer is a [`Page`](super::call::Page).
    pub(super) paged: bool,
    pub(super) act: fn(&Call) -> Result<Reply, Problem>,
}

pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub(super) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

pub(super) const fn row(
    method: Verb,
    path: &'static str,
    access: Access,
    act: fn(&Call) -> Result<Reply, Problem>,
    summary: &'static str,
) -> Route {
    Route { method, path, access, summary, body: None, answer: None, paged: false, act }
}

impl Route {
    pub(super) const fn takes(mut self, body: SchemaOf) -> Self {
        self.body = Some(body);
        self
    }

    pub(super) const fn gives(mut self, answer: SchemaOf) -> Self {
        self.answer = Some(answer);
        self
    }

    pub(super) const fn paged(mut self) -> Self {
        self.paged = true;
        self
    }
}
