// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Stands in for Intel QAT cards of generation 4, under Intel's unmodified user-space library.
//
// Preloaded into a process, it answers what libqat and libusdm ask of Linux: files below /dev/vfio and /sys
// come from the folder MILLRACE_QAT_ROOT (tests/qat/machine.sh makes it), and the ioctls of VFIO give virtual
// functions whose registers are shared memory. A thread per function plays its mailbox and its request rings;
// other threads are the engines that compute the firmware's public-key functions with OpenSSL (firmware.h) and
// compress with zlib (compression.h), and answer out of order. They reach only memory that the process mapped for
// DMA; any other address is counted as a DMA fault.
//
// The file "controls" in that folder is shared with the test: latency, faults and events go in, counters come
// out. Facts about registers and messages are from Linux's qat drivers and qatlib's firmware headers; what a
// real card does beyond them (arbitration, power, timing) is not here.
//
// Build: cc -shared -fPIC -O2 -o card.so card.c -lcrypto -lz -lpthread -ldl

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// ---------------------------------------------------------------- controls

// The layout of the file "controls"; crates/testkit/src/host/qat.rs has the same.
struct controls {
    // In: set by the test.
    _Atomic uint32_t latency_us;
    _Atomic uint32_t wrong_every;      // every n-th answer has a wrong bit; 0: none
    _Atomic uint32_t fail_every;       // every n-th answer carries the firmware's flag "failed"
    _Atomic uint32_t lose_every;       // every n-th request is never answered
    _Atomic uint32_t hold;             // requests stay in the rings
    _Atomic uint32_t event;            // a message of the physical function: 1 restarting, 4 fatal, 5 restarted
    _Atomic uint32_t event_number;     // incremented with each event
    _Atomic uint32_t engines;          // threads that compute; 0: 2
    _Atomic uint32_t ring_map;         // services by bank; 0: all asymmetric
    _Atomic uint32_t search_number;    // incremented: look for the bytes of the file "needle" in the mapped memory
    _Atomic uint32_t reserved[6];
    // Out.
    _Atomic uint64_t requests, answers, wrong, failed, lost, dma_faults, unknown_functions, most_in_flight;
    _Atomic uint64_t in_flight;
    _Atomic uint64_t searches, found;  // searches that ended, and how often the last one found the bytes
    _Atomic uint64_t abandoned;        // requests that the card still had when their ring was turned off, and no event came
};
static struct controls no_controls, *controls = &no_controls;
static const char *root;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

__attribute__((constructor)) static void start(void) {
    const char *named = getenv("MILLRACE_QAT_ROOT");
    if (!named) return;
    // A server may write over its environment.
    root = strdup(named);
    if (!root) abort();
    char path[512];
    snprintf(path, sizeof path, "%s/controls", root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) { perror(path); abort(); }
    controls = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (controls == MAP_FAILED) { perror(path); abort(); }
    close(fd);
}

// ---------------------------------------------------------------- files

static const char *const REDIRECTED[] = {"/dev/vfio", "/sys/kernel/iommu_groups", "/sys/bus/pci/drivers",
                                         "/sys/bus/pci/devices", "/sys/kernel/debug/qat"};

static const char *redirected(const char *path, char *buffer, size_t size) {
    for (size_t i = 0; root && path && i < sizeof REDIRECTED / sizeof *REDIRECTED; i++)
        if (!strncmp(path, REDIRECTED[i], strlen(REDIRECTED[i]))) {
            snprintf(buffer, size, "%s%s", root, path);
            return buffer;
        }
    return path;
}

static int open_at(const char *path, int flags, mode_t mode) {
    char buffer[512];
    const char *real = redirected(path, buffer, sizeof buffer);
    int fd = openat(AT_FDCWD, real, flags, mode);
    // Linux opens a VFIO group for one process at a time.
    int is_group = fd >= 0 && real == buffer && !strncmp(path, "/dev/vfio/", 10) && path[10] >= '0' && path[10] <= '9';
    if (is_group && flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        errno = EBUSY;
        return -1;
    }
    return fd;
}

int open64(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list list;
        va_start(list, flags);
        mode = va_arg(list, mode_t);
        va_end(list);
    }
    return open_at(path, flags, mode);
}

int __open64_2(const char *path, int flags) { return open_at(path, flags, 0); }

#define NEXT(type, name) \
    static __typeof__(type) next; \
    if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name)

FILE *fopen64(const char *path, const char *mode) {
    NEXT(FILE *(*)(const char *, const char *), "fopen64");
    char buffer[512];
    return next(redirected(path, buffer, sizeof buffer), mode);
}

int stat64(const char *restrict path, struct stat64 *restrict status) {
    NEXT(int (*)(const char *, struct stat64 *), "stat64");
    char buffer[512];
    return next(redirected(path, buffer, sizeof buffer), status);
}

DIR *opendir(const char *path) {
    NEXT(DIR *(*)(const char *), "opendir");
    char buffer[512];
    return next(redirected(path, buffer, sizeof buffer));
}

typedef int (*filter)(const struct dirent64 *);
typedef int (*order)(const struct dirent64 **, const struct dirent64 **);
int scandir64(const char *restrict path, struct dirent64 ***restrict list, filter f, order o) {
    NEXT(int (*)(const char *, struct dirent64 ***, filter, order), "scandir64");
    char buffer[512];
    return next(redirected(path, buffer, sizeof buffer), list, f, o);
}

// ---------------------------------------------------------------- memory that the device can reach

#define MAPPINGS 4096
static struct { uint64_t iova, address, size; } mappings[MAPPINGS];
static int mapping_count;
static pthread_rwlock_t mapping_lock = PTHREAD_RWLOCK_INITIALIZER;
// Held for reading while an engine computes: a card that is reset or loses its mappings has stopped before.
static pthread_rwlock_t computing = PTHREAD_RWLOCK_INITIALIZER;

static void wait_for_engines(void) {
    pthread_rwlock_wrlock(&computing);
    pthread_rwlock_unlock(&computing);
}

// With the lock held for reading.
static uint8_t *reach(uint64_t iova, uint64_t size) {
    for (int i = 0; i < mapping_count; i++)
        if (mappings[i].size && iova >= mappings[i].iova && iova + size <= mappings[i].iova + mappings[i].size)
            return (uint8_t *)(mappings[i].address + (iova - mappings[i].iova));
    controls->dma_faults++;
    return NULL;
}

static int dma_read(uint64_t iova, void *to, uint64_t size) {
    pthread_rwlock_rdlock(&mapping_lock);
    uint8_t *from = reach(iova, size);
    if (from) memcpy(to, from, size);
    pthread_rwlock_unlock(&mapping_lock);
    return from ? 0 : -1;
}

static int dma_write(uint64_t iova, const void *from, uint64_t size) {
    pthread_rwlock_rdlock(&mapping_lock);
    uint8_t *to = reach(iova, size);
    if (to) memcpy(to, from, size);
    pthread_rwlock_unlock(&mapping_lock);
    return to ? 0 : -1;
}

static int map_dma(const struct vfio_iommu_type1_dma_map *m) {
    if (((m->vaddr | m->iova | m->size) & 4095) || !m->size) { errno = EINVAL; return -1; }
    pthread_rwlock_wrlock(&mapping_lock);
    int free_at = mapping_count, error = 0;
    for (int i = 0; i < mapping_count; i++) {
        if (!mappings[i].size) free_at = i;
        else if (m->iova < mappings[i].iova + mappings[i].size && mappings[i].iova < m->iova + m->size) error = EEXIST;
    }
    if (!error && free_at == MAPPINGS) error = ENOSPC;
    if (!error) {
        if (free_at == mapping_count) mapping_count++;
        mappings[free_at].iova = m->iova;
        mappings[free_at].address = m->vaddr;
        mappings[free_at].size = m->size;
    }
    pthread_rwlock_unlock(&mapping_lock);
    if (error) { errno = error; return -1; }
    return 0;
}

static int unmap_dma(const struct vfio_iommu_type1_dma_unmap *m) {
    wait_for_engines();
    pthread_rwlock_wrlock(&mapping_lock);
    for (int i = 0; i < mapping_count; i++)
        if (mappings[i].iova == m->iova && mappings[i].size == m->size) mappings[i].size = 0;
    pthread_rwlock_unlock(&mapping_lock);
    return 0;
}

static void unmap_all(void) {
    wait_for_engines();
    pthread_rwlock_wrlock(&mapping_lock);
    mapping_count = 0;
    pthread_rwlock_unlock(&mapping_lock);
}

// ---------------------------------------------------------------- groups and their container

#include "groups.h"

// Looks for the bytes of the file "needle" in all memory that the device can reach.
static void search(void) {
    static uint32_t seen;
    uint32_t wanted = controls->search_number;
    if (wanted == seen) return;
    seen = wanted;
    uint8_t needle[1024];
    char path[512];
    snprintf(path, sizeof path, "%s/needle", root);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, needle, sizeof needle);
    if (size < 16) { perror(path); abort(); }
    close(fd);
    uint64_t found = 0;
    pthread_rwlock_rdlock(&mapping_lock);
    for (int i = 0; i < mapping_count; i++) {
        const uint8_t *at = (const uint8_t *)mappings[i].address, *end = at + mappings[i].size;
        while (mappings[i].size && (at = memmem(at, (size_t)(end - at), needle, (size_t)size))) {
            found++;
            at++;
        }
    }
    pthread_rwlock_unlock(&mapping_lock);
    memset(needle, 0, sizeof needle);
    controls->found = found;
    controls->searches++;
}

// ---------------------------------------------------------------- firmware

#include "firmware.h"
#include "compression.h"

// ---------------------------------------------------------------- virtual functions

#define REGION(i) ((uint64_t)(i) << 40)
#define BAR_SIZE 0x10000u
#define FUNCTIONS_MOST 16
#define BANKS 4
#define BANK_SIZE 0x2000u
// Registers of a bank; ring 0 takes requests, ring 1 answers.
enum { HEAD = 0xC0, TAIL = 0x100, STATUS = 0x140, ARBITER = 0x19C, CONFIG = 0x1000, BASE_LOW = 0x1040, BASE_HIGH = 0x1080 };
// Registers of the mailbox, in the second BAR.
enum { FROM_PF = 0x1008, TO_PF = 0x100C };
#define ALL_ASYMMETRIC (4u | 4u << 3 | 4u << 6 | 4u << 9)
#define ASYMMETRIC 4u
#define COMPRESSION 2u

struct function_state {
    // First: it outlives a user of the entry, whose last requests engines may still have.
    pthread_mutex_t answer_lock;
    int used, fd;
    // Its group, and a descriptor that keeps the group's file open.
    struct group_state *group;
    int group_file;
    pid_t pid;
    volatile uint8_t *bank, *mailbox;
    uint32_t live[BANKS], head[BANKS], answer_tail[BANKS];
    uint64_t ring[BANKS];
    pthread_t thread;
    atomic_int stop;
    // Incremented by a reset: requests from before are never answered.
    atomic_uint life;
    // It has failed or is being reset: it takes no requests until it is opened or reset.
    int dead;
    uint32_t events_seen;
    char name[32];
};
static struct function_state functions[FUNCTIONS_MOST];
static pthread_mutex_t functions_lock = PTHREAD_MUTEX_INITIALIZER;
// Held while a mailbox is played: by the function's thread, or by the library's while it waits for an answer.
static pthread_mutex_t mailbox_lock = PTHREAD_MUTEX_INITIALIZER;

// The process's own usleep plays mailboxes.
static void pause_us(uint64_t time_us) {
    struct timespec time = {(time_t)(time_us / 1000000), (long)(time_us % 1000000) * 1000};
    nanosleep(&time, NULL);
}

static uint32_t get(volatile uint8_t *base, uint32_t offset) {
    return atomic_load_explicit((_Atomic uint32_t *)(base + offset), memory_order_acquire);
}
static void put(volatile uint8_t *base, uint32_t offset, uint32_t value) {
    atomic_store_explicit((_Atomic uint32_t *)(base + offset), value, memory_order_release);
}
static uint32_t ring_map(void) { return controls->ring_map ? controls->ring_map : ALL_ASYMMETRIC; }
static uint32_t service_of(int bank) { return ring_map() >> (3 * bank) & 7; }

// ---- engines

struct job {
    struct function_state *function;
    int bank;
    uint32_t life, events;
    uint64_t due, number;
    struct request request;
    // Of a compression request, the whole message and what became of it.
    uint8_t message[128];
    struct compressed compressed;
    struct job *next;
};
static struct job *first_job, *last_job;
static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t jobs_come = PTHREAD_COND_INITIALIZER;
static pid_t engines_of;

static int is_wanted(const struct job *job);
static void abandon(const struct job *job);

static void answer(struct job *job, enum answer outcome) {
    struct function_state *v = job->function;
    uint8_t bytes[32] = {0};
    bytes[2] = job->request.type;
    bytes[3] = 0x80;
    bytes[5] = outcome == RIGHT ? 0 : outcome == FAILED ? 0x40 : 0x42;
    memcpy(bytes + 8, &job->request.opaque, 8);
    memcpy(bytes + 16, &job->request.inputs, 8);
    memcpy(bytes + 24, &job->request.outputs, 8);
    if (service_of(job->bank) == COMPRESSION) answer_compression(bytes, &job->compressed, outcome == RIGHT);
    pthread_mutex_lock(&v->answer_lock);
    // A ring that was turned off gets no answer; its memory stays mapped for as long as this is held.
    pthread_rwlock_rdlock(&computing);
    if (is_wanted(job)) {
        volatile uint8_t *bank = v->bank + BANK_SIZE * (uint32_t)job->bank;
        uint64_t base = get(bank, BASE_LOW + 4) | (uint64_t)get(bank, BASE_HIGH + 4) << 32;
        uint32_t size = 64u << (get(bank, CONFIG + 4) & 0x1f), *tail = &v->answer_tail[job->bank];
        pthread_rwlock_rdlock(&mapping_lock);
        uint8_t *slot = base ? reach(base + *tail, sizeof bytes) : NULL;
        if (slot) {
            // The library looks at the first word to see that an answer is there.
            memcpy(slot + 4, bytes + 4, sizeof bytes - 4);
            uint32_t word;
            memcpy(&word, bytes, 4);
            atomic_store_explicit((_Atomic uint32_t *)slot, word, memory_order_release);
        }
        pthread_rwlock_unlock(&mapping_lock);
        if (slot) {
            *tail = (*tail + (uint32_t)sizeof bytes) % size;
            put(bank, TAIL + 4, *tail);
            controls->answers++;
        }
    } else
        abandon(job);
    pthread_rwlock_unlock(&computing);
    pthread_mutex_unlock(&v->answer_lock);
}

// Whether the request is still wanted: its function was not reset, and its ring is on.
static int is_wanted(const struct job *job) {
    struct function_state *v = job->function;
    return v->used && v->life == job->life && (get(v->bank + BANK_SIZE * (uint32_t)job->bank, ARBITER) & 1);
}

// Counts a request that the library still owes its memory.
static void abandon(const struct job *job) {
    if (job->events == controls->event_number) controls->abandoned++;
}

static int due_every(uint32_t every, uint64_t number) { return every && number % every == 0; }

static void *engine(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&jobs_lock);
        while (!first_job) pthread_cond_wait(&jobs_come, &jobs_lock);
        struct job *job = first_job;
        first_job = job->next;
        if (!first_job) last_job = NULL;
        pthread_mutex_unlock(&jobs_lock);
        int lost = due_every(controls->lose_every, job->number);
        pthread_rwlock_rdlock(&computing);
        int wanted = is_wanted(job);
        enum answer outcome = FAILED;
        int wrong = due_every(controls->wrong_every, job->number);
        if (wanted && !lost)
            outcome = service_of(job->bank) == COMPRESSION ? compress_message(job->message, wrong, &job->compressed)
                                                           : compute(&job->request, wrong);
        pthread_rwlock_unlock(&computing);
        if (wanted && !lost) {
            uint64_t now = now_us();
            if (job->due > now) pause_us(job->due - now);
            if (due_every(controls->fail_every, job->number)) {
                controls->failed++;
                outcome = FAILED;
            }
            answer(job, outcome);
        } else if (lost)
            controls->lost++;
        else
            abandon(job);
        controls->in_flight--;
        free(job);
    }
    return NULL;
}

// ---- mailbox of the physical function

static uint8_t crc8(const uint8_t *bytes, int count) {
    uint8_t crc = 0xff;
    for (int i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = (uint8_t)(crc & 0x80 ? crc << 1 ^ 0x97 : crc << 1);
    }
    return crc;
}

// The event by which a reset ends; the others are 1, its begin, and 4, a fatal error.
enum { RESTARTED = 5 };
// Messages of the virtual function, and the answers to them.
enum { COMPATIBLE_REQUEST = 6, BLOCK_REQUEST = 9, VERSION_ANSWER = 2, BLOCK_ANSWER = 3, CAPABILITIES = 2, RING_MAP = 3 };

static uint32_t block_answer(uint32_t data) {
    // Block 2: {version 3, 12 bytes, extended, capabilities, frequency}. Block 3: {version 1, 2 bytes, map}.
    uint8_t capabilities[14] = {3, 12}, map[4] = {1, 2};
    uint32_t bits = 1 | 2 | 4 | 8 | 0x200 | 0x1000 | 0x2000 | 0x8000 | 0x10000 | 0x20000 | 0x4000000;
    if (service_of(0) == COMPRESSION) {
        // Of the extended ones: compress and verify, and recover where that fails.
        uint32_t extended = 0x101;
        bits = 0x20;
        memcpy(capabilities + 2, &extended, 4);
    }
    uint16_t services = (uint16_t)ring_map();
    memcpy(capabilities + 6, &bits, 4);
    memcpy(map + 2, &services, 2);
    uint32_t type = data & 15, byte = data >> 4 & 31, wants_crc = data >> 9 & 1;
    uint8_t *block = type == CAPABILITIES ? capabilities : type == RING_MAP ? map : NULL;
    uint32_t size = type == CAPABILITIES ? sizeof capabilities : sizeof map;
    if (!block || byte >= size) return BLOCK_ANSWER << 2 | 2u << 8;
    uint32_t value = wants_crc ? crc8(block, (int)byte + 1) : block[byte];
    return BLOCK_ANSWER << 2 | ((wants_crc ? 1u : 0u) | value << 2) << 8;
}

static void play_mailbox(struct function_state *v) {
    uint32_t message = get(v->mailbox, TO_PF);
    if (message & 1) {
        uint32_t type = message >> 2 & 0x3f, reply = 0;
        if (type == COMPATIBLE_REQUEST) reply = VERSION_ANSWER << 2 | (5u | 1u << 8) << 8;
        if (type == BLOCK_REQUEST) reply = block_answer(message >> 8);
        if (reply) put(v->mailbox, FROM_PF, reply | 3);
        put(v->mailbox, TO_PF, message & ~1u);
    }
    uint32_t events = controls->event_number;
    // The physical function waits until the one before was read: else it would overwrite the answer to a request.
    if (events != v->events_seen && !(get(v->mailbox, FROM_PF) & 1)) {
        v->events_seen = events;
        uint32_t event = controls->event & 0x3f;
        // Before the message: what is in flight is never answered, a card that failed takes nothing, and after a reset
        // the rings are off until the library sets them up.
        v->dead = event != RESTARTED;
        pthread_mutex_lock(&v->answer_lock);
        v->life++;
        pthread_mutex_unlock(&v->answer_lock);
        wait_for_engines();
        if (event == RESTARTED) memset((void *)v->bank, 0, BAR_SIZE);
        put(v->mailbox, FROM_PF, event << 2 | 3);
    }
}

// ---- request rings

static int play_rings(struct function_state *v) {
    int worked = 0;
    for (int b = 0; b < BANKS && !controls->hold && !v->dead; b++) {
        volatile uint8_t *bank = v->bank + BANK_SIZE * (uint32_t)b;
        if (!(get(bank, ARBITER) & 1)) {
            v->live[b] = 0;
            continue;
        }
        if (!v->live[b]) {
            pthread_mutex_lock(&v->answer_lock);
            v->live[b] = 1;
            v->head[b] = v->answer_tail[b] = 0;
            v->ring[b] = get(bank, BASE_LOW) | (uint64_t)get(bank, BASE_HIGH) << 32;
            pthread_mutex_unlock(&v->answer_lock);
        }
        uint32_t tail = get(bank, TAIL), size = 64u << (get(bank, CONFIG) & 0x1f);
        uint32_t service = service_of(b), message = service == ASYMMETRIC ? 64 : 128;
        while (v->head[b] != tail) {
            struct job *job = calloc(1, sizeof *job);
            if (!job || dma_read(v->ring[b] + v->head[b], job->message, message)) {
                free(job);
                break;
            }
            memcpy(&job->request, job->message, sizeof job->request);
            worked = 1;
            job->function = v;
            job->bank = b;
            job->life = v->life;
            job->events = controls->event_number;
            job->due = now_us() + controls->latency_us;
            job->number = ++controls->requests;
            uint64_t in_flight = ++controls->in_flight;
            if (in_flight > controls->most_in_flight) controls->most_in_flight = in_flight;
            if (service == ASYMMETRIC || service == COMPRESSION) {
                pthread_mutex_lock(&jobs_lock);
                if (last_job) last_job->next = job; else first_job = job;
                last_job = job;
                pthread_cond_signal(&jobs_come);
                pthread_mutex_unlock(&jobs_lock);
            } else {
                answer(job, UNSUPPORTED);
                controls->in_flight--;
                free(job);
            }
            v->head[b] = (v->head[b] + message) % size;
            put(bank, HEAD, v->head[b]);
        }
    }
    return worked;
}

static void *play(void *argument) {
    struct function_state *v = argument;
    unsigned idle = 0;
    while (!v->stop) {
        pthread_mutex_lock(&mailbox_lock);
        play_mailbox(v);
        search();
        pthread_mutex_unlock(&mailbox_lock);
        idle = play_rings(v) ? 0 : idle + 1;
        if (idle > 200) pause_us(idle > 4000 ? 50 : 1);
    }
    return NULL;
}

// The library waits for the mailbox by usleep, for some 30 ms in all: a card answers in that time however busy the
// machine is, a thread that gets no core does not.
int usleep(useconds_t time) {
    pthread_mutex_lock(&mailbox_lock);
    for (int i = 0; root && i < FUNCTIONS_MOST; i++)
        if (functions[i].used && functions[i].pid == getpid()) play_mailbox(&functions[i]);
    pthread_mutex_unlock(&mailbox_lock);
    pause_us(time);
    return 0;
}

// ---------------------------------------------------------------- VFIO

static struct function_state *function_of(int fd) {
    for (int i = 0; i < FUNCTIONS_MOST; i++)
        if (functions[i].used && functions[i].fd == fd && functions[i].pid == getpid()) return &functions[i];
    return NULL;
}

static void start_engines(void) {
    if (engines_of == getpid()) return;
    engines_of = getpid();
    uint32_t count = controls->engines ? controls->engines : 2;
    for (uint32_t i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, engine, NULL)) abort();
        pthread_detach(thread);
    }
}

static int open_function(int group_fd, const char *name) {
    pthread_mutex_lock(&groups_lock);
    struct group_state *group = group_of(group_fd);
    int allowed = group && group->in_container && has_iommu;
    if (allowed) group->functions++;
    pthread_mutex_unlock(&groups_lock);
    if (!allowed) return refuse(EINVAL);
    pthread_mutex_lock(&functions_lock);
    struct function_state *v = NULL;
    for (int i = 0; i < FUNCTIONS_MOST && !v; i++) if (!functions[i].used) v = &functions[i];
    if (!v) {
        pthread_mutex_unlock(&functions_lock);
        errno = ENODEV;
        return -1;
    }
    // Requests of an earlier user of this entry stay unanswered.
    pthread_mutex_lock(&v->answer_lock);
    unsigned life = v->life + 1;
    memset((char *)v + sizeof v->answer_lock, 0, sizeof *v - sizeof v->answer_lock);
    v->life = life;
    pthread_mutex_unlock(&v->answer_lock);
    snprintf(v->name, sizeof v->name, "%s", name);
    // Registers are memory in a file: BAR i at REGION(i), configuration space at REGION(7).
    v->group = group;
    v->group_file = fcntl(group_fd, F_DUPFD_CLOEXEC, 0);
    v->fd = memfd_create("[vfio-device]", MFD_CLOEXEC);
    if (v->fd < 0 || ftruncate(v->fd, (off_t)REGION(8))) { perror("card"); abort(); }
    v->bank = mmap(NULL, BAR_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, (off_t)REGION(0));
    v->mailbox = mmap(NULL, BAR_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, (off_t)REGION(1));
    if (v->bank == MAP_FAILED || v->mailbox == MAP_FAILED) { perror("card"); abort(); }
    v->events_seen = controls->event_number;
    v->pid = getpid();
    v->used = 1;
    start_engines();
    if (pthread_create(&v->thread, NULL, play, v)) abort();
    pthread_mutex_unlock(&functions_lock);
    return v->fd;
}

static int region_info(struct vfio_region_info *r) {
    r->offset = REGION(r->index);
    r->flags = 0;
    r->size = 0;
    if (r->index < 2) {
        r->size = BAR_SIZE;
        r->flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE | VFIO_REGION_INFO_FLAG_MMAP;
    } else if (r->index == VFIO_PCI_CONFIG_REGION_INDEX) {
        r->size = 4096;
        r->flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    }
    return 0;
}

// All of a 47-bit address space but the window of message-signalled interrupts.
static int iommu_info(struct vfio_iommu_type1_info *info) {
    struct {
        struct vfio_iommu_type1_info_cap_iova_range head;
        struct vfio_iova_range ranges[2];
    } capability = {{{1, 1, 0}, 2, 0}, {{0, 0xfedfffff}, {0xfef00000, 0x1ffffffffffull}}};
    uint32_t need = sizeof *info + sizeof capability, have = info->argsz;
    memset(info, 0, have < sizeof *info ? have : sizeof *info);
    info->argsz = need;
    info->flags = VFIO_IOMMU_INFO_PGSIZES;
    info->iova_pgsizes = 4096;
    if (have >= need) {
        info->flags |= VFIO_IOMMU_INFO_CAPS;
        info->cap_offset = sizeof *info;
        memcpy((char *)info + sizeof *info, &capability, sizeof capability);
    }
    return 0;
}

static int reset_function(struct function_state *v) {
    if (v) {
        memset((void *)v->bank, 0, BAR_SIZE);
        memset((void *)v->mailbox, 0, BAR_SIZE);
        v->dead = 0;
    }
    return 0;
}

int ioctl(int fd, unsigned long request, ...) {
    NEXT(int (*)(int, unsigned long, ...), "ioctl");
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (!root || _IOC_TYPE(request) != VFIO_TYPE || _IOC_NR(request) < VFIO_BASE || _IOC_NR(request) > VFIO_BASE + 20)
        return next(fd, request, argument);
    switch (request) {
    case VFIO_GET_API_VERSION: return VFIO_API_VERSION;
    case VFIO_CHECK_EXTENSION: return (long)argument == VFIO_TYPE1_IOMMU || (long)argument == VFIO_TYPE1v2_IOMMU;
    case VFIO_SET_IOMMU:
    case VFIO_GROUP_SET_CONTAINER:
    case VFIO_GROUP_UNSET_CONTAINER:
    case VFIO_GROUP_GET_STATUS: return group_ioctl(fd, request, argument);
    case VFIO_IOMMU_GET_INFO: return iommu_info(argument);
    case VFIO_GROUP_GET_DEVICE_FD: return open_function(fd, argument);
    case VFIO_DEVICE_GET_INFO: {
        struct vfio_device_info *info = argument;
        info->flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
        info->num_regions = 9;
        info->num_irqs = 5;
        return 0;
    }
    case VFIO_DEVICE_GET_REGION_INFO: return region_info(argument);
    case VFIO_DEVICE_RESET: return reset_function(function_of(fd));
    case VFIO_DEVICE_GET_IRQ_INFO: {
        struct vfio_irq_info *info = argument;
        info->flags = VFIO_IRQ_INFO_EVENTFD;
        info->count = 1;
        return 0;
    }
    case VFIO_DEVICE_SET_IRQS: return 0;
    case VFIO_IOMMU_MAP_DMA: return map_dma(argument);
    case VFIO_IOMMU_UNMAP_DMA: return unmap_dma(argument);
    default: errno = ENOTTY; return -1;
    }
}

int close(int fd) {
    NEXT(int (*)(int), "close");
    struct function_state *v = root ? function_of(fd) : NULL;
    if (v) {
        v->stop = 1;
        pthread_join(v->thread, NULL);
        pthread_mutex_lock(&mailbox_lock);
        pthread_mutex_lock(&v->answer_lock);
        v->life++;
        v->used = 0;
        wait_for_engines();
        munmap((void *)v->bank, BAR_SIZE);
        munmap((void *)v->mailbox, BAR_SIZE);
        pthread_mutex_unlock(&v->answer_lock);
        pthread_mutex_unlock(&mailbox_lock);
        next(v->group_file);
        pthread_mutex_lock(&groups_lock);
        v->group->functions--;
        if (v->group->fd < 0) close_group(v->group);
        pthread_mutex_unlock(&groups_lock);
    } else if (root) {
        pthread_mutex_lock(&groups_lock);
        struct group_state *group = fd < 0 ? NULL : group_of(fd);
        if (group) close_group(group);
        pthread_mutex_unlock(&groups_lock);
    }
    return next(fd);
}
