// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Machines, devices and programs that tests run on.

pub mod etcd;
pub mod machine;
pub mod qat;
pub mod refused_calls;
