// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends, in order of preference. They are values, not Cargo features.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_backends::cuda::Arithmetic;
use millrace_backends::{Cuda, Qat, Simd, Software};
use millrace_engine::Backend;
use millrace_engine::backend::Unusable;
use millrace_server::config::{NodeConfig, QatConfig};

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

/// The same, as configured.
pub(crate) fn configured(qat_config: &QatConfig) -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(cuda()),
        Arc::new(qat(qat_config)),
        Arc::new(Simd::new()),
        Arc::new(Software::new()),
    ]
}

/// The cuda backend, configured by the environment. It opens its device at the first use.
fn cuda() -> Cuda {
    let mut cuda = Cuda::new();
    if let Ok(name) = std::env::var(CUDA_ARITHMETIC) {
        let Some(arithmetic) = Arithmetic::from_name(&name) else {
            let reason =
                format!("{CUDA_ARITHMETIC} is {name:?}: set it to integer or fp52, or not at all");
            return Cuda::unusable(Unusable(reason));
        };
        cuda = cuda.only(|variant| variant.arithmetic == arithmetic);
    }
    match std::env::current_exe().ok().and_then(|exe| kernels(&exe)) {
        Some(kernels) => cuda.kernels(kernels),
        None => cuda,
    }
}

/// The qat backend. It opens Intel's library when it is probed.
fn qat(config: &QatConfig) -> Qat {
    let QatConfig {
        library,
        memory,
        functions,
        instances,
        answer_time,
    } = config;
    let file = |variable: &str, configured: &Path| {
        std::env::var_os(variable).map_or_else(|| configured.to_owned(), PathBuf::from)
    };
    let time = std::env::var(QAT_ANSWER_MS).ok();
    let time = time.and_then(|time| time.parse().ok());
    Qat::new()
        .libraries(file(QAT_LIBRARY, library), file(QAT_MEMORY, memory))
        .functions(*functions)
        .only(instances.clone())
        .answer_time(time.map_or(*answer_time, Duration::from_millis))
}

fn kernels(exe: &Path) -> Option<PathBuf> {
    Some(exe.parent()?.join(CUDA_KERNELS))
}
