// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The sizes and offsets that crates/deflate/src/qat/sys.rs asserts, compared with Intel's headers: it compiles
// where they are equal.

#include <stddef.h>

#include "cpa.h"
#include "cpa_dc.h"
#include "icp_sal_poll.h"

#define SAME(what, value) _Static_assert((what) == (value), #what)

SAME(sizeof(CpaBufferList), 32);
SAME(offsetof(CpaBufferList, pBuffers), 8);
SAME(offsetof(CpaBufferList, pPrivateMetaData), 24);
SAME(sizeof(CpaDcNsSetupData), 52);
SAME(offsetof(CpaDcNsSetupData, compLevel), 0);
SAME(offsetof(CpaDcNsSetupData, compType), 4);
SAME(offsetof(CpaDcNsSetupData, huffType), 8);
SAME(offsetof(CpaDcNsSetupData, autoSelectBestHuffmanTree), 12);
SAME(offsetof(CpaDcNsSetupData, sessDirection), 16);
SAME(offsetof(CpaDcNsSetupData, sessState), 20);
SAME(offsetof(CpaDcNsSetupData, windowSize), 24);
SAME(offsetof(CpaDcNsSetupData, checksum), 44);
SAME(sizeof(CpaDcOpData), 64);
SAME(offsetof(CpaDcOpData, flushFlag), 0);
SAME(offsetof(CpaDcOpData, compressAndVerify), 4);
SAME(offsetof(CpaDcOpData, integrityCrcCheck), 12);
SAME(offsetof(CpaDcOpData, inputSkipData), 24);
SAME(offsetof(CpaDcOpData, pCrcData), 56);
SAME(sizeof(CpaDcRqResults), 24);
SAME(offsetof(CpaDcRqResults, status), 0);
SAME(offsetof(CpaDcRqResults, produced), 4);
SAME(offsetof(CpaDcRqResults, consumed), 8);
SAME(offsetof(CpaDcRqResults, checksum), 12);
SAME(CPA_DC_DEFLATE, 3);
SAME(CPA_DC_HT_FULL_DYNAMIC, 2);
SAME(CPA_DC_ASB_ENABLED, 4);
SAME(CPA_DC_DIR_COMPRESS, 0);
SAME(CPA_DC_STATELESS, 1);
SAME(CPA_DC_WINSIZE_32K, 3);
SAME(CPA_DC_FLUSH_FINAL, 1);
SAME(CPA_DC_FLUSH_FULL, 3);
SAME(CPA_DC_NONE, 0);
SAME(CPA_DC_OVERFLOW, -11);
SAME(CPA_DC_L1, 1);
SAME(CPA_DC_L9, 9);

// The types of the functions, as far as a wrong one would be called wrongly.
static CpaStatus (*const compress)(CpaInstanceHandle, CpaDcNsSetupData *, CpaBufferList *, CpaBufferList *,
                                   CpaDcOpData *, CpaDcRqResults *, CpaDcCallbackFn, void *) = cpaDcNsCompressData;
static void (*const answered)(void *, CpaStatus) = (CpaDcCallbackFn)0;
static CpaStatus (*const count)(Cpa16U *) = cpaDcGetNumInstances;
static CpaStatus (*const list)(Cpa16U, CpaInstanceHandle *) = cpaDcGetInstances;
static CpaStatus (*const start)(CpaInstanceHandle, Cpa16U, CpaBufferList **) = cpaDcStartInstance;
static CpaStatus (*const between)(CpaInstanceHandle, Cpa16U *) = cpaDcGetNumIntermediateBuffers;
static CpaStatus (*const meta)(const CpaInstanceHandle, Cpa32U, Cpa32U *) = cpaDcBufferListGetMetaSize;
static CpaStatus (*const poll)(CpaInstanceHandle, Cpa32U) = icp_sal_DcPollInstance;
