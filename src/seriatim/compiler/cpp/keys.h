// Keys of 64 bits: hashes of texts, as in counting/sparse_features.py.
#pragma once

#include <algorithm>
#include <cstdint>

static const uint64_t P = 0x9E3779B97F4A7C15ull;

static inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

// The index of a key among sorted ones, or their number. Keys are hashes, so that its value says about where it is.
static int64_t find(const uint64_t* known, int64_t size, uint64_t key) {
  const int64_t guess = uint64_t((__uint128_t(key) * uint64_t(size)) >> 64), near = 256;
  int64_t low = std::max<int64_t>(0, guess - near), high = std::min(size, guess + near);
  if (low > 0 && known[low - 1] >= key) low = 0;
  if (high < size && known[high - 1] < key) high = size;
  const int64_t at = std::lower_bound(known + low, known + high, key) - known;
  return at < size && known[at] == key ? at : size;
}
