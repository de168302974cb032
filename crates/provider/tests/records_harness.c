/* Copyright The Millrace Authors
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Ciphers of records and digests, ours beside those of OpenSSL's default provider, both of the library context that
 * the configuration in OPENSSL_CONF sets up:
 *
 *   records_harness random ROUNDS SEED   random messages, in random parts, by both: the same results and refusals
 *   records_harness records ROUNDS SEED  records of TLS 1.2, sealed by one and opened by the other
 *   records_harness misuse               what an application must not do, and what must not come of it
 *   records_harness vectors              known answers from standard input, a test a line:
 *                                        CIPHER KEY NONCE AAD MESSAGE CIPHERTEXT TAG valid|invalid ("-": empty)
 *
 * Prints how much it did, and exits with 0 if all went well.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/provider.h>

#define OURS "millrace.local=yes"
#define THEIRS "provider=default"
#define MOST 20000
#define TAG 16

static const char *const CIPHERS[] = { "AES-128-GCM", "AES-192-GCM", "AES-256-GCM", "ChaCha20-Poly1305" };
#define CIPHER_COUNT 4
static const char *const DIGESTS[] = { "SHA2-224", "SHA2-256", "SHA2-384",
                                       "SHA2-512", "SHA2-512/224", "SHA2-512/256" };
#define DIGEST_COUNT 6

static uint64_t state = 88172645463325252ULL;
static char place[200] = "start";

static uint64_t number(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

static void fill(unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (unsigned char)number(256);
}

static void die(const char *what)
{
    fprintf(stderr, "records_harness: %s (%s)\n", what, place);
    ERR_print_errors_fp(stderr);
    exit(1);
}

#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            die(#condition); \
    } while (0)

static EVP_CIPHER *cipher_of(const char *name, const char *properties)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, name, properties);

    if (cipher == NULL)
        die(name);
    EXPECT(strcmp(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(cipher)),
                  strcmp(properties, OURS) == 0 ? "millrace" : "default") == 0);
    return cipher;
}

static int is_gcm(const char *name)
{
    return name[0] == 'A';
}

/* Each side has the cipher and a context that is used again and again. */
struct side {
    EVP_CIPHER *cipher;
    EVP_CIPHER_CTX *context;
};

static struct side side_of(const char *name, const char *properties)
{
    struct side side = { cipher_of(name, properties), EVP_CIPHER_CTX_new() };

    EXPECT(side.context != NULL && EVP_CipherInit_ex(side.context, side.cipher, NULL, NULL, NULL, 1) == 1);
    return side;
}

static void drop(struct side *side)
{
    EVP_CIPHER_CTX_free(side->context);
    EVP_CIPHER_free(side->cipher);
}

/* A part of what is left: often small, sometimes nothing, sometimes all. */
static int part(size_t left)
{
    switch (number(5)) {
    case 0:
        return (int)left;
    case 1:
        return (int)(left < 16 ? left : number(16));
    case 2:
        return (int)(left < 64 ? left : 64);
    default:
        return (int)number(left + 1);
    }
}

struct message {
    unsigned char key[32], nonce[128], aad[600], text[MOST], tag[TAG];
    size_t nonce_len, aad_len, len, tag_len;
};

/* Encrypts or decrypts `in` to `out`, in random parts; 0 at the first refusal. */
static int run(struct side *side, int encrypts, const struct message *message, const unsigned char *in,
               unsigned char *out, unsigned char *tag)
{
    size_t at = 0;
    int written, in_place = (int)number(2);

    if (number(4) == 0) {
        /* A fresh context instead of the one that is used again. */
        EVP_CIPHER_CTX_free(side->context);
        EXPECT((side->context = EVP_CIPHER_CTX_new()) != NULL);
        EXPECT(EVP_CipherInit_ex(side->context, side->cipher, NULL, NULL, NULL, encrypts) == 1);
    }
    if (EVP_CIPHER_CTX_ctrl(side->context, EVP_CTRL_AEAD_SET_IVLEN, (int)message->nonce_len, NULL) != 1)
        return 0;
    if (number(2) == 0) {
        if (EVP_CipherInit_ex(side->context, NULL, NULL, message->key, message->nonce, encrypts) != 1)
            return 0;
    } else if (EVP_CipherInit_ex(side->context, NULL, NULL, message->key, NULL, encrypts) != 1
               || EVP_CipherInit_ex(side->context, NULL, NULL, NULL, message->nonce, -1) != 1) {
        return 0;
    }
    if (!encrypts
        && EVP_CIPHER_CTX_ctrl(side->context, EVP_CTRL_AEAD_SET_TAG, (int)message->tag_len, (void *)message->tag)
               != 1)
        return 0;
    while (at < message->aad_len) {
        int len = part(message->aad_len - at);

        if (EVP_CipherUpdate(side->context, NULL, &written, message->aad + at, len) != 1 || written != len)
            return 0;
        at += (size_t)len;
    }
    if (in_place)
        memcpy(out, in, message->len);
    at = 0;
    while (at < message->len) {
        int len = part(message->len - at);

        if (number(8) == 0) {
            EVP_CIPHER_CTX *copy = EVP_CIPHER_CTX_new();

            /* The original goes on a little, which the copy must not notice. */
            EXPECT(copy != NULL && EVP_CIPHER_CTX_copy(copy, side->context) == 1);
            EXPECT(EVP_CipherUpdate(side->context, out + at, &written, in + at, 0) == 1);
            EVP_CIPHER_CTX_free(side->context);
            side->context = copy;
        }
        if (EVP_CipherUpdate(side->context, out + at, &written, in_place ? out + at : in + at, len) != 1
            || written != len)
            return 0;
        at += (size_t)len;
    }
    written = 1;
    if (EVP_CipherFinal_ex(side->context, out + at, &written) != 1 || written != 0)
        return 0;
    if (encrypts && EVP_CIPHER_CTX_ctrl(side->context, EVP_CTRL_AEAD_GET_TAG, TAG, tag) != 1)
        return 0;
    return 1;
}

static void make(struct message *message, const char *name)
{
    static const size_t MAXIMA[] = { 1, 40, 300, 1400, MOST };

    fill(message->key, sizeof(message->key));
    fill(message->nonce, sizeof(message->nonce));
    message->nonce_len = is_gcm(name) && number(3) == 0 ? 1 + number(sizeof(message->nonce)) : 12;
    message->aad_len = number(4) == 0 ? 0 : number(sizeof(message->aad));
    fill(message->aad, message->aad_len);
    message->len = number(MAXIMA[number(5)]);
    fill(message->text, message->len);
    message->tag_len = TAG;
}

static void random_ciphers(long rounds)
{
    static struct message message;
    static unsigned char one[MOST], two[MOST], plain[MOST], other[MOST];
    unsigned char tag[TAG], tag_too[TAG];
    struct side ours[CIPHER_COUNT], theirs[CIPHER_COUNT];
    long opened = 0, refused = 0;

    for (int i = 0; i < CIPHER_COUNT; i++) {
        ours[i] = side_of(CIPHERS[i], OURS);
        theirs[i] = side_of(CIPHERS[i], THEIRS);
        EXPECT(EVP_CIPHER_get_block_size(ours[i].cipher) == EVP_CIPHER_get_block_size(theirs[i].cipher));
        EXPECT(EVP_CIPHER_get_key_length(ours[i].cipher) == EVP_CIPHER_get_key_length(theirs[i].cipher));
        EXPECT(EVP_CIPHER_get_iv_length(ours[i].cipher) == EVP_CIPHER_get_iv_length(theirs[i].cipher));
        EXPECT(EVP_CIPHER_get_flags(ours[i].cipher) == EVP_CIPHER_get_flags(theirs[i].cipher));
        EXPECT(EVP_CIPHER_get_mode(ours[i].cipher) == EVP_CIPHER_get_mode(theirs[i].cipher));
        EXPECT(EVP_CIPHER_get_nid(ours[i].cipher) == EVP_CIPHER_get_nid(theirs[i].cipher));
        EXPECT(EVP_CIPHER_gettable_ctx_params(ours[i].cipher) == EVP_CIPHER_gettable_ctx_params(theirs[i].cipher));
        EXPECT(EVP_CIPHER_settable_ctx_params(ours[i].cipher) == EVP_CIPHER_settable_ctx_params(theirs[i].cipher));
    }
    for (long round = 0; round < rounds; round++) {
        int i = (int)number(CIPHER_COUNT), wrong = (int)number(5), left, right;

        make(&message, CIPHERS[i]);
        snprintf(place, sizeof(place), "%s, round %ld: nonce %zu, aad %zu, message %zu, fault %d", CIPHERS[i], round,
                 message.nonce_len, message.aad_len, message.len, wrong);
        EXPECT(run(&ours[i], 1, &message, message.text, one, tag));
        EXPECT(run(&theirs[i], 1, &message, message.text, two, tag_too));
        EXPECT(memcmp(one, two, message.len) == 0 && memcmp(tag, tag_too, TAG) == 0);
        memcpy(message.tag, tag, TAG);
        message.tag_len = number(4) == 0 ? 1 + number(TAG) : TAG;
        /* At the start of a tag, so that a short one has it. */
        if (wrong == 1)
            message.tag[0] ^= 1;
        else if (wrong == 2 && message.len > 0)
            one[number(message.len)] ^= 1;
        else if (wrong == 3 && message.aad_len > 0)
            message.aad[number(message.aad_len)] ^= 1;
        left = run(&ours[i], 0, &message, one, plain, NULL);
        right = run(&theirs[i], 0, &message, one, other, NULL);
        EXPECT(left == right);
        if (left)
            EXPECT(memcmp(plain, other, message.len) == 0);
        opened += left;
        refused += !left;
        /* No word on the error stack of a message that is not authentic: applications look there. */
        EXPECT(ERR_peek_error() == 0);
    }
    for (int i = 0; i < CIPHER_COUNT; i++) {
        drop(&ours[i]);
        drop(&theirs[i]);
    }
    printf("opened %ld refused %ld\n", opened, refused);
}

static void random_digests(long rounds)
{
    static unsigned char text[MOST];
    unsigned char ours[EVP_MAX_MD_SIZE], theirs[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *context = EVP_MD_CTX_new(), *copy = EVP_MD_CTX_new();
    EVP_MD *local[DIGEST_COUNT], *stock[DIGEST_COUNT];
    unsigned int ours_len, theirs_len;

    EXPECT(context != NULL && copy != NULL);
    for (int i = 0; i < DIGEST_COUNT; i++) {
        local[i] = EVP_MD_fetch(NULL, DIGESTS[i], OURS);
        stock[i] = EVP_MD_fetch(NULL, DIGESTS[i], THEIRS);
        EXPECT(local[i] != NULL && stock[i] != NULL);
        EXPECT(EVP_MD_get_size(local[i]) == EVP_MD_get_size(stock[i]));
        EXPECT(EVP_MD_get_block_size(local[i]) == EVP_MD_get_block_size(stock[i]));
        EXPECT(EVP_MD_get_flags(local[i]) == EVP_MD_get_flags(stock[i]));
        EXPECT(EVP_MD_get_type(local[i]) == EVP_MD_get_type(stock[i]));
    }
    for (long round = 0; round < rounds; round++) {
        int i = (int)number(DIGEST_COUNT);
        size_t len = number(number(2) ? 300 : MOST), at = 0, mac_len = 0, mac_too_len = 0;
        unsigned char mac[EVP_MAX_MD_SIZE], mac_too[EVP_MAX_MD_SIZE];
        OSSL_PARAM local_only[2] = {
            OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_PROPERTIES, (char *)OURS, 0), OSSL_PARAM_construct_end()
        }, stock_only[2] = {
            OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_PROPERTIES, (char *)THEIRS, 0), OSSL_PARAM_construct_end()
        };

        snprintf(place, sizeof(place), "%s, round %ld: %zu bytes", DIGESTS[i], round, len);
        fill(text, len);
        EXPECT(EVP_DigestInit_ex(context, local[i], NULL) == 1);
        while (at < len) {
            int piece = part(len - at);

            if (number(6) == 0) {
                EVP_MD_CTX *swap = context;

                EXPECT(EVP_MD_CTX_copy_ex(copy, context) == 1);
                EXPECT(EVP_DigestUpdate(context, "x", 1) == 1);
                context = copy;
                copy = swap;
            }
            EXPECT(EVP_DigestUpdate(context, text + at, (size_t)piece) == 1);
            at += (size_t)piece;
        }
        EXPECT(EVP_DigestFinal_ex(context, ours, &ours_len) == 1);
        EXPECT(EVP_Digest(text, len, theirs, &theirs_len, stock[i], NULL) == 1);
        EXPECT(ours_len == theirs_len && memcmp(ours, theirs, ours_len) == 0);
        EXPECT(EVP_Q_mac(NULL, "HMAC", NULL, DIGESTS[i], local_only, text, len % 200 + 1, text, len, mac,
                         sizeof(mac), &mac_len) != NULL);
        EXPECT(EVP_Q_mac(NULL, "HMAC", NULL, DIGESTS[i], stock_only, text, len % 200 + 1, text, len, mac_too,
                         sizeof(mac_too), &mac_too_len) != NULL);
        EXPECT(mac_len == mac_too_len && memcmp(mac, mac_too, mac_len) == 0);
    }
    for (int i = 0; i < DIGEST_COUNT; i++) {
        EVP_MD_free(local[i]);
        EVP_MD_free(stock[i]);
    }
    EVP_MD_CTX_free(context);
    EVP_MD_CTX_free(copy);
    printf("digested %ld\n", rounds);
}

/* The head of a record with this number and length, as libssl hands it over. */
static int announce(EVP_CIPHER_CTX *context, uint64_t sequence, size_t len)
{
    unsigned char head[EVP_AEAD_TLS1_AAD_LEN] = { 0, 0, 0, 0, 0, 0, 0, 0, 23, 3, 3, 0, 0 };

    for (int i = 0; i < 8; i++)
        head[7 - i] = (unsigned char)(sequence >> (8 * i));
    head[11] = (unsigned char)(len >> 8);
    head[12] = (unsigned char)len;
    return EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_TLS1_AAD, sizeof(head), head);
}

static void records(long rounds)
{
    static unsigned char record[MOST], text[MOST], again[MOST];
    long opened = 0, refused = 0;

    for (long round = 0; round < rounds; round++) {
        const char *name = CIPHERS[number(CIPHER_COUNT)];
        int gcm = is_gcm(name), here_seals = (int)number(2);
        size_t before = gcm ? EVP_GCM_TLS_EXPLICIT_IV_LEN : 0, fixed_len = gcm ? EVP_GCM_TLS_FIXED_IV_LEN : 12;
        unsigned char key[32], fixed[12];
        struct side seals = side_of(name, here_seals ? OURS : THEIRS);
        struct side opens = side_of(name, here_seals ? THEIRS : OURS);
        struct side both = side_of(name, here_seals ? THEIRS : OURS);

        fill(key, sizeof(key));
        fill(fixed, sizeof(fixed));
        EXPECT(EVP_CipherInit_ex(seals.context, NULL, NULL, key, NULL, 1) == 1);
        EXPECT(EVP_CipherInit_ex(both.context, NULL, NULL, key, NULL, 1) == 1);
        EXPECT(EVP_CipherInit_ex(opens.context, NULL, NULL, key, NULL, 0) == 1);
        EXPECT(EVP_CIPHER_CTX_ctrl(seals.context, EVP_CTRL_AEAD_SET_IV_FIXED, (int)fixed_len, fixed) > 0);
        EXPECT(EVP_CIPHER_CTX_ctrl(both.context, EVP_CTRL_AEAD_SET_IV_FIXED, (int)fixed_len, fixed) > 0);
        EXPECT(EVP_CIPHER_CTX_ctrl(opens.context, EVP_CTRL_AEAD_SET_IV_FIXED, (int)fixed_len, fixed) > 0);
        for (uint64_t sequence = number(3) * 0xfffffff0ULL, last = sequence + 20; sequence < last; sequence++) {
            size_t len = number(number(4) == 0 ? 16385 : 200), all = before + len + TAG;
            int wrong = number(5) == 0, result;

            snprintf(place, sizeof(place), "%s, round %ld, record of %zu bytes, %s here, fault %d", name, round, len,
                     here_seals ? "sealed" : "opened", wrong);
            fill(text, len);
            memcpy(record + before, text, len);
            EXPECT(announce(seals.context, sequence, before + len) == TAG);
            EXPECT(EVP_Cipher(seals.context, record, record, (unsigned int)all) == (int)all);
            if (!gcm) {
                memcpy(again, text, len);
                EXPECT(announce(both.context, sequence, len) == TAG);
                EXPECT(EVP_Cipher(both.context, again, again, (unsigned int)all) == (int)all);
                EXPECT(memcmp(again, record, all) == 0);
            }
            if (wrong)
                record[number(all)] ^= 0x20;
            EXPECT(announce(opens.context, sequence, all) == TAG);
            result = EVP_Cipher(opens.context, record, record, (unsigned int)all);
            if (wrong) {
                EXPECT(result < 0);
                for (size_t i = 0; i < len; i++)
                    EXPECT(record[before + i] == 0);
                EXPECT(ERR_peek_error() == 0);
                refused++;
            } else {
                /* OpenSSL says the length of the input for AES-GCM. */
                EXPECT(result == (int)(gcm ? all : len));
                EXPECT(memcmp(record + before, text, len) == 0);
                opened++;
            }
        }
        drop(&seals);
        drop(&opens);
        drop(&both);
    }
    printf("opened %ld refused %ld\n", opened, refused);
}

/* Every refusal leaves words on the error stack, or none. */
static int no(int result)
{
    ERR_clear_error();
    return result <= 0;
}

static void misuse_of(const char *name)
{
    unsigned char key[32], nonce[128], text[64], out[64], tag[TAG], made[12];
    struct side ours = side_of(name, OURS), theirs = side_of(name, THEIRS);
    EVP_CIPHER_CTX *context = ours.context;
    int written, gcm = is_gcm(name);

    snprintf(place, sizeof(place), "%s", name);
    fill(key, sizeof(key));
    fill(nonce, sizeof(nonce));
    fill(text, sizeof(text));
    /* No key. */
    EXPECT(no(EVP_EncryptUpdate(context, out, &written, text, 16)));
    EXPECT(EVP_EncryptInit_ex(context, NULL, NULL, NULL, nonce) == 1);
    EXPECT(no(EVP_EncryptUpdate(context, out, &written, text, 16)));
    EXPECT(EVP_EncryptInit_ex(context, NULL, NULL, key, NULL) == 1);
    EXPECT(EVP_EncryptUpdate(context, out, &written, text, 16) == 1);
    /* No tag before the end, and none is set for an encryption. */
    if (gcm)
        EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag)));
    EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG, tag)));
    /* What is authenticated stands before the message. */
    if (gcm)
        EXPECT(no(EVP_EncryptUpdate(context, NULL, &written, text, 16)));
    /* A part without bytes is none, and does not end the message. */
    written = 5;
    EXPECT(EVP_EncryptUpdate(context, out, &written, text, 0) == 1 && written == 0);
    EXPECT(EVP_EncryptUpdate(context, out + 16, &written, text + 16, 16) == 1);
    EXPECT(EVP_EncryptFinal_ex(context, out, &written) == 1);
    EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag) == 1);
    EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG + 1, tag)));
    EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 0, tag)));
    /* No second message with the nonce, also after an initialisation without one. */
    EXPECT(no(EVP_EncryptUpdate(context, out, &written, text, 16)));
    EXPECT(no(EVP_EncryptFinal_ex(context, out, &written)));
    EXPECT(EVP_EncryptInit_ex(context, NULL, NULL, NULL, NULL) == 1);
    EXPECT(no(EVP_EncryptUpdate(context, out, &written, text, 16)));
    nonce[0] ^= 1;
    EXPECT(EVP_EncryptInit_ex(context, NULL, NULL, NULL, nonce) == 1);
    EXPECT(EVP_EncryptUpdate(context, out, &written, text, 32) == 1);
    /* The other direction in the middle of a message begins none with the nonce again. */
    EXPECT(EVP_CipherInit_ex(context, NULL, NULL, NULL, NULL, 0) == 1);
    EXPECT(EVP_CipherInit_ex(context, NULL, NULL, NULL, NULL, 1) == 1);
    EXPECT(no(EVP_EncryptUpdate(context, out, &written, text, 16)));
    /* No end of a decryption without a tag. */
    EXPECT(EVP_CipherInit_ex(context, ours.cipher, NULL, key, nonce, 0) == 1);
    EXPECT(EVP_DecryptUpdate(context, text, &written, out, 32) == 1);
    EXPECT(no(EVP_DecryptFinal_ex(context, text, &written)));
    EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag)));
    EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG + 1, nonce)));
    EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 0, nonce)));
    /* Lengths of nonces and keys. */
    for (int len = 1; len <= 140; len++) {
        int result = EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IVLEN, len, NULL);

        EXPECT((result == 1) == (gcm ? len <= 128 : len == 12));
        EXPECT(result == EVP_CIPHER_CTX_ctrl(theirs.context, EVP_CTRL_AEAD_SET_IVLEN, len, NULL));
    }
    if (!gcm)
        EXPECT(no(EVP_CIPHER_CTX_set_key_length(context, 16)));
    EXPECT(EVP_CIPHER_CTX_get_key_length(context) == EVP_CIPHER_CTX_get_key_length(theirs.context));
    EXPECT(EVP_CIPHER_CTX_get_tag_length(context) == TAG);
    ERR_clear_error();
    /* Records: heads and fixed parts of another length, a record that is too short or, for AES-GCM, not in place. */
    EXPECT(EVP_CipherInit_ex(context, ours.cipher, NULL, key, NULL, 1) == 1);
    for (int len = 1; len <= 16; len++) {
        int result = EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IV_FIXED, len, nonce);

        EXPECT((result > 0) == (gcm ? len == 4 : len == 12));
        if (len != 13)
            EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_TLS1_AAD, len, nonce)));
    }
    EXPECT(announce(context, 1, gcm ? 8 : 0) == TAG);
    EXPECT(no(EVP_Cipher(context, out, out, gcm ? 23 : 15)));
    EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IV_FIXED, gcm ? 4 : 12, nonce) > 0);
    EXPECT(announce(context, 1, gcm ? 24 : 16) == TAG);
    if (gcm)
        EXPECT(no(EVP_Cipher(context, out, text, 40)));
    EXPECT(EVP_CipherInit_ex(context, NULL, NULL, key, NULL, 0) == 1);
    EXPECT(no(announce(context, 1, gcm ? 23 : 15)));
    if (gcm) {
        /* Nonces of a fixed part and a counter, made by one and followed by the other. */
        unsigned char end[8], end_too[8], whole[12];

        EXPECT(EVP_CipherInit_ex(context, ours.cipher, NULL, key, NULL, 1) == 1);
        EXPECT(no(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_IV_GEN, 8, end)));
        EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IV_FIXED, 4, nonce) > 0);
        for (int i = 0; i < 3; i++) {
            EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_IV_GEN, 8, i == 1 ? end : end_too) == 1);
            EXPECT(EVP_EncryptUpdate(context, out, &written, text, 64) == 1);
            EXPECT(EVP_EncryptFinal_ex(context, out, &written) == 1);
            EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag) == 1);
        }
        EXPECT(memcmp(end, end_too, 8) != 0);
        EXPECT(EVP_CipherInit_ex(theirs.context, NULL, NULL, key, NULL, 0) == 1);
        EXPECT(EVP_CIPHER_CTX_ctrl(theirs.context, EVP_CTRL_AEAD_SET_IVLEN, 12, NULL) == 1);
        EXPECT(EVP_CIPHER_CTX_ctrl(theirs.context, EVP_CTRL_AEAD_SET_IV_FIXED, 4, nonce) > 0);
        EXPECT(EVP_CIPHER_CTX_ctrl(theirs.context, EVP_CTRL_GCM_SET_IV_INV, 8, end_too) == 1);
        EXPECT(EVP_CIPHER_CTX_ctrl(theirs.context, EVP_CTRL_AEAD_SET_TAG, TAG, tag) == 1);
        EXPECT(EVP_DecryptUpdate(theirs.context, out, &written, out, 64) == 1);
        EXPECT(EVP_DecryptFinal_ex(theirs.context, out, &written) == 1 && memcmp(out, text, 64) == 0);
        /* The counter carries, and wraps within its eight bytes: -1 sets the whole nonce. */
        memset(whole, 0xff, sizeof(whole));
        EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IV_FIXED, -1, whole) > 0);
        EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_IV_GEN, 8, end) == 1 && end[0] == 0xff);
        EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_IV_GEN, 0, whole) == 1);
        EXPECT(whole[3] == 0xff && whole[4] == 0 && whole[11] == 0);
        /* A random nonce, where none is set. */
        EXPECT(EVP_CipherInit_ex(context, ours.cipher, NULL, key, NULL, 1) == 1);
        EXPECT(no(EVP_CIPHER_CTX_get_updated_iv(context, made, sizeof(made))));
        EXPECT(EVP_EncryptUpdate(context, out, &written, text, 64) == 1);
        EXPECT(EVP_EncryptFinal_ex(context, out, &written) == 1);
        EXPECT(EVP_CIPHER_CTX_get_updated_iv(context, made, sizeof(made)) == 1);
        EXPECT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag) == 1);
        EXPECT(EVP_CipherInit_ex(theirs.context, theirs.cipher, NULL, key, made, 0) == 1);
        EXPECT(EVP_CIPHER_CTX_ctrl(theirs.context, EVP_CTRL_AEAD_SET_TAG, TAG, tag) == 1);
        EXPECT(EVP_DecryptUpdate(theirs.context, out, &written, out, 64) == 1);
        EXPECT(EVP_DecryptFinal_ex(theirs.context, out, &written) == 1 && memcmp(out, text, 64) == 0);
    }
    drop(&ours);
    drop(&theirs);
}

static size_t hex(const char *text, unsigned char *bytes, size_t room)
{
    size_t len = strcmp(text, "-") == 0 ? 0 : strlen(text) / 2;

    EXPECT(len <= room);
    for (size_t i = 0; i < len; i++) {
        unsigned int byte;

        EXPECT(sscanf(text + 2 * i, "%2x", &byte) == 1);
        bytes[i] = (unsigned char)byte;
    }
    return len;
}

static void vectors(void)
{
    static char name[64], words[6][8192], result[16];
    static unsigned char text[4096], out[4096], tag[TAG];
    static struct message message;
    long agreed = 0, refused_length = 0;

    while (scanf("%63s %8191s %8191s %8191s %8191s %8191s %8191s %15s", name, words[0], words[1], words[2], words[3],
                 words[4], words[5], result)
           == 8) {
        int valid = strcmp(result, "valid") == 0, opened, theirs_opened;
        unsigned char nonce[400];
        struct side ours = side_of(name, OURS), theirs = side_of(name, THEIRS);

        snprintf(place, sizeof(place), "%s %.100s", name, words[1]);
        hex(words[0], message.key, sizeof(message.key));
        message.nonce_len = hex(words[1], nonce, sizeof(nonce));
        message.aad_len = hex(words[2], message.aad, sizeof(message.aad));
        message.len = hex(words[3], text, sizeof(text));
        EXPECT(hex(words[4], message.text, sizeof(message.text)) == message.len);
        message.tag_len = hex(words[5], message.tag, TAG);
        memcpy(message.nonce, nonce, message.nonce_len < 128 ? message.nonce_len : 128);
        opened = run(&ours, 0, &message, message.text, out, NULL);
        if (opened)
            EXPECT(memcmp(out, text, message.len) == 0);
        theirs_opened = run(&theirs, 0, &message, message.text, out, NULL);
        EXPECT(opened == theirs_opened);
        if (message.nonce_len == 0 || message.nonce_len > (is_gcm(name) ? 128 : 12)) {
            refused_length++;
            EXPECT(!opened);
        } else {
            EXPECT(opened == valid);
            agreed++;
        }
        if (valid && opened) {
            EXPECT(run(&ours, 1, &message, text, out, tag));
            EXPECT(memcmp(out, message.text, message.len) == 0 && memcmp(tag, message.tag, TAG) == 0);
        }
        ERR_clear_error();
        drop(&ours);
        drop(&theirs);
    }
    printf("agreed %ld refused %ld\n", agreed, refused_length);
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    long rounds = argc > 2 ? atol(argv[2]) : 0;

    if (argc > 3)
        state ^= (uint64_t)atol(argv[3]) * 0x9e3779b97f4a7c15ULL;
    if (strcmp(command, "random") == 0) {
        random_ciphers(rounds);
        random_digests(rounds);
    } else if (strcmp(command, "records") == 0) {
        records(rounds);
    } else if (strcmp(command, "misuse") == 0) {
        for (int i = 0; i < CIPHER_COUNT; i++)
            misuse_of(CIPHERS[i]);
        printf("refused\n");
    } else if (strcmp(command, "vectors") == 0) {
        vectors();
    } else {
        die("a command");
    }
    return 0;
}
