/* Copyright The Millrace Authors
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * An application of OpenSSL that makes key shares in the ways that a server does and no command can: in forked
 * children, in threads, in library contexts that come and go, while providers are unloaded.
 *
 *   local_harness COMMAND CONFIGURATION
 *
 * "shares" prints the public value of every share that it made, one a line. It exits with 0 if all went well.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

#define SHARES 20
#define THREADS 4
#define CONTEXTS 20
#define SECRET 32

static void die(const char *what)
{
    fprintf(stderr, "local_harness: %s\n", what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static EVP_PKEY *share(OSSL_LIB_CTX *context)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(context, NULL, "X25519");

    if (key == NULL)
        die("no share");
    return key;
}

static void print_share(EVP_PKEY *key)
{
    unsigned char value[SECRET];
    size_t len = sizeof(value);
    char line[2 * SECRET + 2];

    if (EVP_PKEY_get_raw_public_key(key, value, &len) != 1 || len != SECRET)
        die("no public value");
    for (size_t i = 0; i < len; i++)
        snprintf(line + 2 * i, 3, "%02x", value[i]);
    line[2 * SECRET] = '\n';
    /* One write for a line, so that those of several processes do not mix. */
    if (write(STDOUT_FILENO, line, 2 * SECRET + 1) != 2 * SECRET + 1)
        die("write");
}

static void derive(OSSL_LIB_CTX *context, EVP_PKEY *own, EVP_PKEY *peer, unsigned char *secret)
{
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_pkey(context, own, NULL);
    size_t len = SECRET;

    if (ctx == NULL || EVP_PKEY_derive_init(ctx) != 1 || EVP_PKEY_derive_set_peer(ctx, peer) != 1
        || EVP_PKEY_derive(ctx, secret, &len) != 1 || len != SECRET)
        die("no secret");
    EVP_PKEY_CTX_free(ctx);
}

/* Both sides of an agreement. */
static void agree(OSSL_LIB_CTX *context)
{
    EVP_PKEY *one = share(context), *other = share(context);
    unsigned char left[SECRET], right[SECRET];

    derive(context, one, other, left);
    derive(context, other, one, right);
    if (memcmp(left, right, SECRET) != 0)
        die("the secrets differ");
    EVP_PKEY_free(one);
    EVP_PKEY_free(other);
}

static void print_shares(void)
{
    for (int i = 0; i < SHARES; i++) {
        EVP_PKEY *key = share(NULL);

        print_share(key);
        EVP_PKEY_free(key);
    }
}

static void *shares_thread(void *argument)
{
    (void)argument;
    print_shares();
    return NULL;
}

/* The first share has been made, so pairs made ahead wait while this forks. */
static void shares(int depth)
{
    pthread_t threads[THREADS];
    pid_t child;
    int status;
    EVP_PKEY *first = share(NULL);

    print_share(first);
    EVP_PKEY_free(first);
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        if (depth > 0)
            shares(depth - 1);
        else
            print_shares();
        _exit(0);
    }
    print_shares();
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, shares_thread, NULL) != 0)
            die("thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (waitpid(child, &status, 0) != child || status != 0)
        die("child");
}

/* Library contexts with the provider, one after the other and two at a time. */
static void contexts(const char *configuration)
{
    for (int i = 0; i < CONTEXTS; i++) {
        OSSL_LIB_CTX *one = OSSL_LIB_CTX_new(), *two = OSSL_LIB_CTX_new(), *plain = OSSL_LIB_CTX_new();
        EVP_KEYMGMT *method;

        if (one == NULL || two == NULL || plain == NULL || OSSL_LIB_CTX_load_config(one, configuration) != 1
            || OSSL_LIB_CTX_load_config(two, configuration) != 1)
            die("library context");
        agree(one);
        agree(two);
        agree(plain);
        OSSL_LIB_CTX_free(one);
        agree(two);
        agree(plain);
        method = EVP_KEYMGMT_fetch(two, "X25519", NULL);
        if (method == NULL || strcmp(OSSL_PROVIDER_get0_name(EVP_KEYMGMT_get0_provider(method)), "millrace") != 0)
            die("X25519 is not the provider's");
        EVP_KEYMGMT_free(method);
        method = EVP_KEYMGMT_fetch(two, "X25519", "fips=yes");
        if (method != NULL)
            die("X25519 is said to be FIPS");
        OSSL_LIB_CTX_free(two);
        OSSL_LIB_CTX_free(plain);
    }
    agree(NULL);
}

static volatile int stop;

static void *agree_thread(void *argument)
{
    unsigned long *done = argument;

    while (!stop) {
        agree(NULL);
        (*done)++;
    }
    return NULL;
}

/* The provider comes and goes in one context, and its module with it, while threads use it in another. */
static void unload(void)
{
    pthread_t threads[THREADS];
    unsigned long done[THREADS] = { 0 };

    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, agree_thread, &done[i]) != 0)
            die("thread");
    for (int i = 0; i < CONTEXTS; i++) {
        OSSL_LIB_CTX *context = OSSL_LIB_CTX_new();
        OSSL_PROVIDER *base = OSSL_PROVIDER_load(context, "default");
        OSSL_PROVIDER *ours = OSSL_PROVIDER_load(context, "millrace");

        if (base == NULL || ours == NULL)
            die("provider");
        agree(context);
        if (OSSL_PROVIDER_unload(ours) != 1)
            die("unload");
        agree(context);
        OSSL_PROVIDER_unload(base);
        OSSL_LIB_CTX_free(context);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (done[i] == 0)
            die("a thread did nothing");
    }
}

/* Kilobytes of memory that this process has. */
static long resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0, size = 0;

    if (file == NULL || fscanf(file, "%ld %ld", &size, &pages) != 2)
        die("statm");
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void memory(void)
{
    long before, after;

    for (int i = 0; i < 2000; i++)
        agree(NULL);
    before = resident();
    for (int i = 0; i < 10000; i++)
        agree(NULL);
    after = resident();
    if (after > before + 512) {
        fprintf(stderr, "local_harness: %ld KiB before, %ld KiB after 10000 agreements\n", before, after);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1)
        die("configuration");
    if (strcmp(argv[1], "shares") == 0)
        shares(2);
    else if (strcmp(argv[1], "contexts") == 0)
        contexts(argv[2]);
    else if (strcmp(argv[1], "unload") == 0)
        unload();
    else if (strcmp(argv[1], "memory") == 0)
        memory();
    else
        return 2;
    return 0;
}
