#include "engine/verify_paths.h"

#include <algorithm>
#include <stdexcept>

namespace kvasir {

// ---- Stages

std::size_t Stages::index(Operation operation, std::int32_t layer) const {
  if (operation == Operation::kEmbedding) return 0;
  if (operation == Operation::kFinalNorm) return count() - 2;
  if (operation == Operation::kLogits) return logits();
  return static_cast<std::size_t>(layer) * kInLayer + static_cast<std::size_t>(operation);
}

std::pair<Operation, std::int32_t> Stages::at(std::size_t stage) const {
  if (stage == 0) return {Operation::kEmbedding, -1};
  if (stage == count() - 2) return {Operation::kFinalNorm, -1};
  if (stage == logits()) return {Operation::kLogits, -1};
  return {static_cast<Operation>((stage - 1) % kInLayer + 1),
          static_cast<std::int32_t>((stage - 1) / kInLayer)};
}

// ---- PathDriver

PathDriver::PathDriver(const Model& model, Executor& executor, KvType kv_type, Prompts prompts, RowSink& sink)
    : model_(model),
      executor_(executor),
      kv_type_(kv_type),
      prompts_(prompts),
      sink_(sink),
      stages_(model.config().n_layer) {
  executor_.set_observer(this);
}

PathDriver::~PathDriver() { executor_.set_observer(nullptr); }

void PathDriver::new_cache(std::size_t sequences, std::int64_t positions) {
  Config config = model_.config();
  config.max_seq = static_cast<std::int32_t>(positions);
  cache_ = std::make_unique<KvCache>(config, static_cast<std::int32_t>(sequences), kv_type_);
  paged_ = nullptr;
}

PagedKvCache& PathDriver::new_paged_cache(std::size_t sequences, std::int64_t blocks) {
  const PagedKvCacheOptions options{
      .blocks = blocks, .sequences = static_cast<std::int32_t>(sequences), .type = kv_type_, .shuffle = 1};
  auto cache = std::make_unique<PagedKvCache>(model_.config(), options);
  paged_ = cache.get();
  cache_ = std::move(cache);
  return *paged_;
}

void PathDriver::forward(std::span<const Piece> pieces) {
  std::vector<Run> runs;
  rows_.clear();
  logit_rows_.clear();
  for (const Piece& piece : pieces) {
    if (paged_ != nullptr && !paged_->reserve(piece.sequence, piece.end)) {
      throw std::logic_error("verify: a path with too few blocks");
    }
    const std::int64_t count = piece.end - piece.begin, counted = piece.counted.value_or(count);
    const std::span<const TokenId> own =
        std::span(prompts_[piece.prompt])
            .subspan(static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(count));
    runs.push_back({piece.sequence, piece.instead.empty() ? own : piece.instead, piece.begin, counted});
    for (std::int64_t position = piece.begin; position < piece.end; ++position) {
      const bool with_logits = position >= piece.end - counted;
      rows_.push_back({piece.prompt, position, with_logits && position < piece.end - piece.wrong});
      if (with_logits) logit_rows_.push_back(rows_.back());
    }
  }
  model_.forward(runs, *cache_, executor_, logits_);
}

void PathDriver::in_chunks(std::size_t prompt, std::int64_t begin, std::int64_t chunk,
                           std::int32_t sequence) {
  for (; begin < length(prompt); begin += chunk) {
    forward({prompt, begin, std::min(begin + chunk, length(prompt)), sequence});
  }
}

void PathDriver::computed(Operation operation, std::int32_t layer, std::int64_t rows, const float* values,
                          std::int64_t width) {
  const bool after_layers = operation == Operation::kFinalNorm || operation == Operation::kLogits;
  const std::vector<Row>& places = after_layers ? logit_rows_ : rows_;
  const std::size_t stage = stages_.index(operation, layer);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Row& row = places.at(static_cast<std::size_t>(r));
    if (!row.counted) continue;
    sink_.row({row.prompt, row.position, stage}, {values + r * width, static_cast<std::size_t>(width)});
  }
  if (operation == Operation::kFfnResidual) sink_.passed_layer(rows);
}

// ---- The paths

void run_every_step(PathDriver& driver, std::size_t prompt) {
  for (std::int64_t end = 1; end <= driver.length(prompt); ++end) {
    driver.new_cache(1, end);
    driver.forward({.prompt = prompt, .begin = 0, .end = end, .counted = 1});
  }
}

void run_once(PathDriver& driver, std::size_t prompt) {
  driver.new_cache(1, driver.length(prompt));
  driver.forward({prompt, 0, driver.length(prompt)});
}

namespace {

using Indices = std::span<const std::size_t>;

std::int64_t longest(const PathDriver& driver, Indices prompts) {
  std::int64_t most = 0;
  for (const std::size_t prompt : prompts) most = std::max(most, driver.length(prompt));
  return most;
}

template <std::int64_t chunk>
void chunks(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) {
    driver.new_cache(1, driver.length(prompt));
    driver.in_chunks(prompt, 0, chunk);
  }
}

void every_step(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) run_every_step(driver, prompt);
}

void whole_prompt(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) run_once(driver, prompt);
}

void prefill_and_decode(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) {
    const std::int64_t prefilled = (driver.length(prompt) + 1) / 2;
    driver.new_cache(1, driver.length(prompt));
    driver.forward({prompt, 0, prefilled});
    driver.in_chunks(prompt, prefilled, 1);
  }
}

// The last block of a cache holds fewer positions if its capacity is no multiple of 16: another layout.
void roomier_cache(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) {
    driver.new_cache(1, driver.length(prompt) + 37);
    driver.in_chunks(prompt, 0, 5);
  }
}

// One prompt alone would make no batch.
std::vector<std::size_t> at_least_two(Indices prompts) {
  if (prompts.size() == 1) return {prompts.front(), prompts.front()};
  return {prompts.begin(), prompts.end()};
}

void batch_of_prompts(PathDriver& driver, Indices some) {
  const std::vector<std::size_t> prompts = at_least_two(some);
  std::vector<PathDriver::Piece> pieces;
  pieces.reserve(prompts.size());
  for (const std::size_t prompt : prompts) {
    pieces.push_back({prompt, 0, driver.length(prompt), static_cast<std::int32_t>(pieces.size())});
  }
  driver.new_cache(prompts.size(), longest(driver, prompts));
  driver.forward(pieces);
}

// Cuts all prompts at once: in pass number `step`, prompt i of n, standing at position `at`, takes as many
// tokens as `take` says, 0 to wait. Sequences lie in the cache in reverse order.
template <class Take>
void run_batch(PathDriver& driver, Indices prompts, const Take& take) {
  std::vector<std::int64_t> at(prompts.size(), 0);
  std::vector<PathDriver::Piece> pieces;
  for (std::size_t step = 0, done = 0; done < prompts.size(); ++step) {
    pieces.clear();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::int64_t end = std::min(at[i] + take(step, i, at[i]), driver.length(prompts[i]));
      if (end == at[i]) continue;
      pieces.push_back({prompts[i], at[i], end, static_cast<std::int32_t>(prompts.size() - 1 - i)});
      at[i] = end;
      if (end == driver.length(prompts[i])) ++done;
    }
    if (!pieces.empty()) driver.forward(pieces);
  }
}

template <class Take>
void batch(PathDriver& driver, Indices some, const Take& take) {
  const std::vector<std::size_t> prompts = at_least_two(some);
  driver.new_cache(prompts.size(), longest(driver, prompts));
  run_batch(driver, prompts, take);
}

void batch_of_tokens(PathDriver& driver, Indices prompts) {
  batch(driver, prompts, [](std::size_t, std::size_t, std::int64_t) -> std::int64_t { return 1; });
}

// Prompts join one after another; some are prefilled in pieces of 2 to 7 tokens while others decode.
void mixed_batch(PathDriver& driver, Indices prompts) {
  batch(driver, prompts, [](std::size_t step, std::size_t i, std::int64_t at) -> std::int64_t {
    if (step < 2 * i) return 0;
    return at % 3 == 2 ? 1 : static_cast<std::int64_t>(2 + (step * 5 + i * 3) % 6);
  });
}

// As speculation runs a prompt: each pass has a token and three guesses of the next ones, of which none to
// all are right. What was computed behind those is forgotten.
void with_guesses(PathDriver& driver, std::size_t prompt) {
  constexpr std::int64_t kGuesses = 3;
  std::vector<TokenId> tokens;
  for (std::int64_t at = 0, pass = 0; at < driver.length(prompt); ++pass) {
    const std::int64_t end = std::min(at + 1 + kGuesses, driver.length(prompt));
    const std::int64_t known = std::min(at + 1 + pass % (kGuesses + 1), end);
    const std::vector<TokenId>& all = driver.tokens(prompt);
    tokens.assign(all.begin() + at, all.begin() + end);
    for (std::int64_t i = known - at; i < end - at; ++i) {
      TokenId& guess = tokens[static_cast<std::size_t>(i)];
      guess = (guess + 1) % driver.vocab_size();
    }
    driver.forward({.prompt = prompt, .begin = at, .end = end, .instead = tokens, .wrong = end - known});
    driver.keep(0, known);
    at = known;
  }
}

void guesses(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) {
    driver.new_cache(1, driver.length(prompt));
    with_guesses(driver, prompt);
  }
}

// Half of each prompt, then its place is given to another; later it is computed again in a place where
// another had been.
void preempted(PathDriver& driver, Indices prompts) {
  driver.new_cache(2, longest(driver, prompts));
  for (const std::size_t prompt : prompts) {
    driver.keep(0, 0);
    driver.forward({prompt, 0, (driver.length(prompt) + 1) / 2, 0});
  }
  for (const std::size_t prompt : prompts) {
    const auto sequence = static_cast<std::int32_t>(prompt % 2);
    driver.keep(sequence, 0);
    driver.in_chunks(prompt, 0, 16, sequence);
  }
}

std::int64_t blocks_of_longest(const PathDriver& driver, Indices prompts) {
  return PagedKvCache::blocks_of(longest(driver, prompts));
}

// All prompts grow together, so that their blocks lie in no order.
void paged(PathDriver& driver, Indices some) {
  const std::vector<std::size_t> prompts = at_least_two(some);
  PagedKvCache& cache =
      driver.new_paged_cache(prompts.size(), std::ssize(prompts) * blocks_of_longest(driver, prompts));
  for (std::size_t i = 0; i < prompts.size(); ++i) cache.open({});
  run_batch(driver, prompts, [](std::size_t, std::size_t, std::int64_t) -> std::int64_t { return 5; });
}

// Half of each prompt, then two that share it: one goes astray, the other must not notice.
void paged_fork(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) {
    const std::int64_t length = driver.length(prompt), half = (length + 1) / 2;
    PagedKvCache& cache = driver.new_paged_cache(2, 2 * PagedKvCache::blocks_of(length));
    const std::int32_t astray = cache.open({});
    driver.forward({prompt, 0, half, astray});
    const std::int32_t right = cache.fork(astray);
    if (half == length) continue;
    const std::vector<TokenId> wrong(static_cast<std::size_t>(length - half),
                                     (driver.tokens(prompt).back() + 1) % driver.vocab_size());
    driver.forward(
        {.prompt = prompt, .begin = half, .end = length, .sequence = astray, .counted = 0, .instead = wrong});
    driver.in_chunks(prompt, half, 3, right);
  }
}

// A pool for one prompt at a time. Each is run twice: what others have left of it is shared, the rest
// computed again.
void paged_sharing(PathDriver& driver, Indices some) {
  const std::vector<std::size_t> prompts = at_least_two(some);
  PagedKvCache& cache = driver.new_paged_cache(1, blocks_of_longest(driver, prompts));
  for (const std::size_t prompt : prompts) {
    for (const std::int64_t chunk : {7, 1}) {
      const std::int32_t sequence = cache.open(driver.tokens(prompt));
      driver.in_chunks(prompt, cache.length(sequence), chunk, sequence);
      cache.publish(sequence, driver.tokens(prompt));
      cache.close(sequence);
    }
  }
}

void paged_guesses(PathDriver& driver, Indices prompts) {
  for (const std::size_t prompt : prompts) {
    driver.new_paged_cache(1, PagedKvCache::blocks_of(driver.length(prompt))).open({});
    with_guesses(driver, prompt);
  }
}

constexpr Path kPaths[] = {
    {"uncached, every step", Reach::kFastestSet, true, every_step},
    {"whole prompt", Reach::kVectorSets, false, whole_prompt},
    {"chunks of 2", Reach::kFastestSet, false, chunks<2>},
    {"chunks of 7", Reach::kFastestSet, false, chunks<7>},
    {"chunks of 16", Reach::kFastestSet, false, chunks<16>},
    {"chunks of 33", Reach::kFastestSet, false, chunks<33>},
    {"token by token", Reach::kEverySet, false, chunks<1>},
    {"half, then token by token", Reach::kFastestSet, false, prefill_and_decode},
    {"chunks of 5, larger cache", Reach::kFastestSet, false, roomier_cache},
    {"batch of whole prompts", Reach::kFastestSet, false, batch_of_prompts},
    {"batch, token by token", Reach::kFastestSet, false, batch_of_tokens},
    {"batch, joined at any time", Reach::kVectorSets, false, mixed_batch},
    {"guesses, right and wrong", Reach::kFastestSet, false, guesses},
    {"preempted and resumed", Reach::kFastestSet, false, preempted},
    {"paged, blocks in no order", Reach::kFastestSet, false, paged},
    {"paged, copied on write", Reach::kFastestSet, false, paged_fork},
    {"paged, shared and evicted", Reach::kFastestSet, false, paged_sharing},
    {"paged, right, wrong guesses", Reach::kFastestSet, false, paged_guesses},
};

}  // namespace

std::span<const Path> verify_paths() { return kPaths; }

}  // namespace kvasir
