// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Cheaper handshakes in the gateway's own process, without a pool: the provider computes their ephemeral part, and
//! the preload library answers libcrypto's fetches. No key is moved and no node is needed.

use std::fmt::Write as _;
use std::path::PathBuf;

use millrace_hostfs::generated::PlannedFile;
use millrace_hostfs::generated::verify::{Argument, Verification};

use crate::plan::{CommandStep, GENERATOR, RecipePlan, Snippet};

use super::haproxy::{self, HAPROXY_CFG};
use super::parts::{
    ConfigTest, Environment, LOCAL_VARIABLES, NGINX_CONF, NGINX_INCLUDE, cnf_file, drop_in,
    nginx_test, provider_loads, restart,
};
use crate::application::Application;
use crate::system_conf::{OPENSSL_CNF, SystemConf};

const OPENSSL_TEMPLATE: &str = include_str!("../../templates/openssl-local.cnf");

/// A further variable of the preload library where there is no pool: handshakes that nothing waits in.
const NO_JOBS: (&str, &str) = ("MILLRACE_JOBS", "off");

/// The groups of a post-quantum front door, by nginx's names. X25519 serves clients without ML-KEM.
const GROUPS: &str = "X25519MLKEM768:X25519:prime256v1";

/// The first of them.
const HYBRID: &str = "X25519MLKEM768";

const PQ_CONF: &str = "/etc/nginx/conf.d/millrace-pq.conf";

/// The input of these recipes.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// Absolute path of the provider module.
    pub module: PathBuf,
    /// The preload library, if there is one.
    pub preload: Option<PathBuf>,
    /// Whether the server offers post-quantum groups by name.
    pub post_quantum: bool,
    /// Whether systemd starts the services.
    pub systemd: bool,
    /// The `openssl.cnf` that the generated one continues.
    pub system: Option<SystemConf>,
}

/// The plan for an application. `None` if it has no such recipe.
#[must_use]
pub fn plan(application: Application, settings: &LocalSettings) -> Option<RecipePlan> {
    match application {
        Application::Openssl => Some(RecipePlan {
            application,
            before: Vec::new(),
            files: vec![if settings.post_quantum {
                openssl_cnf_with_groups(settings)
            } else {
                openssl_cnf(settings)
            }],
            snippets: Vec::new(),
            after: Vec::new(),
            verifications: vec![provider_loads()],
        }),
        Application::Nginx => Some(for_nginx(settings)),
        Application::Haproxy => Some(for_haproxy(settings)),
        Application::Apache
        | Application::Lighttpd
        | Application::Stunnel
        | Application::Openvpn
        | Application::Dovecot
        | Application::Curl => None,
    }
}

fn openssl_cnf(settings: &LocalSettings) -> PlannedFile {
    cnf_file(settings.system.as_ref(), &openssl_text(settings))
}

fn openssl_text(settings: &LocalSettings) -> String {
    let module = settings.module.display().to_string();
    OPENSSL_TEMPLATE.replace("{module}", &module)
}

/// `openssl.cnf` for a program whose own list of groups is not known: OpenSSL's default for all of them has the group.
fn openssl_cnf_with_groups(settings: &LocalSettings) -> PlannedFile {
    const ALGORITHMS: &str = "alg_section = algorithm_sect\n";
    let with_section = format!("{ALGORITHMS}ssl_conf = tls_sect\n");
    let groups = groups(settings.system.as_ref());
    let body = openssl_text(settings).replace(ALGORITHMS, &with_section)
        + &format!(
            "
[tls_sect]
system_default = groups_sect

# For every TLS connection of a program that names no groups itself.
[groups_sect]
Groups = {groups}
"
        );
    cnf_file(settings.system.as_ref(), &body)
}

/// The groups of a post-quantum front door: those that the system's policy allows, if it says so, behind the new one.
fn groups(system: Option<&SystemConf>) -> String {
    match system.and_then(SystemConf::groups) {
        Some(groups) if groups.contains(HYBRID) => groups.to_owned(),
        Some(groups) => format!("{HYBRID}:{groups}"),
        None => GROUPS.to_owned(),
    }
}

fn for_nginx(settings: &LocalSettings) -> RecipePlan {
    let mut include = "\
# For the main context: `include millrace.conf;` at the top of nginx.conf.
# A new binary (SIGUSR2) takes its environment from these lines.
"
    .to_owned();
    for (name, _) in environment(settings) {
        let _ = writeln!(include, "env {name};");
    }
    let mut files =
        vec![GENERATOR.file(NGINX_INCLUDE, &include, "keeps the environment across an upgrade")];
    let groups = groups(settings.system.as_ref());
    files.extend(settings.post_quantum.then(|| groups_conf(&groups)));
    let snippet = Snippet {
        path: NGINX_CONF.into(),
        contents: "# At the top of the file, outside every block:\ninclude millrace.conf;\n"
            .to_owned(),
        why: "keeps the environment when the binary is upgraded",
        marker: "include millrace.conf".to_owned(),
    };
    service(Application::Nginx, settings, files, vec![snippet], nginx_test())
}

fn for_haproxy(settings: &LocalSettings) -> RecipePlan {
    let groups = groups(settings.system.as_ref());
    let snippet = settings.post_quantum.then(|| groups_snippet(&groups));
    let snippets = snippet.into_iter().collect();
    service(Application::Haproxy, settings, Vec::new(), snippets, haproxy::test())
}

/// Adds the post-quantum group to the recipe of a pool. `None` if the application has no such lines.
#[must_use]
pub fn with_groups(mut plan: RecipePlan, system: Option<&SystemConf>) -> Option<RecipePlan> {
    let groups = groups(system);
    match plan.application {
        Application::Nginx => plan.files.push(groups_conf(&groups)),
        Application::Haproxy => plan.snippets.push(groups_snippet(&groups)),
        _ => return None,
    }
    Some(plan)
}

fn groups_conf(groups: &str) -> PlannedFile {
    let body = format!(
        "\
# Debian's nginx.conf includes this folder in its http block. A server block with
# an ssl_ecdh_curve of its own keeps that.
# Before OpenSSL 3.5 the first group comes from the provider: give `nginx -t` the
# variable OPENSSL_CONF={OPENSSL_CNF}, too.
ssl_ecdh_curve {groups};
"
    );
    GENERATOR.file(PQ_CONF, &body, "offers the post-quantum group")
}

fn groups_snippet(groups: &str) -> Snippet {
    Snippet {
        path: HAPROXY_CFG.into(),
        contents: format!("global\n    ssl-default-bind-curves {groups}\n"),
        why: "offers the post-quantum group",
        marker: HYBRID.to_owned(),
    }
}

/// The environment of the service.
fn environment(settings: &LocalSettings) -> Environment {
    let mut environment = vec![("OPENSSL_CONF", OPENSSL_CNF.to_owned())];
    if let Some(library) = &settings.preload {
        environment.push(("LD_PRELOAD", library.display().to_string()));
        let variables = LOCAL_VARIABLES.into_iter().chain([NO_JOBS]);
        environment.extend(variables.map(|(name, value)| (name, value.to_owned())));
    }
    environment
}

/// The plan of a service, whose unit has the application's name.
fn service(
    application: Application,
    settings: &LocalSettings,
    files: Vec<PlannedFile>,
    snippets: Vec<Snippet>,
    (name, program, arguments): ConfigTest,
) -> RecipePlan {
    let environment = environment(settings);
    let mut all = vec![openssl_cnf(settings)];
    let unit = application.to_string();
    if settings.systemd {
        let lines = environment.iter().map(|(name, value)| format!("Environment={name}={value}\n"));
        all.push(drop_in(&unit, &lines.collect::<String>()));
    }
    let mut after = restart(&unit, settings.systemd, &environment);
    after.push(CommandStep {
        command: format!("millrace gateway check {application}"),
        why: "counts what is computed in the server, and names the negotiated group",
    });
    all.extend(files);
    let tested = environment.into_iter().map(|(name, value)| {
        let value = match name {
            "OPENSSL_CONF" => Argument::File(OPENSSL_CNF),
            _ => Argument::Owned(value),
        };
        (name, value)
    });
    let test =
        Verification { name, program, arguments, environment: tested.collect(), wants: None };
    RecipePlan {
        application,
        before: Vec::new(),
        files: all,
        snippets,
        after,
        verifications: vec![provider_loads(), test],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LocalSettings {
        LocalSettings {
            module: "/usr/lib/ossl-modules/millrace.so".into(),
            preload: Some("/usr/lib/millrace/libmillrace_preload.so".into()),
            post_quantum: true,
            systemd: true,
            system: None,
        }
    }

    #[test]
    fn local_recipe_names_no_node_and_no_key() {
        for application in [Application::Openssl, Application::Nginx, Application::Haproxy] {
            let text = plan(application, &settings()).expect("a recipe").text();
            assert!(
                text.contains("\nlocal = on\n") && text.contains("?millrace.local=yes"),
                "{text}"
            );
            for word in ["node.sock", "pool =", "stub", "{"] {
                assert!(!text.contains(word), "{application}: {word}: {text}");
            }
        }
        assert!(plan(Application::Apache, &settings()).is_none());
    }

    #[test]
    fn with_a_pool_its_keys_go_there_and_the_rest_stays() {
        let mut settings = crate::settings::tests::settings(&["unix:/run/millrace/node.sock"]);
        settings.local = true;
        let nginx = with_groups(Application::Nginx.plan(&settings), None).expect("groups");
        let text = nginx.text();
        for line in [
            "\nalg_section = algorithm_sect\n",
            "\nlocal = on\n",
            "\ndefault_properties = ?millrace.local=yes\n",
            "\npool = unix:/run/millrace/node.sock\n",
            "Environment=MILLRACE_FETCH_CACHE=on\n",
            "env MILLRACE_JOIN_TICKETS;\n",
            "ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1;\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        for word in ["MILLRACE_JOBS", "provider=millrace", "Twice"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
        settings.plain_keys = true;
        let all = Application::Nginx.plan(&settings).text();
        assert!(all.contains("\ndefault_properties = ?provider=millrace,"), "{all}");
        assert!(with_groups(Application::Apache.plan(&settings), None).is_none());
    }

    #[test]
    fn any_program_offers_the_group_by_openssl_cnf() {
        let cnf = |post_quantum| {
            let mut settings = settings();
            settings.post_quantum = post_quantum;
            plan(Application::Openssl, &settings).expect("a recipe").text()
        };
        let with = cnf(true);
        assert!(with.contains("\nssl_conf = tls_sect\n"), "{with}");
        assert!(with.ends_with("\nGroups = X25519MLKEM768:X25519:prime256v1\n"), "{with}");
        assert!(!cnf(false).contains("\nssl_conf"));
    }

    #[test]
    fn services_get_the_cache_and_the_group_as_asked() {
        let nginx = plan(Application::Nginx, &settings()).expect("a recipe").text();
        for line in [
            "Environment=MILLRACE_FETCH_CACHE=on\n",
            "Environment=MILLRACE_JOBS=off\n",
            "env MILLRACE_FETCH_CACHE;\n",
            "ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1;\n",
        ] {
            assert!(nginx.contains(line), "{line}: {nginx}");
        }
        let mut without = settings();
        (without.preload, without.post_quantum, without.systemd) = (None, false, false);
        for application in [Application::Nginx, Application::Haproxy] {
            let text = plan(application, &without).expect("a recipe").text();
            assert!(!text.contains(GROUPS) && !text.contains("LD_PRELOAD"), "{text}");
            assert!(text.contains("export OPENSSL_CONF="), "{text}");
        }
    }
}
