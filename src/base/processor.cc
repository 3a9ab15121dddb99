#include "base/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstdint>
#include <cstring>

namespace kvasir {

#if defined(__x86_64__)

std::string processor_name() {
  // The three leaves of the brand string, 16 characters each.
  std::string name;
  for (const unsigned leaf : {0x80000002U, 0x80000003U, 0x80000004U}) {
    std::array<std::uint32_t, 4> registers = {};
    if (__get_cpuid(leaf, &registers[0], &registers[1], &registers[2], &registers[3]) == 0) return "unknown";
    std::array<char, sizeof registers> text = {};
    std::memcpy(text.data(), registers.data(), sizeof registers);
    name.append(text.data(), text.size());
  }
  name.resize(std::strlen(name.c_str()));
  const std::size_t begin = name.find_first_not_of(' ');
  if (begin == std::string::npos) return "unknown";
  return name.substr(begin, name.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> processor_features() {
  struct Bit {
    const char* name;
    unsigned leaf, subleaf, reg, bit;  // reg: 0 eax, 1 ebx, 2 ecx, 3 edx
  };
  static constexpr Bit kBits[] = {
      {"fma", 1, 0, 2, 12},      {"f16c", 1, 0, 2, 29},        {"avx2", 7, 0, 1, 5},
      {"avx512f", 7, 0, 1, 16},  {"avx512dq", 7, 0, 1, 17},    {"avx512bw", 7, 0, 1, 30},
      {"avx512vl", 7, 0, 1, 31}, {"avx512_vnni", 7, 0, 2, 11}, {"avx512_bf16", 7, 1, 0, 5},
      {"avx_vnni", 7, 1, 0, 4},  {"amx_bf16", 7, 0, 3, 22},    {"amx_tile", 7, 0, 3, 24},
      {"amx_int8", 7, 0, 3, 25},
  };
  std::vector<std::string> features;
  for (const Bit& bit : kBits) {
    std::array<std::uint32_t, 4> registers = {};
    if (__get_cpuid_count(bit.leaf, bit.subleaf, &registers[0], &registers[1], &registers[2],
                          &registers[3]) != 0 &&
        (registers[bit.reg] >> bit.bit & 1) != 0) {
      features.emplace_back(bit.name);
    }
  }
  return features;
}

#elif defined(__aarch64__)

std::string processor_name() {
  if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) return "unknown";
  std::uint64_t id = 0;
  asm("mrs %0, midr_el1" : "=r"(id));
  return fmt::format("Arm, implementer 0x{:02x}, part 0x{:03x}", id >> 24 & 0xff, id >> 4 & 0xfff);
}

std::vector<std::string> processor_features() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  std::vector<std::string> features;
  if ((first & HWCAP_ASIMDDP) != 0) features.emplace_back("asimddp");
  if ((first & HWCAP_SVE) != 0) features.emplace_back("sve");
  if ((second & HWCAP2_I8MM) != 0) features.emplace_back("i8mm");
  if ((second & HWCAP2_BF16) != 0) features.emplace_back("bf16");
  return features;
}

#else

std::string processor_name() { return "unknown"; }
std::vector<std::string> processor_features() { return {}; }

#endif

}  // namespace kvasir
