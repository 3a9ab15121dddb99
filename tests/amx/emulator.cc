// AMX for machines without it: linked into a test, this answers for the machine that it has tiles, and
// computes their instructions where the processor, not knowing them, raises a signal. It is strict: what the
// manual (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2) calls an error ends the
// program.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/instruction_sets.h"

namespace kvasir::kernels {
namespace {

constexpr int kTiles = 8, kMostRows = 16, kMostBytes = 64;

struct Tile {
  int rows = 0, row_bytes = 0;
  std::uint8_t data[kMostRows][kMostBytes] = {};
};

struct TileState {
  bool configured = false;
  std::array<Tile, kTiles> tiles;
};
thread_local TileState state;

[[noreturn]] void fail(const char* why) {  // in a signal handler
  constexpr char kPrefix[] = "AMX emulator: ";
  if (write(STDERR_FILENO, kPrefix, sizeof kPrefix - 1) < 0 ||
      write(STDERR_FILENO, why, std::strlen(why)) < 0) {
    _exit(EXIT_FAILURE);
  }
  abort();
}

void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

// One VEX-encoded instruction with its operands, at `code`.
class Instruction {
 public:
  Instruction(const std::uint8_t* code, const greg_t* registers) : code_(code), registers_(registers) {
    require(code[0] == 0xc4 && (code[1] & 0x1f) == 2, "illegal instruction, not one of tiles\n");
    prefix_ = code[2] & 3;
    opcode_ = code[3];
    modrm_ = code[4];
    require((code[2] & 0x84) == 0, "tiles: W and L must be 0\n");
  }

  enum Prefix { kNone, k66, kF3, kF2 };
  bool is(std::uint8_t opcode, Prefix prefix) const { return opcode_ == opcode && prefix_ == prefix; }
  bool has_memory() const { return modrm_ >> 6 != 3; }
  int reg() const { return (modrm_ >> 3 & 7) | (code_[1] & 0x80 ? 0 : 8); }
  int rm() const { return (modrm_ & 7) | (code_[1] & 0x20 ? 0 : 8); }
  int vvvv() const { return ~code_[2] >> 3 & 15; }
  bool has_vvvv() const { return vvvv() != 0; }

  struct Memory {
    std::uint8_t* base;
    std::ptrdiff_t index;  // scaled; of tiles the stride
    bool sib;
  };
  // Sets the length, too.
  Memory memory() {
    const int mod = modrm_ >> 6, low = modrm_ & 7;
    Memory at = {nullptr, 0, low == 4};
    length_ = 5;
    std::int64_t base = 0;
    bool no_base = false;
    int base_register = rm();
    if (at.sib) {
      const std::uint8_t sib = code_[length_++];
      base_register = (sib & 7) | (code_[1] & 0x20 ? 0 : 8);
      const int index = (sib >> 3 & 7) | (code_[1] & 0x40 ? 0 : 8);
      if (index != 4) at.index = general(index) * (std::int64_t{1} << (sib >> 6));
      no_base = mod == 0 && (sib & 7) == 5;
    }
    const bool relative = mod == 0 && low == 5;
    if (!no_base && !relative) base = general(base_register);
    if (mod == 1) base += static_cast<std::int8_t>(code_[length_++]);
    if (mod == 2 || no_base || relative) {
      std::int32_t displacement;
      std::memcpy(&displacement, code_ + length_, sizeof displacement);
      length_ += 4;
      base += displacement;
    }
    if (relative) base += reinterpret_cast<std::int64_t>(code_ + length_);
    at.base = std::bit_cast<std::uint8_t*>(base);
    return at;
  }
  int length() const { return length_; }

 private:
  std::int64_t general(int number) const {
    constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kPlaces[number]];
  }

  const std::uint8_t* code_;
  const greg_t* registers_;
  int prefix_ = 0, length_ = 5;
  std::uint8_t opcode_ = 0, modrm_ = 0;
};

void configure(const std::uint8_t* from) {
  require(from[0] == 1 && from[1] == 0, "ldtilecfg: palette 1, from row 0\n");
  for (int i = 2; i < 16; ++i) require(from[i] == 0, "ldtilecfg: reserved bytes\n");
  state = {};
  state.configured = true;
  for (int i = 0; i < 16; ++i) {
    std::uint16_t row_bytes;
    std::memcpy(&row_bytes, from + 16 + 2 * i, sizeof row_bytes);
    const std::uint8_t rows = from[48 + i];
    require(i < kTiles || (rows == 0 && row_bytes == 0), "ldtilecfg: there are eight tiles\n");
    require(rows <= kMostRows && row_bytes <= kMostBytes, "ldtilecfg: a tile too large\n");
    require((rows == 0) == (row_bytes == 0), "ldtilecfg: a tile with one size 0\n");
    if (i < kTiles) {
      state.tiles[static_cast<std::size_t>(i)].rows = rows;
      state.tiles[static_cast<std::size_t>(i)].row_bytes = row_bytes;
    }
  }
}

Tile& tile(int number) {
  require(state.configured, "tiles are not configured\n");
  require(number < kTiles, "no such tile\n");
  Tile& found = state.tiles[static_cast<std::size_t>(number)];
  require(found.rows > 0 && found.row_bytes % 4 == 0, "the tile has no rows, or not of whole words\n");
  return found;
}

void multiply(Tile& sums, const Tile& a, const Tile& b) {
  require(&sums != &a && &sums != &b && &a != &b, "tdpbssd: three different tiles\n");
  require(sums.row_bytes == b.row_bytes && sums.rows == a.rows && a.row_bytes == 4 * b.rows,
          "tdpbssd: shapes do not fit\n");
  for (int m = 0; m < a.rows; ++m) {
    std::int32_t row[kMostBytes / 4];
    std::memcpy(row, sums.data[m], sizeof row);
    for (int k = 0; k < b.rows; ++k) {
      for (int n = 0; n < b.row_bytes / 4; ++n) {
        for (int i = 0; i < 4; ++i) {
          row[n] +=
              static_cast<std::int8_t>(a.data[m][4 * k + i]) * static_cast<std::int8_t>(b.data[k][4 * n + i]);
        }
      }
    }
    std::memcpy(sums.data[m], row, sizeof row);
  }
}

int execute(Instruction instruction) {
  using I = Instruction;
  const bool memory = instruction.has_memory();
  if (!memory && instruction.is(0x5e, I::kF2)) {
    multiply(tile(instruction.reg()), tile(instruction.rm()), tile(instruction.vvvv()));
    return instruction.length();
  }
  require(!instruction.has_vvvv(), "tiles: one operand too many\n");
  if (memory && instruction.is(0x49, I::kNone) && instruction.reg() == 0) {
    configure(instruction.memory().base);
  } else if (!memory && instruction.is(0x49, I::kNone) && instruction.reg() == 0 && instruction.rm() == 0) {
    state = {};
  } else if (!memory && instruction.is(0x49, I::kF2) && instruction.rm() == 0) {
    std::memset(tile(instruction.reg()).data, 0, sizeof(Tile::data));
  } else if (memory && (instruction.is(0x4b, I::kF2) || instruction.is(0x4b, I::kF3))) {
    Tile& t = tile(instruction.reg());
    const I::Memory at = instruction.memory();
    require(at.sib, "tiles: rows need a base and a stride\n");
    const auto bytes = static_cast<std::size_t>(t.row_bytes);
    const bool load = instruction.is(0x4b, I::kF2);
    if (load) std::memset(t.data, 0, sizeof t.data);
    for (int row = 0; row < t.rows; ++row) {
      std::uint8_t* const there = at.base + row * at.index;
      if (load) {
        std::memcpy(t.data[row], there, bytes);
      } else {
        std::memcpy(there, t.data[row], bytes);
      }
    }
  } else {
    fail("an instruction that is not known\n");
  }
  return instruction.length();
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = std::bit_cast<const std::uint8_t*>(registers[REG_RIP]);
  registers[REG_RIP] += execute(Instruction(code, registers));
}

}  // namespace

// In the place of the one that asks the machine.
bool request_amx() {
  struct sigaction action {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, nullptr) == 0;
}

}  // namespace kvasir::kernels
