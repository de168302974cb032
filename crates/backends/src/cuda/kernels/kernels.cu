// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The kernels: one per arithmetic, size of key, and number of threads per prime.

#include "fp52.h"
#include "integer.h"
#include "rsa.h"

extern __shared__ uint64_t shared_memory[];

// Where the tables are: in shared memory, or in the memory that the launch brings, which leaves room for more
// blocks but has to go through the second cache.
constexpr bool SHARED = true, GLOBAL = false;

/// What a block of THREADS threads does.
template <class A, int T, int HALF_BITS, int THREADS, bool TABLE_PLACE>
static DEVICE void rsa_block(const Launch &launch) {
    using Kernel = Rsa<A, T, HALF_BITS>;
    using Digit = typename A::Digit;
    constexpr int GROUPS = THREADS / (2 * T);
    constexpr int TABLE = ENTRIES * A::L * THREADS;
    Digit *memory = (Digit *)shared_memory;
    typename Kernel::Place place;
    place.stage = memory;
    if (TABLE_PLACE == SHARED) {
        place.table = memory + 2 * Kernel::HALF * GROUPS;
    } else {
        place.table = (Digit *)launch.tables + (size_t)blockIdx.x * TABLE;
    }
    place.group = threadIdx.x / (2 * T);
    place.groups = GROUPS;
    place.thread = threadIdx.x;
    place.threads = THREADS;
    Kernel::run(launch, place, blockIdx.x * GROUPS + place.group);
}

#define KERNEL(name, arithmetic, digits, threads, half_bits, block, table)                               \
    extern "C" __global__ void __launch_bounds__(block, 1) name(const __grid_constant__ Launch launch) { \
        rsa_block<arithmetic<2 * threads, digits>, threads, half_bits, block, table>(launch);            \
    }
#include "variants.h"

#include "rates.h"
