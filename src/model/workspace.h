// Lists that a forward pass makes, kept from one to the next so that a warm decode loop allocates nothing.
#ifndef KVASIR_MODEL_WORKSPACE_H_
#define KVASIR_MODEL_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvasir/executor.h"
#include "kvasir/layers.h"
#include "kvasir/token.h"

namespace kvasir {

struct Executor::Workspace {
  // Consecutive rows of one sequence at consecutive positions.
  struct RowTile {
    std::int32_t sequence;
    std::int64_t first_row, rows;
    std::int64_t position;  // of the first
  };
  // Some spans of a tile's attention for one kv head.
  struct SpanPiece {
    std::int64_t tile, kv_head, span_begin, span_end;
    std::size_t sums;  // where they begin
  };

  std::vector<std::int32_t> sequences;  // of the runs
  std::vector<Row> rows;
  std::vector<TokenId> tokens;  // of the rows
  std::vector<RowTile> tiles;
  std::vector<SpanPiece> pieces;
  std::vector<std::size_t> sums_of_tile;  // of its first kv head
};

}  // namespace kvasir

#endif  // KVASIR_MODEL_WORKSPACE_H_
