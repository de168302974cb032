// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends, in order of preference. They are values, not Cargo features.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_backends::cuda::Arithmetic;
use millrace_backends::{Cuda, Simd, Software};
use millrace_engine::Backend;
use millrace_engine::backend::Unusable;

/// Selects the kernels of the cuda backend, in place of those with the better measurements.
const CUDA_ARITHMETIC: &str = "MILLRACE_CUDA_ARITHMETIC";

/// Installed location of the kernels, relative to the folder of the binary.
const CUDA_KERNELS: &str = "../lib/millrace/millrace_cuda.fatbin";

/// Every backend that is compiled in, including those that this machine cannot use.
pub(crate) fn all() -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(cuda()),
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

fn kernels(exe: &std::path::Path) -> Option<PathBuf> {
    Some(exe.parent()?.join(CUDA_KERNELS))
}
