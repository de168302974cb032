// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A link between two hosts: many encrypted tunnels, each an OpenVPN process on a processor of its own, or IPsec by one
//! daemon.
//!
//! ```text
//! proposal    ciphers, hashes and groups of IKE and ESP: one table with strongSwan's and VyOS's names
//! candidate   engines that `engine = "auto"` compares, and its goal
//! link        link.toml ──► Link, or every problem with its line and remedy
//! choice      measurements of candidates ──► the engine of a link with `engine = "auto"`
//! host        facts about this host; problems of a link on it; processors for the members
//! mtu         packet sizes of a link on its path
//! plan        Link + host ──► files, steps and members, as values
//! record      records of a link on disk, and its former configurations
//! check       get → verify → generate: a link.toml against this host
//! change      what makes a configuration the one in force, and the way back
//! apply       up, confirm, restart, and what a service resumes
//! down        takes a link down
//! error       the error of commands on a link
//! exec        actions of a plan, tunnel processes, locks
//! remains     processes and devices of a link on this host, whatever its records say
//! ipsec       strongSwan's configuration, import and export of VyOS's commands, the vici protocol
//! management  the management interface of OpenVPN, as lines
//! supervise   machine: events and time in, actions out; shell: processes, sockets, probes, routes
//! ```
//!
//! [`link`], [`choice`], [`plan`], [`ipsec`], [`management`] and [`supervise::LinkMachine`] do no I/O. [`apply`] and
//! [`supervise::run`] start only `ip`, `taskset`, `openvpn`, `charon-systemd` and `swanctl`, with the commands that the
//! plan shows.
#![forbid(unsafe_code)]

pub mod apply;
pub mod candidate;
mod change;
mod check;
pub mod choice;
pub mod down;
mod error;
mod exec;
pub mod host;
pub mod ipsec;
pub mod link;
pub mod management;
mod mtu;
pub mod plan;
pub mod proposal;
mod record;
mod remains;
pub mod supervise;

pub use exec::ExecError;
