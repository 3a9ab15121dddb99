// Independent chains of one instruction. Included within a target region, after touch(V&) for its registers.

// The chains are parameters, not elements of an array, so that each is kept in a register.
template <class Step, class... Sums>
[[gnu::always_inline]] inline void run_sums(std::int64_t steps, const Step& step, Sums... sums) {
  for (std::int64_t i = 0; i < steps; ++i) ((step(sums), touch(sums)), ...);
}

template <class V, class Step, std::size_t... kIndices>
[[gnu::always_inline]] inline void run_chains(std::int64_t steps, const V& start, const Step& step,
                                              std::index_sequence<kIndices...>) {
  run_sums(steps, step, (static_cast<void>(kIndices), start)...);
}
