// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The instruction sets that programs, libraries and processors have.

use schemars::JsonSchema;
use serde::Serialize;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Architecture {
    /// 64-bit x86
    #[serde(rename = "x86-64")]
    #[strum(serialize = "x86-64")]
    X86_64,
    /// 32-bit x86
    X86,
    /// 64-bit Arm
    Aarch64,
    /// 32-bit Arm
    Arm,
    /// 64-bit RISC-V
    Riscv64,
    /// 32-bit RISC-V
    Riscv32,
    /// POWER, either byte order
    Power,
    /// IBM Z
    S390x,
    /// MIPS, any
    Mips,
    /// `LoongArch`
    Loongarch64,
    /// Another one
    Other,
}
