// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The processes that run until a signal ends them: node and manager, each alone or both in one.

mod inside;
pub(crate) mod log;
pub(crate) mod manager;
pub(crate) mod member;
pub(crate) mod node;
pub(crate) mod signals;
