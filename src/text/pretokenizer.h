// Cuts a text into the pieces ("words") that BPE never merges across.
#ifndef KVASIR_TEXT_PRETOKENIZER_H_
#define KVASIR_TEXT_PRETOKENIZER_H_

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir {

// One way of splitting, as data.
struct SplitRule {
  std::string_view name;  // as in the GGUF key tokenizer.ggml.pre
  // Regular expressions as the model's makers published them. The first cuts the text into its matches and
  // what lies between them; the next cuts each of those parts on its own (its look-ahead ends with the part),
  // and so on.
  std::vector<std::string_view> stages;
  bool whole_word_first;  // a piece that is itself a token is not built by merging
};

std::span<const SplitRule> split_rules();                 // all that we know
const SplitRule* find_split_rule(std::string_view name);  // nullptr if unknown

// A compiled SplitRule. Immutable; may be used from several threads.
// Classes are those of Unicode 16 (Hugging Face tokenizers, which made the reference ids, uses the same): \s
// is the White_Space property, \p{L} and \p{N} also hold what PCRE2's own tables do not know yet.
class Pretokenizer {
 public:
  explicit Pretokenizer(const SplitRule& rule);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  // The working memory of one thread.
  class Splitter {
   public:
    // The pretokenizer must outlive the splitter.
    explicit Splitter(const Pretokenizer& pretokenizer);
    ~Splitter();
    Splitter(const Splitter&) = delete;
    Splitter& operator=(const Splitter&) = delete;
    // The pieces of a text that is valid UTF-8; together they are the text. They point into it.
    // Error(kRuntime) if the regular expression engine gives up.
    std::vector<std::string_view> split(std::string_view text);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_TEXT_PRETOKENIZER_H_
