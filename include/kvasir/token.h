#ifndef KVASIR_TOKEN_H_
#define KVASIR_TOKEN_H_

#include <cstdint>

namespace kvasir {

using TokenId = std::int32_t;  // 0 <= id < vocab_size

}  // namespace kvasir

#endif  // KVASIR_TOKEN_H_
