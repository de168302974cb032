// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The configuration files, each with every key: `millrace sample` prints them, and the manual pages and
//! `docs/reference` are generated from them.

use millrace_vpn::link;

/// A configuration file.
pub(crate) struct SampleFile {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its subject.
    pub(crate) title: &'static str,
    /// Its place, its reader, and the sources that come before it.
    pub(crate) reader: &'static str,
    /// Every key with its meaning, at its default or as an example.
    pub(crate) text: fn() -> String,
    /// The page of the command that reads it, in section 1 of the manual.
    pub(crate) see_also: &'static str,
}

pub(crate) const NODE: SampleFile = SampleFile {
    name: "node.toml",
    title: "settings of a node",
    reader: "`millrace up` and `millrace node run` read the file that --config names, by default \
             /etc/millrace/node.toml. Flags come before environment variables, these before the file, and the file \
             before the defaults. Unknown keys are errors.",
    text: || millrace_server::config::SAMPLE.to_owned(),
    see_also: "millrace-up",
};

pub(crate) const DEVICES: SampleFile = SampleFile {
    name: "devices.toml",
    title: "accelerator cards of a machine",
    reader: "`millrace device apply` and millrace-devices.service read /etc/millrace/devices.toml. Unknown keys are \
             errors.",
    text: || millrace_device::policy::SAMPLE.to_owned(),
    see_also: "millrace-device",
};

pub(crate) const LINK: SampleFile = SampleFile {
    name: "link.toml",
    title: "tunnels between two hosts",
    reader: "The commands of `millrace vpn` read the file that they are given; both hosts have the same. Unknown \
             keys are errors. There are three forms: routed over OpenVPN, bridged over OpenVPN, and by IPsec.",
    text: || [link::SAMPLE, link::SAMPLE_BRIDGED, link::SAMPLE_IPSEC].join("\n"),
    see_also: "millrace-vpn",
};

pub(crate) const CLIENT: SampleFile = SampleFile {
    name: "client.toml",
    title: "settings of the provider in a gateway",
    reader: "The provider reads /etc/millrace/client.toml, or the file that MILLRACE_CLIENT_CONF or millrace_config \
             in openssl.cnf names. Its section of openssl.cnf, which `millrace gateway` writes, has the same keys and \
             comes before the file. Unknown keys are errors.",
    text: millrace_edge::settings::sample,
    see_also: "millrace-gateway",
};

/// All of them, in the order of `millrace sample`.
pub(crate) const ALL: [SampleFile; 4] = [NODE, DEVICES, LINK, CLIENT];
