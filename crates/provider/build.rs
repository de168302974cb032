// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Link options of the module. The compiler already exports nothing but `OSSL_provider_init` from a
//! cdylib (a test looks at the symbol table); what it does not know is that the module must stay
//! mapped: its I/O thread outlives the provider that OpenSSL unloads.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
