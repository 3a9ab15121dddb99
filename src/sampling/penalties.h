// The stages before temperature, which change single logits.
#ifndef KVASIR_SAMPLING_PENALTIES_H_
#define KVASIR_SAMPLING_PENALTIES_H_

#include <cstdint>
#include <span>

#include "kvasir/sampling.h"

namespace kvasir {

// Whether any of these stages is on.
bool changes_logits(const SamplingParams& params);

// Adds logit_bias, then applies repetition, presence and frequency penalties for the tokens of the window.
// row [vocab]; ids are inside the vocabulary; counts [vocab] holds zeros, and again when done.
// Neutral parameters leave the row's bits as they are.
void apply_bias_and_penalties(std::span<double> row, const SamplingParams& params,
                              std::span<const TokenId> prompt, std::span<const TokenId> output,
                              std::span<std::int32_t> counts);

}  // namespace kvasir

#endif  // KVASIR_SAMPLING_PENALTIES_H_
