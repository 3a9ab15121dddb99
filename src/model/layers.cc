#include "kvasir/layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/elementary.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/linear_inputs.h"
#include "model/workspace.h"

namespace kvasir {
namespace {

// Weights that one thread takes at a time, for up to so many rows: large enough that taking costs nothing,
// small enough that a thread which is held up delays little.
constexpr std::size_t kPieceBytes = 128 * 1024;
constexpr std::int64_t kPieceRows = 16;
constexpr std::int64_t kQuantPanels = 2;  // what the widest tiles have
constexpr std::int64_t kFloatPanels = 4;
constexpr std::int64_t kTileRows = 12;
constexpr std::int64_t kRowsAtOnce = 120;

constexpr std::int64_t kQueriesAtOnce = 48;  // rows times heads that share the keys and values of a pass
constexpr std::int64_t kSpansAtOnce = 2;     // that one thread takes at a time where rows are few

std::size_t elements(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

// Floats in cache lines of their own.
std::size_t whole_lines(std::size_t floats) { return (floats + 15) / 16 * 16; }

// Memory for each thread by itself.
class ThreadScratch {
 public:
  ThreadScratch(Executor& executor, std::size_t floats)
      : size_(whole_lines(floats)),
        all_(executor.buffer(Executor::Buffer::kAttentionScratch,
                             size_ * static_cast<std::size_t>(executor.threads()))) {}
  float* mine() const { return all_ + size_ * static_cast<std::size_t>(ThreadPool::worker()); }

 private:
  std::size_t size_;
  float* all_;
};

using RowTile = Executor::Workspace::RowTile;
using SpanPiece = Executor::Workspace::SpanPiece;

void make_row_tiles(std::span<const Row> rows, std::int64_t max_rows, std::vector<RowTile>& tiles) {
  tiles.clear();
  for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
    const Row& row = rows[static_cast<std::size_t>(r)];
    const bool continues = !tiles.empty() && tiles.back().sequence == row.sequence &&
                           tiles.back().position + tiles.back().rows == row.position &&
                           tiles.back().rows < max_rows;
    if (continues) {
      ++tiles.back().rows;
    } else {
      tiles.push_back({row.sequence, r, 1, row.position});
    }
  }
}

std::size_t span_sums_size(const kernels::AttentionQuery& query) {
  return static_cast<std::size_t>((query.span_end() - query.span_begin()) * query.rows * query.n_group *
                                  kernels::sums_stride(query.head_dim));
}

}  // namespace

// ---- Rope

Rope::Rope(std::int64_t head_dim, double theta, RopePairing pairing)
    : head_dim_(head_dim), pairing_(pairing) {
  for (std::int64_t j = 0; j < head_dim / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(head_dim);
    frequencies_.push_back(defined_exp(exponent * defined_log(theta)));
  }
}

void Rope::angles(std::int64_t position, float* cos, float* sin) const {
  for (std::size_t j = 0; j < frequencies_.size(); ++j) {
    const double angle = static_cast<double>(position) * frequencies_[j];
    cos[j] = static_cast<float>(defined_cos(angle));
    sin[j] = static_cast<float>(defined_sin(angle));
  }
}

void Rope::rotate(const Executor& executor, float* heads, std::int64_t n, const float* cos,
                  const float* sin) const {
  for (std::int64_t head = 0; head < n; ++head) {
    executor.kernels().rope(heads + head * head_dim_, cos, sin, head_dim_, pairing_);
  }
}

// ---- RmsNorm

RmsNorm::RmsNorm(std::vector<float> weight, float eps) : weight_(std::move(weight)), eps_(eps) {}

void RmsNorm::forward(Executor& executor, const float* x, std::int64_t rows, float* y) const {
  const auto n = static_cast<std::int64_t>(weight_.size());
  executor.pool().parallel_for(rows,
                               [&](std::int64_t row) { forward_row(executor, x + row * n, y + row * n); });
}

void RmsNorm::forward_row(const Executor& executor, const float* x, float* y) const {
  executor.kernels().rms_norm(x, weight_.data(), eps_, static_cast<std::int64_t>(weight_.size()), y);
}

// ---- Linear

// How the outputs of a matrix are shared out: pieces of some panels for some rows.
struct Linear::Pieces {
  std::int64_t panels, rows;  // in one piece
  std::int64_t row_pieces;    // that the same panels have
  std::int64_t count;

  // matrices: of the same shape, that a piece has a part of.
  Pieces(const kernels::PackedMatrix& w, std::int64_t all_rows, int threads, std::size_t matrices = 1) {
    row_pieces = (all_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    rows = all_rows;
    if (row_pieces > 1) {  // their tiles should be whole
      rows = ((all_rows + row_pieces - 1) / row_pieces + kTileRows - 1) / kTileRows * kTileRows;
      row_pieces = (all_rows + rows - 1) / rows;
    }
    const std::size_t bytes = kPieceBytes * static_cast<std::size_t>(kPieceRows) /
                              static_cast<std::size_t>(std::max(rows, kPieceRows));
    const auto at_once = static_cast<std::int64_t>(bytes / matrices / w.panel_bytes);
    std::int64_t pieces = w.panels() / std::max<std::int64_t>(at_once, 1) + 1;
    pieces = (pieces + threads - 1) / threads * threads;  // as many for every thread
    const bool int8 = kernels::input_kind(w.type) == kernels::InputKind::kInt8;
    const std::int64_t tile = int8 ? kQuantPanels : kFloatPanels;
    panels = ((w.panels() + pieces - 1) / pieces + tile - 1) / tile * tile;
    count = (w.panels() + panels - 1) / panels * row_pieces;
  }
};

Linear::Linear(std::shared_ptr<const kernels::PackedMatrix> weight) : weight_(std::move(weight)) {}

std::int64_t Linear::in_features() const { return weight_->k; }
std::int64_t Linear::out_features() const { return weight_->n; }

void Linear::forward(Executor& executor, const float* x, std::int64_t rows, float* y) const {
  forward_all(executor, x, rows, {{this, y}});
}

void Linear::set_inputs(Executor& executor, const float* x, std::int64_t rows,
                        std::initializer_list<Product> products, const RowMaker& maker) {
  std::array<kernels::InputKind, 3> kinds{};
  std::size_t count = 0;
  for (const Product& product : products) {
    const kernels::InputKind kind = kernels::input_kind(product.layer->weight_->type);
    if (std::find(kinds.begin(), kinds.begin() + count, kind) == kinds.begin() + count) kinds[count++] = kind;
  }
  executor.linear_inputs().set(executor, x, rows, products.begin()->layer->in_features(),
                               std::span(kinds).first(count), maker);
}

Linear::Outputs Linear::compute(Executor& executor, const Pieces& pieces, std::int64_t piece,
                                std::int64_t all_rows, float* y) const {
  const std::int64_t begin = piece / pieces.row_pieces * pieces.panels;
  const std::int64_t end = std::min(begin + pieces.panels, weight_->panels());
  const std::int64_t row = piece % pieces.row_pieces * pieces.rows;
  const std::int64_t rows = std::min(pieces.rows, all_rows - row);
  executor.kernels().linear(*weight_, begin, end, executor.linear_inputs().rows().from(row), rows,
                            y + row * weight_->n, weight_->n);
  return {row, row + rows, begin * kernels::kPanel, std::min(end * kernels::kPanel, weight_->n)};
}

void Linear::forward_all(Executor& executor, const float* x, std::int64_t rows,
                         std::initializer_list<Product> products, const RowMaker& maker) {
  set_inputs(executor, x, rows, products, maker);
  const int threads = executor.threads();
  std::int64_t count = 0;
  for (const Product& product : products) count += Pieces(*product.layer->weight_, rows, threads).count;
  executor.pool().parallel_for(count, [&](std::int64_t piece) {
    for (const Product& product : products) {
      const Pieces pieces(*product.layer->weight_, rows, threads);
      if (piece < pieces.count) {
        product.layer->compute(executor, pieces, piece, rows, product.y);
        return;
      }
      piece -= pieces.count;
    }
  });
}

void Linear::forward_both(Executor& executor, const float* x, std::int64_t rows, Product first,
                          Product second, const RowMaker& maker, FunctionRef<void(const Outputs&)> then) {
  set_inputs(executor, x, rows, {first, second}, maker);
  const Pieces pieces(*first.layer->weight_, rows, executor.threads(), 2);
  executor.pool().parallel_for(pieces.count, [&](std::int64_t piece) {
    first.layer->compute(executor, pieces, piece, rows, first.y);
    then(second.layer->compute(executor, pieces, piece, rows, second.y));
  });
}

// ---- Attention

Attention::Attention(const Config& config, std::int32_t layer, Linear q, Linear k, Linear v, Linear o)
    : config_(config),
      layer_(layer),
      rope_(config.head_dim, config.rope_theta, config.rope_pairing),
      q_(std::move(q)),
      k_(std::move(k)),
      v_(std::move(v)),
      o_(std::move(o)) {}

void Attention::write_cache(const ForwardPass& pass, float* q, float* k, const float* v) const {
  const std::int64_t half = config_.head_dim / 2;
  const std::int64_t q_size = q_.out_features(), kv_size = k_.out_features();
  pass.executor.pool().parallel_for(static_cast<std::int64_t>(pass.rows.size()), [&](std::int64_t r) {
    const Row& row = pass.rows[static_cast<std::size_t>(r)];
    rope_.rotate(pass.executor, q + r * q_size, config_.n_head, pass.cos + r * half, pass.sin + r * half);
    rope_.rotate(pass.executor, k + r * kv_size, config_.n_kv_head, pass.cos + r * half, pass.sin + r * half);
    pass.executor.kernels().store_kv(pass.cache.view(layer_, row.sequence), row.position, k + r * kv_size,
                                     v + r * kv_size, config_.n_kv_head, config_.head_dim);
  });
}

void Attention::attend(const ForwardPass& pass, const float* q, float* out) const {
  Executor& executor = pass.executor;
  const std::int64_t n_kv_head = config_.n_kv_head, group = config_.n_head / n_kv_head;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  const auto query_of = [&](const RowTile& tile, std::int64_t kv_head) {
    const std::int64_t offset = tile.first_row * q_.out_features() + kv_head * group * config_.head_dim;
    return kernels::AttentionQuery{.q = q + offset,
                                   .out = out + offset,
                                   .row_stride = q_.out_features(),
                                   .rows = tile.rows,
                                   .n_group = group,
                                   .head_dim = config_.head_dim,
                                   .kv_head = kv_head,
                                   .first_position = 0,
                                   .position = last_key_seen(tile.position, 0),
                                   .scale = scale};
  };
  Executor::Workspace& workspace = executor.workspace();
  std::vector<RowTile>& tiles = workspace.tiles;
  make_row_tiles(pass.rows, std::max<std::int64_t>(kQueriesAtOnce / group, 1), tiles);
  const auto n_tiles = static_cast<std::int64_t>(tiles.size());
  const auto view = [&](const RowTile& tile) { return pass.cache.view(layer_, tile.sequence); };
  const auto keys_of = [&](std::int64_t tile, std::int64_t kv_head, std::int64_t span) {
    return view(tiles[static_cast<std::size_t>(tile)]).keys(span * kernels::kSpan, kv_head);
  };

  const std::int64_t enough_pieces = 4 * std::int64_t{executor.threads()};
  // Where rows are few and contexts long, spans are shared out, too.
  const bool share_spans = n_tiles * n_kv_head < enough_pieces &&
                           std::any_of(tiles.begin(), tiles.end(), [&](const RowTile& tile) {
                             const kernels::AttentionQuery query = query_of(tile, 0);
                             return query.span_end() - query.span_begin() > kSpansAtOnce;
                           });
  std::size_t most_sums = 0, most_scratch = 0;
  for (const RowTile& tile : tiles) {
    const kernels::AttentionQuery query = query_of(tile, 0);
    most_sums = std::max(most_sums, whole_lines(span_sums_size(query)));
    most_scratch = std::max(most_scratch, kernels::attention_scratch(query));
  }
  if (!share_spans) {
    const ThreadScratch scratch(executor, most_sums + most_scratch);
    // One head after the other where there are tiles for all: the kernel fetches the next head's keys.
    const std::int64_t heads = n_tiles < enough_pieces ? 1 : n_kv_head;
    executor.pool().parallel_for(n_tiles * n_kv_head / heads, [&](std::int64_t piece) {
      const RowTile& tile = tiles[static_cast<std::size_t>(piece * heads / n_kv_head)];
      const kernels::KvView cache = view(tile);
      float* sums = scratch.mine();
      const std::int64_t begin = piece * heads, end = begin + heads;
      for (std::int64_t i = begin; i < end; ++i) {
        kernels::AttentionQuery query = query_of(tile, i % n_kv_head);
        const std::int64_t next = i + 1;  // a thread's pieces follow one another
        if (next < n_tiles * n_kv_head) query.next_keys = keys_of(next / n_kv_head, next % n_kv_head, 0);
        executor.kernels().attention(cache, query, query.span_begin(), query.span_end(), sums,
                                     sums + most_sums);
        executor.kernels().combine_spans(query, sums);
      }
    });
    return;
  }

  std::vector<SpanPiece>& pieces = workspace.pieces;
  std::vector<std::size_t>& sums_of_tile = workspace.sums_of_tile;
  pieces.clear();
  sums_of_tile.clear();
  std::size_t sums_size = 0;
  for (std::int64_t t = 0; t < n_tiles; ++t) {
    sums_of_tile.push_back(sums_size);
    for (std::int64_t kv_head = 0; kv_head < n_kv_head; ++kv_head) {
      const kernels::AttentionQuery query = query_of(tiles[static_cast<std::size_t>(t)], kv_head);
      const std::size_t span_size =
          span_sums_size(query) / static_cast<std::size_t>(query.span_end() - query.span_begin());
      for (std::int64_t span = query.span_begin(); span < query.span_end(); span += kSpansAtOnce) {
        const std::int64_t end = std::min(span + kSpansAtOnce, query.span_end());
        pieces.push_back({t, kv_head, span, end, sums_size});
        sums_size += static_cast<std::size_t>(end - span) * span_size;
      }
    }
  }
  float* sums = executor.buffer(Executor::Buffer::kSpanSums, sums_size);
  const ThreadScratch scratch(executor, most_scratch);
  executor.pool().parallel_for(std::ssize(pieces), [&](std::int64_t i) {
    const SpanPiece& piece = pieces[static_cast<std::size_t>(i)];
    const RowTile& tile = tiles[static_cast<std::size_t>(piece.tile)];
    kernels::AttentionQuery query = query_of(tile, piece.kv_head);
    if (const auto next = static_cast<std::size_t>(i + 1); next < pieces.size()) {
      query.next_keys = keys_of(pieces[next].tile, pieces[next].kv_head, pieces[next].span_begin);
    }
    executor.kernels().attention(view(tile), query, piece.span_begin, piece.span_end, sums + piece.sums,
                                 scratch.mine());
  });
  executor.pool().parallel_for(n_tiles * n_kv_head, [&](std::int64_t i) {
    const auto t = static_cast<std::size_t>(i / n_kv_head);
    const kernels::AttentionQuery query = query_of(tiles[t], i % n_kv_head);
    const std::size_t of_heads_before = static_cast<std::size_t>(i % n_kv_head) * span_sums_size(query);
    executor.kernels().combine_spans(query, sums + sums_of_tile[t] + of_heads_before);
  });
}

void Attention::forward(const ForwardPass& pass, const float* x, float* out, const RowMaker& maker) const {
  Executor& executor = pass.executor;
  const auto rows = static_cast<std::int64_t>(pass.rows.size());
  float* q = executor.buffer(Executor::Buffer::kQuery, elements(rows, q_.out_features()));
  float* k = executor.buffer(Executor::Buffer::kKey, elements(rows, k_.out_features()));
  float* v = executor.buffer(Executor::Buffer::kValue, elements(rows, v_.out_features()));
  float* attended = executor.buffer(Executor::Buffer::kAttended, elements(rows, q_.out_features()));
  Linear::forward_all(executor, x, rows, {{&q_, q}, {&k_, k}, {&v_, v}}, maker);
  write_cache(pass, q, k, v);
  executor.computed(Operation::kQuery, layer_, rows, q, q_.out_features());
  executor.computed(Operation::kKey, layer_, rows, k, k_.out_features());
  executor.computed(Operation::kValue, layer_, rows, v, v_.out_features());
  attend(pass, q, attended);
  executor.computed(Operation::kAttention, layer_, rows, attended, q_.out_features());
  o_.forward(executor, attended, rows, out);
  executor.computed(Operation::kAttentionOutput, layer_, rows, out, o_.out_features());
}

// ---- Mlp

Mlp::Mlp(std::int32_t layer, Linear gate, Linear up, Linear down)
    : layer_(layer), gate_(std::move(gate)), up_(std::move(up)), down_(std::move(down)) {}

void Mlp::forward(Executor& executor, const float* x, std::int64_t rows, float* out,
                  const RowMaker& maker) const {
  const std::int64_t d_ff = gate_.out_features();
  float* gate = executor.buffer(Executor::Buffer::kGate, elements(rows, d_ff));
  float* up = executor.buffer(Executor::Buffer::kUp, elements(rows, d_ff));
  Linear::forward_both(executor, x, rows, {&gate_, gate}, {&up_, up}, maker,
                       [&](const Linear::Outputs& part) {
                         for (std::int64_t row = part.row_begin; row < part.row_end; ++row) {
                           float* g = gate + row * d_ff + part.begin;
                           const float* u = up + row * d_ff + part.begin;
                           executor.kernels().swiglu(g, u, part.end - part.begin, g);
                         }
                       });
  executor.computed(Operation::kFfnActivation, layer_, rows, gate, d_ff);
  down_.forward(executor, gate, rows, out);
  executor.computed(Operation::kFfnDown, layer_, rows, out, down_.out_features());
}

// ---- Block

Block::Block(RmsNorm input_norm, Attention attention, RmsNorm post_attention_norm, Mlp mlp)
    : input_norm_(std::move(input_norm)),
      attention_(std::move(attention)),
      post_attention_norm_(std::move(post_attention_norm)),
      mlp_(std::move(mlp)) {}

void Block::forward(const ForwardPass& pass, float* x, std::int64_t d_model) const {
  Executor& executor = pass.executor;
  const auto rows = static_cast<std::int64_t>(pass.rows.size());
  float* normed = executor.buffer(Executor::Buffer::kNormed, elements(rows, d_model));
  float* projected = executor.buffer(Executor::Buffer::kProjected, elements(rows, d_model));
  const std::int32_t layer = attention_.layer();
  const auto add_to_residual = [&](std::int64_t row) {
    executor.kernels().add(x + row * d_model, projected + row * d_model, d_model);
  };
  const auto computed = [&](Operation operation, const float* values) {
    executor.computed(operation, layer, rows, values, d_model);
  };
  attention_.forward(pass, normed, projected,
                     {.make =
                          [&](std::int64_t row) {
                            input_norm_.forward_row(executor, x + row * d_model, normed + row * d_model);
                          },
                      .made = [&] { computed(Operation::kAttentionNorm, normed); }});
  mlp_.forward(executor, normed, rows, projected,
               {.make =
                    [&](std::int64_t row) {
                      add_to_residual(row);
                      post_attention_norm_.forward_row(executor, x + row * d_model, normed + row * d_model);
                    },
                .made =
                    [&] {
                      computed(Operation::kAttentionResidual, x);
                      computed(Operation::kFfnNorm, normed);
                    }});
  executor.pool().parallel_for(rows, add_to_residual);
  computed(Operation::kFfnResidual, x);
}

}  // namespace kvasir
