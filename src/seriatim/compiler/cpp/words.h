// What a network reads of words beside their index; the same values as in models/characters.py.
//
// Words are ids of characters (words, longest) with their lengths. A word has the bits that it has alone.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

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

typedef float Sixteen __attribute__((vector_size(64), aligned(4)));

// The largest response of each filter in each word, before the tanh; weights are (filters, width * size), rows of the table
// of characters have `size` numbers, and `width` is odd.
extern "C" void convolve(const int64_t* ids, const int64_t* lengths, const float* table, const float* weights,
                         const float* bias, float* responses, int64_t words, int64_t longest, int64_t size, int64_t width,
                         int64_t filters) {
  const int64_t depth = width * size, lanes = (filters + 15) / 16 * 16, together = 4;
  std::vector<float> transposed(depth * lanes), biases(lanes), text((longest + width + together) * size), largest(lanes);
  std::copy(bias, bias + filters, biases.begin());
  for (int64_t f = 0; f < filters; ++f)
    for (int64_t k = 0; k < depth; ++k) transposed[k * lanes + f] = weights[f * depth + k];
  for (int64_t w = 0; w < words; ++w, ids += longest, responses += filters) {
    const int64_t n = lengths[w];
    std::fill(text.begin(), text.end(), 0);
    std::fill(largest.begin(), largest.end(), -INFINITY);
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(table + ids[i] * size, size, text.data() + (width / 2 + i) * size);
    for (int64_t f = 0; f < lanes; f += 16)
      for (int64_t i = 0; i < n; i += together) {
        Sixteen sums[together], &most = *(Sixteen*)(largest.data() + f);
        for (int64_t j = 0; j < together; ++j) sums[j] = *(Sixteen*)(biases.data() + f);
        for (int64_t k = 0; k < depth; ++k)
          for (int64_t j = 0; j < together; ++j)
            sums[j] += text[(i + j) * size + k] * *(Sixteen*)(transposed.data() + k * lanes + f);
        for (int64_t j = 0; j < together && i + j < n; ++j)
          most = (sums[j] > most) | (sums[j] != sums[j]) ? sums[j] : most;  // NaN stays
      }
    std::copy_n(largest.data(), filters, responses);
  }
}
