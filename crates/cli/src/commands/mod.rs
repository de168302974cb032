// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One module per command. Each has a `run` that takes the parsed arguments.

pub(crate) mod advise;
pub(crate) mod ask_nodes;
pub(crate) mod bench;
pub(crate) mod ceiling;
pub(crate) mod cert;
pub(crate) mod completions;
pub(crate) mod compress;
pub(crate) mod compression;
pub(crate) mod device;
pub(crate) mod doctor;
pub(crate) mod gateway;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod man;
pub(crate) mod managed;
pub(crate) mod reference;
pub(crate) mod sample;
pub(crate) mod status;
pub(crate) mod up;
pub(crate) mod virtio;
pub(crate) mod vpn;
pub(crate) mod watch;
