// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// A driver without a GPU: the functions of libcuda that the backend calls, over ordinary memory, with the CPU twin of
// the kernels behind cuLaunchKernel. It runs whole blocks, spare groups included, each group after the other,
// with shared memory as the kernels lay it out. So what the backend does with a driver is tested, too.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fp52.h"
#include "integer.h"
#include "rsa.h"

// No bits are flipped here.
template <int G, int L>
void Integer<G, L>::hit(Moment, Number &) {}
template <int G, int L>
void Fp52<G, L>::hit(Moment, Number &) {}

namespace {

constexpr bool SHARED = true, GLOBAL = false;
constexpr int INVALID_VALUE = 1, NOT_FOUND = 500;

template <class A, int T, int HALF_BITS, int THREADS, bool TABLE_PLACE>
int run(unsigned blocks, unsigned threads, unsigned shared_bytes, const Launch &launch) {
    using Kernel = Rsa<A, T, HALF_BITS>;
    using Digit = typename A::Digit;
    using Word = typename Kernel::Word;
    constexpr unsigned GROUPS = THREADS / (2 * T);
    constexpr size_t STAGE = 2 * Kernel::HALF * GROUPS, TABLE = (size_t)ENTRIES * A::L * THREADS;
    if (threads != THREADS || shared_bytes != (STAGE + (TABLE_PLACE ? TABLE : 0)) * sizeof(Digit))
        return INVALID_VALUE;
    fesetround(FE_TOWARDZERO);
    for (unsigned block = 0; block < blocks; block++) {
        std::vector<Digit> shared(shared_bytes / sizeof(Digit));
        for (unsigned group = 0; group < GROUPS; group++) {
            typename Kernel::Place place;
            place.stage = shared.data();
            place.table = TABLE_PLACE ? shared.data() + STAGE : (Digit *)launch.tables + block * TABLE;
            place.group = Word(group);
            place.groups = GROUPS;
            place.thread = Word(group * Kernel::G) + Kernel::M::lane();
            place.threads = THREADS;
            Kernel::run(launch, place, Word(block * GROUPS + group));
        }
        for (Digit digit : shared)
            if (digit) abort();
    }
    fesetround(FE_TONEAREST);
    return 0;
}

struct Function {
    const char *name;
    int (*run)(unsigned, unsigned, unsigned, const Launch &);
};

Function functions[] = {
#define KERNEL(name, arithmetic, digits, threads, half_bits, block, table) \
    {#name, run<arithmetic<2 * threads, digits>, threads, half_bits, block, table>},
#include "variants.h"
#undef KERNEL
};

int dummy;

} // namespace

extern "C" {

typedef unsigned long long Pointer;

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int length, int) { return snprintf(name, (size_t)length, "no GPU at all"), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case 16: // multiprocessors
        return *value = 1, 0;
    case 75: // compute capability, major and minor
        return *value = getenv("MILLRACE_TEST_OLD_DEVICE") ? 7 : 9, 0;
    case 76:
        return *value = 0, 0;
    }
    return INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void **context, int) { return *context = &dummy, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void *context) { return context == &dummy ? 0 : INVALID_VALUE; }
int cuCtxSynchronize() { return 0; }
int cuModuleLoadData(void **module, const void *image) {
    // The text begins with our header.
    return *module = &dummy, ((const char *)image)[0] == '/' ? 0 : INVALID_VALUE;
}
int cuModuleUnload(void *) { return 0; }
int cuModuleGetFunction(void **function, void *, const char *name) {
    for (Function &known : functions)
        if (strcmp(known.name, name) == 0) return *function = &known, 0;
    return NOT_FOUND;
}
int cuFuncSetAttribute(void *, int, int) { return 0; }
// Not zeroed, as on a device.
int cuMemAlloc_v2(Pointer *at, size_t bytes) {
    void *memory = malloc(bytes);
    memset(memory, 0xa5, bytes);
    return *at = (Pointer)memory, 0;
}
int cuMemFree_v2(Pointer at) { return free((void *)at), 0; }
int cuMemsetD8_v2(Pointer at, unsigned char byte, size_t bytes) { return memset((void *)at, byte, bytes), 0; }
int cuMemcpyHtoD_v2(Pointer at, const void *from, size_t bytes) { return memcpy((void *)at, from, bytes), 0; }
int cuMemcpyDtoH_v2(void *to, Pointer at, size_t bytes) { return memcpy(to, (void *)at, bytes), 0; }
int cuMemHostAlloc(void **memory, size_t bytes, unsigned) { return *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), 0; }
int cuMemHostGetDevicePointer_v2(Pointer *at, void *memory, unsigned) { return *at = (Pointer)memory, 0; }
int cuMemFreeHost(void *memory) { return free(memory), 0; }
int cuStreamCreate(void **stream, unsigned) { return *stream = &dummy, 0; }
int cuStreamDestroy_v2(void *) { return 0; }
int cuStreamQuery(void *) { return 0; }
int cuStreamSynchronize(void *) { return 0; }
int cuLaunchKernel(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned shared,
                   void *, void **parameters, void **) {
    return ((Function *)function)->run(blocks, threads, shared, *(const Launch *)parameters[0]);
}
int cuGetErrorName(int, const char **name) { return *name = "CUDA_ERROR_OF_THE_TEST", 0; }
int cuGetErrorString(int, const char **text) { return *text = "a test's own error", 0; }
}
