// The table of one instruction set. Included last, after the loops.

inline KernelSet make_kernel_set(const char* name) {
  KernelSet set =
      reference_kernels();  // writing to the cache is bound by memory: the definition's loop serves
  set.name = name;
  set.linear = linear;
  set.quantize = quantize;
  set.round_bf16 = round_bf16;
  set.rms_norm = rms_norm;
  set.swiglu = swiglu;
  set.add = add;
  set.rope = rope;
  set.attention = attention;
  return set;
}
