// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The CPU twin: the kernels, compiled for the host, as a filter. It reads launches and writes what they give, until
// its input ends. Numbers are in the byte order of the machine; nothing is checked, since only the tests
// speak to it.
//
//   in   a header; per task its key, its pair, its input
//   out  per task its status, its pair, its output

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fp52.h"
#include "integer.h"
#include "rsa.h"

static Moment struck_moment;
static uint32_t struck_thread, struck_digit, struck_bit;

template <int G, int L>
void Integer<G, L>::hit(Moment moment, Number &number) {
    if (moment != struck_moment) return;
    number.at[struck_digit % L].at[struck_thread % G] ^= 1u << struck_bit % 32;
    // Once is enough, where a moment comes again.
    struck_moment = Moment::Never;
}

template <int G, int L>
void Fp52<G, L>::hit(Moment moment, Number &number) {
    if (moment != struck_moment) return;
    double &digit = number.at[struck_digit % L].at[struck_thread % G];
    digit = (double)((uint64_t)digit ^ (uint64_t)1 << struck_bit % 52);
    struck_moment = Moment::Never;
}

static bool read_exactly(void *out, size_t size) { return fread(out, 1, size, stdin) == size; }

/// `moment`, `thread`, `digit` and `bit` name a bit to flip in each task, in the number that is complete then.
/// With `taint` all numbers of a task are undefined for memcheck, so that it reports every branch and address
/// that depends on one; with 2 there is such a branch.
struct Header {
    uint32_t variant, count, make, moment, thread, digit, bit, taint;
    uint64_t exponent;
};

/// A request to memcheck, which finds it by an odd sequence of rotations; for a processor it is nothing.
static void ask_memcheck(uint64_t request, void *memory, size_t size) {
#if defined(__x86_64__)
    // The base of memcheck's requests is its letters.
    uint64_t arguments[6] = {0x4d430000 + request, (uint64_t)memory, size, 0, 0, 0}, answer = 0;
    asm volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
                 : "+d"(answer)
                 : "a"(arguments), "D"((uint64_t)0)
                 : "cc", "memory");
#else
    (void)request, (void)memory, (void)size;
#endif
}
static void mark_undefined(void *memory, size_t size) { ask_memcheck(1, memory, size); }
static void mark_defined(void *memory, size_t size) { ask_memcheck(2, memory, size); }

template <class A, int T, int HALF_BITS>
static bool serve(const Header &header) {
    using Kernel = Rsa<A, T, HALF_BITS>;
    using At = typename Kernel::At;
    using Digit = typename A::Digit;
    std::vector<Digit> key(At::KEY), pair(At::PAIR), stage(2 * Kernel::HALF), table(ENTRIES * A::L * Kernel::G);
    std::vector<uint32_t> input(Kernel::WORDS), output(Kernel::WORDS);
    for (uint32_t task = 0; task < header.count; task++) {
        if (!read_exactly(key.data(), key.size() * sizeof(Digit)) ||
            !read_exactly(pair.data(), pair.size() * sizeof(Digit)) ||
            !read_exactly(input.data(), input.size() * sizeof(uint32_t)))
            return false;
        struck_moment = (Moment)header.moment;
        struck_thread = header.thread;
        struck_digit = header.digit;
        struck_bit = header.bit;
        uint32_t names[2] = {0, 0}, status = 0;
        Launch launch = {names, input.data(), output.data(), &status, key.data(), pair.data(), nullptr,
                         header.exponent, 64 - (uint32_t)__builtin_clzll(header.exponent), header.make};
        typename Kernel::Place place = {stage.data(), table.data(), typename Kernel::Word(0), 1, Kernel::M::lane(),
                                        Kernel::G};
        const size_t key_size = key.size() * sizeof(Digit), pair_size = pair.size() * sizeof(Digit);
        const size_t number_size = input.size() * sizeof(uint32_t);
        if (header.taint) {
            mark_undefined(key.data(), key_size);
            mark_undefined(pair.data(), pair_size);
            mark_undefined(input.data(), number_size);
        }
        if (header.taint == 2 && key[0] != 0) fputs("a branch that memcheck must notice\n", stderr);
        Kernel::run(launch, place, typename Kernel::Word(0));
        mark_defined(&status, sizeof status);
        mark_defined(pair.data(), pair_size);
        mark_defined(output.data(), number_size);
        fwrite(&status, sizeof status, 1, stdout);
        fwrite(pair.data(), sizeof(Digit), pair.size(), stdout);
        fwrite(output.data(), sizeof(uint32_t), output.size(), stdout);
        // Nothing secret may be left where the kernel computed.
        for (Digit digit : stage)
            if (digit) abort();
        for (Digit digit : table)
            if (digit) abort();
    }
    return fflush(stdout) == 0;
}

int main() {
    // What DFMA.RZ does; nothing else here rounds.
    fesetround(FE_TOWARDZERO);
    Header header;
    while (read_exactly(&header, sizeof header)) {
        bool served = false;
        uint32_t variant = 0;
#define KERNEL(name, arithmetic, digits, threads, half_bits, block, table) \
    if (header.variant == variant++) served = serve<arithmetic<2 * threads, digits>, threads, half_bits>(header);
#include "variants.h"
#undef KERNEL
        if (!served) return 1;
    }
    return 0;
}
