// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The variants that are built: name, arithmetic, digits per thread, threads per prime, bits of a prime, threads of
// a block, where tables are. The same table is in variants.rs; a test compares them.

KERNEL(rsa_2048_integer_4, Integer, 8, 4, 1024, 128, SHARED)
KERNEL(rsa_2048_integer_1, Integer, 32, 1, 1024, 64, GLOBAL)
KERNEL(rsa_2048_fp52_4, Fp52, 5, 4, 1024, 128, SHARED)
KERNEL(rsa_2048_fp52_2, Fp52, 10, 2, 1024, 64, GLOBAL)
KERNEL(rsa_3072_integer_4, Integer, 12, 4, 1536, 64, SHARED)
KERNEL(rsa_3072_fp52_2, Fp52, 15, 2, 1536, 64, GLOBAL)
KERNEL(rsa_4096_integer_4, Integer, 16, 4, 2048, 64, SHARED)
KERNEL(rsa_4096_fp52_4, Fp52, 10, 4, 2048, 64, GLOBAL)
