// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tests of the binary: real processes, each test in a separate folder.

mod ceiling;
mod device;
mod doctor;
mod help;
mod inspect;
mod key_folders;
mod keys;
mod managed;
mod node;
mod outputs;
mod owners;
mod revocation;
mod schema;
mod service_manager;
mod state_files;
mod support;
mod terminal;
mod throughput;
