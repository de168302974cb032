// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Programs that a person starts: anything on OpenSSL, and curl with a client key in the pool.

use crate::plan::{CommandStep, RecipePlan};
use crate::settings::RecipeSettings;

use super::parts;
use crate::application::Application;
use crate::system_conf::OPENSSL_CNF;

/// A plan of one file, so that the output can be redirected to it.
pub(super) fn openssl(settings: &RecipeSettings) -> RecipePlan {
    RecipePlan {
        application: Application::Openssl,
        before: Vec::new(),
        files: vec![parts::openssl_cnf(settings)],
        snippets: Vec::new(),
        after: Vec::new(),
        verifications: vec![parts::provider_loads()],
    }
}

/// curl blocks during every handshake anyway.
pub(super) fn curl(settings: &RecipeSettings) -> RecipePlan {
    let RecipeSettings { key, .. } = settings;
    let before = if settings.plain_keys {
        Vec::new()
    } else {
        vec![CommandStep {
            command: format!("millrace key stub {key} -o {key}.key"),
            why: "the stub names the pool's key and holds no secret; write it where the node is",
        }]
    };
    RecipePlan {
        application: Application::Curl,
        before,
        files: vec![parts::openssl_cnf(settings)],
        snippets: Vec::new(),
        after: vec![CommandStep {
            command: format!(
                "OPENSSL_CONF={OPENSSL_CNF} curl --cert {key}.crt --key {key}.key https://HOST/"
            ),
            why: "the client's signature is the pool's",
        }],
        verifications: vec![parts::provider_loads()],
    }
}
