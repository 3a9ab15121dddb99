// Attention over 16 lanes: positions of a cache block for the scores, dims for the values. Included as
// linear.h is, after it.
//
// The queries of a call, rows times heads of a group, share every key and value that is loaded. Where they
// are many, keys and values of 64 positions at a time are first widened to floats in memory that the
// first-level cache holds; where they are few, they are used as they lie in the cache.

inline constexpr std::int64_t kWideBlocks = 4;  // blocks widened at a time

inline constexpr std::int64_t kWidePositions = kWideBlocks * kCacheBlock;

// The queries of a call as one list: row r, head g is query r * n_group + g.
struct Queries {
  const AttentionQuery* query;

  std::int64_t count() const { return query->rows * query->n_group; }
  std::int64_t row(std::int64_t m) const { return m / query->n_group; }
  const float* q(std::int64_t m) const {
    return query->q + row(m) * query->row_stride + m % query->n_group * query->head_dim;
  }
  // One past the last position that a query sees.
  std::int64_t end(std::int64_t m) const { return query->position + row(m) + 1; }
  // The first query that sees a position.
  std::int64_t first_that_sees(std::int64_t position) const {
    return std::max<std::int64_t>(position - query->position, 0) * query->n_group;
  }
};

// Keys (or values) of consecutive blocks, where they lie in the cache.
template <KvType kType>
struct CachedNumbers {
  const KvView* cache;
  const std::byte* base;
  std::int64_t kv_head, head_dim;
  std::int64_t last_block;     // that this call will read
  const std::byte* next_call;  // the keys that the next one begins with

  // Everything is fetched one pass ahead: the values of a span while its scores are computed, the keys of the
  // next span, or else of the next call, while values are weighed. Where numbers of two bytes are widened,
  // arithmetic takes about as long as memory; what the hardware sees coming comes too late.
  static constexpr bool kFetches = true;
  static constexpr std::int64_t kPart =
      kCacheBlock * static_cast<std::int64_t>(kv_type_bytes(kType));  // bytes
  const std::byte* values_to_fetch(std::int64_t block) const {
    return cache->v + values(block * kCacheBlock) * kv_type_bytes(kType);
  }
  const std::byte* keys_to_fetch(std::int64_t block) const {
    const std::int64_t next = block + kSpan / kCacheBlock;
    if (next <= last_block || next_call == nullptr) {
      return cache->keys(std::min(next, last_block) * kCacheBlock, kv_head);
    }
    return next_call + next % (kSpan / kCacheBlock) * head_dim * kPart;
  }

  std::int64_t slots(std::int64_t block) const { return cache->slots(block); }
  std::size_t keys(std::int64_t block) const { return cache->k_index(block * kCacheBlock, kv_head, 0); }
  std::size_t values(std::int64_t position) const { return cache->v_index(position, kv_head, 0, head_dim); }
  std::int64_t value_stride() const { return head_dim; }
  F32x16 load(std::size_t index) const { return load_kv<kType>(base, index); }
};

// The same, widened: keys [block][dim][16], values [position][padded].
struct WideNumbers {
  const float* base;
  std::int64_t first_block, head_dim, padded;

  std::int64_t slots(std::int64_t /*block*/) const { return kCacheBlock; }
  std::size_t keys(std::int64_t block) const {
    return static_cast<std::size_t>((block - first_block) * head_dim * kCacheBlock);
  }
  std::size_t values(std::int64_t position) const {
    return static_cast<std::size_t>((position - first_block * kCacheBlock) * padded);
  }
  std::int64_t value_stride() const { return padded; }
  F32x16 load(std::size_t index) const { return F32x16::load(base + index); }
  static constexpr bool kFetches = false;  // they are there
};

// Scores of R queries with the positions of B blocks; lanes past a block's slots are garbage.
template <int R, int B, class Keys>
void score_tile(const Keys& keys, std::int64_t block, const float* const (&q)[R], std::int64_t head_dim,
                float scale, float* const (&scores)[R]) {
  std::size_t at[B];
  std::int64_t stride[B];
  [[maybe_unused]] const std::byte* next_values[B];
  F32x16 dots[R][B];
  KVASIR_UNROLLED
  for (int b = 0; b < B; ++b) {
    at[b] = keys.keys(block + b);
    stride[b] = keys.slots(block + b);
    if constexpr (Keys::kFetches) next_values[b] = keys.values_to_fetch(block + b);
  }
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int b = 0; b < B; ++b) dots[r][b] = F32x16::zero();
  }
  for (std::int64_t dim = 0; dim < head_dim; ++dim) {
    F32x16 columns[B];
    KVASIR_UNROLLED
    for (int b = 0; b < B; ++b) {
      columns[b] = keys.load(at[b] + static_cast<std::size_t>(dim * stride[b]));
      if constexpr (Keys::kFetches) fetch_line(next_values[b] + dim * Keys::kPart);
    }
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      const F32x16 input = F32x16::all(q[r][dim]);
      KVASIR_UNROLLED
      for (int b = 0; b < B; ++b) dots[r][b] = fma(input, columns[b], dots[r][b]);
    }
  }
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int b = 0; b < B; ++b) (dots[r][b] * F32x16::all(scale)).store(scores[r] + b * kCacheBlock);
  }
}

// Turns the scores [begin, end) of a span into exp(score - max); returns {max, sum}.
inline std::pair<float, float> exponentials(float* scores, std::int64_t begin, std::int64_t end) {
  const F32x16 lowest = F32x16::all(-std::numeric_limits<float>::infinity());
  const std::int64_t first = begin / kCacheBlock * kCacheBlock;
  for (std::int64_t i = first; i < begin; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  const auto seen = [&](std::int64_t i) { return select_first(end - i, F32x16::load(scores + i), lowest); };
  F32x16 maxima = lowest;
  for (std::int64_t i = first; i < end; i += 16) maxima = max(seen(i), maxima);
  const float largest = max_lane(maxima);
  F32x16 sums = F32x16::zero();
  for (std::int64_t i = first; i < end; i += 16) {
    const F32x16 e = exp_f32(seen(i) - F32x16::all(largest));  // +0 in lanes that are not seen
    e.store(scores + i);
    sums = sums + e;
  }
  return {largest, tree_sum(sums)};
}

// Continues the chains of R queries and 16 V dims over the positions [begin, end). weights[r] begins at the
// position `origin`.
template <int R, int V, class Values>
void value_tile(const Values& values, std::int64_t dim, std::int64_t begin, std::int64_t end,
                const float* const (&weights)[R], std::int64_t origin, float* const (&sums)[R]) {
  F32x16 out[R][V];
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int v = 0; v < V; ++v) out[r][v] = F32x16::load(sums[r] + dim + 16 * v);
  }
  const auto stride = static_cast<std::size_t>(values.value_stride());
  for (std::int64_t p = begin; p < end;) {
    std::size_t index = values.values(p) + static_cast<std::size_t>(dim);
    const std::int64_t block = p / kCacheBlock, block_end = std::min((block + 1) * kCacheBlock, end);
    [[maybe_unused]] const std::byte* next_keys = nullptr;
    if constexpr (Values::kFetches) {
      next_keys = values.keys_to_fetch(block) +
                  (p % kCacheBlock * values.head_dim + dim) / kCacheBlock * Values::kPart;
    }
    for (; p < block_end; ++p, index += stride) {
      if constexpr (Values::kFetches) {
        for (int v = 0; v < V; ++v) fetch_line(next_keys + v * Values::kPart);
        next_keys += values.head_dim / kCacheBlock * Values::kPart;
      }
      F32x16 columns[V];
      KVASIR_UNROLLED
      for (int v = 0; v < V; ++v) columns[v] = values.load(index + static_cast<std::size_t>(16 * v));
      KVASIR_UNROLLED
      for (int r = 0; r < R; ++r) {
        const F32x16 weight = F32x16::all(weights[r][p - origin]);
        KVASIR_UNROLLED
        for (int v = 0; v < V; ++v) out[r][v] = fma(weight, columns[v], out[r][v]);
      }
    }
  }
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int v = 0; v < V; ++v) out[r][v].store(sums[r] + dim + 16 * v);
  }
}

// One span for all queries.
class SpanAttention {
 public:
  // span_end: of the call.
  SpanAttention(const KvView& cache, const AttentionQuery& query, std::int64_t span, std::int64_t span_end,
                float* sums, float* scratch)
      : cache_(cache),
        query_(query),
        queries_{&query},
        span_begin_(span * kSpan),
        begin_(std::max(span_begin_, query.first_position)),
        end_(std::min(span_begin_ + kSpan, queries_.end(queries_.count() - 1))),
        last_block_((std::min(span_end * kSpan, queries_.end(queries_.count() - 1)) - 1) / kCacheBlock),
        first_query_(queries_.first_that_sees(begin_)),
        sums_(sums),
        scores_(scratch),
        wide_(scratch + queries_.count() * kSpan) {}

  template <KvType kType>
  void run() {
    const bool widen = queries_.count() - first_query_ > 2 * kFloatRows && kType != KvType::kF32;
    const std::int64_t at_once = widen ? kWidePositions : kSpan;
    for (std::int64_t p = begin_ / kCacheBlock * kCacheBlock; p < end_; p += at_once) {
      const std::int64_t limit = std::min(p + at_once, end_);
      const CachedNumbers<kType> keys{&cache_,         cache_.k,    query_.kv_head,
                                      query_.head_dim, last_block_, query_.next_keys};
      if (widen) {
        score(widened_keys(keys, p, limit), p, limit);
      } else {
        score(keys, p, limit);
      }
    }
    for (std::int64_t m = first_query_; m < queries_.count(); ++m) {
      float* out = sums_ + m * sums_stride(query_.head_dim);
      std::memset(out, 0, static_cast<std::size_t>(padded()) * sizeof(float));
      const std::int64_t end = std::min(end_, queries_.end(m));
      std::tie(out[padded()], out[padded() + 1]) =
          exponentials(scores_ + m * kSpan, begin_ - span_begin_, end - span_begin_);
    }
    for (std::int64_t p = begin_ / kCacheBlock * kCacheBlock; p < end_; p += at_once) {
      const std::int64_t first = std::max(p, begin_), limit = std::min(p + at_once, end_);
      const CachedNumbers<kType> values{&cache_,         cache_.v,    query_.kv_head,
                                        query_.head_dim, last_block_, query_.next_keys};
      if (widen) {
        weigh(widened_values(values, p, limit), first, limit);
      } else {
        weigh(values, first, limit);
      }
    }
  }

 private:
  std::int64_t padded() const { return sums_stride(query_.head_dim) - 16; }

  template <KvType kType>
  WideNumbers widened_keys(const CachedNumbers<kType>& keys, std::int64_t begin, std::int64_t end) {
    const std::int64_t first_block = begin / kCacheBlock;
    float* out = wide_;
    for (std::int64_t block = first_block; block * kCacheBlock < end; ++block) {
      const std::size_t at = keys.keys(block), slots = static_cast<std::size_t>(keys.slots(block));
      for (std::int64_t dim = 0; dim < query_.head_dim; ++dim, out += kCacheBlock) {
        keys.load(at + static_cast<std::size_t>(dim) * slots).store(out);
      }
    }
    return {wide_, first_block, query_.head_dim, padded()};
  }

  template <KvType kType>
  WideNumbers widened_values(const CachedNumbers<kType>& values, std::int64_t begin, std::int64_t end) {
    float* out = wide_;
    for (std::int64_t p = begin; p < end; ++p) {
      const std::size_t at = values.values(p);
      for (std::int64_t dim = 0; dim < padded(); dim += 16, out += 16) {
        values.load(at + static_cast<std::size_t>(dim)).store(out);
      }
    }
    return {wide_, begin / kCacheBlock, query_.head_dim, padded()};
  }

  // begin: of a block.
  template <class Keys>
  void score(const Keys& keys, std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; p += kFloatPanels * kCacheBlock) {
      const std::int64_t blocks =
          std::min<std::int64_t>((end - p + kCacheBlock - 1) / kCacheBlock, kFloatPanels);
      const std::int64_t first = std::max(first_query_, queries_.first_that_sees(p));
      with_constant<1, kFloatPanels>(blocks, [&](auto b) {
        for_each_row_tile<1, kFloatRows>(queries_.count() - first, [&](std::int64_t tile, auto r) {
          constexpr int kRows = decltype(r)::value;
          const float* q[kRows];
          float* scores[kRows];
          for (int i = 0; i < kRows; ++i) {
            q[i] = queries_.q(first + tile + i);
            scores[i] = scores_ + (first + tile + i) * kSpan + p - span_begin_;
          }
          score_tile<kRows, decltype(b)::value>(keys, p / kCacheBlock, q, query_.head_dim, query_.scale,
                                                scores);
        });
      });
    }
  }

  template <class Values>
  void weigh(const Values& values, std::int64_t begin, std::int64_t end) {
    const std::int64_t first = std::max(first_query_, queries_.first_that_sees(begin));
    for_each_row_tile<1, kFloatRows>(queries_.count() - first, [&](std::int64_t tile, auto r) {
      constexpr int kRows = decltype(r)::value;
      // All queries of the tile see what its first one sees; the rest each for itself.
      const std::int64_t together = std::min(end, queries_.end(first + tile));
      weigh_queries<kRows>(values, first + tile, begin, together);
      for (int i = 0; i < kRows; ++i) {
        const std::int64_t own_end = std::min(end, queries_.end(first + tile + i));
        if (together < own_end) weigh_queries<1>(values, first + tile + i, together, own_end);
      }
    });
  }

  template <int R, class Values>
  void weigh_queries(const Values& values, std::int64_t m, std::int64_t begin, std::int64_t end) {
    const float* weights[R];
    float* sums[R];
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      weights[r] = scores_ + (m + r) * kSpan;
      sums[r] = sums_ + (m + r) * sums_stride(query_.head_dim);
    }
    for (std::int64_t dim = 0; dim < padded(); dim += 16 * kFloatPanels) {
      with_constant<1, kFloatPanels>(
          std::min<std::int64_t>((padded() - dim) / 16, kFloatPanels), [&](auto v) {
            value_tile<R, decltype(v)::value>(values, dim, begin, end, weights, span_begin_, sums);
          });
    }
  }

  const KvView& cache_;
  const AttentionQuery& query_;
  Queries queries_;
  std::int64_t span_begin_, begin_, end_;  // of the span; of the positions that are seen in it
  std::int64_t last_block_;                // of the call
  std::int64_t first_query_;               // the first that sees any of them
  float* sums_;                            // [queries][sums_stride]
  float* scores_;                          // [queries][kSpan]
  float* wide_;
};

void attention(const KvView& cache, const AttentionQuery& query, std::int64_t span_begin,
               std::int64_t span_end, float* sums, float* scratch) {
  const std::int64_t size = query.rows * query.n_group * sums_stride(query.head_dim);
  for (std::int64_t span = span_begin; span < span_end; ++span, sums += size) {
    SpanAttention one(cache, query, span, span_end, sums, scratch);
    switch (cache.type) {
      case KvType::kF32:
        one.template run<KvType::kF32>();
        break;
      case KvType::kF16:
        one.template run<KvType::kF16>();
        break;
      case KvType::kBF16:
        one.template run<KvType::kBF16>();
        break;
    }
  }
}

// Spans in ascending order, each weighted with exp(its max - the largest max).
void combine_spans(const AttentionQuery& query, float* sums) {
  const Queries queries{&query};
  const std::int64_t stride = sums_stride(query.head_dim), padded = stride - 16;
  for (std::int64_t m = 0; m < queries.count(); ++m) {
    const std::int64_t spans = (queries.end(m) - 1) / kSpan - query.first_position / kSpan + 1;
    const auto span = [&](std::int64_t s) { return sums + (s * queries.count() + m) * stride; };
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t s = 0; s < spans; ++s) largest = std::max(largest, span(s)[padded]);
    float sum = 0.0F;
    for (std::int64_t s = 0; s < spans; ++s) {
      float* weight = span(s) + padded;
      weight[0] = exp_f32(weight[0] - largest);
      sum = std::fma(weight[0], weight[1], sum);
    }
    float* result = query.out + queries.row(m) * query.row_stride + m % query.n_group * query.head_dim;
    for_each_16(query.head_dim, [&](std::int64_t dim, std::int64_t count) {
      F32x16 out = F32x16::zero();
      for (std::int64_t s = 0; s < spans; ++s) {
        out = fma(F32x16::all(span(s)[padded]), F32x16::load(span(s) + dim), out);
      }
      store_first(out / F32x16::all(sum), result + dim, count);
    });
  }
}

// ---- Writing to the cache

// One kv head's numbers as halves: 16 at a time, then to their places.
inline void store_kv_half(const KvView& cache, std::int64_t position, std::int64_t head, const float* k,
                          const float* v, std::int64_t head_dim) {
  auto* keys = reinterpret_cast<std::uint16_t*>(cache.k) + cache.k_index(position, head, 0);
  auto* values = reinterpret_cast<std::uint16_t*>(cache.v) + cache.v_index(position, head, 0, head_dim);
  const std::int64_t slots = cache.slots(position / kCacheBlock);
  for_each_16(head_dim, [&](std::int64_t dim, std::int64_t count) {
    std::uint16_t halves[16];
    store_half(load_first(k + dim, count), halves);
    for (std::int64_t i = 0; i < count; ++i) keys[(dim + i) * slots] = halves[i];
    store_half(load_first(v + dim, count), halves);
    std::memcpy(values + dim, halves, static_cast<std::size_t>(count) * sizeof halves[0]);
  });
}

void store_kv(const KvView& cache, std::int64_t position, const float* k, const float* v,
              std::int64_t n_kv_head, std::int64_t head_dim) {
  if (cache.type != KvType::kF16) {
    return reference_kernels().store_kv(cache, position, k, v, n_kv_head, head_dim);
  }
  for (std::int64_t head = 0; head < n_kv_head; ++head) {
    store_kv_half(cache, position, head, k + head * head_dim, v + head * head_dim, head_dim);
  }
}
