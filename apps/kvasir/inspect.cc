// kvasir inspect: what is in a model file.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <span>

#include "base/json_writer.h"
#include "command.h"
#include "formats/gguf.h"
#include "formats/gguf_value.h"
#include "kvasir/tokenizer.h"
#include "model/hyperparameters.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  bool json = false;
  bool all_tensors = false;
};

std::size_t write_values(JsonWriter& json, GgufValueType type, std::uint64_t count,
                         std::span<const std::byte> data);

// The encoded value that `data` begins with; returns its length in bytes.
std::size_t write_value(JsonWriter& json, GgufValueType type, std::span<const std::byte> data) {
  switch (type) {
    case GgufValueType::kString: {
      const std::string_view text = gguf_string_at(data, 0);
      json.value(text);
      return sizeof(std::uint64_t) + text.size();
    }
    case GgufValueType::kArray: {  // within an array; each has its element type and count before its elements
      const auto element_type = static_cast<GgufValueType>(load_unaligned<std::uint32_t>(data));
      const auto count = load_unaligned<std::uint64_t>(data, 4);
      return 4 + 8 + write_values(json, element_type, count, data.subspan(12));
    }
    case GgufValueType::kBool:
      json.value(data[0] != std::byte{0});
      break;
    case GgufValueType::kFloat32:
      json.value(load_unaligned<float>(data));
      break;
    case GgufValueType::kFloat64:
      json.value(load_unaligned<double>(data));
      break;
    case GgufValueType::kUint64:  // may exceed what gguf_int_at can return
      json.value(load_unaligned<std::uint64_t>(data));
      break;
    default:
      json.value(*gguf_int_at(type, data, 0));
  }
  return gguf_value_type_info(static_cast<std::uint32_t>(type))->bytes;
}

// An array of `count` values that lie one after another; returns their length in bytes.
std::size_t write_values(JsonWriter& json, GgufValueType type, std::uint64_t count,
                         std::span<const std::byte> data) {
  json.begin_array();
  std::size_t offset = 0;
  for (std::uint64_t i = 0; i < count; ++i) offset += write_value(json, type, data.subspan(offset));
  json.end_array();
  return offset;
}

void write_entry(JsonWriter& json, const GgufEntry& entry) {
  if (entry.type == GgufValueType::kArray) {
    write_values(json, entry.element_type, entry.count, entry.data);
  } else {
    write_value(json, entry.type, entry.data);
  }
}

// For people: arrays by their size, long texts by their beginning.
std::string entry_summary(const GgufEntry& entry) {
  constexpr std::size_t kShownBytes = 60;
  if (entry.type == GgufValueType::kArray) return fmt::format("[{} values]", entry.count);
  if (entry.type == GgufValueType::kString) {
    const std::string_view text = gguf_string_at(entry.data, 0);
    if (text.size() > kShownBytes) return in_quotes(text.substr(0, kShownBytes)) + "...";
  }
  JsonWriter json;
  write_entry(json, entry);
  return json.text();
}

struct TypeSummary {
  std::size_t tensors = 0;
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t values_of(const GgufTensor& tensor) {
  std::uint64_t values = 1;
  for (const std::uint64_t dimension : tensor.shape) values *= dimension;
  return values;
}

std::map<std::string_view, TypeSummary> summarize(const GgufFile& file) {
  std::map<std::string_view, TypeSummary> types;
  for (const GgufTensor& tensor : file.tensors()) {
    TypeSummary& summary = types[tensor_type_info(tensor.type).name];
    ++summary.tensors;
    summary.values += values_of(tensor);
    summary.bytes += tensor.data.size();
  }
  return types;
}

std::string to_json(const GgufFile& file) {
  JsonWriter json;
  json.begin_object()
      .field("model", file.path())
      .field("bytes", file.file_bytes())
      .field("gguf_version", file.version());
  json.field("alignment", file.alignment()).key("metadata").begin_object();
  for (const GgufEntry& entry : file.entries()) write_entry(json.key(entry.key), entry);
  json.end_object().key("tensors").begin_array();
  for (const GgufTensor& tensor : file.tensors()) {
    json.begin_object().field("name", tensor.name).field("type", tensor_type_info(tensor.type).name);
    json.key("shape").begin_array();
    for (const std::uint64_t dimension : tensor.shape) json.value(dimension);
    json.end_array().field("bytes", tensor.data.size()).end_object();
  }
  return json.end_array().end_object().text() + "\n";
}

std::string hyperparameters(const GgufFile& file) {
  const Config config = config_from_gguf(file);
  return fmt::format(
      "  layers {}, width {}, feed-forward {}, heads {} over {} of {} dims, vocabulary {}, context {},\n"
      "  RoPE theta {:g}, RMSNorm eps {:g}\n"
      "  KV cache: {} bytes a token in f16\n",
      config.n_layer, config.d_model, config.d_ff, config.n_head, config.n_kv_head, config.head_dim,
      config.vocab_size, config.max_seq, config.rope_theta, config.rms_eps,
      std::int64_t{4} * config.n_layer * config.n_kv_head * config.head_dim);
}

std::string tokenizer_summary(const GgufFile& file) {
  const Tokenizer tokenizer(tokenizer_data_from_gguf(file));
  const TokenizerData& data = tokenizer.data();
  std::map<TokenType, std::size_t> types;
  for (const TokenType type : data.types) ++types[type];
  const auto special = [&](const char* name, std::optional<TokenId> id) {
    if (!id.has_value()) return std::string();
    return fmt::format(", {} {} {}", name, *id, in_quotes(tokenizer.token_bytes(*id)));
  };
  return fmt::format(
      "  byte-level BPE \"{}\": {} tokens ({} control, {} user-defined), {} merges{}{}{}, adds BOS: {}\n",
      data.pre, data.tokens.size(), types[TokenType::kControl], types[TokenType::kUserDefined],
      data.merges.size(), special("bos", data.bos), special("eos", data.eos), special("eot", data.eot),
      data.add_bos ? "yes" : "no");
}

// A part that cannot be made out is reported in its place: inspecting a strange file is what inspect is for.
template <class Fn>
std::string or_problem(Fn fn) {
  try {
    return fn();
  } catch (const std::exception& error) {
    return fmt::format("  {}\n", error.what());
  }
}

std::string to_text(const GgufFile& file, bool all_tensors) {
  std::string out = fmt::format(
      "{}\n  {} bytes, GGUF version {}, alignment {}, {} metadata entries, {} tensors\n", file.path(),
      file.file_bytes(), file.version(), file.alignment(), file.entries().size(), file.tensors().size());
  out += "model\n" + or_problem([&] { return hyperparameters(file); });
  out += "tokenizer\n" + or_problem([&] { return tokenizer_summary(file); });
  out += "tensors\n";
  for (const auto& [name, summary] : summarize(file)) {
    out += fmt::format("  {:<5} {:>4} tensors, {:>12} values, {:>12} bytes\n", name, summary.tensors,
                       summary.values, summary.bytes);
  }
  if (all_tensors) {
    for (const GgufTensor& tensor : file.tensors()) {
      out += fmt::format("  {:<32} {:<5} [{}]\n", tensor.name, tensor_type_info(tensor.type).name,
                         fmt::join(tensor.shape, ", "));
    }
  }
  out += "metadata\n";
  for (const GgufEntry& entry : file.entries()) {
    out += fmt::format("  {} = {}\n", entry.key, entry_summary(entry));
  }
  const auto chat = file.find_string("tokenizer.chat_template");
  out += chat.has_value() ? fmt::format("chat template\n{}\n", *chat) : "no chat template\n";
  return out;
}

}  // namespace

void add_inspect(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("inspect", "What is in a model file");
  const auto options = std::make_shared<Options>();
  options->model.add_path(command);
  command.add_flag("--tensors", options->all_tensors, "List every tensor");
  command.add_flag("--json", options->json, "One JSON document: all metadata and tensors");
  command.callback([options, &chosen] {
    chosen = [options] {
      const GgufFile file = GgufFile::open(options->model.resolved_path());
      print(options->json ? to_json(file) : to_text(file, options->all_tensors));
      return kDone;
    };
  });
}

}  // namespace kvasir::cli
