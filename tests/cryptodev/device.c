// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Stands in for the /dev/crypto of cryptodev-linux: preloaded into a process, it answers what the process asks of the
// device by OpenSSL in a library context of its own. Numbers and structs are those of crypto/cryptodev.h, in the form
// without compression.
//
// The file that MILLRACE_CRYPTODEV names is shared with the test: faults go in, counters come out.
//
// Build: cc -shared -fPIC -O2 -o device.so device.c -lcrypto -lpthread -ldl

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

struct session_op {
    uint32_t cipher, mac, keylen;
    uint8_t *key;
    uint32_t mackeylen;
    uint8_t *mackey;
    uint32_t ses;
};
struct crypt_op {
    uint32_t ses;
    uint16_t op, flags;
    uint32_t len;
    uint8_t *src, *dst, *mac, *iv;
};
struct crypt_auth_op {
    uint32_t ses;
    uint16_t op, flags;
    uint32_t len, auth_len;
    uint8_t *auth_src, *src, *dst, *tag;
    uint32_t tag_len;
    uint8_t *iv;
    uint32_t iv_len;
};
#define CIOCGSESSION _IOWR('c', 102, struct session_op)
#define CIOCFSESSION _IOW('c', 103, uint32_t)
#define CIOCCRYPT _IOWR('c', 104, struct crypt_op)
#define CIOCAUTHCRYPT _IOWR('c', 109, struct crypt_auth_op)
enum { AES_CBC = 11, AES_CTR = 21, AES_GCM = 50 };

static const struct { uint32_t number; const char *digest; int has_key; } HASHES[] = {
    {14, "SHA1", 0}, {103, "SHA224", 0}, {104, "SHA256", 0}, {105, "SHA384", 0}, {106, "SHA512", 0},
    {7, "SHA1", 1}, {107, "SHA224", 1}, {18, "SHA256", 1}, {19, "SHA384", 1}, {20, "SHA512", 1},
};
#define HASH_COUNT (sizeof HASHES / sizeof *HASHES)

// The layout of the shared file; crates/provider/tests/bulk.rs has the same.
struct controls {
    // In: from this operation on every one fails with EIO (0: none does); every n-th result has a wrong bit; sessions
    // are refused.
    _Atomic uint32_t fail_from, wrong_every, refuse_sessions, reserved;
    // Out.
    _Atomic uint64_t operations, failed, sessions, open_sessions, bytes;
};
static struct controls none, *controls = &none;

#define SESSIONS 256
static struct session {
    int fd;
    uint32_t cipher, mac, key_len;
    uint8_t key[512];
} sessions[SESSIONS];
#define FDS 4096
static uint8_t is_device[FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static OSSL_LIB_CTX *library;

#define NEXT(type, name) \
    static __typeof__(type) next; \
    if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("MILLRACE_CRYPTODEV");
    int fd = path ? openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    controls = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (controls == MAP_FAILED) abort();
    close(fd);
}

static int open_device(void) {
    int fd = memfd_create("cryptodev", MFD_CLOEXEC);
    if (fd < 0) return -1;
    if (fd >= FDS || controls == &none) {
        close(fd);
        errno = ENOENT;
        return -1;
    }
    is_device[fd] = 1;
    return fd;
}

static int open_file(const char *path, int flags, mode_t mode) {
    return strcmp(path, "/dev/crypto") ? openat(AT_FDCWD, path, flags, mode) : open_device();
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list list; \
            va_start(list, flags); \
            mode = va_arg(list, mode_t); \
            va_end(list); \
        } \
        return open_file(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    NEXT(int (*)(int), "close");
    if (fd >= 0 && fd < FDS && is_device[fd]) {
        is_device[fd] = 0;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < SESSIONS; i++)
            if (sessions[i].fd == fd) {
                memset(&sessions[i], 0, sizeof sessions[i]);
                controls->open_sessions--;
            }
        pthread_mutex_unlock(&lock);
    }
    return next(fd);
}

static int fail(int error) {
    errno = error;
    return -1;
}

static int begin(int fd, struct session_op *op) {
    const uint8_t *key = op->cipher ? op->key : op->mackey;
    uint32_t len = op->cipher ? op->keylen : op->mackeylen;
    int known = op->cipher == AES_CBC || op->cipher == AES_CTR || op->cipher == AES_GCM;
    if (op->cipher && (!known || (len != 16 && len != 24 && len != 32))) return fail(EINVAL);
    for (size_t i = 0; !op->cipher && i < HASH_COUNT; i++)
        known |= op->mac == HASHES[i].number && (!HASHES[i].has_key || (len && len <= sizeof sessions->key));
    if (!known || controls->refuse_sessions) return fail(known ? ENOMEM : EINVAL);
    for (uint32_t i = 0; i < SESSIONS; i++)
        if (!sessions[i].fd) {
            sessions[i] = (struct session){.fd = fd, .cipher = op->cipher, .mac = op->mac, .key_len = len};
            if (len) memcpy(sessions[i].key, key, len);
            op->ses = i + 1;
            controls->sessions++;
            controls->open_sessions++;
            return 0;
        }
    return fail(ENOMEM);
}

static struct session *find(int fd, uint32_t number) {
    return number && number <= SESSIONS && sessions[number - 1].fd == fd ? &sessions[number - 1] : NULL;
}

static int end(int fd, uint32_t number) {
    struct session *s = find(fd, number);
    if (!s) return fail(EINVAL);
    memset(s, 0, sizeof *s);
    controls->open_sessions--;
    return 0;
}

// Counts an operation, and returns whether it has to fail.
static int is_over(uint32_t bytes) {
    uint64_t number = ++controls->operations;
    controls->bytes += bytes;
    if (!controls->fail_from || number < controls->fail_from) return 0;
    controls->failed++;
    return 1;
}

static void spoil(uint8_t *result) {
    if (controls->wrong_every && controls->operations % controls->wrong_every == 0) result[3] ^= 0x10;
}

static EVP_CIPHER *cipher_of(const struct session *s) {
    char name[32];
    const char *mode = s->cipher == AES_CBC ? "CBC" : s->cipher == AES_CTR ? "CTR" : "GCM";
    snprintf(name, sizeof name, "AES-%u-%s", s->key_len * 8, mode);
    return EVP_CIPHER_fetch(library, name, "");
}

static int crypt_blocks(const struct session *s, const struct crypt_op *op) {
    EVP_CIPHER *cipher = cipher_of(s);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int written = 0, encrypts = op->op == 0;
    int ok = op->len % 16 == 0 && EVP_CipherInit_ex(context, cipher, NULL, s->key, op->iv, encrypts) &&
             EVP_CIPHER_CTX_set_padding(context, 0) &&
             EVP_CipherUpdate(context, op->dst, &written, op->src, (int)op->len) && written == (int)op->len;
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(cipher);
    if (ok && op->len) spoil(op->dst);
    return ok ? 0 : fail(EINVAL);
}

static int hash(const struct session *s, const struct crypt_op *op) {
    const char *digest = NULL;
    int has_key = 0;
    for (size_t i = 0; i < HASH_COUNT; i++)
        if (HASHES[i].number == s->mac) {
            digest = HASHES[i].digest;
            has_key = HASHES[i].has_key;
        }
    size_t len = 0;
    int ok;
    if (has_key) {
        OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", (char *)digest, 0), OSSL_PARAM_END};
        EVP_MAC *mac = EVP_MAC_fetch(library, "HMAC", "");
        EVP_MAC_CTX *context = EVP_MAC_CTX_new(mac);
        ok = EVP_MAC_init(context, s->key, s->key_len, params) && EVP_MAC_update(context, op->src, op->len) &&
             EVP_MAC_final(context, op->mac, &len, 64);
        EVP_MAC_CTX_free(context);
        EVP_MAC_free(mac);
    } else
        ok = EVP_Q_digest(library, digest, "", op->src, op->len, op->mac, &len);
    if (ok) spoil(op->mac);
    return ok ? 0 : fail(EINVAL);
}

static int seal(const struct session *s, struct crypt_auth_op *op) {
    uint32_t tag_len = op->tag_len ? op->tag_len : 16;
    int decrypts = op->op == 1, written = 0, last = 0;
    if (tag_len > 16 || op->iv_len != 12 || (decrypts && op->len < tag_len)) return fail(EINVAL);
    uint32_t len = decrypts ? op->len - tag_len : op->len;
    EVP_CIPHER *cipher = cipher_of(s);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int ok = EVP_CipherInit_ex(context, cipher, NULL, s->key, op->iv, !decrypts) &&
             (!op->auth_len || EVP_CipherUpdate(context, NULL, &written, op->auth_src, (int)op->auth_len));
    if (decrypts) ok = ok && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, (int)tag_len, op->src + len);
    ok = ok && EVP_CipherUpdate(context, op->dst, &written, op->src, (int)len);
    int authentic = ok && EVP_CipherFinal_ex(context, op->dst + len, &last);
    if (!decrypts)
        authentic = authentic && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, (int)tag_len, op->dst + len);
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(cipher);
    op->len = decrypts ? len : len + tag_len;
    if (authentic && len > 3) spoil(op->dst);
    return authentic ? 0 : fail(ok ? EBADMSG : EINVAL);
}

static int answer(int fd, unsigned long request, void *argument) {
    if (request == CIOCGSESSION) return begin(fd, argument);
    if (request == CIOCFSESSION) return end(fd, *(uint32_t *)argument);
    if (request == CIOCCRYPT) {
        struct crypt_op *op = argument;
        struct session *s = find(fd, op->ses);
        if (!s || s->cipher == AES_GCM) return fail(EINVAL);
        return is_over(op->len) ? fail(EIO) : s->cipher ? crypt_blocks(s, op) : hash(s, op);
    }
    if (request == CIOCAUTHCRYPT) {
        struct crypt_auth_op *op = argument;
        struct session *s = find(fd, op->ses);
        if (!s || s->cipher != AES_GCM) return fail(EINVAL);
        return is_over(op->len) ? fail(EIO) : seal(s, op);
    }
    return fail(ENOTTY);
}

int ioctl(int fd, unsigned long request, ...) {
    NEXT(int (*)(int, unsigned long, ...), "ioctl");
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (fd < 0 || fd >= FDS || !is_device[fd]) return next(fd, request, argument);
    pthread_mutex_lock(&lock);
    if (!library) library = OSSL_LIB_CTX_new();
    int result = answer(fd, request, argument);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
