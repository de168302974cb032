// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The `OpenAPI` 3.1 document, from the table of requests and the types in it.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::MAX_BODY;
use super::auth::{Access, role_name};
use super::call::MAX_PAGE;
use super::problem::Problem;
use super::route::{Route, Verb};
use crate::model::principal::Role;

/// The document, as indented JSON with a final line break.
pub(super) fn document(routes: &[Route]) -> String {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| "/components/schemas".clone_into(settings.definitions_path.to_mut()))
        .into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let body = route.body.map(|schema| schema(&mut generator));
        let answer = route.answer.map(|schema| schema(&mut generator));
        let operation = operation(route, body.map(Value::from), answer.map(Value::from));
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[verb(route.method)] = operation;
    }
    let events = "Server-sent events: the document of /v1/state, at each change";
    paths.insert("/v1/events".to_owned(), json!({ "get": {
        "summary": events,
        "operationId": "getEvents",
        "x-role": role_name(Role::Viewer),
        "responses": { "200": { "description": "a stream", "content": { "text/event-stream": {} } },
            "default": { "$ref": "#/components/responses/Problem" } },
    }}));
    let schemas: Map<String, Value> = generator.take_definitions(true);
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace manager",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!(
                "The API of a pool's manager. Bodies have at most {MAX_BODY} bytes. A write may carry \
                 `idempotency-key`: repeated with the same key it takes effect once. `if-match` with the `etag` of a \
                 document refuses a change of another version. Errors are problem documents (RFC 9457)."
            ),
            "license": { "name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT" },
        },
        "security": [{ "token": [] }, { "certificate": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": { "Problem": {
                "description": "refused",
                "content": { "application/problem+json": { "schema": problem } },
            }},
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "certificate": { "type": "mutualTLS" },
            },
        },
    });
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn verb(method: Verb) -> &'static str {
    match method {
        Verb::Get => "get",
        Verb::Post => "post",
        Verb::Put => "put",
        Verb::Delete => "delete",
    }
}

fn operation(route: &Route, body: Option<Value>, answer: Option<Value>) -> Value {
    let content = |schema: Value| json!({ "application/json": { "schema": schema } });
    let success = match answer {
        Some(schema) => json!({ "description": "done", "content": content(schema) }),
        None => json!({ "description": "done" }),
    };
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "parameters": parameters(route),
        "responses": { "2XX": success, "default": { "$ref": "#/components/responses/Problem" } },
    });
    if let Some(schema) = body {
        operation["requestBody"] = json!({ "required": true, "content": content(schema) });
    }
    match route.access {
        Access::Open => operation["security"] = json!([]),
        Access::Authenticated => {}
        Access::Role(role) => operation["x-role"] = json!(role_name(role)),
    }
    operation
}

/// `putV1TenantsTenantQuota` for `PUT /v1/tenants/{tenant}/quota`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(['/', '{', '}', '.']).filter(|word| !word.is_empty());
    words.fold(verb(route.method).to_owned(), |mut id, word| {
        let mut letters = word.chars();
        id.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        id.extend(letters);
        id
    })
}

fn parameters(route: &Route) -> Vec<Value> {
    let segments =
        route.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = segments
        .map(|name| {
            json!({ "name": name, "in": "path", "required": true,
                "schema": { "type": "string", "minLength": 1, "maxLength": 63 } })
        })
        .collect();
    if route.paged {
        let limit = json!({ "type": "integer", "minimum": 1, "maximum": MAX_PAGE });
        parameters.push(json!({ "name": "limit", "in": "query", "schema": limit }));
        parameters.push(json!({ "name": "after", "in": "query", "schema": { "type": "string" } }));
    }
    if route.method != Verb::Get {
        for name in ["idempotency-key", "if-match"] {
            parameters
                .push(json!({ "name": name, "in": "header", "schema": { "type": "string" } }));
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::routes::{ROUTES, openapi_document};
    use super::*;

    #[test]
    fn document_has_every_request_once_and_no_dangling_reference() {
        let document: Value = serde_json::from_str(&openapi_document()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let operations: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
        assert_eq!(operations, ROUTES.len() + 1, "a path and method stands twice in the table");
        let mut ids = BTreeSet::new();
        for operation in paths.values().flat_map(|path| path.as_object().unwrap().values()) {
            assert!(ids.insert(operation["operationId"].to_string()));
        }
        let mut stack = vec![&document];
        while let Some(value) = stack.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    stack.extend(fields.values());
                }
                Value::Array(items) => stack.extend(items),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
    }
}
