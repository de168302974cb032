// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! (written next)
