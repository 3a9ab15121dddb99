// Tables as programs and people read them.
#ifndef KVASIR_APPS_TABLE_H_
#define KVASIR_APPS_TABLE_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/json_writer.h"

namespace kvasir::cli {

// A text as one field of comma-separated values.
std::string csv_text(const std::string& text);

// Three significant digits, but whole numbers whole.
std::string short_number(double value);

// lines: the head, then rows, all of one length. The first column is aligned to the left, others to the
// right.
std::string markdown_table(const std::vector<std::vector<std::string>>& lines);

// monostate: nothing was measured. That is null in JSON, empty in CSV, a dash for people.
using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;

// Rows that are told in three ways, with the same values.
struct ResultTable {
  struct Column {
    std::string name;     // in JSON and CSV
    std::string heading;  // for people, with the unit
    double scale = 1.0;   // from the value to that unit
  };
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;

  void write_json(JsonWriter& json) const;  // an array of objects
  std::string to_csv() const;
  std::string to_markdown() const;
};

}  // namespace kvasir::cli

#endif  // KVASIR_APPS_TABLE_H_
