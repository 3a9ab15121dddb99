#include "kvasir/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "kvasir/error.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/special_tokens.h"

namespace kvasir {
namespace {

using TokenMap = std::unordered_map<std::string_view, TokenId>;

[[noreturn]] void fail(const TokenizerData& data, const std::string& what) {
  throw Error(ErrorKind::kFormat, data.source.empty() ? what : data.source + ": " + what);
}

void check_id(const TokenizerData& data, const char* key, std::optional<TokenId> id) {
  if (id && (*id < 0 || static_cast<std::size_t>(*id) >= data.tokens.size())) {
    fail(data, std::string(key) + " is " + std::to_string(*id) + ", outside the vocabulary of " +
                   std::to_string(data.tokens.size()) + " tokens");
  }
}

void check(const TokenizerData& data) {
  if (data.tokens.empty()) fail(data, "tokenizer.ggml.tokens is empty");
  // Places in a text and ids share 32 bits; no vocabulary comes near this.
  if (data.tokens.size() > (std::size_t{1} << 30))
    fail(data, "tokenizer.ggml.tokens has more than 2^30 tokens");
  if (data.types.size() != data.tokens.size()) {
    fail(data, "tokenizer.ggml.token_type has " + std::to_string(data.types.size()) +
                   " entries, tokenizer.ggml.tokens has " + std::to_string(data.tokens.size()));
  }
  check_id(data, "tokenizer.ggml.bos_token_id", data.bos);
  check_id(data, "tokenizer.ggml.eos_token_id", data.eos);
  check_id(data, "tokenizer.ggml.eot_token_id", data.eot);
  if (data.add_bos && !data.bos) {
    fail(data, "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
  }
}

const SplitRule& split_rule(const TokenizerData& data) {
  if (const SplitRule* rule = find_split_rule(data.pre)) return *rule;
  std::string known;
  for (const SplitRule& rule : split_rules()) known.append(known.empty() ? "" : ", ").append(rule.name);
  fail(data, "tokenizer.ggml.pre '" + data.pre + "' is not supported; supported: " + known);
}

// Where of equal spellings the lowest id wins.
TokenMap map_spellings(const TokenizerData& data) {
  TokenMap map;
  map.reserve(data.tokens.size());
  for (std::size_t i = 0; i < data.tokens.size(); ++i) map.emplace(data.tokens[i], static_cast<TokenId>(i));
  return map;
}

std::vector<Merge> parse_merges(const TokenizerData& data, const TokenMap& ids) {
  std::vector<Merge> merges;
  merges.reserve(data.merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string_view line = data.merges[rank];
    const auto refuse = [&](const std::string& why) {
      fail(data, "tokenizer.ggml.merges[" + std::to_string(rank) + "] \"" + replace_invalid_utf8(line) +
                     "\" " + why);
    };
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
        space != line.rfind(' ')) {
      refuse("is not two tokens with one space between them");
    }
    const auto find = [&](std::string_view spelling) {
      const auto found = ids.find(spelling);
      if (found == ids.end())
        refuse("needs a token \"" + replace_invalid_utf8(spelling) + "\" that does not exist");
      return found->second;
    };
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    joined.assign(left).append(right);
    const Merge merge = {find(left), find(right), find(joined)};
    // Ordinary text must never become a control token, whatever the merges say.
    if (data.types[static_cast<std::size_t>(merge.result)] != TokenType::kControl) merges.push_back(merge);
  }
  return merges;
}

struct Range {
  std::size_t begin, end;
};

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerData d);
  ~State();

  void encode(std::string_view text, std::span<const Range> trusted, std::vector<TokenId>& ids) const;

  TokenizerData data;
  const SplitRule& rule;
  TokenMap ids_of_spellings;
  Pretokenizer pretokenizer;
  Bpe bpe;
  std::vector<std::string> bytes;        // [vocab_size]
  std::array<TokenId, 256> byte_tokens;  // -1: no token
  TokenMap words;                        // normal tokens by their bytes, if the rule looks up whole words
  SpecialTokens special;                 // control and user-defined
  SpecialTokens user_defined;

 private:
  struct Encoder;
  // Working memory is kept for the next text: fresh pages cost more time than a short text, or a long word.
  std::unique_ptr<Encoder> take_encoder() const;
  void give_back(std::unique_ptr<Encoder> encoder) const;
  mutable std::mutex mutex;
  // Guarded by mutex; at most as many as there were threads at once.
  mutable std::vector<std::unique_ptr<Encoder>> idle_encoders;
};

Tokenizer::State::State(TokenizerData d)
    : data((check(d), std::move(d))),
      rule(split_rule(data)),
      ids_of_spellings(map_spellings(data)),
      pretokenizer(rule),
      bpe(parse_merges(data, ids_of_spellings)),
      bytes(data.tokens.size()) {
  byte_tokens.fill(-1);
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& spelling = data.tokens[i];
    if (data.types[i] == TokenType::kControl) special.add(spelling, id);
    if (data.types[i] == TokenType::kUserDefined) {
      special.add(spelling, id);
      user_defined.add(spelling, id);
    }
    if (data.types[i] != TokenType::kNormal) {
      bytes[i] = spelling;
      continue;
    }
    // Some files have ordinary tokens that were not spelled in the alphabet: they stand for themselves, and
    // no text becomes such a token.
    const std::optional<std::string> decoded = from_byte_alphabet(spelling);
    bytes[i] = decoded.value_or(spelling);
    if (!decoded || ids_of_spellings.at(spelling) != id) continue;
    if (decoded->size() == 1) byte_tokens[static_cast<unsigned char>((*decoded)[0])] = id;
    if (rule.whole_word_first) words.emplace(bytes[i], id);
  }
}

// Encodes one text at a time. Holds the working memory of that.
struct Tokenizer::State::Encoder {
  explicit Encoder(const State& s) : state(s), splitter(s.pretokenizer) {}

  void add_word(std::string_view word, std::vector<TokenId>& ids) {
    if (state.rule.whole_word_first) {
      if (const auto found = state.words.find(word); found != state.words.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    symbols.clear();
    for (const char c : word) {
      // A byte without a token is dropped before its neighbours merge, as Hugging Face tokenizers does.
      const TokenId id = state.byte_tokens[static_cast<unsigned char>(c)];
      if (id >= 0) symbols.push_back(id);
    }
    state.bpe.merge(symbols, workspace);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }

  // Text between special tokens.
  // Here, before the split, is the place for Unicode normalisation (NFC), when a model asks for it.
  void add_ordinary(std::string_view text, std::vector<TokenId>& ids) {
    for (const std::string_view word : splitter.split(text)) add_word(word, ids);
  }

  // Text between control tokens.
  void add_text(std::string_view text, std::vector<TokenId>& ids) {
    std::size_t done = 0;
    for (const SpecialTokens::Match& match : state.user_defined.find(text)) {
      add_ordinary(text.substr(done, match.begin - done), ids);
      ids.push_back(match.token);
      done = match.end;
    }
    add_ordinary(text.substr(done), ids);
  }

  std::size_t bytes() const {
    return symbols.capacity() * sizeof(TokenId) + workspace.other_end.capacity() * sizeof(std::uint32_t) +
           workspace.heap.capacity() * sizeof(std::uint64_t);
  }

  const State& state;
  Pretokenizer::Splitter splitter;
  Bpe::Workspace workspace;
  std::vector<TokenId> symbols;
};

Tokenizer::State::~State() = default;

std::unique_ptr<Tokenizer::State::Encoder> Tokenizer::State::take_encoder() const {
  {
    const std::lock_guard lock(mutex);
    if (!idle_encoders.empty()) {
      std::unique_ptr<Encoder> encoder = std::move(idle_encoders.back());
      idle_encoders.pop_back();
      return encoder;
    }
  }
  return std::make_unique<Encoder>(*this);
}

void Tokenizer::State::give_back(std::unique_ptr<Encoder> encoder) const {
  constexpr std::size_t kMostBytes = 16 << 20;  // enough for words of a million bytes
  if (encoder->bytes() > kMostBytes) return;
  const std::lock_guard lock(mutex);
  idle_encoders.push_back(std::move(encoder));
}

// Control tokens come first, over the trusted ranges alone, so that nothing in the rest of the text can hide
// one (a user-defined token that begins in a user's text and ends inside a control token, say). Within a
// range the leftmost-longest match over both kinds decides, as it would over the whole text.
void Tokenizer::State::encode(std::string_view text, std::span<const Range> trusted,
                              std::vector<TokenId>& ids) const {
  if (text.size() > (std::size_t{1} << 31)) {
    throw Error(ErrorKind::kInvalidArgument, "the text to tokenize has " + std::to_string(text.size()) +
                                                 " bytes; the limit is 2^31: cut it into parts");
  }
  std::unique_ptr<Encoder> encoder = take_encoder();
  std::size_t done = 0;
  for (const Range& range : trusted) {
    for (const SpecialTokens::Match& match :
         special.find(text.substr(range.begin, range.end - range.begin))) {
      if (data.types[static_cast<std::size_t>(match.token)] != TokenType::kControl) continue;
      encoder->add_text(text.substr(done, range.begin + match.begin - done), ids);
      ids.push_back(match.token);
      done = range.begin + match.end;
    }
  }
  encoder->add_text(text.substr(done), ids);
  give_back(std::move(encoder));
}

Tokenizer::Tokenizer(TokenizerData data) : state_(std::make_unique<const State>(std::move(data))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, ControlTokens control) const {
  std::string replaced;
  if (!is_valid_utf8(text)) text = replaced = replace_invalid_utf8(text);
  const Range whole = {0, text.size()};
  std::vector<TokenId> ids;
  state_->encode(text, std::span(&whole, control == ControlTokens::kParse ? 1 : 0), ids);
  return ids;
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextSegment> segments) const {
  std::string text;
  std::vector<Range> trusted;
  for (const TextSegment& segment : segments) {
    const std::size_t begin = text.size();
    text += replace_invalid_utf8(segment.text);
    if (segment.control != ControlTokens::kParse || text.size() == begin) continue;
    if (!trusted.empty() && trusted.back().end == begin) {
      trusted.back().end = text.size();
    } else {
      trusted.push_back({begin, text.size()});
    }
  }
  std::vector<TokenId> ids;
  state_->encode(text, trusted, ids);
  return ids;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(ErrorKind::kInvalidArgument, "token id " + std::to_string(id) +
                                                 " is outside the vocabulary [0, " +
                                                 std::to_string(vocab_size()) + ")");
  }
  return state_->bytes[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode_bytes(std::span<const TokenId> ids, bool skip_control) const {
  std::string bytes;
  for (const TokenId id : ids) {
    const std::string_view piece = token_bytes(id);
    if (!skip_control || token_type(id) != TokenType::kControl) bytes += piece;
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_control) const {
  return replace_invalid_utf8(decode_bytes(ids, skip_control));
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(state_->data.tokens.size()); }

TokenType Tokenizer::token_type(TokenId id) const {
  token_bytes(id);  // checks the id
  return state_->data.types[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::find_token(std::string_view spelling) const {
  const auto found = state_->ids_of_spellings.find(spelling);
  if (found == state_->ids_of_spellings.end()) return std::nullopt;
  return found->second;
}

const TokenizerData& Tokenizer::data() const { return state_->data; }

bool Tokenizer::is_end_of_generation(TokenId id) const {
  return id == state_->data.eos || id == state_->data.eot;
}

}  // namespace kvasir
