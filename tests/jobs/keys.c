/* Copyright The Millrace Authors
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Reads key files as servers do, under a name that the preload library knows, and prints what came of it.
 *
 *   read FILE...    each file in every way: a line for each key, or for the errors
 *   often FILE      the file's key and certificate 50 times: how many searches for decoders that took
 *   change FILE     the file between changes to providers, properties and the default library context
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/decoder.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/ssl.h>

static int searches;

/* libcrypto's calls come here, since a program's symbols stand before those of its libraries. */
void OSSL_DECODER_do_all_provided(OSSL_LIB_CTX *library, void (*each)(OSSL_DECODER *, void *), void *argument)
{
    static void (*next)(OSSL_LIB_CTX *, void (*)(OSSL_DECODER *, void *), void *);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "OSSL_DECODER_do_all_provided");
    searches++;
    next(library, each, argument);
}

static int asked;
static const char *inner;

static EVP_PKEY *plain(const char *path)
{
    BIO *bio = BIO_new_file(path, "r");
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, NULL, "");

    BIO_free(bio);
    return key;
}

static int answer(char *to, int size, int rwflag, void *word)
{
    (void)rwflag;
    asked++;
    if (inner != NULL)
        EVP_PKEY_free(plain(inner));
    if (word == NULL)
        return -1;
    return snprintf(to, size, "%s", (const char *)word);
}

static EVP_PKEY *certified(const char *path)
{
    BIO *bio = BIO_new_file(path, "r");
    X509 *certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    EVP_PKEY *key = certificate != NULL ? X509_get_pubkey(certificate) : NULL;

    X509_free(certificate);
    BIO_free(bio);
    return key;
}

static void print(const char *file, const char *way, EVP_PKEY *key, BIO *bio)
{
    const OSSL_PROVIDER *provider = key != NULL ? EVP_PKEY_get0_provider(key) : NULL;
    unsigned char *der = NULL, digest[EVP_MAX_MD_SIZE];
    unsigned long error;
    unsigned int size = 0, i;
    int len = key != NULL ? i2d_PUBKEY(key, &der) : 0;

    printf("%s, %s: ", file, way);
    if (key != NULL) {
        printf("%s of %s", EVP_PKEY_get0_type_name(key), provider != NULL ? OSSL_PROVIDER_get0_name(provider) : "none");
        if (len > 0 && EVP_Digest(der, len, digest, &size, EVP_sha256(), NULL))
            for (i = 0; i < 8; i++)
                printf("%s%02x", i == 0 ? " " : "", digest[i]);
    }
    OPENSSL_free(der);
    while ((error = ERR_get_error()) != 0)
        printf(" [%s: %s]", ERR_lib_error_string(error), ERR_reason_error_string(error));
    printf(" asked %d", asked);
    if (bio != NULL)
        printf(" at %d", (int)BIO_tell(bio));
    printf("\n");
    asked = 0;
}

/* All keys of a file that lies in this BIO. */
static void all(const char *file, const char *way, BIO *bio, pem_password_cb *callback, void *word)
{
    EVP_PKEY *key;
    int i;

    for (i = 0; i < 3; i++) {
        key = PEM_read_bio_PrivateKey(bio, NULL, callback, word);
        print(file, way, key, bio);
        if (key == NULL)
            break;
        EVP_PKEY_free(key);
    }
    BIO_free_all(bio);
}

static char text[65536];
static int len;

static BIO *memory(void)
{
    return BIO_new_mem_buf(text, len);
}

/* A pipe, in which there is no way back. */
static BIO *piped(void)
{
    int ends[2];

    if (pipe(ends) != 0 || write(ends[1], text, len) != len)
        exit(1);
    close(ends[1]);
    return BIO_new_fd(ends[0], BIO_CLOSE);
}

static void each_way(const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash != NULL ? slash + 1 : path;
    FILE *stream = fopen(path, "r");
    EVP_PKEY *key, *read;
    BIO *bio;

    len = fread(text, 1, sizeof(text), stream);
    fclose(stream);
    all(file, "file", BIO_new_file(path, "r"), NULL, "secret");
    all(file, "memory", memory(), answer, "secret");
    all(file, "wrong word", memory(), answer, "wrong");
    all(file, "no word", memory(), answer, NULL);
    all(file, "pipe", piped(), answer, "secret");
    key = certified(path);
    print(file, "certificate", key, NULL);
    EVP_PKEY_free(key);
    /* With an error of before, which libcrypto's loop looks at. */
    ERR_raise(ERR_LIB_USER, ERR_R_PASSED_INVALID_ARGUMENT);
    bio = memory();
    key = EVP_PKEY_new();
    read = PEM_read_bio_PrivateKey(bio, &key, answer, "secret");
    print(file, read == NULL || read == key ? "in place of another" : "BESIDE another", read, bio);
    EVP_PKEY_free(key);
    BIO_free(bio);
    bio = memory();
    key = PEM_read_bio_PrivateKey_ex(bio, NULL, answer, "secret", NULL, "provider=default");
    print(file, "with properties", key, bio);
    EVP_PKEY_free(key);
    BIO_free(bio);
}

static void once(const char *path, const char *when)
{
    EVP_PKEY *key = plain(path);

    print("key", when, key, NULL);
    EVP_PKEY_free(key);
    key = certified(path);
    print("certificate", when, key, NULL);
    EVP_PKEY_free(key);
}

static void *thread(void *path)
{
    once(path, "on a thread");
    once(path, "on a thread, again");
    return NULL;
}

static void change(const char *path)
{
    OSSL_LIB_CTX *other = OSSL_LIB_CTX_new(), *before;
    OSSL_PROVIDER *provider;
    pthread_t id;

    once(path, "first");
    provider = OSSL_PROVIDER_load(NULL, "null");
    once(path, "a provider more");
    OSSL_PROVIDER_unload(provider);
    once(path, "a provider less");
    EVP_set_default_properties(NULL, "provider=default");
    once(path, "other properties");
    before = OSSL_LIB_CTX_set0_default(other);
    once(path, "another library context");
    OSSL_LIB_CTX_set0_default(before);
    once(path, "the one before");
    OSSL_LIB_CTX_free(other);
    other = OSSL_LIB_CTX_new();
    OSSL_LIB_CTX_set0_default(other);
    once(path, "a third one");
    OSSL_LIB_CTX_set0_default(before);
    if (pthread_create(&id, NULL, thread, (void *)path) != 0 || pthread_join(id, NULL) != 0)
        exit(1);
    once(path, "last");
}

int main(int argc, char **argv)
{
    int i, first = 0;

    OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, NULL);
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "read") == 0) {
        for (i = 2; i < argc; i++)
            each_way(argv[i]);
        /* The callback for one reads another. */
        inner = argv[2];
        each_way(argv[argc - 1]);
    } else if (strcmp(argv[1], "often") == 0) {
        for (i = 0; i < 51; i++) {
            EVP_PKEY_free(plain(argv[2]));
            EVP_PKEY_free(certified(argv[2]));
            if (i == 0)
                first = searches;
        }
        printf("first %d\nfurther %d\n", first, searches - first);
    } else {
        change(argv[2]);
    }
    return 0;
}
