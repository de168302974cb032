#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the kernels of the cuda backend without an installed toolkit and without a GPU, and checks what
# came out. The compiler is that of CUDA 13.0, from Python wheels, in a virtual environment under target/.
#
#   scripts/cuda.sh build    writes the PTX that is committed, what was found in the machine code, and the fat
#                            binary that is installed
#   scripts/cuda.sh check    the same into target/, compared with what is committed
#
# The PTX is what everything comes from: the machine code in the fat binary is assembled from it, and so is
# what a driver makes where there is no fat binary.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'cuda: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# 13.0 and not newer: a driver takes PTX of its own version at most.
COMPILER=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*')
# The disassembler may be newer, and there is none in 13.0.
READER=('nvidia-cuda-cuobjdump>=13.2,<14' 'nvidia-cuda-nvdisasm>=13.2,<14')
# Compute capabilities with machine code of their own. Later ones assemble the PTX.
ARCHITECTURES=(80 89 90 100)
# The oldest PTX that the text is good for, which is that of CUDA 12.0: drivers from 525 on take it.
PTX_VERSION=8.0
# Stack that a kernel may use: none, since a number that is spilled is a secret left in memory.
STACK=0

KERNELS=crates/backends/src/cuda/kernels
COMMITTED=$KERNELS/kernels.ptx
# What the assembler made of each kernel: there only if nothing spills and nothing else that is forbidden
# occurs. A test of the backend compares its hash with the sources.
FOUND=$KERNELS/machine_code.txt
OUT=target/cuda
VENV=$OUT/venv
SOURCES=(fp52.h integer.h kernels.cu lanes.h rates.h rsa.h variants.h)

install_compiler() {
    local wanted="${COMPILER[*]} ${READER[*]}"
    [[ -f $VENV/wheels && $(<"$VENV/wheels") == "$wanted" ]] && return
    say "installing the compiler into $VENV (about 500 MB)"
    rm -rf "$VENV"
    python3 -m venv "$VENV" || die "python3 has no venv: install python3-venv"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check "${COMPILER[@]}" "${READER[@]}" ||
        die "the wheels do not install here"
    printf '%s' "$wanted" >"$VENV/wheels"
}

# The hash of all sources, as the test of the backend computes it: of their names and contents.
source_hash() {
    local source
    for source in "${SOURCES[@]}"; do
        printf '%s\n' "$source"
        cat "$KERNELS/$source"
    done | sha256sum | cut -d' ' -f1
}

make_ptx() {
    "$BIN/nvcc" -std=c++17 -arch=compute_80 -ptx -o "$OUT/raw.ptx" "$KERNELS/kernels.cu"
    {
        printf '// Copyright The Millrace Authors\n// SPDX-License-Identifier: Apache-2.0 OR MIT\n//\n'
        printf '// Made by scripts/cuda.sh; do not edit.\n// sources: %s\n' "$(source_hash)"
        # Neither comments nor the names of local files belong there.
        sed -e "s/^\.version .*/.version $PTX_VERSION/" -e '/^\/\//d' -e '/^\t\/\/ \(begin\|end\) inline asm$/d' \
            -e '/^$/d' -e 's/^\t*//' "$OUT/raw.ptx"
    } >"$1"
}

make_cubins() {
    local arch images=()
    for arch in "${ARCHITECTURES[@]}"; do
        "$BIN/ptxas" -arch="sm_$arch" -v -o "$OUT/kernels.$arch.cubin" "$1" 2>"$OUT/kernels.$arch.log" ||
            die "ptxas for sm_$arch: $(<"$OUT/kernels.$arch.log")"
        "$BIN/cuobjdump" -sass "$OUT/kernels.$arch.cubin" >"$OUT/kernels.$arch.sass"
        images+=("--image3=kind=elf,sm=$arch,file=$OUT/kernels.$arch.cubin")
    done
    "$BIN/fatbinary" --64 --create="$OUT/millrace_cuda.fatbin" "${images[@]}" \
        "--image3=kind=ptx,sm=80,file=$1"
}

check_kernels() {
    local arch
    for arch in "${ARCHITECTURES[@]}"; do
        python3 scripts/cuda_sass.py --arch "$arch" --stack "$STACK" \
            --log "$OUT/kernels.$arch.log" --sass "$OUT/kernels.$arch.sass"
    done
}

mode=${1:-}
[[ $mode == build || $mode == check ]] || die "usage: scripts/cuda.sh build|check"
mkdir -p "$OUT"
install_compiler
BIN=$(echo "$PWD/$VENV"/lib/python3*/site-packages/nvidia/cu13/bin)
[[ -x $BIN/nvcc ]] || die "no nvcc in $BIN"
make_ptx "$OUT/kernels.ptx"
make_cubins "$OUT/kernels.ptx"
printf '# Made by scripts/cuda.sh; do not edit. No stack, no spills, no local memory, no divergent branch.\n# sources: %s\n' \
    "$(source_hash)" >"$OUT/machine_code.txt"
check_kernels | tee -a "$OUT/machine_code.txt"
if [[ $mode == build ]]; then
    cp "$OUT/kernels.ptx" "$COMMITTED"
    cp "$OUT/machine_code.txt" "$FOUND"
    say "wrote $COMMITTED, $FOUND and $OUT/millrace_cuda.fatbin"
elif cmp -s "$OUT/kernels.ptx" "$COMMITTED" && cmp -s "$OUT/machine_code.txt" "$FOUND"; then
    say "$COMMITTED and $FOUND are what their sources give"
else
    die "$COMMITTED or $FOUND is not what its sources give: run scripts/cuda.sh build and commit the result"
fi
