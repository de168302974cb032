// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// How many of an instruction a multiprocessor does per clock: the rates that all bounds rest on. Each thread
// has CHAINS independent chains, so that latency does not show; `clocks` gets what a block took.

#pragma once

#include <stdint.h>

constexpr int CHAINS = 8;

/// Starts from values that the compiler does not know, and lets it throw nothing away.
#define RATE_KERNEL(name, type, start, step, keep)                                                   \
    extern "C" __global__ void name(uint32_t rounds, uint32_t seed, uint64_t *clocks, uint64_t *sink) { \
        type value[CHAINS];                                                                          \
        _Pragma("unroll") for (int i = 0; i < CHAINS; i++) value[i] = (type)(start);                 \
        uint64_t before = clock64();                                                                 \
        _Pragma("unroll 4") for (uint32_t round = 0; round < rounds; round++) {                      \
            _Pragma("unroll") for (int i = 0; i < CHAINS; i++) { step; }                             \
        }                                                                                            \
        uint64_t after = clock64();                                                                  \
        uint64_t sum = 0;                                                                            \
        _Pragma("unroll") for (int i = 0; i < CHAINS; i++) sum += (uint64_t)(keep);                  \
        sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;                                           \
        if (threadIdx.x == 0) clocks[blockIdx.x] = after - before;                                   \
    }

RATE_KERNEL(rate_imad_wide, uint64_t, seed + i + threadIdx.x,
            asm volatile("mad.wide.u32 %0, %1, %2, %0;" : "+l"(value[i]) : "r"(seed), "r"(round)), value[i])
RATE_KERNEL(rate_imad, uint32_t, seed + i + threadIdx.x,
            asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(value[i]) : "r"(seed), "r"(round)), value[i])
RATE_KERNEL(rate_iadd, uint32_t, seed + i + threadIdx.x,
            asm volatile("add.u32 %0, %0, %1;" : "+r"(value[i]) : "r"(seed)), value[i])
RATE_KERNEL(rate_dfma, double, seed + i + threadIdx.x,
            asm volatile("fma.rz.f64 %0, %0, %1, %1;" : "+d"(value[i]) : "d"(value[CHAINS - 1])),
            __double_as_longlong(value[i]))
RATE_KERNEL(rate_dadd, double, seed + i + threadIdx.x,
            asm volatile("add.rn.f64 %0, %0, %1;" : "+d"(value[i]) : "d"(value[CHAINS - 1])),
            __double_as_longlong(value[i]))
RATE_KERNEL(rate_shfl, uint32_t, seed + i + threadIdx.x,
            value[i] = __shfl_sync(0xffffffffu, value[i], (int)(round & 31)), value[i])

#undef RATE_KERNEL
