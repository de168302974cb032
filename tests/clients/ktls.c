// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A kernel with TLS, to be preloaded: it takes every offer of a connection, and writes which cipher was offered for which
// direction to standard error. It encrypts nothing, so that a connection ends at its first record after the handshake.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/tls.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif

int setsockopt(int fd, int level, int option, const void *value, socklen_t len) {
    static int (*next)(int, int, int, const void *, socklen_t);
    if (level == SOL_TCP && option == TCP_ULP && len >= 3 && memcmp(value, "tls", 3) == 0) return 0;
    if (level == SOL_TLS && (option == TLS_TX || option == TLS_RX)) {
        const struct tls_crypto_info *info = value;
        fprintf(stderr, "ktls: %s version %x cipher %d\n", option == TLS_TX ? "sends" : "receives",
                info->version, info->cipher_type);
        return 0;
    }
    if (level == SOL_TLS) return 0;
    if (!next) next = (int (*)(int, int, int, const void *, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
    return next(fd, level, option, value, len);
}
