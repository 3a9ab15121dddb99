// The kernel sets beside the reference. Each may be called only on a machine that has its instructions.
#ifndef KVASIR_KERNELS_INSTRUCTION_SETS_H_
#define KVASIR_KERNELS_INSTRUCTION_SETS_H_

#include "kernels/kernels.h"

namespace kvasir::kernels {

#if defined(__x86_64__)
const KernelSet& avx2_kernels();        // AVX2, FMA, F16C
const KernelSet& avx512_kernels();      // AVX-512 F, BW, DQ, VL
const KernelSet& avx512vnni_kernels();  // the same with VNNI
const KernelSet& avx512bf16_kernels();  // the same with VNNI and BF16
const KernelSet& amx_kernels();         // the same with VNNI, BF16 and AMX int8

// Whether this machine's bfloat16 products are summed as the definition says (they are on all that are
// known); needs AVX-512 BF16.
bool avx512bf16_is_as_defined();

// Whether this machine has AMX int8 and its kernel lets this process use it, as it may from then on.
bool request_amx();
#elif defined(__aarch64__)
const KernelSet& neon_kernels();     // every 64-bit Arm processor
const KernelSet& neondot_kernels();  // the dot product extension
#endif

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_INSTRUCTION_SETS_H_
