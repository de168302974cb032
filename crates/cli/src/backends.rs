// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends, in order of preference. They are values, not Cargo features.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use millrace_backends::cuda::{Arithmetic, Cuda};
use millrace_backends::kernel::Kernel;
use millrace_backends::qat::Qat;
use millrace_backends::simd::Simd;
use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, Unusable};
use millrace_hostfs::Root;
use millrace_inspect::kernel::crypto::{Algorithm, ComputeSite};
use millrace_inspect::kernel::preferred;
use millrace_inspect::qat::formats::is_bus_address;
use millrace_operation::{BackendKind, KeyError, KeyInfo, PrivateKey};
use millrace_server::config::{MAX_QAT_ANSWER_MS, NodeConfig, QatConfig};

use crate::exit::{Failure, fail};

/// Selects the kernels of the cuda backend, in place of those with the better measurements.
const CUDA_ARITHMETIC: &str = "MILLRACE_CUDA_ARITHMETIC";

/// Override `backend.qat.library`, `.memory` and `.answer-ms` of the configuration.
const QAT_LIBRARY: &str = "MILLRACE_QAT_LIBRARY";
const QAT_MEMORY: &str = "MILLRACE_QAT_MEMORY";
const QAT_ANSWER_MS: &str = "MILLRACE_QAT_ANSWER_MS";

/// Installed location of the kernels, relative to the folder of the binary.
const CUDA_KERNELS: &str = "../lib/millrace/millrace_cuda.fatbin";

/// Every backend that is compiled in, including those that this machine cannot use, at their defaults.
pub(crate) fn all() -> Vec<Arc<dyn Backend>> {
    configured(&NodeConfig::default().qat)
}

pub(crate) fn configured(qat_config: &QatConfig) -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(cuda()),
        Arc::new(qat(qat_config)),
        Arc::new(Kernel::new(rsa_driver)),
        Arc::new(Simd::new()),
        Arc::new(Software::new()),
    ]
}

/// Backends that are used only where they are named: qat takes cards away from other programs, and kernel hands keys to
/// a driver and its device.
const BY_NAME_ONLY: [BackendKind; 2] = [BackendKind::Qat, BackendKind::Kernel];

/// The backends in the configured order, or every compiled-in backend except those of [`BY_NAME_ONLY`].
pub(crate) fn chosen(
    kinds: Option<&[BackendKind]>,
    qat: &QatConfig,
) -> Result<Vec<Arc<dyn Backend>>> {
    let mut built_in = configured(qat);
    let Some(kinds) = kinds else {
        built_in.retain(|backend| !BY_NAME_ONLY.contains(&backend.describe().kind));
        return Ok(built_in);
    };
    let find = |kind: &BackendKind| {
        let found = built_in.iter().find(|backend| backend.describe().kind == *kind);
        let missing = || {
            let message = format!(
                "this binary has no backend {kind}: remove it from --backends, or from `backends` in node.toml"
            );
            fail(Failure::Usage, message)
        };
        found.cloned().ok_or_else(missing)
    };
    kinds.iter().map(find).collect()
}

/// Loads the key into a backend and unloads it, which proves that the pool can use it.
pub(crate) fn check_key(key: &PrivateKey) -> Result<KeyInfo, KeyError> {
    let mut verdict = KeyError::NotOffered;
    // In reverse order: the last backend supports most keys, and opens no device for them.
    for backend in all().into_iter().rev() {
        match backend.open_key(key) {
            Ok(opened) => {
                backend.close_key(opened.key);
                return Ok(opened.info);
            }
            // This backend does not support the key; the next one may.
            Err(KeyError::NotOffered) => {}
            Err(error) => verdict = error,
        }
    }
    Err(verdict)
}

/// The cuda backend, configured by the environment. It opens its device at the first use.
fn cuda() -> Cuda {
    let mut cuda = Cuda::new();
    if let Ok(name) = env::var(CUDA_ARITHMETIC) {
        let Some(arithmetic) = Arithmetic::from_name(&name) else {
            let reason =
                format!("{CUDA_ARITHMETIC} is {name:?}: set it to integer or fp52, or not at all");
            return Cuda::unusable(Unusable(reason));
        };
        cuda = cuda.only(|variant| variant.arithmetic == arithmetic);
    }
    match env::current_exe().ok().and_then(|exe| kernels(&exe)) {
        Some(kernels) => cuda.kernels(kernels),
        None => cuda,
    }
}

/// The qat backend. It opens Intel's library when it is probed.
fn qat(config: &QatConfig) -> Qat {
    let QatConfig { library, memory, functions, instances, answer_time, fast_curves } = config;
    Qat::new()
        .libraries(library.clone(), memory.clone())
        .functions(*functions)
        .only(instances.clone())
        .answer_time(*answer_time)
        .fast_curves(*fast_curves)
}

/// The settings of qat with those of the environment, which override the file.
///
/// # Errors
/// A value of the environment or a bus address is wrong.
pub(crate) fn qat_settings(config: QatConfig) -> Result<QatConfig> {
    merge_qat(config, |name| env::var_os(name))
}

fn merge_qat(
    mut config: QatConfig,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<QatConfig> {
    if let Some(file) = variable(QAT_LIBRARY) {
        config.library = file.into();
    }
    if let Some(file) = variable(QAT_MEMORY) {
        config.memory = file.into();
    }
    if let Some(text) = variable(QAT_ANSWER_MS) {
        let time = text.to_str().and_then(|text| text.parse().ok());
        let time = time.filter(|time| (1..=MAX_QAT_ANSWER_MS).contains(time));
        let wrong = || {
            let message = format!(
                "{QAT_ANSWER_MS} is {text:?}: set it to milliseconds between 1 and {MAX_QAT_ANSWER_MS}, or not at all"
            );
            fail(Failure::Usage, message)
        };
        config.answer_time = Duration::from_millis(time.ok_or_else(wrong)?);
    }
    let mut instances = config.instances.iter();
    match instances.find(|address| !is_bus_address(address)) {
        None => Ok(config),
        Some(wrong) => Err(fail(
            Failure::Usage,
            format!(
                "backend.qat.instances: {wrong:?} is not the bus address of a virtual function, like 0000:6b:00.1"
            ),
        )),
    }
}

/// The driver to which the kernel gives RSA.
fn rsa_driver() -> Result<String, Unusable> {
    let root = Root::open("/").map_err(|error| Unusable(error.to_string()))?;
    let read = preferred(&root, "rsa");
    let found = read.map_err(|error| Unusable(format!("/proc/crypto: {error}")))?;
    driver_of(found)
}

/// The name of the implementation, unless the processor computes it: the other backends are faster there.
fn driver_of(found: Option<Algorithm>) -> Result<String, Unusable> {
    match found {
        Some(found) if matches!(found.site(), ComputeSite::Device | ComputeSite::Other) => {
            Ok(found.driver)
        }
        Some(found) => Err(Unusable(format!(
            "no device computes RSA for the kernel, which prefers {}: load the device's driver",
            found.driver
        ))),
        None => Err(Unusable("the kernel has no RSA: load the device's driver".to_owned())),
    }
}

fn kernels(exe: &Path) -> Option<PathBuf> {
    Some(exe.parent()?.join(CUDA_KERNELS))
}

#[cfg(test)]
mod tests {
    use millrace_inspect::kernel::crypto;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn help_of_backends_names_those_that_are_left_out_by_default() {
        let kinds = |backends: Vec<Arc<dyn Backend>>| -> Vec<BackendKind> {
            let kinds = backends.iter().map(|backend| backend.describe().kind);
            kinds.collect()
        };
        let qat = NodeConfig::default().qat;
        let default = kinds(chosen(None, &qat).expect("backends"));
        let mut left_out = kinds(all());
        left_out.retain(|kind| !default.contains(kind));
        let left_out: Vec<&str> = left_out.iter().map(|kind| kind.name()).collect();
        let wanted = format!("[default: all usable ones but {}]", left_out.join(", "));
        let root = Cli::definition();
        let up = root.find_subcommand("up");
        let virtio = root.find_subcommand("virtio");
        let virtio = virtio.and_then(|command| command.find_subcommand("run"));
        for command in [up, virtio] {
            let command = command.expect("a command");
            let name = command.get_name();
            let mut options = command.get_arguments();
            let option = options.find(|argument| argument.get_id() == "backends");
            let help = option.and_then(clap::Arg::get_help).map(ToString::to_string);
            let help = help.expect("a help");
            assert!(help.contains(&wanted), "{name}: {help}, not {wanted}");
        }
    }

    #[test]
    fn environment_overrides_the_settings_of_qat() {
        let set = |name: &str| match name {
            QAT_LIBRARY => Some("/x/libqat.so".into()),
            QAT_MEMORY => Some("/x/libusdm.so".into()),
            QAT_ANSWER_MS => Some("10000".into()),
            _ => None,
        };
        let file = NodeConfig::default().qat;
        let merged = merge_qat(file.clone(), set).expect("settings");
        let wanted = QatConfig {
            library: "/x/libqat.so".into(),
            memory: "/x/libusdm.so".into(),
            answer_time: Duration::from_secs(10),
            ..file.clone()
        };
        assert_eq!(merged, wanted);
        assert_eq!(merge_qat(file.clone(), |_| None).expect("settings"), file);
    }

    #[test]
    fn kernel_serves_with_the_driver_of_a_device_and_not_with_portable_code() {
        let found = |driver: &str| {
            let text = format!("name : rsa\ndriver : {driver}\nselftest : passed\ninternal : no\n");
            driver_of(crypto::algorithms(&text).pop())
        };
        for device in ["virtio-crypto-rsa", "qat-rsa", "hpre-rsa", "rsa-caam", "rsa-ccp"] {
            assert_eq!(found(device).as_deref(), Ok(device));
        }
        let portable = found("rsa-generic").expect_err("the processor computes");
        assert!(portable.0.contains("prefers rsa-generic"), "{portable}");
        let none = driver_of(None).expect_err("no RSA");
        assert!(none.0.contains("no RSA"), "{none}");
    }

    #[test]
    fn wrong_answer_time_in_the_environment_is_an_error() {
        for wrong in ["abc", "", "0", "-1", "10001", "99999999999999999999"] {
            let set = |name: &str| (name == QAT_ANSWER_MS).then(|| wrong.into());
            let problem = merge_qat(NodeConfig::default().qat, set).expect_err(wrong).to_string();
            assert!(problem.contains(QAT_ANSWER_MS) && problem.contains("10000"), "{problem}");
        }
    }

    #[test]
    fn instances_of_qat_are_bus_addresses() {
        let merged = |address: &str| {
            let mut config = NodeConfig::default().qat;
            config.instances = vec!["0000:6b:00.1".to_owned(), address.to_owned()];
            merge_qat(config, |_| None)
        };
        assert!(merged("ffff:FF:1f.7").is_ok());
        for wrong in ["6b:00.1", "0000:6b:00", "1.2.3.4"] {
            let problem = merged(wrong).expect_err(wrong).to_string();
            assert!(problem.contains(wrong), "{problem}");
        }
    }
}
