#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvasir::cli {
namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

std::string csv_cell(const Cell& cell) {
  return std::visit(Overloaded{[](std::monostate) { return std::string(); },
                               [](const std::string& text) { return csv_text(text); },
                               [](auto number) { return fmt::format("{}", number); }},
                    cell);
}

std::string shown_cell(const Cell& cell, double scale) {
  return std::visit(Overloaded{[](std::monostate) { return std::string("-"); },
                               [](const std::string& text) { return text; },
                               [&](std::int64_t number) {
                                 return scale == 1.0 ? fmt::format("{}", number)
                                                     : short_number(scale * static_cast<double>(number));
                               },
                               [&](double number) { return short_number(scale * number); }},
                    cell);
}

}  // namespace

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string short_number(double value) {
  return value < 99.95 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

std::string markdown_table(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      out += i == 0 ? fmt::format("| {:<{}} |", lines[l][i], widths[i])
                    : fmt::format(" {:>{}} |", lines[l][i], widths[i]);
    }
    out += "\n";
    for (std::size_t i = 0; l == 0 && i < widths.size(); ++i) {
      out +=
          i == 0 ? fmt::format("|{:-<{}}|", "", widths[i] + 2) : fmt::format("{:-<{}}:|", "", widths[i] + 1);
    }
    if (l == 0) out += "\n";
  }
  return out;
}

void ResultTable::write_json(JsonWriter& json) const {
  json.begin_array();
  for (const auto& row : rows) {
    json.begin_object();
    for (std::size_t i = 0; i < row.size(); ++i) {
      json.key(columns[i].name);
      std::visit(
          Overloaded{[&](std::monostate) { json.null(); }, [&](const auto& value) { json.value(value); }},
          row[i]);
    }
    json.end_object();
  }
  json.end_array();
}

std::string ResultTable::to_csv() const {
  std::vector<std::string> names;
  names.reserve(columns.size());
  for (const Column& column : columns) names.push_back(column.name);
  std::string out = fmt::format("{}\n", fmt::join(names, ","));
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    cells.reserve(row.size());
    for (const Cell& cell : row) cells.push_back(csv_cell(cell));
    out += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return out;
}

std::string ResultTable::to_markdown() const {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns) lines.front().push_back(column.heading);
  for (const auto& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) line.push_back(shown_cell(row[i], columns[i].scale));
  }
  return markdown_table(lines);
}

}  // namespace kvasir::cli
