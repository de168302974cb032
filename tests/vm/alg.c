// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// AES-CBC through AF_ALG by driver name: alg DRIVER KEYHEX IVHEX LENGTH prints the ciphertext of LENGTH zero bytes as
// hexadecimal digits, after it has decrypted it again.
#include <errno.h>
#include <linux/if_alg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int bytes(const char *hex, unsigned char *out) {
    int len = (int)strlen(hex) / 2;
    for (int i = 0; i < len; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) exit(2);
        out[i] = (unsigned char)byte;
    }
    return len;
}

static int fail(const char *step) {
    printf("%s: %s\n", step, strerror(errno));
    return 1;
}

static long run(int op, int encrypt, const unsigned char *iv, const void *in, size_t len, void *out) {
    char control[CMSG_SPACE(4) + CMSG_SPACE(20)] = {0};
    struct iovec part = {(void *)in, len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_ALG;
    header->cmsg_type = ALG_SET_OP;
    header->cmsg_len = CMSG_LEN(4);
    *(unsigned *)CMSG_DATA(header) = encrypt ? ALG_OP_ENCRYPT : ALG_OP_DECRYPT;
    header = CMSG_NXTHDR(&message, header);
    header->cmsg_level = SOL_ALG;
    header->cmsg_type = ALG_SET_IV;
    header->cmsg_len = CMSG_LEN(20);
    struct af_alg_iv *place = (void *)CMSG_DATA(header);
    place->ivlen = 16;
    memcpy(place->iv, iv, 16);
    return sendmsg(op, &message, 0) == (ssize_t)len ? read(op, out, len) : -1;
}

int main(int count, char **argument) {
    static unsigned char text[1 << 16], sealed[1 << 16], opened[1 << 16];
    unsigned char key[64], iv[16];
    struct sockaddr_alg address = {.salg_family = AF_ALG, .salg_type = "skcipher"};
    if (count != 5) return 2;
    strncpy((char *)address.salg_name, argument[1], sizeof address.salg_name - 1);
    int key_len = bytes(argument[2], key);
    if (bytes(argument[3], iv) != 16) return 2;
    long len = atol(argument[4]);
    if (len < 16 || len > (long)sizeof text) return 2;
    int algorithm = socket(AF_ALG, SOCK_SEQPACKET, 0);
    if (algorithm < 0 || bind(algorithm, (void *)&address, sizeof address)) return fail("bind");
    if (setsockopt(algorithm, SOL_ALG, ALG_SET_KEY, key, key_len)) return fail("key");
    int op = accept(algorithm, 0, 0);
    if (op < 0) return fail("accept");
    if (run(op, 1, iv, text, len, sealed) != len) return fail("encrypt");
    if (run(op, 0, iv, sealed, len, opened) != len) return fail("decrypt");
    if (memcmp(text, opened, len)) {
        printf("decryption differs\n");
        return 1;
    }
    for (long i = 0; i < len; i++) printf("%02x", sealed[i]);
    printf("\n");
    return 0;
}
