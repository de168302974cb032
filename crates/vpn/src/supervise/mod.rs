// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The supervisor of one end: keeps the processes of the members running and routes over the healthy ones. It
//! may end and start again at any time: processes, devices and routes stay as they are, and the next supervisor
//! finds them by their pid files.

mod control;
mod echo;
mod machine;
mod metrics;
mod shell;
mod status;

pub use machine::{
    LinkMachine, MemberEvent, MemberState, MemberStatus, PROBE_EVERY, SILENCE, StateChange,
    SuperviseAction,
};
pub use shell::{PreferNode, Standby, run};
pub use status::{LinkState, LinkStatus, read_status};
