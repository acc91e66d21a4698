// Tags of words: the scores of a CRF on attributes, and the best sequence of a CRF; the same values as in
// counting/feature_tagger.py and models/crf.py.
//
// A sentence has the bits that it has alone.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "keys.h"

struct Text {  // its characters, as codes
  const uint32_t* points;
  int64_t size;
  uint64_t code(int64_t i) const { return mix(points[i] + P); }
  uint64_t key() const {
    uint64_t sum = 0, power = P;
    for (int64_t i = 0; i < size; ++i, power *= P) sum += code(i) * power;
    return mix(sum);
  }
  bool has(uint32_t mark, int64_t first) const {
    for (int64_t i = first; i < size; ++i)
      if (points[i] == mark) return true;
    return false;
  }
};

// The keys of the attributes of words, in the order of `find_attributes`, from their texts: all words as they are
// written, then all in lower case, all shapes, and each further column of all.
static void find_attributes(const uint32_t* points, const int64_t* sizes, int64_t words, int64_t columns,
                            uint64_t* keys) {
  const int64_t longest = 4, kinds = 15 + columns;
  std::vector<Text> texts;
  for (int64_t i = 0; i < words * (3 + columns); points += sizes[i++]) texts.push_back({points, sizes[i]});
  std::vector<uint32_t> changes;
  for (int64_t w = 0; w < words; ++w, keys += kinds) {
    const Text &written = texts[w], &lower = texts[words + w], &shape = texts[2 * words + w];
    keys[0] = written.key(), keys[1] = lower.key();
    for (int side = 0; side < 2; ++side) {
      uint64_t key = 0;
      for (int64_t i = 0; i < longest; ++i) {
        if (i < lower.size) key = key * P + lower.code(side ? lower.size - 1 - i : i);
        keys[2 + side * longest + i] = i < lower.size ? mix(key) | 1 : 0;
      }
    }
    changes.clear();
    for (int64_t i = 0; i < shape.size; ++i)
      if (!i || shape.points[i] != shape.points[i - 1]) changes.push_back(shape.points[i]);
    keys[10] = shape.key(), keys[11] = Text{changes.data(), int64_t(changes.size())}.key();
    keys[12] = shape.has('0', 0), keys[13] = shape.has('A', 1), keys[14] = shape.has('-', 0);
    for (int64_t c = 0; c < columns; ++c) keys[15 + c] = texts[(3 + c) * words + w].key();
    for (int64_t k = 0; k < kinds; ++k) keys[k] = keys[k] ? mix(mix(keys[k]) ^ uint64_t(k + 1)) | 1 : 0;
  }
}

extern "C" {

// Scores of tags (batch, time, tags), of sentences that hold words by their index (batch, time), with lengths. Tables have
// sorted keys; their rows of weights, of which a last one is for words beyond a sentence and for unknown pairs, have the
// tags for each of five distances, and for a pair that ends and that begins with a word.
void score_words(const uint32_t* points, const int64_t* sizes, const int64_t* sentences, const int64_t* lengths,
                 const uint64_t* known, const uint64_t* known_pairs, const float* scales, int64_t words, int64_t columns,
                 int64_t batch, int64_t time, int64_t tags, int64_t num_known, int64_t num_pairs, const float* weights,
                 const float* pair_weights, float* scores) {
  const int64_t kinds = 15 + columns, offsets = 5, reach = 2, width = offsets * tags;
  std::vector<uint64_t> keys((words + 1) * kinds);  // those of the last word, beyond a sentence, are 0
  find_attributes(points, sizes, words, columns, keys.data());
  std::vector<int64_t> rows(words * kinds);
  for (int64_t i = 0; i < words * kinds; ++i) {
    rows[i] = find(known, num_known, keys[i]);
    for (int64_t j = 0; rows[i] < num_known && j < width; j += 16) __builtin_prefetch(weights + rows[i] * width + j);
  }
  std::vector<float> by_word(words * width);
  for (int64_t w = 0; w < words; ++w)
    for (int64_t k = 0; k < kinds; ++k) {
      const float* row = weights + rows[w * kinds + k] * width;
      for (int64_t j = 0; rows[w * kinds + k] < num_known && j < width; ++j) by_word[w * width + j] += row[j];
    }
  for (int64_t b = 0; b < batch; ++b) {
    auto word = [&](int64_t t) { return t >= 0 && t < lengths[b] ? sentences[b * time + t] : words; };
    for (int64_t t = 0; t < lengths[b]; ++t)
      for (int64_t o = 0; o < offsets; ++o) {
        const int64_t w = word(t + o - reach);
        const float* row = (w < words ? by_word.data() + w * width : weights + num_known * width) + o * tags;
        float* score = scores + (b * time + t) * tags;
        for (int64_t j = 0; j < tags; ++j) score[j] += scales[o] * row[j];
      }
    for (int64_t t = 0; t <= lengths[b]; ++t)  // a pair ends with word t and begins with the one before it
      for (int64_t k = 0; k < kinds; k = k ? k + 1 : 15) {
        const int64_t kind = k ? k : 1;
        const uint64_t key = mix(keys[word(t - 1) * kinds + kind] * P + keys[word(t) * kinds + kind]);
        const float* row = pair_weights + find(known_pairs, num_pairs, key) * 2 * tags;
        float* score = scores + (b * time + t) * tags;
        for (int64_t j = 0; t < lengths[b] && j < tags; ++j) score[j] += row[j];
        for (int64_t j = 0; t > 0 && j < tags; ++j) score[j - tags] += row[tags + j];
      }
  }
}

// The best tags (batch, time) of sentences with lengths, and their scores, as `CRF.decode` finds them. Transitions (tags,
// tags) are from a row to a column; `allowed` may be null.
void best_tags(const float* scores, const int64_t* lengths, const float* transitions, const float* starts,
               const float* ends, int64_t* path, float* totals, const uint8_t* allowed, int64_t batch, int64_t time,
               int64_t tags) {
  std::vector<float> best(time * tags), moves(transitions, transitions + tags * tags), start(starts, starts + tags);
  std::vector<float> end(ends, ends + tags);
  for (int64_t i = 0; allowed && i <= tags; ++i)
    for (int64_t j = 0; j <= tags; ++j)
      if (!allowed[i * (tags + 1) + j]) {
        if (i < tags || j < tags) (i == tags ? start[j] : j == tags ? end[i] : moves[i * tags + j]) = -INFINITY;
      }
  auto first_largest = [&](const float* values, auto more) {
    int64_t found = 0;
    for (int64_t i = 1; i < tags; ++i)
      if (values[i] + more(i) > values[found] + more(found)) found = i;
    return found;
  };
  for (int64_t b = 0; b < batch; ++b, scores += time * tags, path += time) {
    const int64_t last = lengths[b] - 1;
    totals[b] = 0;
    if (last < 0) continue;
    for (int64_t j = 0; j < tags; ++j) best[j] = scores[j] + start[j];
    for (int64_t t = 1; t <= last; ++t) {
      const float* before = best.data() + (t - 1) * tags;
      float* now = best.data() + t * tags;
      std::fill(now, now + tags, -INFINITY);
      for (int64_t i = 0; i < tags; ++i)
        for (int64_t j = 0; j < tags; ++j) {
          const float value = before[i] + moves[i * tags + j];
          now[j] = value > now[j] || value != value ? value : now[j];  // NaN stays
        }
      for (int64_t j = 0; j < tags; ++j) now[j] += scores[t * tags + j];
    }
    const float* final = best.data() + last * tags;
    path[last] = first_largest(final, [&](int64_t i) { return end[i]; });
    totals[b] = final[path[last]] + end[path[last]];
    for (int64_t i = 0; i < tags; ++i)
      if (final[i] + end[i] != final[i] + end[i]) totals[b] = NAN;
    for (int64_t t = last - 1; t >= 0; --t)
      path[t] = first_largest(best.data() + t * tags, [&](int64_t i) { return moves[i * tags + path[t + 1]]; });
  }
}
}
