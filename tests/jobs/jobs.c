/* Copyright The Millrace Authors
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Starts ASYNC jobs under a name that the preload library knows, and does in them what code of others may do. Prints
 * what it saw, one "name value" a line.
 *
 *   deep BYTES    a job recurses until it has used BYTES: ends well, or says where it faulted
 *   leap BYTES    a job has one frame of this size, and writes to its lowest byte
 *   burst JOBS    JOBS paused jobs at once, resumed and ended; then the same again
 *   rest JOBS     jobs that used 100 KiB each, one after the other
 *   over JOBS     how many of JOBS jobs could pause at once
 *   crowd THREADS THREADS threads have ended 200 jobs each and stay: how many of 8,000 could pause on another one
 *   life          returns of ASYNC_start_job, arguments, a fork, threads, ASYNC_cleanup_thread, no memory
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/async.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>

#define PAGE 4096

static void die(const char *what)
{
    fprintf(stderr, "jobs: %s\n", what);
    exit(1);
}

/* The mapping of an address: its size and whether it has no access. */
struct region {
    uintptr_t from, to;
    int none;
};

static int region_of(uintptr_t address, struct region *found)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[5];
    int there = 0;

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%lx-%lx %4s", &found->from, &found->to, rights) != 3)
            continue;
        if (address >= found->from && address < found->to) {
            found->none = strcmp(rights, "---p") == 0;
            there = 1;
            break;
        }
    }
    if (maps != NULL)
        fclose(maps);
    return there;
}

/* What lies at the stack of the job that runs, and in its neighbours. */
static uintptr_t job_stack;

static void on_fault(int number, siginfo_t *info, void *context)
{
    uintptr_t address = (uintptr_t)info->si_addr;
    struct region hit, above;
    int in_guard;

    (void)context;
    in_guard = region_of(address, &hit) && hit.none && region_of(hit.to, &above) && !above.none
        && job_stack >= above.from && job_stack < above.to;
    printf("fault %d\nin-guard %d\n", number, in_guard);
    fflush(stdout);
    _exit(0);
}

static void watch(void)
{
    static char room[65536];
    stack_t stack = { .ss_sp = room, .ss_size = sizeof(room) };
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

    if (sigaltstack(&stack, NULL) != 0 || sigaction(SIGSEGV, &action, NULL) != 0
        || sigaction(SIGBUS, &action, NULL) != 0)
        die("no handler");
}

static volatile char sink;

__attribute__((noinline)) static size_t recurse(size_t left)
{
    volatile char frame[1024];

    frame[0] = (char)left;
    if (left <= sizeof(frame))
        return 0;
    return recurse(left - sizeof(frame)) + (size_t)(frame[0] == (char)left);
}

static int deep(void *argument)
{
    char here;

    job_stack = (uintptr_t)&here;
    recurse(*(size_t *)argument);
    return 1;
}

/* One frame, of which only the lowest byte is written: no probe on the way. */
__attribute__((noinline, optimize("no-stack-protector,no-stack-clash-protection"))) static int
leap(void *argument)
{
    size_t size = *(size_t *)argument;
    volatile char *low = __builtin_alloca(size);
    char here;

    job_stack = (uintptr_t)&here;
    (void)here;
    low[0] = 1;
    sink = low[0];
    return 1;
}

static int pausing(void *argument)
{
    size_t size = *(size_t *)argument;

    recurse(size);
    ASYNC_pause_job();
    recurse(size);
    return 7;
}

/* A statistic of this process, in KiB or a number of mappings. */
static long resident(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long value = -1;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "RssAnon: %ld", &value) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return value;
}

static long mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    long count = 0;
    int byte;

    while (file != NULL && (byte = fgetc(file)) != EOF)
        count += byte == '\n';
    if (file != NULL)
        fclose(file);
    return count;
}

static void show(const char *when)
{
    printf("%s-resident %ld\n%s-mappings %ld\n", when, resident(), when, mappings());
    fflush(stdout);
}

struct slot {
    ASYNC_JOB *job;
    ASYNC_WAIT_CTX *wait;
};

static void start(struct slot *slot, int expected, int (*function)(void *), size_t size)
{
    int result = -1;
    int status = ASYNC_start_job(&slot->job, slot->wait, &result, function, &size, sizeof(size));

    if (status != expected) {
        fprintf(stderr, "jobs: status %d, expected %d\n", status, expected);
        exit(1);
    }
    if (status == ASYNC_FINISH && result != 7)
        die("a wrong result");
}

static void burst(int count, const char *name, size_t used)
{
    struct slot *slots = calloc((size_t)count, sizeof(*slots));
    char when[64];

    for (int i = 0; i < count; i++) {
        slots[i].wait = ASYNC_WAIT_CTX_new();
        start(&slots[i], ASYNC_PAUSE, pausing, used);
    }
    snprintf(when, sizeof(when), "%s-paused", name);
    show(when);
    for (int i = 0; i < count; i++) {
        start(&slots[i], ASYNC_FINISH, pausing, used);
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }
    free(slots);
    snprintf(when, sizeof(when), "%s-after", name);
    show(when);
}

/* Of `count` jobs at once, the number that could pause. The others run at once, without a job. */
static void over(int count)
{
    struct slot *slots = calloc((size_t)count, sizeof(*slots));
    size_t size = 1;
    int paused = 0, result;

    for (int i = 0; i < count; i++) {
        slots[i].wait = ASYNC_WAIT_CTX_new();
        result = 0;
        int status = ASYNC_start_job(&slots[i].job, slots[i].wait, &result, pausing, &size, sizeof(size));
        if (status == ASYNC_PAUSE)
            paused++;
        else if (status != ASYNC_FINISH || result != 7)
            die("a job over the bound");
    }
    printf("paused %d\n", paused);
    for (int i = 0; i < count; i++) {
        if (slots[i].job != NULL)
            start(&slots[i], ASYNC_FINISH, pausing, 1);
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }
    free(slots);
    /* And there is room again. */
    struct slot slot = { NULL, ASYNC_WAIT_CTX_new() };
    start(&slot, ASYNC_PAUSE, pausing, 1);
    start(&slot, ASYNC_FINISH, pausing, 1);
    ASYNC_WAIT_CTX_free(slot.wait);
}

static pthread_barrier_t all_ended, all_done;

static void *stays(void *argument)
{
    struct slot slots[200];

    (void)argument;
    for (int i = 0; i < 200; i++) {
        slots[i].job = NULL;
        slots[i].wait = ASYNC_WAIT_CTX_new();
        start(&slots[i], ASYNC_PAUSE, pausing, 1);
    }
    for (int i = 0; i < 200; i++) {
        start(&slots[i], ASYNC_FINISH, pausing, 1);
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }
    pthread_barrier_wait(&all_ended);
    pthread_barrier_wait(&all_done);
    return NULL;
}

static void crowd(int count)
{
    pthread_t thread;

    pthread_barrier_init(&all_ended, NULL, (unsigned)count + 1);
    pthread_barrier_init(&all_done, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread, NULL, stays, NULL) != 0 || pthread_detach(thread) != 0)
            die("no thread");
    pthread_barrier_wait(&all_ended);
    over(8000);
    pthread_barrier_wait(&all_done);
}

static void *thread_burst(void *argument)
{
    burst(*(int *)argument, "thread", 2048);
    ASYNC_cleanup_thread();
    return NULL;
}

static void in_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, body, argument) != 0 || pthread_join(thread, NULL) != 0)
        die("no thread");
}

/* Arguments arrive, whatever their size, of larger ones without a job; null stays null. */
#define MOST_ARGUMENTS 4096
static _Alignas(16) unsigned char sent[40000];

static int compare(void *argument)
{
    size_t size;

    memcpy(&size, argument, sizeof(size));
    if ((ASYNC_get_current_job() != NULL) != (size <= MOST_ARGUMENTS))
        return 9;
    return memcmp(argument, sent, size) == 0 && (uintptr_t)argument % 16 == 0 ? 7 : 8;
}

static int is_null(void *argument)
{
    return argument == NULL ? 7 : 8;
}

static void arguments(void)
{
    static const size_t sizes[] = { 8, 9, 40, 100, 4096, 4097, 40000 };
    struct slot slot = { NULL, ASYNC_WAIT_CTX_new() };
    int result;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (size_t at = 0; at < sizes[i]; at++)
            sent[at] = (unsigned char)(at * 7 + i);
        memcpy(sent, &sizes[i], sizeof(sizes[i]));
        result = 0;
        /* Of the largest there is no copy, so that its alignment is the caller's. */
        if (ASYNC_start_job(&slot.job, slot.wait, &result, compare, sent, sizes[i]) != ASYNC_FINISH
            || result != 7)
            die("arguments");
    }
    result = 0;
    if (ASYNC_start_job(&slot.job, slot.wait, &result, is_null, NULL, 0) != ASYNC_FINISH || result != 7)
        die("no arguments");
    ASYNC_WAIT_CTX_free(slot.wait);
}

/* No more jobs than the pool has: ASYNC_NO_JOBS. */
static void *limited(void *argument)
{
    struct slot one = { NULL, ASYNC_WAIT_CTX_new() }, two = { NULL, ASYNC_WAIT_CTX_new() };
    long before;

    (void)argument;
    if (ASYNC_init_thread(1, 1) != 1)
        die("no pool");
    start(&one, ASYNC_PAUSE, pausing, 1);
    start(&two, ASYNC_NO_JOBS, pausing, 1);
    before = mappings();
    for (int i = 0; i < 1000; i++)
        start(&two, ASYNC_NO_JOBS, pausing, 1);
    printf("refused-mappings %ld\n", mappings() - before);
    start(&one, ASYNC_FINISH, pausing, 1);
    ASYNC_WAIT_CTX_free(one.wait);
    ASYNC_WAIT_CTX_free(two.wait);
    ASYNC_cleanup_thread();
    return NULL;
}

/* Child and parent both go on with a job that was paused before the fork. */
static void forked(void)
{
    struct slot slot = { NULL, ASYNC_WAIT_CTX_new() };
    int status;
    pid_t child;

    start(&slot, ASYNC_PAUSE, pausing, 50000);
    child = fork();
    start(&slot, ASYNC_FINISH, pausing, 50000);
    for (int i = 0; i < 100; i++) {
        start(&slot, ASYNC_PAUSE, pausing, 50000);
        start(&slot, ASYNC_FINISH, pausing, 50000);
    }
    if (child == 0)
        _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the child");
    ASYNC_WAIT_CTX_free(slot.wait);
}

/* Without memory the function runs, without a job. */
static int paused_at_all;

static int asks(void *argument)
{
    (void)argument;
    paused_at_all = ASYNC_get_current_job() != NULL;
    return 7;
}

static void without_memory(void)
{
    struct rlimit none = { 0, RLIM_INFINITY }, before;
    struct slot slots[400];
    int result = 0;

    /* A first job, so that libcrypto has its own memory; and every idle stack of this thread is in use. */
    for (int i = 0; i < 400; i++) {
        slots[i].job = NULL;
        slots[i].wait = ASYNC_WAIT_CTX_new();
        start(&slots[i], ASYNC_PAUSE, pausing, 1);
    }
    getrlimit(RLIMIT_AS, &before);
    none.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_AS, &none);
    struct slot slot = { NULL, slots[0].wait };
    /* An emulator enforces no limit. */
    int unlimited = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
    int status = ASYNC_start_job(&slot.job, slot.wait, &result, asks, &result, sizeof(result));
    setrlimit(RLIMIT_AS, &before);
    if (status != ASYNC_FINISH || result != 7 || (paused_at_all && !unlimited))
        die("without memory");
    for (int i = 0; i < 400; i++) {
        start(&slots[i], ASYNC_FINISH, pausing, 1);
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }
}

static void life(void)
{
    struct slot slot = { NULL, ASYNC_WAIT_CTX_new() };
    int result = 0;

    arguments();
    if (ASYNC_start_job(&slot.job, slot.wait, &result, is_null, NULL, 0) != ASYNC_FINISH)
        die("a job");
    in_thread(limited, NULL);
    forked();
    without_memory();
    ASYNC_cleanup_thread();
    start(&slot, ASYNC_PAUSE, pausing, 1000);
    start(&slot, ASYNC_FINISH, pausing, 1000);
    ASYNC_WAIT_CTX_free(slot.wait);
    long before = mappings();
    int few = 40;
    for (int i = 0; i < 20; i++)
        in_thread(thread_burst, &few);
    printf("threads-mappings %ld\n", mappings() - before);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    size_t number = count > 2 ? strtoul(words[2], NULL, 10) : 0;
    struct slot slot = { NULL, ASYNC_WAIT_CTX_new() };
    int result = 0;

    /* libssl has to be in this process. */
    if (TLS_method() == NULL)
        die("no TLS");
    show("start");
    if (strcmp(what, "deep") == 0 || strcmp(what, "leap") == 0) {
        /* A neighbour whose stack may not be touched. */
        struct slot other = { NULL, ASYNC_WAIT_CTX_new() };
        int (*function)(void *) = what[0] == 'd' ? deep : leap;

        watch();
        start(&other, ASYNC_PAUSE, pausing, 1000);
        if (ASYNC_start_job(&slot.job, slot.wait, &result, function, &number, sizeof(number)) != ASYNC_FINISH)
            die("a job");
        start(&other, ASYNC_FINISH, pausing, 1000);
        printf("fault 0\n");
    } else if (strcmp(what, "burst") == 0) {
        int jobs = (int)number;

        burst(jobs, "first", 2048);
        burst(jobs, "second", 2048);
        in_thread(thread_burst, &jobs);
        show("end");
    } else if (strcmp(what, "rest") == 0) {
        burst((int)number, "deep", 100 * 1024);
    } else if (strcmp(what, "over") == 0) {
        over((int)number);
    } else if (strcmp(what, "crowd") == 0) {
        crowd((int)number);
    } else if (strcmp(what, "life") == 0) {
        life();
        printf("lived 1\n");
    } else {
        die("what?");
    }
    return 0;
}
