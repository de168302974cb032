// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Runs the ciphers, digests and MACs that the kernel may serve beside those of a library context without the module,
// with the same calls, and compares everything: bulk_harness system | ciphers N SEED | digests N SEED | macs N SEED |
// fork | descriptors | sessions | keys. The module is configured by OPENSSL_CONF. Prints what the module counted.

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/provider.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define OURS "millrace.local=yes"
#define MOST 200000
#define ROOM 64
static OSSL_LIB_CTX *plain;
static uint64_t state;
static const char *doing = "?";

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}
static void fill(uint8_t *to, size_t len) {
    for (size_t i = 0; i < len; i++) to[i] = (uint8_t)below(256);
}
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s: line %d: %s\n", doing, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

// Lengths around those of packets, from none to more than the kernel takes at once.
static size_t length(void) {
    switch (below(8)) {
    case 0: return below(40);
    case 1: return below(1000);
    case 2: case 3: case 4: return 900 + below(700);
    case 5: return 16 * below(200);
    case 6: return 8000 + below(9000);
    default: return below(12) ? 60000 + below(3000) : 61440 + below(MOST - 62000);
    }
}

static const char *CIPHERS[] = {"AES-128-CBC", "AES-192-CBC", "AES-256-CBC", "AES-128-CTR", "AES-192-CTR",
                                "AES-256-CTR", "AES-128-GCM", "AES-192-GCM", "AES-256-GCM"};

struct pair { EVP_CIPHER_CTX *ours, *theirs; };
static uint8_t input[MOST + ROOM], out_ours[MOST + ROOM], out_theirs[MOST + ROOM];

static int update(struct pair p, const uint8_t *in, size_t len, int beside, int in_place, size_t *written) {
    int a_len = -1, b_len = -1;
    if (beside) {
        int a = EVP_CipherUpdate(p.ours, NULL, &a_len, in, (int)len);
        int b = EVP_CipherUpdate(p.theirs, NULL, &b_len, in, (int)len);
        CHECK(a == b && (!a || a_len == b_len));
        return a;
    }
    memset(out_ours, 0, len + ROOM);
    memset(out_theirs, 0, len + ROOM);
    if (in_place) {
        memcpy(out_ours, in, len);
        memcpy(out_theirs, in, len);
    }
    int a = EVP_CipherUpdate(p.ours, out_ours, &a_len, in_place ? out_ours : in, (int)len);
    int b = EVP_CipherUpdate(p.theirs, out_theirs, &b_len, in_place ? out_theirs : in, (int)len);
    CHECK(a == b);
    if (!a) return 0;
    CHECK(a_len == b_len && !memcmp(out_ours, out_theirs, (size_t)a_len));
    *written = (size_t)a_len;
    return 1;
}

static int finish(struct pair p, size_t *written) {
    int a_len = -1, b_len = -1;
    int a = EVP_CipherFinal_ex(p.ours, out_ours, &a_len), b = EVP_CipherFinal_ex(p.theirs, out_theirs, &b_len);
    CHECK(a == b);
    if (!a) return 0;
    CHECK(a_len == b_len && !memcmp(out_ours, out_theirs, (size_t)a_len));
    *written = (size_t)a_len;
    return 1;
}

static void same_vectors(struct pair p) {
    uint8_t a[16] = {0}, b[16] = {0};
    int a_done = EVP_CIPHER_CTX_get_original_iv(p.ours, a, sizeof a), b_done = EVP_CIPHER_CTX_get_original_iv(p.theirs, b, sizeof b);
    CHECK(a_done == b_done && !memcmp(a, b, sizeof a));
    a_done = EVP_CIPHER_CTX_get_updated_iv(p.ours, a, sizeof a);
    b_done = EVP_CIPHER_CTX_get_updated_iv(p.theirs, b, sizeof b);
    CHECK(a_done == b_done && !memcmp(a, b, sizeof a));
}

static void both_init(struct pair p, const uint8_t *key, const uint8_t *iv, int encrypts) {
    int a = EVP_CipherInit_ex(p.ours, NULL, NULL, key, iv, encrypts);
    int b = EVP_CipherInit_ex(p.theirs, NULL, NULL, key, iv, encrypts);
    CHECK(a == b);
}

static uint64_t refused;

// One message in parts, encrypted or decrypted; what comes out goes to `to`. Returns its length, or -1.
static long message(struct pair *p, int gcm, int encrypts, const uint8_t *in, size_t len, uint8_t *to) {
    uint8_t beside[5000];
    uint32_t beside_parts = gcm ? below(3) : 0;
    uint64_t kept = state;
    for (uint32_t i = 0; i < beside_parts; i++) {
        size_t part = below(20) ? 1 + below(40) : 1 + below(4500);
        fill(beside, part);
        size_t none = 0;
        CHECK(update(*p, beside, part, 1, 0, &none));
    }
    // Decryption has to see the same data again.
    if (!encrypts) state = kept;
    size_t done = 0, total = 0, written = 0;
    uint32_t parts = below(3) ? 1 : 1 + below(4);
    for (uint32_t i = 0; i < parts; i++) {
        size_t part = i + 1 == parts ? len - done : below((uint32_t)(len - done) + 1);
        if (part || below(2)) {
            // In place only at the start: OpenSSL writes blocks that it kept back before it reads the rest.
            if (!update(*p, in + done, part, 0, !done && below(2), &written)) { refused++; return -1; }
            memcpy(to + total, out_ours, written);
            total += written;
        }
        done += part;
        if (!below(6)) {
            struct pair copy = {EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_new()};
            int a = EVP_CIPHER_CTX_copy(copy.ours, p->ours), b = EVP_CIPHER_CTX_copy(copy.theirs, p->theirs);
            CHECK(a == b);
            if (a) {
                EVP_CIPHER_CTX_free(p->ours);
                EVP_CIPHER_CTX_free(p->theirs);
                *p = copy;
            } else {
                EVP_CIPHER_CTX_free(copy.ours);
                EVP_CIPHER_CTX_free(copy.theirs);
            }
        }
    }
    if (!finish(*p, &written)) { refused++; return -1; }
    memcpy(to + total, out_ours, written);
    return (long)(total + written);
}

static void one_cipher(void) {
    static uint8_t text[MOST + ROOM], sealed[MOST + ROOM], opened[MOST + ROOM];
    doing = CIPHERS[below(9)];
    int gcm = strstr(doing, "GCM") != NULL, cbc = strstr(doing, "CBC") != NULL;
    EVP_CIPHER *ours = EVP_CIPHER_fetch(NULL, doing, OURS), *theirs = EVP_CIPHER_fetch(plain, doing, "");
    CHECK(ours && theirs);
    uint8_t key[32], iv[16];
    fill(key, sizeof key);
    fill(iv, sizeof iv);
    if (!below(4)) memset(iv, 0xff, sizeof iv);
    int pads = !cbc || below(3) != 0;
    struct pair p = {EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_new()};
    CHECK(EVP_CipherInit_ex(p.ours, ours, NULL, NULL, NULL, 1) && EVP_CipherInit_ex(p.theirs, theirs, NULL, NULL, NULL, 1));
    int messages = 1 + (int)below(4);
    for (int number = 0; number < messages; number++) {
        size_t len = length();
        if (cbc && !pads && below(4)) len -= len % 16;
        fill(text, len < 2000 ? len : 2000);
        // A new key and vector, either alone, or for CBC and CTR none: the last one again, or from where it stands.
        int gives = number ? (int)below(4) : 0;
        int gives_key = gives == 0 || gives == 1, gives_iv = gives == 0 || gives == 2 || gcm;
        if (gives_key) fill(key, sizeof key);
        if (gives_iv) fill(iv, 8);
        if (!number && below(2)) {
            both_init(p, key, NULL, 1);
            both_init(p, NULL, iv, 1);
        } else
            both_init(p, gives_key ? key : NULL, gives_iv ? iv : NULL, 1);
        EVP_CIPHER_CTX_set_padding(p.ours, pads);
        EVP_CIPHER_CTX_set_padding(p.theirs, pads);
        uint64_t seed = state;
        long sealed_len = message(&p, gcm, 1, text, len, sealed);
        same_vectors(p);
        if (sealed_len < 0) continue;
        uint8_t tag[16], tag_theirs[16];
        if (gcm) {
            CHECK(EVP_CIPHER_CTX_ctrl(p.ours, EVP_CTRL_AEAD_GET_TAG, 16, tag));
            CHECK(EVP_CIPHER_CTX_ctrl(p.theirs, EVP_CTRL_AEAD_GET_TAG, 16, tag_theirs));
            CHECK(!memcmp(tag, tag_theirs, 16));
            // The nonce is used up.
            size_t none;
            if (!below(3)) CHECK(!update(p, text, 1200, 0, 0, &none) && !finish(p, &none));
        }
        if (gives == 3 && !gcm) continue;
        both_init(p, key, iv, 0);
        int tampers = !below(4), tag_len = below(4) ? 16 : 12, sets_late = !below(5);
        if (tampers && sealed_len) sealed[below((uint32_t)sealed_len)] ^= 1;
        if (gcm && !sets_late) {
            int a = EVP_CIPHER_CTX_ctrl(p.ours, EVP_CTRL_AEAD_SET_TAG, tag_len, tag);
            CHECK(a == EVP_CIPHER_CTX_ctrl(p.theirs, EVP_CTRL_AEAD_SET_TAG, tag_len, tag));
        }
        uint64_t after = state;
        state = seed;
        long opened_len = message(&p, gcm, 0, sealed, (size_t)sealed_len, opened);
        state = after + below(1000);
        same_vectors(p);
        if (opened_len >= 0 && !tampers && !gcm && !gives) CHECK((size_t)opened_len == len && !memcmp(opened, text, len));
    }
    EVP_CIPHER_CTX_free(p.ours);
    EVP_CIPHER_CTX_free(p.theirs);
    EVP_CIPHER_free(ours);
    EVP_CIPHER_free(theirs);
}

static const char *DIGESTS[] = {"SHA1", "SHA2-224", "SHA2-256", "SHA2-384", "SHA2-512"};

static void one_digest(void) {
    doing = DIGESTS[below(5)];
    EVP_MD *ours = EVP_MD_fetch(NULL, doing, OURS), *theirs = EVP_MD_fetch(plain, doing, "");
    CHECK(ours && theirs && EVP_MD_get_size(ours) == EVP_MD_get_size(theirs));
    EVP_MD_CTX *a = EVP_MD_CTX_new(), *b = EVP_MD_CTX_new(), *other = EVP_MD_CTX_new();
    for (uint32_t number = below(3) + 1; number; number--) {
        CHECK(EVP_DigestInit_ex(a, ours, NULL) && EVP_DigestInit_ex(b, theirs, NULL));
        for (uint32_t parts = below(4); parts; parts--) {
            size_t len = length();
            fill(input, len < 1000 ? len : 1000);
            CHECK(EVP_DigestUpdate(a, input, len) && EVP_DigestUpdate(b, input, len));
            if (!below(3)) {
                CHECK(EVP_MD_CTX_copy_ex(other, a));
                EVP_MD_CTX *swap = a;
                a = other;
                other = swap;
            }
        }
        uint8_t one[64], two[64];
        unsigned one_len = 0, two_len = 0;
        CHECK(EVP_DigestFinal_ex(a, one, &one_len) && EVP_DigestFinal_ex(b, two, &two_len));
        CHECK(one_len == two_len && !memcmp(one, two, one_len));
    }
    EVP_MD_CTX_free(a);
    EVP_MD_CTX_free(b);
    EVP_MD_CTX_free(other);
    EVP_MD_free(ours);
    EVP_MD_free(theirs);
}

static void one_mac(void) {
    static const char *NAMES[] = {"SHA1", "SHA224", "SHA256", "SHA384", "SHA512", "SHA2-256", "SHA-512", "MD5", "SHA512-256"};
    EVP_MAC *ours = EVP_MAC_fetch(NULL, "HMAC", OURS), *theirs = EVP_MAC_fetch(plain, "HMAC", "");
    CHECK(ours && theirs);
    EVP_MAC_CTX *a = EVP_MAC_CTX_new(ours), *b = EVP_MAC_CTX_new(theirs);
    CHECK(a && b);
    uint8_t key[300];
    for (uint32_t number = 0, count = 1 + below(4); number < count; number++) {
        size_t key_len = below(10) ? 1 + below(sizeof key - 1) : 20;
        fill(key, key_len);
        doing = NAMES[below(9)];
        OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)doing, 0), OSSL_PARAM_END};
        // The first with everything, later ones with what changes, or nothing.
        int sets = number ? (int)below(3) : 0;
        const uint8_t *new_key = sets == 2 ? NULL : key;
        CHECK(EVP_MAC_init(a, new_key, new_key ? key_len : 0, sets ? NULL : params) ==
              EVP_MAC_init(b, new_key, new_key ? key_len : 0, sets ? NULL : params));
        CHECK(EVP_MAC_CTX_get_mac_size(a) == EVP_MAC_CTX_get_mac_size(b));
        for (uint32_t parts = below(4); parts; parts--) {
            size_t len = length();
            fill(input, len < 1000 ? len : 1000);
            CHECK(EVP_MAC_update(a, input, len) && EVP_MAC_update(b, input, len));
            if (!below(4)) {
                EVP_MAC_CTX *copy = EVP_MAC_CTX_dup(a);
                CHECK(copy);
                EVP_MAC_CTX_free(a);
                a = copy;
            }
        }
        uint8_t one[64], two[64];
        size_t one_len = 0, two_len = 0;
        CHECK(EVP_MAC_final(a, one, &one_len, sizeof one) && EVP_MAC_final(b, two, &two_len, sizeof two));
        CHECK(one_len == two_len && !memcmp(one, two, one_len));
    }
    EVP_MAC_CTX_free(a);
    EVP_MAC_CTX_free(b);
    EVP_MAC_free(ours);
    EVP_MAC_free(theirs);
}

static EVP_CIPHER_CTX *encrypting(OSSL_LIB_CTX *library, const char *query, const uint8_t *key) {
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(library, "AES-256-CBC", query);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    CHECK(cipher && EVP_CipherInit_ex(context, cipher, NULL, key, NULL, 1));
    EVP_CIPHER_free(cipher);
    return context;
}

// Length of a packet, in bytes.
static size_t packet_len = 1400;

// Packets with one key, as a VPN sends them; `contexts` at once.
static void packets(EVP_CIPHER_CTX **ours, EVP_CIPHER_CTX **theirs, int contexts, int count) {
    uint8_t iv[16];
    for (int i = 0; i < count; i++) {
        struct pair p = {ours[i % contexts], theirs[i % contexts]};
        size_t none;
        fill(iv, sizeof iv);
        fill(input, packet_len < 1400 ? packet_len : 1400);
        both_init(p, NULL, iv, 1);
        CHECK(update(p, input, packet_len, 0, i % 2, &none) && finish(p, &none));
    }
}

static uint64_t counted(const char *name) {
    uint64_t value = 0;
    OSSL_PROVIDER *provider = OSSL_PROVIDER_load(NULL, "millrace");
    OSSL_PARAM request[] = {OSSL_PARAM_construct_uint64(name, &value), OSSL_PARAM_END};
    if (!provider || OSSL_PROVIDER_get_params(provider, request) != 1) exit(3);
    return value;
}

#define CONTEXTS 100
int main(int count, char **argument) {
    const char *command = count > 1 ? argument[1] : "";
    if (!strcmp(command, "system")) {
        puts(OpenSSL_version(OPENSSL_VERSION));
        return 0;
    }
    int rounds = count > 2 ? atoi(argument[2]) : 0;
    state = count > 3 ? (uint64_t)atoll(argument[3]) : 1;
    plain = OSSL_LIB_CTX_new();
    CHECK(plain && OSSL_PROVIDER_load(plain, "default"));
    uint8_t key[32];
    fill(key, sizeof key);
    static EVP_CIPHER_CTX *ours[CONTEXTS], *theirs[CONTEXTS];
    int contexts = !strcmp(command, "sessions") ? CONTEXTS : 1;
    if (!strcmp(command, "ciphers"))
        for (int i = 0; i < rounds; i++) one_cipher();
    else if (!strcmp(command, "digests"))
        for (int i = 0; i < rounds; i++) one_digest();
    else if (!strcmp(command, "macs"))
        for (int i = 0; i < rounds; i++) one_mac();
    else {
        for (int i = 0; i < contexts; i++) {
            ours[i] = encrypting(NULL, OURS, key);
            theirs[i] = encrypting(plain, "", key);
        }
        if (!strcmp(command, "packets") && rounds) packet_len = (size_t)rounds;
        if (!strcmp(command, "sessions") || !strcmp(command, "packets"))
            packets(ours, theirs, contexts, 300);
        else if (!strcmp(command, "descriptors")) {
            struct rlimit before, few;
            CHECK(!getrlimit(RLIMIT_NOFILE, &before));
            few = before;
            int next = dup(0);
            few.rlim_cur = (rlim_t)next;
            close(next);
            CHECK(!setrlimit(RLIMIT_NOFILE, &few));
            packets(ours, theirs, 1, 50);
            CHECK(!setrlimit(RLIMIT_NOFILE, &before));
            // The same key is not tried again, another one is.
            both_init((struct pair){ours[0], theirs[0]}, key, NULL, 1);
            packets(ours, theirs, 1, 50);
        } else if (!strcmp(command, "fork")) {
            packets(ours, theirs, 1, 10);
            pid_t child = fork();
            CHECK(child >= 0);
            if (!child) state = 99;
            packets(ours, theirs, 1, 300);
            // A key that the child sets gets a session of its own.
            both_init((struct pair){ours[0], theirs[0]}, key, NULL, 1);
            packets(ours, theirs, 1, 300);
            if (!child) _exit(counted("millrace-kernel-bulk") >= 310 ? 0 : 4);
            int status = -1;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        } else
            return 2;
        for (int i = 0; i < contexts; i++) {
            EVP_CIPHER_CTX_free(ours[i]);
            EVP_CIPHER_CTX_free(theirs[i]);
        }
    }
    printf("kernel %llu failed %llu refused %llu\n", (unsigned long long)counted("millrace-kernel-bulk"),
           (unsigned long long)counted("millrace-kernel-bulk-failed"), (unsigned long long)refused);
    return 0;
}
