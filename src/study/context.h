// What every study of a model checks before it begins.
#ifndef KVASIR_STUDY_CONTEXT_H_
#define KVASIR_STUDY_CONTEXT_H_

#include <fmt/format.h>

#include <cstdint>

#include "kvasir/error.h"
#include "kvasir/language_model.h"

namespace kvasir {

// Error(kCapacity) if so many positions are more than the model's context.
inline void check_context(const LanguageModel& model, std::int64_t positions) {
  const std::int64_t context = model.model().config().max_seq;
  if (positions <= context) return;
  throw Error(ErrorKind::kCapacity,
              fmt::format("the study needs {} positions of one sequence, the model's context has {}: choose "
                          "shorter prompts or fewer tokens",
                          positions, context));
}

}  // namespace kvasir

#endif  // KVASIR_STUDY_CONTEXT_H_
