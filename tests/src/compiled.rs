// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Programs and libraries in C, from `tests/jobs`. With `MILLRACE_TEST_ARM`, a folder that `scripts/arm.sh` has made,
//! they and the preload library are those for 64-bit Arm.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_testkit::skip;

use crate::artifacts::workspace;
use crate::process::text_of;
use crate::{release, temp_dir};

/// The folder with programs and libraries for 64-bit Arm, if they are under test.
fn emulated() -> Option<PathBuf> {
    env::var_os("MILLRACE_TEST_ARM").map(PathBuf::from)
}

/// Compiles `tests/jobs/NAME` to `out`; none, and a recorded skip, without a compiler.
///
/// # Panics
/// If it does not compile.
#[must_use]
pub fn compiled(name: &str, out: PathBuf, arguments: &[&str]) -> Option<PathBuf> {
    let compiler = emulated().map_or_else(|| PathBuf::from("cc"), |folder| folder.join("cc"));
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(&out);
    command.arg(workspace().join("tests/jobs").join(name)).args(arguments);
    let output = command.output().ok()?;
    let said = text_of(&output);
    if !output.status.success() {
        assert!(said.contains("No such file"), "{name} does not compile: {said}");
        skip::record(file!(), "no C compiler or no headers of OpenSSL");
        return None;
    }
    Some(out)
}

/// A program under the name of a server that the preload library knows.
#[derive(Debug)]
pub struct ServerInC {
    program: PathBuf,
    _folder: tempfile::TempDir,
}

impl ServerInC {
    /// Compiles `tests/jobs/NAME`; none, and a recorded skip, without a compiler.
    ///
    /// # Panics
    /// If it does not compile.
    #[must_use]
    pub fn compile(name: &str) -> Option<Self> {
        let folder = temp_dir();
        let libraries = ["-rdynamic", "-lssl", "-lcrypto", "-lpthread", "-ldl"];
        let program = compiled(name, folder.path().join("haproxy"), &libraries)?;
        Some(Self { program, _folder: folder })
    }

    /// The program with this preload library, or without.
    #[must_use]
    pub fn command(&self, preload: Option<&Path>) -> Command {
        if let Some(folder) = emulated() {
            let mut command = Command::new(folder.join("run"));
            if preload.is_some() {
                let preload = folder.join("preload.so");
                command.arg("-E").arg(format!("LD_PRELOAD={}", preload.display()));
            }
            command.arg(&self.program);
            return command;
        }
        let mut command = release::command_at(&self.program);
        command.envs(preload.map(|preload| ("LD_PRELOAD", preload)));
        command
    }
}
