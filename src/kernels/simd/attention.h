// Attention over 16 lanes: positions of a cache block for the scores, dims for the values. Included as
// linear.h is.

// scratch of one query group: scores [n_group][kSpan], then for each span and head: max, sum, out[head_dim].
struct AttentionScratch {
  float* scores;
  float* spans;
  std::int64_t head_dim;
  std::int64_t n_group;

  float* span(std::int64_t index, std::int64_t g) const {
    return spans + (index * n_group + g) * (head_dim + 2);
  }
};

// Scores of G heads for the positions of one block, [G][16] at stride kSpan; lanes past the block's slots are
// garbage.
template <KvType type, int G>
void block_scores(const std::byte* k, std::size_t offset, std::int64_t slots, const float* q,
                  std::int64_t head_dim, float scale, float* scores) {
  F32x16 dots[G];
  for (int g = 0; g < G; ++g) dots[g] = F32x16::zero();
  for (std::int64_t dim = 0; dim < head_dim; ++dim) {
    const F32x16 keys = load_kv<type>(k, offset + static_cast<std::size_t>(dim * slots));
    for (int g = 0; g < G; ++g) dots[g] = fma(F32x16::all(q[g * head_dim + dim]), keys, dots[g]);
  }
  for (int g = 0; g < G; ++g) (dots[g] * F32x16::all(scale)).store(scores + g * kSpan);
}

// Turns `count` scores, of positions first_lane.. modulo 16, into exp(score - max); returns {max, sum}.
inline std::pair<float, float> exponentials(float* scores, std::int64_t first_lane, std::int64_t count) {
  const F32x16 lowest = F32x16::all(-std::numeric_limits<float>::infinity());
  // The row starts at lane 0 of its first block: what lies before the first position is not seen.
  for (std::int64_t i = 0; i < first_lane; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  const std::int64_t end = first_lane + count;
  const auto seen = [&](std::int64_t i) { return select_first(end - i, F32x16::load(scores + i), lowest); };
  F32x16 maxima = lowest;
  for (std::int64_t i = 0; i < end; i += 16) maxima = max(seen(i), maxima);
  const float largest = max_lane(maxima);
  F32x16 sums = F32x16::zero();
  for (std::int64_t i = 0; i < end; i += 16) {
    const F32x16 e = exp_f32(seen(i) - F32x16::all(largest));  // +0 in lanes that are not seen
    e.store(scores + i);
    sums = sums + e;
  }
  return {largest, tree_sum(sums)};
}

// out[g][dim] of one span: chains over the positions [begin, end), weights[g] starting at the span's first
// block.
template <KvType type, int G>
void weigh_values(const KvView& cache, const AttentionQuery& query, std::int64_t begin, std::int64_t end,
                  const float* weights, const AttentionScratch& scratch, std::int64_t span) {
  const std::int64_t head_dim = query.head_dim;
  const std::int64_t origin = begin / kCacheBlock * kCacheBlock;
  const auto for_each_position = [&](auto fn) {
    for (std::int64_t p = begin; p < end;) {
      std::size_t index = cache.v_index(p, query.kv_head, 0, head_dim);
      const std::int64_t block_end = std::min((p / kCacheBlock + 1) * kCacheBlock, end);
      for (; p < block_end; ++p, index += static_cast<std::size_t>(head_dim)) fn(p, index);
    }
  };
  std::int64_t dim = 0;
  for (; dim + 16 <= head_dim; dim += 16) {
    F32x16 out[G];
    for (int g = 0; g < G; ++g) out[g] = F32x16::zero();
    for_each_position([&](std::int64_t p, std::size_t index) {
      const F32x16 values = load_kv<type>(cache.v, index + static_cast<std::size_t>(dim));
      for (int g = 0; g < G; ++g) out[g] = fma(F32x16::all(weights[g * kSpan + p - origin]), values, out[g]);
    });
    for (int g = 0; g < G; ++g) out[g].store(scratch.span(span, g) + 2 + dim);
  }
  if (dim == head_dim) return;
  F32x16 out[G];
  for (int g = 0; g < G; ++g) out[g] = F32x16::zero();
  for_each_position([&](std::int64_t p, std::size_t index) {  // 15 elements past the end are readable
    const F32x16 values = load_kv<type>(cache.v, index + static_cast<std::size_t>(dim));
    for (int g = 0; g < G; ++g) out[g] = fma(F32x16::all(weights[g * kSpan + p - origin]), values, out[g]);
  });
  for (int g = 0; g < G; ++g) store_first(out[g], scratch.span(span, g) + 2 + dim, head_dim - dim);
}

// Spans in ascending order, each weighted with exp(its max - the largest max).
inline void combine_spans(const AttentionQuery& query, const AttentionScratch& scratch, std::int64_t spans) {
  for (std::int64_t g = 0; g < query.n_group; ++g) {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t s = 0; s < spans; ++s) largest = std::max(largest, scratch.span(s, g)[0]);
    float sum = 0.0F;
    for (std::int64_t s = 0; s < spans; ++s) {
      float* span = scratch.span(s, g);
      span[0] = exp_f32(span[0] - largest);
      sum = std::fma(span[0], span[1], sum);
    }
    for_each_16(query.head_dim, [&](std::int64_t dim, std::int64_t count) {
      F32x16 out = F32x16::zero();
      for (std::int64_t s = 0; s < spans; ++s) {
        const float* span = scratch.span(s, g);
        out = fma(F32x16::all(span[0]), load_first(span + 2 + dim, count), out);
      }
      store_first(out / F32x16::all(sum), query.out + g * query.head_dim + dim, count);
    });
  }
}

template <KvType type, int G>
void attend(const KvView& cache, const AttentionQuery& query, float* memory) {
  const AttentionScratch scratch{memory, memory + G * kSpan, query.head_dim, G};
  std::int64_t span = 0;
  for (std::int64_t begin = query.first_position; begin <= query.last_position; ++span) {
    const std::int64_t end = std::min((begin / kSpan + 1) * kSpan, query.last_position + 1);
    const std::int64_t first_block = begin / kCacheBlock;
    for (std::int64_t block = first_block; block * kCacheBlock < end; ++block) {
      block_scores<type, G>(cache.k, cache.k_index(block * kCacheBlock, query.kv_head, 0, query.head_dim),
                            cache.slots(block), query.q, query.head_dim, query.scale,
                            scratch.scores + (block - first_block) * kCacheBlock);
    }
    for (std::int64_t g = 0; g < G; ++g) {
      float* out = scratch.span(span, g);
      std::tie(out[0], out[1]) = exponentials(scratch.scores + g * kSpan, begin % kCacheBlock, end - begin);
    }
    weigh_values<type, G>(cache, query, begin, end, scratch.scores, scratch, span);
    begin = end;
  }
  combine_spans(query, scratch, span);
}

template <KvType type>
void attend_group(const KvView& cache, const AttentionQuery& query, float* scratch) {
  switch (query.n_group) {
    case 1:
      return attend<type, 1>(cache, query, scratch);
    case 2:
      return attend<type, 2>(cache, query, scratch);
    case 3:
      return attend<type, 3>(cache, query, scratch);
    default:
      return attend<type, 4>(cache, query, scratch);
  }
}

void attention(const KvView& cache, const AttentionQuery& query, float* scratch) {
  // Heads that share keys and values go together, at most four at a time.
  for (std::int64_t head = 0; head < query.n_group; head += 4) {
    AttentionQuery part = query;
    part.q += head * query.head_dim;
    part.out += head * query.head_dim;
    part.n_group = std::min<std::int64_t>(4, query.n_group - head);
    switch (cache.type) {
      case KvType::kF32:
        attend_group<KvType::kF32>(cache, part, scratch);
        break;
      case KvType::kF16:
        attend_group<KvType::kF16>(cache, part, scratch);
        break;
      case KvType::kBF16:
        attend_group<KvType::kBF16>(cache, part, scratch);
        break;
    }
  }
}
