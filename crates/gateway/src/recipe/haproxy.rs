// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! HAProxy 2.6 or later, as distributions build it: it drives asynchronous handshakes by itself.

use millrace_hostfs::generated::verify::Argument;

use crate::plan::{RecipePlan, Snippet};
use crate::settings::{HandshakeMode, RecipeSettings};

use super::parts::{ConfigTest, PooledService};
use crate::application::Application;

const CFG: &str = include_str!("../../templates/haproxy.cfg");
pub(super) const HAPROXY_CFG: &str = "/etc/haproxy/haproxy.cfg";
const CHROOT: &str = "/var/lib/haproxy";

const PRELOAD_WHY: &str = "\
# HAProxy loses memory for each client that leaves while its handshake waits for
# the pool; with this it does not.
";

pub(super) fn plan(settings: &RecipeSettings) -> RecipePlan {
    let preload = settings.preload.as_deref();
    let preload = preload.filter(|_| settings.mode == HandshakeMode::Async);
    let (asynchronous, marker) = match settings.mode {
        HandshakeMode::Async => (
            "    # Handshakes wait for the pool without blocking the thread.\n    ssl-mode-async",
            "ssl-mode-async",
        ),
        HandshakeMode::Sync | HandshakeMode::Off => {
            ("    # No ssl-mode-async: handshakes block.", "global")
        }
    };
    let maxconn = global_maxconn(settings.connections.into()).to_string();
    let contents = CFG
        .replace("{async}", asynchronous)
        .replace("{global}", &maxconn)
        .replace("{connections}", &settings.connections.to_string())
        .replace("{key}", &settings.key);
    PooledService {
        application: Application::Haproxy,
        unit: "haproxy".to_owned(),
        user: "haproxy",
        key: format!("/etc/haproxy/{}.pem.key", settings.key),
        preload: preload.map(|library| (library, PRELOAD_WHY)),
        chroot: Some(CHROOT),
        lines: String::new(),
        include: None,
        snippet: Snippet {
            path: HAPROXY_CFG.into(),
            contents,
            why: "ssl-mode-async is needed; the rest is what to compare yours with",
            marker: marker.to_owned(),
        },
        is_checked: true,
        test: Some(test()),
    }
    .plan(settings)
}

/// HAProxy's test of its configuration.
pub(super) fn test() -> ConfigTest {
    let [check, quiet, file] = ["-c", "-q", "-f"].map(Argument::Text);
    ("haproxy -c", "haproxy", vec![check, quiet, file, Argument::File(HAPROXY_CFG)])
}

/// The global `maxconn` with which HAProxy's table of descriptors holds three per connection: the table has two
/// entries per connection, and no limit of the process enlarges it. 16 are for HAProxy's other descriptors.
pub(crate) fn global_maxconn(connections: u64) -> u64 {
    connections.div_ceil(2).saturating_mul(3).saturating_add(16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn node_socket_is_bound_into_the_chroot() {
        let text = plan(&settings(&["unix:/run/millrace/node.sock"])).text();
        assert!(text.contains("\nBindPaths=/run/millrace:/var/lib/haproxy/run/millrace\n"));
        assert!(text.contains("\n    ssl-mode-async\n"));
        assert!(text.contains("\nEnvironment=LD_PRELOAD=/usr/local/lib/"));
        assert!(text.contains("\n    maxconn 6160\n") && text.contains("\n    maxconn 4096\n"));
    }

    #[test]
    fn certificates_are_bound_into_the_chroot_read_only() {
        let remote = plan(&settings(&["tcp:node-1:7433"])).text();
        let bind =
            "\nBindReadOnlyPaths=/etc/millrace/client:/var/lib/haproxy/etc/millrace/client\n";
        assert!(remote.contains(bind) && !remote.contains("BindPaths"), "{remote}");
        let names = "\nBindReadOnlyPaths=-/etc/resolv.conf:/var/lib/haproxy/etc/resolv.conf\n";
        assert!(remote.contains(names), "the name is resolved inside: {remote}");
        let address = plan(&settings(&["tcp:[::1]:7433"])).text();
        assert!(!address.contains("resolv.conf"), "{address}");
        assert!(remote.contains("--add-cert client") && !remote.contains("--add-uid"), "{remote}");
        let readable =
            "\nchgrp -R haproxy /etc/millrace/client && chmod -R g+rX /etc/millrace/client\n";
        assert!(remote.contains(readable), "{remote}");
    }

    #[test]
    fn host_without_systemd_gets_environment_and_mounts() {
        let mut settings = settings(&["unix:/run/millrace/node.sock", "tcp:node-1:7433"]);
        settings.systemd = false;
        let text = plan(&settings).text();
        assert!(!text.contains("systemctl") && !text.contains("/etc/systemd"), "{text}");
        for line in [
            "mount --bind /run/millrace /var/lib/haproxy/run/millrace\n",
            "mount --bind -o ro /etc/millrace/client /var/lib/haproxy/etc/millrace/client\n",
            "export OPENSSL_CONF=/etc/millrace/openssl.cnf\nexport LD_PRELOAD=/usr/local/lib/",
            "service haproxy restart\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn sync_mode_has_no_async_directive_and_no_preload() {
        let mut settings = settings(&["unix:/run/millrace/node.sock"]);
        settings.mode = HandshakeMode::Sync;
        let text = plan(&settings).text();
        assert!(!text.contains("\n    ssl-mode-async\n") && !text.contains("LD_PRELOAD"));
        assert!(text.contains("mode = sync\n"));
    }
}
