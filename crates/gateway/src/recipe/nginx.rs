// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock nginx. The preload library makes its handshakes asynchronous.

use crate::plan::{GENERATOR, RecipePlan, Snippet};
use crate::settings::{HandshakeMode, RecipeSettings};

use super::compression;
use super::parts::{
    FILES_BESIDES, FILES_PER_CONNECTION, LOCAL_VARIABLES, NGINX_CONF, NGINX_INCLUDE, PooledService,
    nginx_test,
};
use crate::application::Application;

const MAIN: &str = include_str!("../../templates/nginx-main.conf");
const CONF: &str = include_str!("../../templates/nginx.conf");

/// Workers per core if handshakes block: the pool takes some milliseconds per operation, and the gateway's
/// part of a handshake well under one.
const BLOCKING_WORKERS_PER_CORE: u32 = 4;

/// Lower bound on blocking workers.
const MIN_BLOCKING_WORKERS: u32 = 16;

pub(super) fn plan(settings: &RecipeSettings) -> RecipePlan {
    let preload = settings.preload.as_deref();
    let preload = preload.filter(|_| settings.mode == HandshakeMode::Async);
    let sizes = Sizes::of(settings, preload.is_some());
    let libraries = compression::libraries(preload, settings.compression.as_deref());
    let mut kept = String::new();
    if libraries.is_some() {
        kept.push_str("env LD_PRELOAD;\n");
    }
    if settings.local && preload.is_some() {
        kept.extend(LOCAL_VARIABLES.map(|(name, _)| format!("env {name};\n")));
    }
    if settings.compression.is_some() {
        kept.push_str(compression::ENV_LINES);
    }
    let include = GENERATOR.file(
        NGINX_INCLUDE,
        &MAIN.replace("{preload}\n", &kept),
        "keeps the environment across an upgrade",
    );
    PooledService {
        application: Application::Nginx,
        unit: "nginx".to_owned(),
        user: "www-data",
        key: format!("/etc/nginx/{}.key", settings.key),
        preload: libraries.as_ref().map(|(libraries, why)| (libraries.as_path(), why.as_str())),
        chroot: None,
        lines: format!("# Descriptors of a worker; see nginx.conf.\nLimitNOFILE={}\n", sizes.files),
        include: Some(include),
        snippet: Snippet {
            path: NGINX_CONF.into(),
            contents: sizes.fill(&settings.key),
            why: "the include is needed; the rest is what to compare yours with",
            marker: "include millrace.conf".to_owned(),
        },
        is_checked: true,
        test: Some(nginx_test()),
    }
    .plan(settings)
}

/// Worker counts and limits.
struct Sizes {
    workers: String,
    connections: u32,
    each: u32,
    files: u32,
}

impl Sizes {
    fn of(settings: &RecipeSettings, asynchronous: bool) -> Self {
        let cores = settings.cores.max(1);
        let (count, workers) = if asynchronous {
            let lines = "\
# One worker per core: none of them ever waits for the pool.
worker_processes auto;";
            (cores, lines.to_owned())
        } else {
            let count = (cores * BLOCKING_WORKERS_PER_CORE).max(MIN_BLOCKING_WORKERS);
            let lines = format!(
                "\
# Handshakes block here: a worker waits while the pool works, so there are
# more workers than cores (or preload Millrace's library).
worker_processes {count};"
            );
            (count, lines)
        };
        let each = settings.connections.div_ceil(count).max(64);
        Self {
            workers,
            connections: settings.connections,
            each,
            files: each * FILES_PER_CONNECTION + FILES_BESIDES,
        }
    }

    fn fill(&self, key: &str) -> String {
        let budget = format!(
            "per connection {FILES_PER_CONNECTION} (client,\n\
             # handshake that waits, upstream), and {FILES_BESIDES} besides."
        );
        CONF.replace("{workers}", &self.workers)
            .replace("{budget}", &budget)
            .replace("{files}", &self.files.to_string())
            .replace("{connections}", &self.connections.to_string())
            .replace("{each}", &self.each.to_string())
            .replace("{key}", key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn preload_library_is_configured_if_found_and_mode_is_async() {
        let mut settings = settings(&["unix:/run/millrace/node.sock"]);
        let with = plan(&settings).text();
        let line = "Environment=LD_PRELOAD=/usr/local/lib/millrace/libmillrace_preload.so\n";
        assert!(with.contains(line) && with.contains("\nenv LD_PRELOAD;\n"), "{with}");
        assert!(with.contains("\nworker_processes auto;\n"));
        settings.mode = HandshakeMode::Sync;
        let sync = plan(&settings).text();
        assert!(!sync.contains("LD_PRELOAD") && sync.contains("mode = sync\n"), "{sync}");
        settings.mode = HandshakeMode::Async;
        settings.preload = None;
        let without = plan(&settings).text();
        assert!(!without.contains("LD_PRELOAD") && without.contains("\nworker_processes 16;\n"));
    }

    #[test]
    fn certbot_that_tests_nginx_gets_the_configuration() {
        let drop_in = "certbot.service.d/millrace.conf";
        let mut settings = settings(&["unix:/run/millrace/node.sock"]);
        assert!(!plan(&settings).text().contains(drop_in));
        settings.certbot = vec!["apache"];
        assert!(!plan(&settings).text().contains(drop_in));
        settings.certbot = vec!["nginx"];
        settings.systemd = true;
        let text = plan(&settings).text();
        let line = "Environment=OPENSSL_CONF=/etc/millrace/openssl.cnf\n";
        assert!(text.contains(drop_in) && text.matches(line).count() == 2, "{text}");
    }

    #[test]
    fn limits_follow_from_the_connections() {
        let mut settings = settings(&["unix:/run/millrace/node.sock"]);
        settings.connections = 40_000;
        let text = plan(&settings).text();
        assert!(text.contains("worker_connections 10000;"), "{text}");
        assert!(text.contains("worker_rlimit_nofile 30256;"), "{text}");
        assert!(text.contains("LimitNOFILE=30256\n"), "{text}");
    }
}
