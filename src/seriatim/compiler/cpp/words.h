// What a network reads of words beside their index; the same values as in models/characters.py.
//
// Words are ids of characters (words, longest) with their lengths. A word has the bits that it has alone.

#include <algorithm>
#include <cstdint>

// Adds the rows of a table (rows, size) at the hashes of the features of each word, in the order of `WordFeatures`:
// prefixes, suffixes, shape, lower case, as far as `kinds` has their bits; by id of a character, its lower case and class.
extern "C" void sum_features(const int64_t* ids, const int64_t* lengths, int64_t words, int64_t longest, int64_t kinds,
                             const int64_t* lower, const int64_t* classes, const float* table, int64_t rows,
                             int64_t size, float* sums) {
  const uint64_t prime = 1000003, start = 0x9E3779B97F4A7C15ull, spread = 0xBF58476D1CE4E5B9ull;
  for (int64_t w = 0; w < words; ++w, ids += longest, sums += size) {
    const int64_t n = lengths[w];
    auto add = [&](uint64_t key) {
      key = (key ^ uint64_t(int64_t(key) >> 29)) * spread;
      key = (key ^ uint64_t(int64_t(key) >> 32)) & ((1ull << 62) - 1);
      const float* row = table + (key ? 1 + key % (rows - 1) : 0) * size;
      for (int64_t j = 0; key && j < size; ++j) sums[j] += row[j];
    };
    for (int side = 0; side < 2; ++side) {
      uint64_t key = start + side;
      for (int64_t i = 0; kinds >> side & 1 && i < std::min<int64_t>(n, 4); ++i)
        key = key * prime + lower[ids[side ? n - 1 - i : i]], add(key + i);
    }
    uint64_t shape = start + 8, whole = start + 9;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t kind = classes[ids[i]];
      if (!i || kind != classes[ids[i - 1]]) shape = shape * prime + kind;
      whole = whole * prime + lower[ids[i]];
    }
    if (kinds & 4) add(shape);
    if (kinds & 8) add(whole);
  }
}
