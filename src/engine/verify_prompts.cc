// The prompts that kvasir verify runs unless it is given others.
#include <algorithm>
#include <string_view>

#include "kvasir/verify.h"

namespace kvasir {
namespace {

constexpr std::string_view kSentence = "The capital of Iceland is called";
constexpr std::string_view kCode = "def mean(values):\n    return sum(values) / len(values)\n";
constexpr std::string_view kNumbers = "3.14159, 2.71828, 1.41421, 0.57721, 1.61803, 6.02214e23, 1.380649e-23";
constexpr std::string_view kLanguages =
    "Guten Morgen! \u00bfQu\u00e9 tal? \u0414\u043e\u0431\u0440\u043e\u0435 \u0443\u0442\u0440\u043e "
    "\u65e9\u4e0a\u597d \U0001f305 Buongiorno a tutti, e una buona giornata.";

// Longer than a span of attention (256 positions) for every tokenizer.
constexpr std::string_view kStory =
    "The lighthouse keeper had counted the steps so often that he no longer noticed them: two hundred and "
    "twelve from the door to the lamp, and the same number back. On calm evenings he sat on the gallery with "
    "a "
    "pot of tea and wrote down the ships. Each got a line in the book, with the hour, the wind, the colour "
    "of "
    "the hull and, when he could make it out, the name. Nobody had asked him to. The harbour master had a "
    "book "
    "of his own, and better instruments, but the keeper held that a thing which is seen twice, by two people "
    "who do not talk to each other, is a thing that happened, while a thing that is seen once is a story.\n\n"
    "In the ninth winter a storm broke three panes of the lantern, and for one night there was no light. He "
    "stood outside with a hand lamp until the morning. When the harbour master came over in the boat to ask "
    "what had gone wrong, the keeper showed him the book. There was a line for every ship that had passed in "
    "the dark: a bell heard at eleven, voices at half past two, an engine that slowed down and went on again "
    "at four. The two men laid their books side by side on the kitchen table and went through the night, "
    "line "
    "by line. There were nine ships in the one and nine in the other. The hours agreed, and so did the wind. "
    "Only one entry was different. Where the harbour master had written that the mail boat came in late, the "
    "keeper had written that it came in at five, as it always did, and that the clock in the harbour was "
    "slow. "
    "They rowed across together to look at the clock, and the keeper was right. After that the harbour "
    "master "
    "came every month, and each time they compared the two books to the last letter before they drank their "
    "tea.";

struct BuiltIn {
  std::string_view text;
  std::size_t tokens;  // at most
};
constexpr BuiltIn kQuick[] = {{kSentence, 4}, {kCode, 7}, {kStory, 17}};
constexpr BuiltIn kFull[] = {{kSentence, 5}, {kCode, 8}, {kNumbers, 15}, {kLanguages, 33}, {kStory, 290}};

}  // namespace

std::vector<std::vector<TokenId>> verify_prompts(const LanguageModel& model, bool quick) {
  std::vector<std::vector<TokenId>> prompts;
  const auto context = static_cast<std::size_t>(model.model().config().max_seq);
  for (const BuiltIn& prompt : quick ? std::span<const BuiltIn>(kQuick) : std::span<const BuiltIn>(kFull)) {
    prompts.push_back(model.encode_prompt(prompt.text, ControlTokens::kAsText));
    prompts.back().resize(std::min({prompts.back().size(), prompt.tokens, context}));
  }
  return prompts;
}

}  // namespace kvasir
