#include "kvasir/sequence_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "kvasir/error.h"

namespace kvasir {
namespace {

Config with_max_seq(Config config, std::int64_t max_seq) {
  config.max_seq = static_cast<std::int32_t>(max_seq);
  return config;
}

}  // namespace

SequenceRunner::SequenceRunner(const Model& model, Executor& executor, std::int32_t batch,
                               std::int64_t max_seq, KvType kv_type, RunOptions options)
    : model_(model),
      executor_(executor),
      batch_(batch),
      max_seq_(max_seq),
      kv_type_(kv_type),
      options_(options) {
  if (batch < 1)
    throw Error(ErrorKind::kInvalidArgument, fmt::format("batch is {}, must be at least 1", batch));
  if (max_seq < 1 || max_seq > model.config().max_seq) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("max_seq is {}, must be 1 to the model's {}", max_seq, model.config().max_seq));
  }
  if (options.prefill_chunk < 0) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("prefill_chunk is {}, must be 0 (all at once) or positive", options.prefill_chunk));
  }
  if (options.use_cache) {
    cache_.emplace(with_max_seq(model.config(), max_seq), batch, kv_type);
  } else {
    sequences_.resize(static_cast<std::size_t>(batch));
  }
}

// Runs tokens [begin, end) of each sequence; `tokens` holds batch rows of equal length, and the cache has
// everything before `begin` (counted from cache_start). Puts the logits of the last n_logits of the chunk
// into chunk_logits_.
void SequenceRunner::run_chunk(std::span<const TokenId> tokens, std::int64_t begin, std::int64_t end,
                               std::int64_t n_logits, KvCache& cache, std::int64_t cache_start) {
  const auto t = static_cast<std::int64_t>(tokens.size()) / batch_;
  std::vector<Run> runs;
  for (std::int64_t b = 0; b < batch_; ++b) {
    const auto row =
        tokens.subspan(static_cast<std::size_t>(b * t + begin), static_cast<std::size_t>(end - begin));
    runs.push_back({static_cast<std::int32_t>(b), row, cache_start + begin, n_logits});
  }
  model_.forward(runs, cache, executor_, chunk_logits_);
}

std::span<const float> SequenceRunner::append(std::span<const TokenId> tokens, std::int64_t n_logits) {
  const auto t = static_cast<std::int64_t>(tokens.size()) / batch_;
  if (t < 1 || t * batch_ != static_cast<std::int64_t>(tokens.size()) || n_logits < 0 || n_logits > t) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("append: {} tokens for {} sequences, logits of {} of them", tokens.size(), batch_,
                            n_logits));
  }
  if (length_ + t > max_seq_) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("{} tokens do not fit: room was made for {}", length_ + t, max_seq_));
  }
  if (!options_.use_cache) {
    std::vector<TokenId> all;
    for (std::int64_t b = 0; b < batch_; ++b) {
      auto& sequence = sequences_[static_cast<std::size_t>(b)];
      sequence.insert(sequence.end(), tokens.begin() + b * t, tokens.begin() + (b + 1) * t);
      all.insert(all.end(), sequence.begin(), sequence.end());
    }
    KvCache fresh(with_max_seq(model_.config(), length_ + t), static_cast<std::int32_t>(batch_), kv_type_);
    run_chunk(all, 0, length_ + t, n_logits, fresh, 0);
    length_ += t;
    return chunk_logits_;
  }

  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  const std::int64_t chunk = options_.prefill_chunk == 0 ? t : options_.prefill_chunk;
  const std::int64_t first_wanted = t - n_logits;  // the first token whose logits are asked for
  logits_.resize(static_cast<std::size_t>(batch_ * n_logits) * vocab);
  for (std::int64_t begin = 0; begin < t; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, t);
    const std::int64_t wanted = end - std::clamp(first_wanted, begin, end);
    run_chunk(tokens, begin, end, wanted, *cache_, length_);
    for (std::int64_t b = 0; b < batch_ && wanted > 0; ++b) {
      const std::int64_t to = b * n_logits + (end - wanted - first_wanted);
      std::copy_n(chunk_logits_.begin() + b * wanted * static_cast<std::int64_t>(vocab),
                  wanted * static_cast<std::int64_t>(vocab),
                  logits_.begin() + to * static_cast<std::int64_t>(vocab));
    }
  }
  length_ += t;
  return logits_;
}

}  // namespace kvasir
