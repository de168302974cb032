// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The library that compresses the responses of stock nginx: beside the pool, or without it.

use std::path::{Path, PathBuf};

use millrace_hostfs::generated::verify::{Argument, Verification};

use crate::plan::{CommandStep, GENERATOR, RecipePlan, Snippet};

use super::parts::{NGINX_CONF, NGINX_INCLUDE, drop_in, nginx_test, restart};
use crate::application::Application;

/// The reasons for the libraries, as comments of a drop-in.
const PRELOAD_WHY: &str = "\
# Makes handshakes asynchronous: a worker serves others while the pool works.
";
const WHY: &str = "\
# Compresses responses with ISA-L and libdeflate in place of zlib.
";

/// nginx forgets variables that no directive names, and a new binary (SIGUSR2) needs them.
pub(super) const ENV_LINES: &str = "\
env MILLRACE_GZIP;
env MILLRACE_GZIP_GOAL;
env MILLRACE_GZIP_VERIFY;
env MILLRACE_GZIP_ENGINES;
env MILLRACE_GZIP_GATHER;
env MILLRACE_GZIP_DEVICE;
env MILLRACE_GZIP_DEVICE_MIN;
env MILLRACE_GZIP_DEVICE_MS;
env MILLRACE_QAT_LIBRARY;
env MILLRACE_QAT_MEMORY;
env QAT_POLICY;
";

const INCLUDE_HEAD: &str = "\
# For the main context: `include millrace.conf;` at the top of nginx.conf.
# A new binary (SIGUSR2) takes its environment from these lines; without them it
# starts without the library.
env LD_PRELOAD;
";

const CONF: &str = "\
# At the top, in the main context:
include millrace.conf;

# In http; types, lengths and level are yours to choose:
http {
    gzip on;
    gzip_vary on;
    gzip_min_length 256;
    gzip_types text/css text/javascript text/plain text/xml application/javascript
               application/json application/xml image/svg+xml;
}
";

/// The value of `LD_PRELOAD` for these libraries, with the reason. `None` without any.
pub(super) fn libraries(
    preload: Option<&Path>,
    compression: Option<&Path>,
) -> Option<(PathBuf, String)> {
    let parts = [(preload, PRELOAD_WHY), (compression, WHY)];
    let present: Vec<_> = parts.iter().filter_map(|(path, why)| Some(((*path)?, *why))).collect();
    let paths: Vec<String> = present.iter().map(|(path, _)| path.display().to_string()).collect();
    let whys = present.iter().map(|(_, why)| *why).collect();
    (!paths.is_empty()).then(|| (paths.join(":").into(), whys))
}

/// nginx with the library and without the pool.
#[must_use]
pub fn plan(library: &Path, systemd: bool) -> RecipePlan {
    let value = library.display().to_string();
    let include = format!("{INCLUDE_HEAD}{ENV_LINES}");
    let mut files =
        vec![GENERATOR.file(NGINX_INCLUDE, &include, "keeps the environment across an upgrade")];
    if systemd {
        files.push(drop_in("nginx", &format!("{WHY}Environment=LD_PRELOAD={value}\n")));
    }
    let environment = vec![("LD_PRELOAD", value.clone())];
    let mut after = restart("nginx", systemd, &environment);
    after.push(CommandStep {
        command: "millrace compression".to_owned(),
        why: "says what is compressed, how well and by which engine",
    });
    let (name, program, arguments) = nginx_test();
    RecipePlan {
        application: Application::Nginx,
        before: Vec::new(),
        files,
        snippets: vec![Snippet {
            path: NGINX_CONF.into(),
            contents: CONF.to_owned(),
            why: "the include is needed; the rest is what to compare yours with",
            marker: "include millrace.conf".to_owned(),
        }],
        after,
        verifications: vec![Verification {
            name,
            program,
            arguments,
            environment: vec![("LD_PRELOAD", Argument::Owned(value))],
            wants: None,
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    const LIBRARY: &str = "/usr/local/lib/millrace/libmillrace_zlib.so";

    #[test]
    fn library_is_loaded_beside_the_preload_library_or_alone() {
        let mut settings = settings(&["unix:/run/millrace/node.sock"]);
        settings.compression = Some(LIBRARY.into());
        let with_pool = Application::Nginx.plan(&settings).text();
        let both = format!("LD_PRELOAD=/usr/local/lib/millrace/libmillrace_preload.so:{LIBRARY}\n");
        assert!(
            with_pool.contains(&both) && with_pool.contains("\nenv MILLRACE_GZIP;\n"),
            "{with_pool}"
        );
        settings.preload = None;
        let synchronous = Application::Nginx.plan(&settings).text();
        assert!(synchronous.contains(&format!("LD_PRELOAD={LIBRARY}\n")), "{synchronous}");
        for systemd in [true, false] {
            let alone = plan(Path::new(LIBRARY), systemd).text();
            assert!(alone.contains(&format!("LD_PRELOAD={LIBRARY}\n")), "{alone}");
            assert!(!alone.contains("OPENSSL_CONF"), "{alone}");
        }
    }
}
