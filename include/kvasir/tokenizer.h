// Text to token ids and back: byte-level BPE.
//
// Source: Sennrich et al. 2016 (BPE); the byte alphabet and the first splitting pattern are GPT-2's.
#ifndef KVASIR_TOKENIZER_H_
#define KVASIR_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/token.h"

namespace kvasir {

class GgufFile;

enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// All that defines a tokenizer, in memory. Token strings and merges are spelled in GPT-2's byte alphabet.
struct TokenizerData {
  std::string source;               // where it came from, for messages: the path of the file; may be empty
  std::string pre;                  // "smollm", "gpt-2", "llama-bpe" or "qwen2"
  std::vector<std::string> tokens;  // [vocab_size]
  std::vector<TokenType> types;     // [vocab_size]
  std::vector<std::string> merges;  // "left right", best first
  std::optional<TokenId> bos;       // beginning of sequence
  std::optional<TokenId> eos;       // end of sequence (or of turn)
  std::optional<TokenId> eot;       // end of turn, where it is another token than eos
  bool add_bos = false;             // encode() of a whole prompt starts with bos
};

// Error(kFormat) if the file carries no tokenizer or one of a kind that is not supported.
TokenizerData tokenizer_data_from_gguf(const GgufFile& file);

// Whether spellings of control tokens inside a text mean those tokens.
enum class ControlTokens {
  kAsText,  // the text is a user's: "<|im_end|>" is ten ordinary characters
  kParse,   // the text was written by a template or an expert: "<|im_end|>" is the control token
};

// A part of a text, by who wrote it.
struct TextSegment {
  std::string text;
  ControlTokens control;
};

// Immutable; may be used from several threads at once.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerData data);  // Error(kFormat) if ids or merges contradict each other
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of a text, without BOS. User-defined tokens are always recognised. Bytes that are not UTF-8 are first
  // replaced (U+FFFD for each maximal ill-formed subpart).
  std::vector<TokenId> encode(std::string_view text, ControlTokens control) const;
  // Ids of one text made of segments. Words and merges run across the borders, as if it had been written by
  // one hand; a control token is recognised only where each of its bytes is of a kParse segment. Bytes that
  // are not UTF-8 are replaced in each segment by itself.
  std::vector<TokenId> encode(std::span<const TextSegment> segments) const;

  // The raw bytes of one token (a control token: its spelling). Error(kInvalidArgument) for an id outside the
  // vocabulary.
  std::string_view token_bytes(TokenId id) const;
  // The bytes of a sequence, in order; with skip_control, control tokens contribute nothing.
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_control) const;
  // The same as valid UTF-8 (U+FFFD for what is not).
  std::string decode(std::span<const TokenId> ids, bool skip_control) const;

  std::int32_t vocab_size() const;
  TokenType token_type(TokenId id) const;
  std::optional<TokenId> find_token(
      std::string_view spelling) const;  // by the token's spelling in the vocabulary
  const TokenizerData& data() const;
  bool is_end_of_generation(TokenId id) const;  // eos or eot

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

// Turns tokens into text as they come, never handing out part of a UTF-8 character.
// The concatenation of all that push() and finish() return equals Tokenizer::decode of the whole sequence.
class IncrementalDecoder {
 public:
  // The tokenizer must outlive the decoder.
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_control);
  std::string push(TokenId id);  // text that is complete now; may be empty
  std::string push_bytes(std::string_view bytes);
  std::string finish();  // what is left, with U+FFFD for a character that was cut

 private:
  const Tokenizer* tokenizer_;
  bool skip_control_;
  std::string pending_;  // bytes of an unfinished character
};

}  // namespace kvasir

#endif  // KVASIR_TOKENIZER_H_
