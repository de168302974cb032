/* Copyright The Millrace Authors
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * An application of OpenSSL that does what the tests of the provider need and no command does: pauses
 * jobs, frees them at the wrong moment, forks, measures the stack of a job.
 *
 *   harness COMMAND KEY PUBLIC [CERTIFICATE]
 *
 * It prints one line "name value" per counter of the provider, and exits with 0 if all went well.
 */

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/async.h>
#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/decoder.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/ssl.h>

#define STACK 32768
#define PAINT 0xA5
#define JOBS 32

static unsigned char *stacks[256];
static size_t stack_count;

/* OpenSSL takes the stack of a job from its allocator: paint it. */
static void *paint_malloc(size_t size, const char *file, int line)
{
    void *memory = malloc(size);

    (void)file;
    (void)line;
    if (size == STACK && memory != NULL && stack_count < 256) {
        memset(memory, PAINT, size);
        stacks[stack_count++] = memory;
    }
    return memory;
}

static void *plain_realloc(void *memory, size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return realloc(memory, size);
}

static void plain_free(void *memory, const char *file, int line)
{
    (void)file;
    (void)line;
    /* Stacks stay, to be looked at. */
    for (size_t i = 0; i < stack_count; i++)
        if (stacks[i] == memory)
            return;
    free(memory);
}

static void die(const char *what)
{
    fprintf(stderr, "harness: %s\n", what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static EVP_PKEY *private_key, *public_key;

static const unsigned char MESSAGE[] = "the mill is not the river";

struct task {
    int index;
    unsigned char sig[1024];
    size_t len;
    int blocked;
};

/* Runs as a job. The argument is copied by ASYNC_start_job: it holds a pointer. */
static int sign_task(void *argument)
{
    struct task *task = *(struct task **)argument;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int ok;

    task->len = sizeof(task->sig);
    if (task->blocked)
        ASYNC_block_pause();
    ok = ctx != NULL
        && EVP_DigestSignInit_ex(ctx, NULL, "SHA256", NULL, NULL, private_key, NULL) == 1
        && EVP_DigestSignUpdate(ctx, MESSAGE, sizeof(MESSAGE)) == 1
        && EVP_DigestSignFinal(ctx, task->sig, &task->len) == 1;
    if (task->blocked)
        ASYNC_unblock_pause();
    EVP_MD_CTX_free(ctx);
    return ok;
}

static void check(struct task *task)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();

    if (ctx == NULL
        || EVP_DigestVerifyInit_ex(ctx, NULL, "SHA256", NULL, "provider=default", public_key, NULL) != 1
        || EVP_DigestVerify(ctx, task->sig, task->len, MESSAGE, sizeof(MESSAGE)) != 1)
        die("a signature does not verify");
    EVP_MD_CTX_free(ctx);
}

static int woken;

static int wake(void *argument)
{
    (void)argument;
    __atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
    return 1;
}

enum how { BY_FD, BY_CALLBACK, SPURIOUS };

/* Many jobs on one thread; each is resumed when its descriptor says so. */
static void run_jobs(int count, int rounds, enum how how, int blocked)
{
    struct task tasks[JOBS];
    ASYNC_JOB *jobs[JOBS] = { 0 };
    ASYNC_WAIT_CTX *contexts[JOBS];
    int left[JOBS], busy = count, result;

    memset(tasks, 0, sizeof(tasks));
    for (int i = 0; i < count; i++) {
        contexts[i] = ASYNC_WAIT_CTX_new();
        left[i] = rounds;
        tasks[i].blocked = blocked;
        if (how == BY_CALLBACK)
            ASYNC_WAIT_CTX_set_callback(contexts[i], wake, NULL);
    }
    while (busy > 0) {
        for (int i = 0; i < count; i++) {
            struct task *task = &tasks[i];
            OSSL_ASYNC_FD fds[4];
            size_t fd_count = 0;

            if (left[i] == 0)
                continue;
            if (jobs[i] != NULL && how == BY_FD) {
                struct pollfd poller = { .events = POLLIN };

                if (ASYNC_WAIT_CTX_get_all_fds(contexts[i], NULL, &fd_count) != 1 || fd_count != 1)
                    die("not exactly one descriptor");
                ASYNC_WAIT_CTX_get_all_fds(contexts[i], fds, &fd_count);
                poller.fd = fds[0];
                if (poll(&poller, 1, 1) == 0)
                    continue;
            }
            switch (ASYNC_start_job(&jobs[i], contexts[i], &result, sign_task, &task, sizeof(task))) {
            case ASYNC_PAUSE:
                if (blocked)
                    die("paused although that was blocked");
                if (how == BY_CALLBACK)
                    usleep(100);
                break;
            case ASYNC_FINISH:
                if (result != 1)
                    die("signing in a job");
                check(task);
                jobs[i] = NULL;
                if (--left[i] == 0)
                    busy--;
                break;
            default:
                die("ASYNC_start_job");
            }
        }
    }
    for (int i = 0; i < count; i++)
        ASYNC_WAIT_CTX_free(contexts[i]);
    if (how == BY_CALLBACK && woken == 0)
        die("the callback was never called");
}

static void plain(void)
{
    struct task task, *pointer = &task;

    memset(&task, 0, sizeof(task));
    if (sign_task(&pointer) != 1)
        die("signing");
    check(&task);
}

/* The connection dies while its job is paused; what comes later must hit nothing. */
static void abandon(void)
{
    struct task first, *task = &first;
    ASYNC_WAIT_CTX *context = ASYNC_WAIT_CTX_new();
    ASYNC_JOB *job = NULL;
    int result, before;

    memset(&first, 0, sizeof(first));
    ASYNC_WAIT_CTX_set_callback(context, wake, NULL);
    /* The first pause is for the key, the second for the operation, which the node holds back. */
    if (ASYNC_start_job(&job, context, &result, sign_task, &task, sizeof(task)) != ASYNC_PAUSE)
        die("the job did not pause");
    while (__atomic_load_n(&woken, __ATOMIC_SEQ_CST) == 0)
        usleep(100);
    if (ASYNC_start_job(&job, context, &result, sign_task, &task, sizeof(task)) != ASYNC_PAUSE)
        die("the job did not pause a second time");
    ASYNC_WAIT_CTX_free(context);
    before = __atomic_load_n(&woken, __ATOMIC_SEQ_CST);
    puts("abandoned");
    fflush(stdout);
    /* The test lets the node answer, and then says so. */
    if (getchar() == EOF)
        die("nobody there");
    /* On the same connection, so it is answered after the abandoned one. */
    plain();
    if (__atomic_load_n(&woken, __ATOMIC_SEQ_CST) != before)
        die("the callback of a freed wait context was called");
}

static void *plain_thread(void *argument)
{
    for (int i = 0; i < 20; i++)
        plain();
    return argument;
}

static void threads(void)
{
    pthread_t ids[8];

    for (int i = 0; i < 8; i++)
        if (pthread_create(&ids[i], NULL, plain_thread, NULL) != 0)
            die("pthread_create");
    for (int i = 0; i < 8; i++)
        pthread_join(ids[i], NULL);
}

static void forked(int depth)
{
    int status;
    pid_t child;

    plain();
    if (depth == 0)
        return;
    fflush(NULL);
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        forked(depth - 1);
        exit(0); /* with all of OpenSSL's and our own endings */
    }
    plain();
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("a child failed");
    plain();
}

/* A TLS handshake in memory, the server as asynchronous jobs. */
static void handshake(const char *certificate, int version, const char *ciphers)
{
    SSL_CTX *server_ctx = SSL_CTX_new(TLS_server_method()), *client_ctx = SSL_CTX_new(TLS_client_method());
    SSL *server, *client;
    BIO *server_side, *client_side;
    int pauses = 0, server_done = 0, client_done = 0;

    if (SSL_CTX_use_certificate_file(server_ctx, certificate, SSL_FILETYPE_PEM) != 1
        || SSL_CTX_use_PrivateKey(server_ctx, private_key) != 1
        || SSL_CTX_check_private_key(server_ctx) != 1)
        die("certificate and key");
    SSL_CTX_set_min_proto_version(server_ctx, version);
    SSL_CTX_set_max_proto_version(server_ctx, version);
    if (ciphers != NULL && SSL_CTX_set_cipher_list(client_ctx, ciphers) != 1)
        die("ciphers");
    server = SSL_new(server_ctx);
    client = SSL_new(client_ctx);
    SSL_set_mode(server, SSL_MODE_ASYNC);
    if (BIO_new_bio_pair(&server_side, 65536, &client_side, 65536) != 1)
        die("BIO pair");
    SSL_set_bio(server, server_side, server_side);
    SSL_set_bio(client, client_side, client_side);
    SSL_set_accept_state(server);
    SSL_set_connect_state(client);
    while (!server_done || !client_done) {
        if (!client_done) {
            client_done = SSL_do_handshake(client) == 1;
            if (!client_done && SSL_get_error(client, 0) == SSL_ERROR_SSL)
                die("client");
        }
        if (!server_done) {
            int status = SSL_do_handshake(server);

            server_done = status == 1;
            if (!server_done)
                switch (SSL_get_error(server, status)) {
                case SSL_ERROR_WANT_READ:
                    break;
                case SSL_ERROR_WANT_ASYNC: {
                    OSSL_ASYNC_FD fd;
                    size_t count = 0;
                    struct pollfd poller = { .events = POLLIN };

                    pauses++;
                    if (SSL_get_all_async_fds(server, NULL, &count) != 1 || count != 1)
                        die("not exactly one descriptor");
                    SSL_get_all_async_fds(server, &fd, &count);
                    poller.fd = fd;
                    poll(&poller, 1, 1000);
                    break;
                }
                default:
                    die("server");
                }
        }
    }
    printf("pauses %d\n", pauses);
    SSL_free(server);
    SSL_free(client);
    SSL_CTX_free(server_ctx);
    SSL_CTX_free(client_ctx);
}

/* A process that ends while a job is paused, with everything that runs at the end of one. */
static void leave(void)
{
    struct task first, *task = &first;
    ASYNC_WAIT_CTX *context = ASYNC_WAIT_CTX_new();
    ASYNC_JOB *job = NULL;
    int result;

    memset(&first, 0, sizeof(first));
    if (ASYNC_start_job(&job, context, &result, sign_task, &task, sizeof(task)) != ASYNC_PAUSE)
        die("the job did not pause");
    exit(0);
}

/* Threads of this process, ours among them. */
static int thread_count(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    if (tasks == NULL)
        die("/proc");
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Library contexts of an application's own, which know the provider by name and read no
 * configuration file of OpenSSL; the key is used after the provider is unloaded. */
static void contexts(const char *key_path)
{
    for (int i = 0; i < 10; i++) {
        OSSL_LIB_CTX *libctx = OSSL_LIB_CTX_new();
        OSSL_PROVIDER *base = OSSL_PROVIDER_load(libctx, "default");
        OSSL_PROVIDER *ours = OSSL_PROVIDER_load(libctx, "millrace");
        BIO *bio = BIO_new_file(key_path, "r");
        EVP_PKEY *key = PEM_read_bio_PrivateKey_ex(bio, NULL, NULL, NULL, libctx, NULL);
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        struct task task = { .len = sizeof(task.sig) };

        if (base == NULL || ours == NULL || key == NULL)
            die("a context of its own");
        OSSL_PROVIDER_unload(ours);
        if (EVP_DigestSignInit_ex(ctx, NULL, "SHA256", libctx, "?provider=millrace", key, NULL) != 1
            || EVP_DigestSign(ctx, task.sig, &task.len, MESSAGE, sizeof(MESSAGE)) != 1)
            die("signing in a context of its own");
        check(&task);
        EVP_MD_CTX_free(ctx);
        EVP_PKEY_free(key);
        BIO_free(bio);
        OSSL_PROVIDER_unload(base);
        OSSL_LIB_CTX_free(libctx);
    }
    if (thread_count() > 2)
        die("more than one thread of the provider");
}

/* A buffer shorter than the secret: OpenSSL's own ECDH fills it with the beginning of the secret. */
static void derive(void)
{
    unsigned char whole[64], part[64];
    size_t whole_len = sizeof(whole), part_len = 4;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(private_key, NULL);

    if (EVP_PKEY_derive_init(context) != 1 || EVP_PKEY_derive_set_peer(context, public_key) != 1)
        die("derivation");
    if (EVP_PKEY_derive(context, whole, &whole_len) != 1 || whole_len != 32)
        die("a derivation with room enough");
    memset(part, PAINT, sizeof(part));
    if (EVP_PKEY_derive(context, part, &part_len) != 1 || part_len != 4)
        die("a derivation with less room");
    if (memcmp(whole, part, 4) != 0 || part[4] != PAINT)
        die("another secret");
    EVP_PKEY_CTX_free(context);
}

static int count_group(const OSSL_PARAM *params, void *groups)
{
    (void)params;
    ++*(size_t *)groups;
    return 1;
}

static void print_counters(void)
{
    size_t groups = 0;
    OSSL_PROVIDER *provider = OSSL_PROVIDER_load(NULL, "millrace");
    const OSSL_PARAM *list;

    if (provider == NULL || (list = OSSL_PROVIDER_gettable_params(provider)) == NULL)
        die("the provider is not there");
    for (; list->key != NULL; list++) {
        uint64_t value = 0;
        OSSL_PARAM request[2] = { OSSL_PARAM_construct_uint64(list->key, &value), OSSL_PARAM_construct_end() };

        if (strncmp(list->key, "millrace-", 9) == 0) {
            if (OSSL_PROVIDER_get_params(provider, request) != 1)
                die("a counter cannot be read");
            printf("%s %llu\n", list->key + 9, (unsigned long long)value);
        }
    }
    if (OSSL_PROVIDER_get_capabilities(provider, "TLS-GROUP", count_group, &groups) != 1)
        die("the groups cannot be listed");
    printf("groups %zu\n", groups);
    OSSL_PROVIDER_unload(provider);
}

static EVP_PKEY *read_key(const char *path, int is_public)
{
    BIO *bio = BIO_new_file(path, "r");
    EVP_PKEY *key;

    if (bio == NULL)
        die(path);
    key = is_public ? PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL) : PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);
    if (key == NULL)
        die(path);
    BIO_free(bio);
    return key;
}

/* The PEM of a key whose type the application names. */
static void read_as(const char *path, const char *type)
{
    BIO *bio = BIO_new_file(path, "r");
    EVP_PKEY *key = NULL;
    OSSL_DECODER_CTX *decoder
        = OSSL_DECODER_CTX_new_for_pkey(&key, "PEM", NULL, type, EVP_PKEY_KEYPAIR, NULL, NULL);

    if (bio == NULL || decoder == NULL || OSSL_DECODER_from_bio(decoder, bio) != 1)
        die("a file with a key of this type");
    if (EVP_PKEY_is_a(key, type) != 1)
        die("a key of another type");
    EVP_PKEY_free(key);
    OSSL_DECODER_CTX_free(decoder);
    BIO_free(bio);
}

/* The DER of a PEM block with any label, as strongSwan loads it: without a type, and with the one that it has. */
static EVP_PKEY *read_der(const char *path)
{
    BIO *bio = BIO_new_file(path, "r");
    char *label, *header;
    unsigned char *der;
    const unsigned char *start;
    long length;
    EVP_PKEY *key, *same;

    if (bio == NULL || PEM_read_bio(bio, &label, &header, &der, &length) != 1)
        die(path);
    start = der;
    if ((key = d2i_AutoPrivateKey(NULL, &start, length)) == NULL)
        die("a key of unknown type");
    start = der;
    if ((same = d2i_PrivateKey(EVP_PKEY_get_base_id(key), NULL, &start, length)) == NULL)
        die("a key of known type");
    if (EVP_PKEY_eq(key, same) != 1)
        die("two keys of one file");
    if (EVP_PKEY_is_a(key, EVP_PKEY_get0_type_name(same)) != 1)
        die("two types of one file");
    EVP_PKEY_free(same);
    OPENSSL_free(label);
    OPENSSL_free(header);
    OPENSSL_free(der);
    BIO_free(bio);
    read_as(path, EVP_PKEY_get0_type_name(key));
    return key;
}

int main(int argc, char **argv)
{
    size_t most = 0;
    const char *command;

    if (argc < 4)
        return 2;
    command = argv[1];
    CRYPTO_set_mem_functions(paint_malloc, plain_realloc, plain_free);
    if (OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1)
        die("configuration");
    private_key = strcmp(command, "der") == 0 ? read_der(argv[2]) : read_key(argv[2], 0);
    public_key = read_key(argv[3], 1);

    if (strcmp(command, "plain") == 0 || strcmp(command, "der") == 0)
        plain();
    else if (strcmp(command, "jobs") == 0)
        run_jobs(JOBS, 4, BY_FD, 0);
    else if (strcmp(command, "callback") == 0)
        run_jobs(8, 2, BY_CALLBACK, 0);
    else if (strcmp(command, "spurious") == 0)
        run_jobs(4, 2, SPURIOUS, 0);
    else if (strcmp(command, "blocked") == 0)
        run_jobs(1, 2, BY_FD, 1);
    else if (strcmp(command, "abandon") == 0)
        abandon();
    else if (strcmp(command, "leave") == 0)
        leave();
    else if (strcmp(command, "contexts") == 0)
        contexts(argv[2]);
    else if (strcmp(command, "threads") == 0)
        threads();
    else if (strcmp(command, "derive") == 0)
        derive();
    else if (strcmp(command, "fork") == 0)
        forked(3);
    else if (strcmp(command, "tls13") == 0 && argc == 5)
        handshake(argv[4], TLS1_3_VERSION, NULL);
    else if (strcmp(command, "tls12") == 0 && argc == 5)
        handshake(argv[4], TLS1_2_VERSION, NULL);
    else if (strcmp(command, "tls12-rsa") == 0 && argc == 5)
        handshake(argv[4], TLS1_2_VERSION, "AES128-SHA:@SECLEVEL=0");
    else
        return 2;

    for (size_t i = 0; i < stack_count; i++) {
        size_t clean = 0;

        while (clean < STACK && stacks[i][clean] == PAINT)
            clean++;
        if (STACK - clean > most)
            most = STACK - clean;
    }
    printf("stack %zu\n", most);
    print_counters();
    EVP_PKEY_free(private_key);
    EVP_PKEY_free(public_key);
    return 0;
}
