// The parts of a Llama-style decoder layer, as the forward pass uses them.
//
// All of them work on rows: row r of a batch is one token of one sequence at one absolute position. Rows
// never influence each other except through the cache, so that any grouping of rows gives the same bits.
#ifndef KVASIR_LAYERS_H_
#define KVASIR_LAYERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvasir/config.h"
#include "kvasir/executor.h"
#include "kvasir/function_ref.h"
#include "kvasir/kv_cache.h"

namespace kvasir {

namespace kernels {
struct PackedMatrix;
}

struct Row {
  std::int32_t sequence;  // of the cache
  std::int64_t position;  // absolute
};

// One pass over a batch of rows.
struct ForwardPass {
  Executor& executor;
  SequenceCache& cache;
  std::span<const Row> rows;
  const float* cos;  // [rows][head_dim / 2], see Rope
  const float* sin;
};

// Rotary position embedding (Su et al. 2021): the pair j of a head at position p turns by p * theta^(-2 j /
// head_dim). Angles are computed in double and their cosine and sine rounded once to float.
class Rope {
 public:
  Rope(std::int64_t head_dim, double theta, RopePairing pairing);
  // cos and sin of one position, [head_dim / 2].
  void angles(std::int64_t position, float* cos, float* sin) const;
  // Rotates n heads [n][head_dim] in place.
  void rotate(const Executor& executor, float* heads, std::int64_t n, const float* cos,
              const float* sin) const;

 private:
  std::vector<double> frequencies_;  // [head_dim / 2]
  std::int64_t head_dim_;
  RopePairing pairing_;
};

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
class RmsNorm {
 public:
  RmsNorm(std::vector<float> weight, float eps);
  // x and y: [rows][weight.size()]; they may be the same.
  void forward(Executor& executor, const float* x, std::int64_t rows, float* y) const;
  void forward_row(const Executor& executor, const float* x, float* y) const;

 private:
  std::vector<float> weight_;
  float eps_;
};

// Completes the rows that go into a layer, in the same pass that converts them.
struct RowMaker {
  FunctionRef<void(std::int64_t row)> make;  // called from several threads
  FunctionRef<void()> made;                  // called once, after all rows
};

// y = W x, W: [out][in].
class Linear {
 public:
  explicit Linear(std::shared_ptr<const kernels::PackedMatrix> weight);
  std::int64_t in_features() const;
  std::int64_t out_features() const;
  // x: [rows][in]; y: [rows][out].
  void forward(Executor& executor, const float* x, std::int64_t rows, float* y) const;

  struct Product {
    const Linear* layer;
    float* y;
  };
  // Several layers with the same input: it is converted once, and their outputs are shared out together.
  static void forward_all(Executor& executor, const float* x, std::int64_t rows,
                          std::initializer_list<Product> products, const RowMaker& maker = {});
  // then(outputs), after these outputs of both, which must be of one size, have been computed;
  // called from several threads.
  struct Outputs {
    std::int64_t row_begin, row_end;
    std::int64_t begin, end;
  };
  static void forward_both(Executor& executor, const float* x, std::int64_t rows, Product first,
                           Product second, const RowMaker& maker, FunctionRef<void(const Outputs&)> then);

 private:
  static void set_inputs(Executor& executor, const float* x, std::int64_t rows,
                         std::initializer_list<Product> products, const RowMaker& maker);
  struct Pieces;  // how the outputs are shared out
  Outputs compute(Executor& executor, const Pieces& pieces, std::int64_t piece, std::int64_t all_rows,
                  float* y) const;

  std::shared_ptr<const kernels::PackedMatrix> weight_;
};

// Grouped-query attention (Ainslie et al. 2023): query head h reads kv head h / (n_head / n_kv_head).
class Attention {
 public:
  Attention(const Config& config, std::int32_t layer, Linear q, Linear k, Linear v, Linear o);
  // x, out: [rows][d_model]. Writes the rows' keys and values into the cache (without advancing it), then
  // lets every row see the keys of its sequence up to its own position. maker: see RowMaker.
  void forward(const ForwardPass& pass, const float* x, float* out, const RowMaker& maker = {}) const;
  std::int32_t layer() const { return layer_; }

 private:
  void write_cache(const ForwardPass& pass, float* q, float* k, const float* v) const;
  void attend(const ForwardPass& pass, const float* q, float* out) const;

  Config config_;
  std::int32_t layer_;
  Rope rope_;
  Linear q_, k_, v_, o_;
};

// SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x)).
class Mlp {
 public:
  Mlp(std::int32_t layer, Linear gate, Linear up, Linear down);
  void forward(Executor& executor, const float* x, std::int64_t rows, float* out,
               const RowMaker& maker = {}) const;

 private:
  std::int32_t layer_;
  Linear gate_, up_, down_;
};

// x += attention(norm(x)); x += mlp(norm(x)).
class Block {
 public:
  Block(RmsNorm input_norm, Attention attention, RmsNorm post_attention_norm, Mlp mlp);
  void forward(const ForwardPass& pass, float* x, std::int64_t d_model) const;

 private:
  RmsNorm input_norm_;
  Attention attention_;
  RmsNorm post_attention_norm_;
  Mlp mlp_;
};

}  // namespace kvasir

#endif  // KVASIR_LAYERS_H_
