// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The binary as a person uses it: real processes, each test in a folder of its own.

mod ceiling;
mod doctor;
mod help;
mod inspect;
mod keys;
mod node;
mod owners;
mod revocation;
mod support;
mod throughput;
