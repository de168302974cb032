// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The sizes and offsets that crates/backends/src/qat/sys.rs asserts, compared with Intel's headers: it compiles
// where they are equal.

#include <stddef.h>

#include "cpa.h"
#include "cpa_cy_ec.h"
#include "cpa_cy_im.h"
#include "cpa_cy_ln.h"
#include "cpa_cy_rsa.h"
#include "icp_sal_poll.h"
#include "icp_sal_user.h"
#include "qae_mem.h"

#define SAME(what, value) _Static_assert((what) == (value), #what)

SAME(sizeof(CpaFlatBuffer), 16);
SAME(offsetof(CpaFlatBuffer, pData), 8);
SAME(sizeof(CpaCyRsaPrivateKey), 120);
SAME(offsetof(CpaCyRsaPrivateKey, privateKeyRepType), 4);
SAME(offsetof(CpaCyRsaPrivateKey, privateKeyRep1), 8);
SAME(offsetof(CpaCyRsaPrivateKey, privateKeyRep2), 40);
SAME(offsetof(CpaCyRsaPrivateKeyRep2, prime1P), 0);
SAME(offsetof(CpaCyRsaPrivateKeyRep2, prime2Q), 16);
SAME(offsetof(CpaCyRsaPrivateKeyRep2, exponent1Dp), 32);
SAME(offsetof(CpaCyRsaPrivateKeyRep2, exponent2Dq), 48);
SAME(offsetof(CpaCyRsaPrivateKeyRep2, coefficientQInv), 64);
SAME(sizeof(CpaCyRsaDecryptOpData), 24);
SAME(offsetof(CpaCyRsaDecryptOpData, inputData), 8);
SAME(sizeof(CpaCyEcCurve), 80);
SAME(offsetof(CpaCyEcCurve, parameters), 8);
SAME(offsetof(CpaCyEcCurve, parameters.weierstrassParameters.fieldType), 8);
SAME(offsetof(CpaCyEcCurve, parameters.weierstrassParameters.p), 16);
SAME(offsetof(CpaCyEcCurve, parameters.weierstrassParameters.a), 32);
SAME(offsetof(CpaCyEcCurve, parameters.weierstrassParameters.b), 48);
SAME(offsetof(CpaCyEcCurve, parameters.weierstrassParameters.h), 64);
SAME(CPA_CY_EC_CURVE_TYPE_WEIERSTRASS_PRIME, 1);
SAME(CPA_CY_EC_FIELD_TYPE_PRIME, 1);
SAME(sizeof(CpaCyEcGenericPointMultiplyOpData), 64);
SAME(offsetof(CpaCyEcGenericPointMultiplyOpData, k), 0);
SAME(offsetof(CpaCyEcGenericPointMultiplyOpData, xP), 16);
SAME(offsetof(CpaCyEcGenericPointMultiplyOpData, yP), 32);
SAME(offsetof(CpaCyEcGenericPointMultiplyOpData, pCurve), 48);
SAME(offsetof(CpaCyEcGenericPointMultiplyOpData, generator), 56);
SAME(sizeof(CpaCyEcMontEdwdsPointMultiplyOpData), 56);
SAME(offsetof(CpaCyEcMontEdwdsPointMultiplyOpData, generator), 4);
SAME(offsetof(CpaCyEcMontEdwdsPointMultiplyOpData, k), 8);
SAME(offsetof(CpaCyEcMontEdwdsPointMultiplyOpData, x), 24);
SAME(offsetof(CpaCyEcMontEdwdsPointMultiplyOpData, y), 40);
SAME(CPA_CY_EC_MONTEDWDS_CURVE25519_TYPE, 1);
SAME(sizeof(CpaCyLnModExpOpData), 48);
SAME(offsetof(CpaCyLnModExpOpData, modulus), 0);
SAME(offsetof(CpaCyLnModExpOpData, base), 16);
SAME(offsetof(CpaCyLnModExpOpData, exponent), 32);
SAME(CPA_TRUE, 1);
SAME(sizeof(CpaInstanceInfo2), 932);
SAME(offsetof(CpaInstanceInfo2, physInstId), 388);
SAME(offsetof(CpaInstanceInfo2, coreAffinity), 400);
SAME(offsetof(CpaInstanceInfo2, nodeAffinity), 912);
SAME(offsetof(CpaInstanceInfo2, isPolled), 924);
SAME(CPA_INSTANCE_STATE_INITIALISED, 0);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
SAME(sizeof(CpaInstanceInfo), 136);
SAME(offsetof(CpaInstanceInfo, state), 4);
static CpaStatus (*const state)(const CpaInstanceHandle, CpaInstanceInfo *) = cpaCyInstanceGetInfo;
#pragma GCC diagnostic pop
SAME(sizeof(CpaCyCapabilitiesInfo), 76);
SAME(offsetof(CpaCyCapabilitiesInfo, rsaSupported), 16);
SAME(offsetof(CpaCyCapabilitiesInfo, ecSupported), 20);
SAME(offsetof(CpaCyCapabilitiesInfo, lnSupported), 36);
SAME(offsetof(CpaCyCapabilitiesInfo, ecEdMontSupported), 68);
SAME(CPA_CY_RSA_VERSION_TWO_PRIME, 1);
SAME(CPA_CY_RSA_PRIVATE_KEY_REP_TYPE_2, 2);
SAME(CPA_STATUS_SUCCESS, 0);
SAME(CPA_STATUS_RETRY, -2);
SAME(CPA_STATUS_INVALID_PARAM, -4);
SAME(CPA_STATUS_UNSUPPORTED, -6);
SAME(CPA_INSTANCE_EVENT_RESTARTING, 0);
SAME(CPA_INSTANCE_EVENT_RESTARTED, 1);
SAME(CPA_INSTANCE_EVENT_FATAL_ERROR, 2);

// The types of the functions, as far as a wrong one would be called wrongly.
static CpaStatus (*const decrypt)(const CpaInstanceHandle, const CpaCyGenFlatBufCbFunc, void *,
                                  const CpaCyRsaDecryptOpData *, CpaFlatBuffer *) = cpaCyRsaDecrypt;
static CpaStatus (*const multiply)(const CpaInstanceHandle, const CpaCyEcPointMultiplyCbFunc, void *,
                                   const CpaCyEcGenericPointMultiplyOpData *, CpaBoolean *, CpaFlatBuffer *,
                                   CpaFlatBuffer *) = cpaCyEcGenericPointMultiply;
static CpaStatus (*const ladder)(const CpaInstanceHandle, const CpaCyEcPointMultiplyCbFunc, void *,
                                 const CpaCyEcMontEdwdsPointMultiplyOpData *, CpaBoolean *, CpaFlatBuffer *,
                                 CpaFlatBuffer *) = cpaCyEcMontEdwdsPointMultiply;
static CpaStatus (*const power)(const CpaInstanceHandle, const CpaCyGenFlatBufCbFunc, void *,
                                const CpaCyLnModExpOpData *, CpaFlatBuffer *) = cpaCyLnModExp;
void multiplied(void *, CpaStatus, void *, CpaBoolean, CpaFlatBuffer *, CpaFlatBuffer *);
static const CpaCyEcPointMultiplyCbFunc callback = multiplied;
static CpaStatus (*const poll)(CpaInstanceHandle, Cpa32U) = icp_sal_CyPollInstance;
static CpaStatus (*const start)(const char *) = icp_sal_userStart;
static void *(*const allocate)(size_t, int, size_t) = qaeMemAllocNUMA;
static void (*const release)(void **) = qaeMemFreeNUMA;
static uint64_t (*const translate)(void *) = qaeVirtToPhysNUMA;
