// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The firmware's public-key functions, computed with OpenSSL. Part of card.c, whose memory they read and write.

enum kind { RSA_CRT, MODEXP, RSA_KEY, SIGN, SIGN_PACKED, VERIFY_PACKED, MULTIPLY, MULTIPLY_BASE, MULTIPLY_CURVE, X25519 };
static const struct function { uint32_t id; enum kind kind; uint32_t size; const char *curve; } FUNCTIONS[] = {
    {0x26131c2d, RSA_CRT, 128, 0}, {0x45111d12, RSA_CRT, 192, 0}, {0x59121dfa, RSA_CRT, 256, 0},
    {0x81121ed9, RSA_CRT, 384, 0}, {0xb1111fb2, RSA_CRT, 512, 0}, {0xc9133606, RSA_CRT, 1024, 0},
    // RSA with n and d, RSA encryption, Diffie-Hellman and plain exponentiation: base, exponent, modulus.
    {0x35111c12, MODEXP, 128, 0}, {0x6e111dda, MODEXP, 256, 0}, {0x7d111ebe, MODEXP, 384, 0},
    {0xa5101f98, MODEXP, 512, 0}, {0xc31335e6, MODEXP, 1024, 0}, {0x35111bf7, MODEXP, 128, 0},
    {0x4d111cdc, MODEXP, 192, 0}, {0x6e111dba, MODEXP, 256, 0}, {0x7d111ea3, MODEXP, 384, 0},
    {0xa5101f7e, MODEXP, 512, 0}, {0xc31335c6, MODEXP, 1024, 0}, {0x4d0c1a60, MODEXP, 256, 0},
    {0x510c1a77, MODEXP, 384, 0}, {0x690c1a8e, MODEXP, 512, 0}, {0xcd0d3636, MODEXP, 1024, 0},
    {0x150c2327, MODEXP, 64, 0}, {0x2d0c233e, MODEXP, 128, 0}, {0x410c2355, MODEXP, 192, 0},
    {0x5e12236c, MODEXP, 256, 0}, {0x60162388, MODEXP, 320, 0}, {0x650c23a9, MODEXP, 384, 0},
    {0x801623c0, MODEXP, 448, 0}, {0x850c23e1, MODEXP, 512, 0}, {0xc50c3646, MODEXP, 1024, 0},
    {0x40451b9e, RSA_KEY, 128, 0}, {0x42341d5b, RSA_KEY, 256, 0}, {0x68331e45, RSA_KEY, 384, 0},
    {0x91251f27, RSA_KEY, 512, 0}, {0x36181b71, RSA_KEY, 128, 0}, {0x72181d2e, RSA_KEY, 256, 0},
    {0x60191e16, RSA_KEY, 384, 0}, {0x7d1f1ef6, RSA_KEY, 512, 0},
    {0x18133566, SIGN, 32, "prime256v1"}, {0x1a1335a6, SIGN, 48, "secp384r1"},
    {0x6a3c2fa6, SIGN_PACKED, 32, 0}, {0x5a2b3127, SIGN_PACKED, 64, 0}, {0x494a329b, SIGN_PACKED, 72, 0},
    {0x325b3023, VERIFY_PACKED, 32, 0}, {0x3553318a, VERIFY_PACKED, 64, 0}, {0x554c331f, VERIFY_PACKED, 72, 0},
    {0x0a083546, MULTIPLY, 32, "prime256v1"}, {0x0b083586, MULTIPLY, 48, "secp384r1"},
    {0x12073556, MULTIPLY_BASE, 32, "prime256v1"}, {0x0b073596, MULTIPLY_BASE, 48, "secp384r1"},
    {0x432033a6, MULTIPLY_CURVE, 32, 0}, {0x41253419, MULTIPLY_CURVE, 64, 0}, {0x5511346e, MULTIPLY_CURVE, 72, 0},
    {0x0a0634c6, X25519, 32, 0},
};

#define NUMBERS 11
#define LONGEST 1024
enum answer { RIGHT = 0, FAILED = 1, UNSUPPORTED = 2 };

// One request as the firmware sees it, with scratch numbers.
struct work {
    const struct function *f;
    uint64_t in[8], out[8];
    BN_CTX *context;
    BIGNUM *v[NUMBERS], *r, *s;
};

static int read_number(BIGNUM *to, uint64_t iova, uint32_t size) {
    uint8_t bytes[LONGEST];
    return dma_read(iova, bytes, size) || !BN_bin2bn(bytes, (int)size, to);
}

static int write_number(uint64_t iova, uint32_t size, const BIGNUM *from) {
    uint8_t bytes[LONGEST];
    return BN_bn2binpad(from, bytes, (int)size) != (int)size || dma_write(iova, bytes, size);
}

static enum answer rsa_crt(struct work *w) {
    uint32_t n = w->f->size;
    for (int i = 0; i < 6; i++) if (read_number(w->v[i], w->in[i], i ? n / 2 : n)) return FAILED;
    BIGNUM *c = w->v[0], *p = w->v[1], *q = w->v[2], *dp = w->v[3], *dq = w->v[4], *qinv = w->v[5], *m2 = w->v[6];
    int ok = BN_is_odd(p) && BN_is_odd(q) && BN_mod_exp(w->r, c, dp, p, w->context) &&
             BN_mod_exp(m2, c, dq, q, w->context) && BN_mod_sub(w->r, w->r, m2, p, w->context) &&
             BN_mod_mul(w->r, w->r, qinv, p, w->context) && BN_mul(w->r, w->r, q, w->context) && BN_add(w->r, w->r, m2);
    return ok && !write_number(w->out[0], n, w->r) ? RIGHT : FAILED;
}

static enum answer modexp(struct work *w) {
    for (int i = 0; i < 3; i++) if (read_number(w->v[i], w->in[i], w->f->size)) return FAILED;
    int ok = !BN_is_zero(w->v[2]) && BN_mod_exp(w->r, w->v[0], w->v[1], w->v[2], w->context);
    return ok && !write_number(w->out[0], w->f->size, w->r) ? RIGHT : FAILED;
}

// From p, q and e: n and d, and with more outputs the parts for the Chinese remainder theorem.
static enum answer rsa_key(struct work *w, int outputs) {
    uint32_t n = w->f->size;
    BIGNUM *p = w->v[0], *q = w->v[1], *e = w->v[2], *p1 = w->v[3], *q1 = w->v[4], *d = w->v[5];
    if (read_number(p, w->in[0], n / 2) || read_number(q, w->in[1], n / 2) || read_number(e, w->in[2], n)) return FAILED;
    BN_sub(p1, p, BN_value_one());
    BN_sub(q1, q, BN_value_one());
    BN_mul(w->r, p, q, w->context);
    int bad = write_number(w->out[0], n, w->r);
    BN_gcd(w->s, p1, q1, w->context);
    BN_mul(w->r, p1, q1, w->context);
    BN_div(w->r, NULL, w->r, w->s, w->context);
    if (!BN_mod_inverse(d, e, w->r, w->context)) return FAILED;
    bad |= write_number(w->out[1], n, d);
    if (outputs == 5) {
        BN_mod(w->r, d, p1, w->context);
        bad |= write_number(w->out[2], n / 2, w->r);
        BN_mod(w->r, d, q1, w->context);
        bad |= write_number(w->out[3], n / 2, w->r);
        bad |= !BN_mod_inverse(w->r, q, p, w->context) || write_number(w->out[4], n / 2, w->r);
    }
    return bad ? FAILED : RIGHT;
}

static EC_GROUP *curve_of(const BIGNUM *q, const BIGNUM *a, const BIGNUM *b, BN_CTX *context) {
    return EC_GROUP_new_curve_GFp(q, a, b, context);
}

// Nonce k, digest e, key d, base point g of order n: the signature goes to w->r and w->s.
static int ecdsa_sign(struct work *w, EC_GROUP *group, const EC_POINT *g, const BIGNUM *n, BIGNUM *k, BIGNUM *e, BIGNUM *d) {
    EC_POINT *point = EC_POINT_new(group);
    int ok = point && !BN_is_zero(k) && EC_POINT_mul(group, point, NULL, g, k, w->context) &&
             EC_POINT_get_affine_coordinates(group, point, w->r, NULL, w->context) && BN_nnmod(w->r, w->r, n, w->context) &&
             BN_mod_mul(w->s, w->r, d, n, w->context) && BN_mod_add(w->s, w->s, e, n, w->context) &&
             BN_mod_inverse(k, k, n, w->context) && BN_mod_mul(w->s, w->s, k, n, w->context);
    EC_POINT_free(point);
    return ok && !write_number(w->out[0], w->f->size, w->r) && !write_number(w->out[1], w->f->size, w->s);
}

static enum answer sign(struct work *w) {
    for (int i = 0; i < 3; i++) if (read_number(w->v[i], w->in[i], w->f->size)) return FAILED;
    EC_GROUP *group = EC_GROUP_new_by_curve_name(OBJ_sn2nid(w->f->curve));
    int ok = ecdsa_sign(w, group, EC_GROUP_get0_generator(group), EC_GROUP_get0_order(group), w->v[0], w->v[1], w->v[2]);
    EC_GROUP_free(group);
    return ok ? RIGHT : FAILED;
}

static int read_packed(struct work *w, int count) {
    for (int i = 0; i < count; i++)
        if (read_number(w->v[i], w->in[0] + (uint64_t)i * w->f->size, w->f->size)) return -1;
    return 0;
}

static enum answer sign_packed(struct work *w) {
    if (read_packed(w, 9)) return FAILED;
    BIGNUM **v = w->v;  // xG, yG, n, q, a, b, k, e, d
    EC_GROUP *group = curve_of(v[3], v[4], v[5], w->context);
    EC_POINT *g = group ? EC_POINT_new(group) : NULL;
    int ok = g && EC_POINT_set_affine_coordinates(group, g, v[0], v[1], w->context) &&
             ecdsa_sign(w, group, g, v[2], v[6], v[7], v[8]);
    EC_POINT_free(g);
    EC_GROUP_free(group);
    return ok ? RIGHT : FAILED;
}

static enum answer verify_packed(struct work *w) {
    if (read_packed(w, 11)) return FAILED;
    BIGNUM **v = w->v;  // e, s, r, n, xG, yG, xQ, yQ, a, b, q
    EC_GROUP *group = curve_of(v[10], v[8], v[9], w->context);
    EC_POINT *g = group ? EC_POINT_new(group) : NULL, *key = group ? EC_POINT_new(group) : NULL;
    EC_POINT *sum = group ? EC_POINT_new(group) : NULL, *part = group ? EC_POINT_new(group) : NULL;
    int ok = g && key && sum && part && EC_POINT_set_affine_coordinates(group, g, v[4], v[5], w->context) &&
             EC_POINT_set_affine_coordinates(group, key, v[6], v[7], w->context) &&
             BN_mod_inverse(v[1], v[1], v[3], w->context) && BN_mod_mul(v[0], v[0], v[1], v[3], w->context) &&
             BN_mod_mul(v[1], v[2], v[1], v[3], w->context) && EC_POINT_mul(group, sum, NULL, g, v[0], w->context) &&
             EC_POINT_mul(group, part, NULL, key, v[1], w->context) && EC_POINT_add(group, sum, sum, part, w->context) &&
             EC_POINT_get_affine_coordinates(group, sum, w->r, NULL, w->context) &&
             BN_nnmod(w->r, w->r, v[3], w->context) && !BN_cmp(w->r, v[2]);
    EC_POINT_free(g);
    EC_POINT_free(key);
    EC_POINT_free(sum);
    EC_POINT_free(part);
    EC_GROUP_free(group);
    return ok ? RIGHT : FAILED;
}

static enum answer multiply(struct work *w) {
    int base = w->f->kind == MULTIPLY_BASE, any = w->f->kind == MULTIPLY_CURVE;
    int inputs = any ? 6 : base ? 1 : 3;
    for (int i = 0; i < inputs; i++) if (read_number(w->v[i], w->in[i], w->f->size)) return FAILED;
    // A named curve: x, y, k, or k alone. Any curve: k, x, y, a, b, q.
    EC_GROUP *group = any ? curve_of(w->v[5], w->v[3], w->v[4], w->context)
                          : EC_GROUP_new_by_curve_name(OBJ_sn2nid(w->f->curve));
    EC_POINT *point = group ? EC_POINT_new(group) : NULL, *product = group ? EC_POINT_new(group) : NULL;
    BIGNUM *k = w->v[any || base ? 0 : 2], *x = w->v[any ? 1 : 0], *y = w->v[any ? 2 : 1];
    int ok = point && product &&
             (base ? EC_POINT_mul(group, product, k, NULL, NULL, w->context)
                   : EC_POINT_set_affine_coordinates(group, point, x, y, w->context) &&
                         EC_POINT_mul(group, product, NULL, point, k, w->context)) &&
             EC_POINT_get_affine_coordinates(group, product, w->r, w->s, w->context) &&
             !write_number(w->out[0], w->f->size, w->r) && !write_number(w->out[1], w->f->size, w->s);
    EC_POINT_free(point);
    EC_POINT_free(product);
    EC_GROUP_free(group);
    return ok ? RIGHT : FAILED;
}

// The device has numbers big-endian, RFC 7748 little-endian.
static enum answer x25519(struct work *w) {
    uint8_t x[32], k[32], shared[32], big[32];
    size_t size = sizeof shared;
    if (dma_read(w->in[0], big, 32)) return FAILED;
    for (int i = 0; i < 32; i++) x[i] = big[31 - i];
    if (dma_read(w->in[1], big, 32)) return FAILED;
    for (int i = 0; i < 32; i++) k[i] = big[31 - i];
    EVP_PKEY *secret = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, k, 32);
    EVP_PKEY *peer = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, x, 32);
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(secret, NULL);
    int ok = context && EVP_PKEY_derive_init(context) > 0 && EVP_PKEY_derive_set_peer(context, peer) > 0 &&
             EVP_PKEY_derive(context, shared, &size) > 0;
    for (int i = 0; i < 32; i++) big[i] = shared[31 - i];
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(secret);
    EVP_PKEY_free(peer);
    return ok && !dma_write(w->out[0], big, 32) ? RIGHT : FAILED;
}

// A request: 64 bytes in the request ring.
struct request {
    uint8_t before[2], type, flags, head[16];
    uint32_t function;
    uint64_t opaque, inputs, outputs;
    uint8_t output_count, input_count, after[14];
};
_Static_assert(sizeof(struct request) == 64, "the size of a public-key request");

static enum answer compute(const struct request *request, int wrong) {
    struct work w = {0};
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (FUNCTIONS[i].id == request->function) w.f = &FUNCTIONS[i];
    if (!w.f) {
        controls->unknown_functions++;
        fprintf(stderr, "card: unknown function %#x\n", request->function);
        return UNSUPPORTED;
    }
    if (request->input_count > 8 || request->output_count > 8 ||
        dma_read(request->inputs, w.in, 8u * request->input_count) ||
        (request->output_count && dma_read(request->outputs, w.out, 8u * request->output_count)))
        return FAILED;
    w.context = BN_CTX_new();
    for (int i = 0; i < NUMBERS; i++) w.v[i] = BN_new();
    w.r = BN_new();
    w.s = BN_new();
    enum answer answer = FAILED;
    switch (w.f->kind) {
    case RSA_CRT: answer = rsa_crt(&w); break;
    case MODEXP: answer = modexp(&w); break;
    case RSA_KEY: answer = rsa_key(&w, request->output_count); break;
    case SIGN: answer = sign(&w); break;
    case SIGN_PACKED: answer = sign_packed(&w); break;
    case VERIFY_PACKED: answer = verify_packed(&w); break;
    case MULTIPLY: case MULTIPLY_BASE: case MULTIPLY_CURVE: answer = multiply(&w); break;
    case X25519: answer = x25519(&w); break;
    }
    uint8_t byte;
    if (answer == RIGHT && wrong && request->output_count && !dma_read(w.out[0] + w.f->size / 2, &byte, 1)) {
        byte ^= 1;
        dma_write(w.out[0] + w.f->size / 2, &byte, 1);
        controls->wrong++;
    }
    for (int i = 0; i < NUMBERS; i++) BN_clear_free(w.v[i]);
    BN_clear_free(w.r);
    BN_clear_free(w.s);
    BN_CTX_free(w.context);
    return answer;
}
