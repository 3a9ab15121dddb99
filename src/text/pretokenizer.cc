#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "kvasir/error.h"

namespace kvasir {
namespace {

#include "text/unicode_additions.inc"

// The White_Space property (Unicode 16, PropList.txt). PCRE2's \s has U+180E too.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// OpenAI, GPT-2, encoder.py.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Meta, Llama 3, tokenizer.py.
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Alibaba, Qwen2, tokenization_qwen2.py in transformers.
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Writes a published pattern in PCRE2's terms: the classes get our contents. ASCII is listed first because
// PCRE2 answers it from a bitmap, without a look at its property tables.
std::string expand_classes(std::string_view pattern) {
  std::string result;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    std::string contents;
    bool negated = false;
    std::size_t length = 2;
    if (rest.starts_with(R"(\s)") || rest.starts_with(R"(\S)")) {
      negated = rest[1] == 'S';
      contents = kWhiteSpace;
    } else if (rest.starts_with(R"(\p{L})")) {
      contents = std::string("A-Za-z\\p{L}").append(kNewLetters);
      length = 5;
    } else if (rest.starts_with(R"(\p{N})")) {
      contents = std::string("0-9\\p{N}").append(kNewNumbers);
      length = 5;
    }
    if (contents.empty()) {
      if (rest[0] == '[') in_class = true;
      if (rest[0] == ']') in_class = false;
      result += rest[0];
      if (rest[0] == '\\') result += rest[1], ++i;
    } else {
      result += in_class ? contents : (negated ? "[^" : "[") + contents + "]";
      i += length - 1;
    }
  }
  return result;
}

std::string pcre2_message(int code) {
  char text[256] = "unknown error";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
using Code = std::unique_ptr<pcre2_code, CodeFree>;

struct Stage {
  Code code;
  bool has_jit;
};

Stage compile(std::string_view pattern) {
  const std::string expanded = expand_classes(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), PCRE2_UTF, &error,
                          &offset, nullptr));
  if (!code)
    throw Error(ErrorKind::kRuntime, "cannot compile the splitting pattern: " + pcre2_message(error));
  // Without JIT (a kernel that forbids writable code, say) the interpreter gives the same pieces, only
  // slower.
  const bool has_jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
  return {std::move(code), has_jit};
}

}  // namespace

std::span<const SplitRule> split_rules() {
  static const std::vector<SplitRule> rules = {
      {"smollm", {R"(\p{N})", kGpt2Pattern}, false},
      {"gpt-2", {kGpt2Pattern}, false},
      {"llama-bpe", {kLlama3Pattern}, true},
      {"qwen2", {kQwen2Pattern}, false},
  };
  return rules;
}

const SplitRule* find_split_rule(std::string_view name) {
  for (const SplitRule& rule : split_rules()) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

struct Pretokenizer::State {
  std::vector<Stage> stages;
};

Pretokenizer::Pretokenizer(const SplitRule& rule) {
  auto state = std::make_unique<State>();
  for (const std::string_view pattern : rule.stages) state->stages.push_back(compile(pattern));
  state_ = std::move(state);
}
Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

struct Pretokenizer::Splitter::State {
  const Pretokenizer::State* pretokenizer;
  std::unique_ptr<pcre2_match_data, MatchDataFree> match_data;
  std::unique_ptr<pcre2_match_context, MatchContextFree> context;
  std::unique_ptr<pcre2_jit_stack, JitStackFree> jit_stack;

  // The first match at or after `from`: [begin, end), or [size, size) if there is none.
  std::pair<std::size_t, std::size_t> match(const Stage& stage, std::string_view text,
                                            std::size_t from) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int result = stage.has_jit ? pcre2_jit_match(stage.code.get(), subject, text.size(), from,
                                                       PCRE2_NO_UTF_CHECK, match_data.get(), context.get())
                                     : pcre2_match(stage.code.get(), subject, text.size(), from,
                                                   PCRE2_NO_UTF_CHECK, match_data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (result < 0)
      throw Error(ErrorKind::kRuntime, "cannot split the text into words: " + pcre2_message(result));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_data.get());
    if (bounds[1] <= bounds[0])
      throw Error(ErrorKind::kRuntime, "the splitting pattern matched nothing at all");
    return {bounds[0], bounds[1]};
  }

  void split_part(const Stage& stage, std::string_view part, std::vector<std::string_view>& pieces) const {
    for (std::size_t from = 0; from < part.size();) {
      const auto [begin, end] = match(stage, part, from);
      if (begin > from) pieces.push_back(part.substr(from, begin - from));
      if (end > begin) pieces.push_back(part.substr(begin, end - begin));
      from = end;
    }
  }
};

Pretokenizer::Splitter::Splitter(const Pretokenizer& pretokenizer) : state_(std::make_unique<State>()) {
  // Bytes. Our patterns have no nested repeats, so that the need does not grow with the text.
  constexpr std::size_t kStackStart = 32 * 1024, kStackLimit = 1024 * 1024;
  state_->pretokenizer = pretokenizer.state_.get();
  state_->match_data.reset(pcre2_match_data_create(1, nullptr));
  state_->context.reset(pcre2_match_context_create(nullptr));
  state_->jit_stack.reset(pcre2_jit_stack_create(kStackStart, kStackLimit, nullptr));
  if (!state_->match_data || !state_->context) throw std::bad_alloc();
  // A limit would turn a long run of one kind of character into an error. Work is bounded by the patterns: at
  // each position an alternative reads at most to the end of one run.
  pcre2_set_match_limit(state_->context.get(), std::numeric_limits<std::uint32_t>::max());
  pcre2_set_depth_limit(state_->context.get(), std::numeric_limits<std::uint32_t>::max());
  // Null (no JIT) means the machine stack.
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->jit_stack.get());
}
Pretokenizer::Splitter::~Splitter() = default;

std::vector<std::string_view> Pretokenizer::Splitter::split(std::string_view text) {
  std::vector<std::string_view> parts, pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Stage& stage : state_->pretokenizer->stages) {
    parts.swap(pieces);
    pieces.clear();
    for (const std::string_view part : parts) state_->split_part(stage, part, pieces);
  }
  return pieces;
}

}  // namespace kvasir
