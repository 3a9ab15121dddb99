// The shape of a model, and the choices of representation that change its numbers.
#ifndef KVASIR_CONFIG_H_
#define KVASIR_CONFIG_H_

#include <cstdint>

namespace kvasir {

enum class RopePairing {
  kHalfSplit,    // pairs (i, i + head_dim / 2): Hugging Face, "NEOX"
  kInterleaved,  // pairs (2 i, 2 i + 1): the original paper (Su et al. 2021), llama.cpp's "NORM"
};

enum class KvType { kF32, kF16, kBF16 };  // in which keys and values are kept

// How the inputs of a linear layer are represented.
enum class Activations {
  kDefault,  // as the weight's type asks for: int8 blocks for block-quantized weights, bfloat16 for bfloat16
  kF32,      // float32 inputs, weights dequantized exactly to float32
};

// What a cache is made of unless somebody chooses: half the memory, but exact where float references are
// compared with.
inline KvType default_kv_type(Activations activations) {
  return activations == Activations::kF32 ? KvType::kF32 : KvType::kF16;
}

// A Llama-style decoder. The defaults are the lab's small model.
struct Config {
  std::int32_t vocab_size = 128;
  std::int32_t max_seq = 64;  // positions: prompt and new tokens together
  std::int32_t n_layer = 2;
  std::int32_t n_head = 4;     // query heads
  std::int32_t n_kv_head = 2;  // key/value heads; n_head is a multiple of it
  std::int32_t head_dim = 16;  // even
  std::int32_t d_model = 64;
  std::int32_t d_ff = 176;
  double rope_theta = 10000.0;
  float rms_eps = 1e-5F;
  RopePairing rope_pairing = RopePairing::kHalfSplit;
};

// Error(kInvalidArgument) naming the first field that cannot be.
void check_config(const Config& config);

}  // namespace kvasir

#endif  // KVASIR_CONFIG_H_
