/* Copyright The Millrace Authors
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A TLS server and its client in one process, without sockets, for what no stock server does while it serves:
 * providers that come and go under load, libraries that are opened and closed, a fork after that. The preload library
 * works in it if its file is named nginx.
 *
 *   nginx reloads CERTIFICATE KEY PROVIDER
 *   nginx closes CERTIFICATE KEY LIBRARY...
 *   nginx memory CERTIFICATE KEY
 *
 * Every handshake is verified by the client. At its end the program writes "done" and waits for the end of its
 * standard input, so that its counters can be read; it exits with 0 if all went well.
 */

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/provider.h>
#include <openssl/ssl.h>

#define THREADS 3
#define TIMES 20
/* Round trips of the longest handshake, and some. */
#define TURNS 10
#define WINDOWS 6
#define IN_WINDOW 200
/* KiB by which a window of handshakes may grow the process; one that lost a key would cost more. */
#define ALLOWED 64

static const char *certificate, *key;

static void die(const char *what)
{
    fprintf(stderr, "local_process: %s\n", what);
    ERR_print_errors_fp(stderr);
    _exit(1);
}

static void step(SSL *ssl)
{
    int result = SSL_do_handshake(ssl);
    int error = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl, result);

    if (error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ)
        die("a handshake failed");
}

struct contexts {
    SSL_CTX *server, *client;
};

static struct contexts contexts(void)
{
    struct contexts made = { SSL_CTX_new(TLS_server_method()), SSL_CTX_new(TLS_client_method()) };

    if (made.server == NULL || made.client == NULL
        || SSL_CTX_use_certificate_file(made.server, certificate, SSL_FILETYPE_PEM) != 1
        || SSL_CTX_use_PrivateKey_file(made.server, key, SSL_FILETYPE_PEM) != 1
        || SSL_CTX_load_verify_locations(made.client, certificate, NULL) != 1
        || SSL_CTX_set1_groups_list(made.client, "X25519") != 1)
        die("a context");
    SSL_CTX_set_verify(made.client, SSL_VERIFY_PEER, NULL);
    return made;
}

static void handshake_in(struct contexts in)
{
    SSL *server = SSL_new(in.server), *client = SSL_new(in.client);
    BIO *left, *right;

    if (server == NULL || client == NULL || BIO_new_bio_pair(&left, 0, &right, 0) != 1)
        die("a connection");
    SSL_set_bio(server, left, left);
    SSL_set_bio(client, right, right);
    SSL_set_accept_state(server);
    SSL_set_connect_state(client);
    for (int turn = 0; turn < TURNS && !(SSL_is_init_finished(server) && SSL_is_init_finished(client)); turn++) {
        step(client);
        step(server);
    }
    if (!SSL_is_init_finished(server) || !SSL_is_init_finished(client))
        die("a handshake did not end");
    SSL_free(server);
    SSL_free(client);
}

/* A handshake with contexts and a key object of its own: what a server does at each reload, and once. */
static void handshake(void)
{
    struct contexts made = contexts();

    handshake_in(made);
    SSL_CTX_free(made.server);
    SSL_CTX_free(made.client);
}

static struct contexts shared;
static volatile int stop;
static volatile unsigned long done[THREADS];

static void *load(void *number)
{
    while (!stop) {
        handshake_in(shared);
        done[(size_t)number]++;
    }
    return NULL;
}

/* Waits until each thread has begun and ended a handshake. */
static void wait_for_more(void)
{
    for (size_t i = 0; i < THREADS; i++)
        for (unsigned long before = done[i]; done[i] < before + 2;)
            usleep(1000);
}

static void start_load(pthread_t *threads)
{
    stop = 0;
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, load, (void *)i) != 0)
            die("a thread");
    wait_for_more();
}

static void end_load(pthread_t *threads)
{
    stop = 1;
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Twice: the second answer is the cache's. */
static void expect(const char *provider)
{
    for (int i = 0; i < 2; i++) {
        EVP_KEYMGMT *method = EVP_KEYMGMT_fetch(NULL, "X25519", NULL);

        if (method == NULL || strcmp(OSSL_PROVIDER_get0_name(EVP_KEYMGMT_get0_provider(method)), provider) != 0)
            die(provider);
        EVP_KEYMGMT_free(method);
    }
}

static OSSL_PROVIDER *provider(const char *name)
{
    OSSL_PROVIDER *loaded = OSSL_PROVIDER_load(NULL, name);

    if (loaded == NULL)
        die(name);
    return loaded;
}

static void unload(OSSL_PROVIDER *loaded)
{
    if (OSSL_PROVIDER_unload(loaded) != 1)
        die("unload");
}

/* Providers come and go in the context in which all threads make handshakes: under load the one that is named, at rest
 * ours. libcrypto 3.0 does not survive that a provider with decoders goes under load, not even its own "base". And while
 * threads ask, an answer of libcrypto may be the one before: who serves is looked at while they rest. */
static void reloads(const char *under_load)
{
    pthread_t threads[THREADS];
    OSSL_PROVIDER *base = provider("default"), *ours = provider("millrace");

    if (EVP_set_default_properties(NULL, "?millrace.local=yes") != 1)
        die("default properties");
    shared = contexts();
    handshake_in(shared);
    for (int i = 0; i < TIMES; i++) {
        OSSL_PROVIDER *other = strcmp(under_load, "millrace") == 0 ? ours : provider(under_load);

        start_load(threads);
        unload(other);
        wait_for_more();
        other = provider(under_load);
        wait_for_more();
        end_load(threads);
        if (strcmp(under_load, "millrace") == 0)
            ours = other;
        unload(ours);
        expect("default");
        handshake_in(shared);
        ours = provider("millrace");
        expect("millrace");
        handshake_in(shared);
        if (strcmp(under_load, "millrace") != 0)
            unload(other);
    }
    SSL_CTX_free(shared.server);
    SSL_CTX_free(shared.client);
    unload(ours);
    unload(base);
}

/* Libraries that are opened and closed leave nothing behind that a fork or a later handshake falls over. */
static void closes(char **libraries)
{
    for (int i = 0; i < TIMES; i++) {
        pid_t child;
        int status;

        for (char **library = libraries; *library != NULL; library++) {
            void *handle = dlopen(*library, RTLD_NOW);

            if (handle == NULL || dlclose(handle) != 0)
                die(dlerror());
        }
        handshake();
        child = fork();
        if (child < 0)
            die("fork");
        if (child == 0) {
            handshake();
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0)
            die("a child");
    }
}

/* KiB of memory that this process has. */
static long resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0, size = 0;

    if (file == NULL || fscanf(file, "%ld %ld", &size, &pages) != 2)
        die("statm");
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* At least one window of handshakes, each with a fresh key object, costs no memory. */
static void memory(void)
{
    long sizes[WINDOWS + 1];
    int flat = 0;

    for (int window = 0; window <= WINDOWS; window++) {
        for (int i = 0; i < IN_WINDOW; i++)
            handshake();
        sizes[window] = resident();
        flat |= window > 0 && sizes[window] <= sizes[window - 1] + ALLOWED;
    }
    for (int window = 0; !flat && window <= WINDOWS; window++)
        fprintf(stderr, "local_process: %ld KiB\n", sizes[window]);
    if (!flat)
        die("it grew in every window");
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    certificate = argv[2];
    key = argv[3];
    if (strcmp(argv[1], "reloads") == 0 && argc == 5)
        reloads(argv[4]);
    else if (strcmp(argv[1], "closes") == 0)
        closes(argv + 4);
    else if (strcmp(argv[1], "memory") == 0)
        memory();
    else
        return 2;
    if (puts("done") < 0 || fflush(stdout) != 0)
        die("standard output");
    while (getchar() != EOF)
        ;
    return 0;
}
