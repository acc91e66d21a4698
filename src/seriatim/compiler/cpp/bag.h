// The n-grams of texts, counted text by text, and dual coordinate ascent for a softmax, or a logistic regression
// of each label against all others, on such features.
//
// The same values as `find_ngrams` of counting/sparse_features.py, which operates on whole arrays and sorts them; here
// every n-gram is looked up in a hash table while its text is in the cache.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "keys.h"

static const uint64_t AT_BEGINNING = 0x2545F4914F6CDD1Dull, AT_END = 0x5851F42D4C957F2Dull;
enum { SPACE, IN_WORD, ALONE, JOINING };

static void fetch(const float* row, int64_t size) {
  for (int64_t j = 0; j < size; j += 16) __builtin_prefetch(row + j, 1);
  __builtin_prefetch(row + size - 1, 1);
}

struct Slot {  // of an n-gram
  uint64_t key;
  int32_t number = -1;  // -1: the slot is free
  int32_t texts = 0;    // in how many texts it occurs
  int32_t text, place;  // the last one of them, and where it is counted
};

struct Table {  // all n-grams of one kind, found by linear probing
  std::vector<Slot> slots = std::vector<Slot>(1 << 10);
  int32_t used = 0;

  Slot& find(uint64_t key) {
    const size_t mask = slots.size() - 1;
    size_t i = key & mask;
    while (slots[i].number >= 0 && slots[i].key != key) i = (i + 1) & mask;
    return slots[i];
  }
  void reserve(size_t more) {
    size_t size = slots.size();
    while (2 * (used + more) >= size) size *= 4;
    if (size == slots.size()) return;
    std::vector<Slot> old(size);
    old.swap(slots);
    for (const Slot& slot : old)
      if (slot.number >= 0) find(slot.key) = slot;
  }
};

struct Counts {
  Table tables[2];                // of words, of characters
  std::vector<int32_t> numbers;   // of the n-grams of each text, those of characters as -1 - number
  std::vector<uint16_t> counts;   // how often each occurs in the text; the largest number stands for larger ones
  std::vector<int64_t> ends;      // of each text in these

  void add(int kind, const std::vector<uint64_t>& keys) {
    Table& table = tables[kind];
    table.reserve(keys.size());
    const size_t mask = table.slots.size() - 1;
    const int32_t text = ends.size();
    const size_t ahead = 16;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + ahead < keys.size()) __builtin_prefetch(&table.slots[keys[i + ahead] & mask], 1);
      Slot& slot = table.find(keys[i]);
      if (slot.number < 0) slot.key = keys[i], slot.number = table.used++, slot.text = -1;
      if (slot.text != text) {
        slot.text = text, slot.place = numbers.size() - (ends.empty() ? 0 : ends.back()), ++slot.texts;
        numbers.push_back(kind ? -1 - slot.number : slot.number);
        counts.push_back(0);
      }
      uint16_t& count = counts[(ends.empty() ? 0 : ends.back()) + slot.place];
      count += count < 65535;
    }
  }
};

extern "C" {

Counts* counts_new() { return new Counts; }
void counts_free(Counts* found) { delete found; }

// Counts the n-grams of texts, which begin and end with a space: characters, where each text ends, and by character the
// class; the longest n-grams of words and of characters.
void counts_add(Counts* found, const uint32_t* points, const int64_t* ends, int64_t texts, const int8_t* classes,
                int words, int characters) {
  std::vector<uint64_t> single, keys, edges, code;
  std::vector<int8_t> kind;
  int64_t start = 0;
  for (int64_t t = 0; t < texts; ++t) {
    const int64_t size = ends[t] - start;
    const uint32_t* text = points + start;
    code.resize(size), kind.resize(size), single.clear(), keys.clear();
    for (int64_t i = 0; i < size; ++i) {
      code[i] = mix(text[i] + P), kind[i] = classes[text[i]];
      if (kind[i] == JOINING) {
        const bool between = classes[text[i - 1]] == IN_WORD && classes[text[i + 1]] == IN_WORD;
        kind[i] = between ? IN_WORD : ALONE;
      }
    }

    // Words, and then n-grams that each extend a shorter one by a word. The first and the last of each length count a
    // second time as such.
    for (int64_t i = 0; words && i < size;) {
      if (kind[i] == SPACE) { ++i; continue; }
      uint64_t sum = 0, power = P;
      const int8_t here = kind[i];
      do sum += code[i++] * power, power *= P;
      while (here == IN_WORD && kind[i] == IN_WORD);
      single.push_back(mix(sum));
    }
    keys = single, edges.clear();
    for (size_t n = 1, first = 0; n <= size_t(words) && n <= single.size(); ++n) {
      const size_t next = keys.size();
      edges.push_back(mix(keys[first] + AT_BEGINNING)), edges.push_back(mix(keys[next - 1] + AT_END));
      for (size_t i = 0; n < size_t(words) && i + n < single.size(); ++i)
        keys.push_back(mix(keys[first + i] * P + single[i + n]));
      first = next;
    }
    keys.insert(keys.end(), edges.begin(), edges.end());
    found->add(0, keys);

    // N-grams of characters, which have spaces at their ends only.
    keys.clear();
    for (int64_t i = 0; characters > 1 && i < size; ++i) {
      uint64_t key = code[i];
      for (int n = 2; n <= characters && i + n <= size; ++n) {
        key = key * P + code[i + n - 1];
        if (n > 2 && kind[i + n - 2] == SPACE) break;
        if (n == 2 && kind[i] == SPACE && kind[i + 1] == SPACE) break;
        keys.push_back(mix(key + n));
      }
    }
    found->add(1, keys);
    found->ends.push_back(found->numbers.size());
    start = ends[t];
  }
}

int64_t counts_size(const Counts* found, int kind) { return found->tables[kind].used; }

// Writes, by number, the keys of n-grams and in how many texts they occur.
void counts_keys(const Counts* found, int kind, uint64_t* keys, int64_t* texts) {
  for (const Slot& slot : found->tables[kind].slots)
    if (slot.number >= 0) keys[slot.number] = slot.key, texts[slot.number] = slot.texts;
}

// Writes the features of all texts, and returns their number; without `values`, only where each text begins. `columns`
// has the column of each n-gram by number, or -1, for words and then characters; `scales` are by column.
int64_t counts_rows(const Counts* found, const int32_t* columns, const double* scales, int64_t words, int32_t* offsets,
                    int32_t* column, float* value) {
  const int64_t first = found->tables[0].used;
  std::vector<std::pair<int32_t, uint16_t>> row;
  int64_t total = 0, start = 0;
  double logs[256];
  for (int i = 1; i < 256; ++i) logs[i] = 1 + std::log(double(i));
  std::vector<double> weight;
  offsets[0] = 0;
  for (size_t t = 0; t < found->ends.size(); ++t) {
    row.clear();
    for (int64_t i = start; i < found->ends[t]; ++i) {
      const int32_t number = found->numbers[i], known = columns[number < 0 ? first - 1 - number : number];
      if (known >= 0) row.emplace_back(known, found->counts[i]);
    }
    start = found->ends[t];
    if (value) {
      std::sort(row.begin(), row.end());
      double squares[2] = {};
      weight.clear();
      for (const auto& one : row) {
        weight.push_back((one.second < 256 ? logs[one.second] : 1 + std::log(double(one.second))) * scales[one.first]);
        squares[one.first >= words] += weight.back() * weight.back();
      }
      for (size_t i = 0; i < row.size(); ++i) {
        column[total + i] = row[i].first;
        value[total + i] = weight[i] / std::sqrt(squares[row[i].first >= words]);
      }
    }
    total += row.size();
    offsets[t + 1] = total;
  }
  return total;
}

// Writes the logits (texts, labels) of texts as `counts_add` reads them: the values of their features times weights (features,
// labels), added to a bias. The keys of known n-grams are sorted: those of words, and those of characters after them.
void bag_logits(const uint32_t* points, const int64_t* ends, const int8_t* classes, const uint64_t* words,
                const uint64_t* characters, const double* scales, const float* weights, const float* bias, float* logits,
                int64_t texts, int64_t num_words, int64_t num_characters, int64_t labels, int longest_words,
                int longest_characters) {
  Counts found;
  counts_add(&found, points, ends, texts, classes, longest_words, num_characters ? longest_characters : 0);
  std::vector<int32_t> columns(found.tables[0].used + found.tables[1].used), offsets(texts + 1);
  for (int kind = 0; kind < 2; ++kind)
    for (const Slot& slot : found.tables[kind].slots)
      if (slot.number >= 0) {
        const int64_t size = kind ? num_characters : num_words, first = kind ? num_words : 0;
        const int64_t at = find(kind ? characters : words, size, slot.key);
        columns[slot.number + (kind ? found.tables[0].used : 0)] = at < size ? first + at : -1;
        if (at < size) fetch(weights + (first + at) * labels, labels);
      }
  std::vector<int32_t> column(counts_rows(&found, columns.data(), scales, num_words, offsets.data(), nullptr, nullptr));
  std::vector<float> value(column.size());
  counts_rows(&found, columns.data(), scales, num_words, offsets.data(), column.data(), value.data());
  for (int64_t t = 0; t < texts; ++t, logits += labels) {
    std::copy(bias, bias + labels, logits);
    for (int64_t i = offsets[t]; i < offsets[t + 1]; ++i)
      for (int64_t j = 0; j < labels; ++j) logits[j] += value[i] * weights[column[i] * labels + j];
  }
}

// Solves log p + scale * p = c - m for each p, where m makes their sum 1; `p` holds a first guess.
static void solve(const float* c, float scale, int64_t k, float* p) {
  float largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < k; ++j) largest = std::max(largest, c[j] - scale * p[j]);
  for (int64_t j = 0; j < k; ++j) sum += std::exp(c[j] - scale * p[j] - largest);
  float m = largest + std::log(sum);
  const float shift = std::log(scale);
  for (int step = 0; step < 8; ++step) {  // Newton's method for m, and for each q = log(scale * p)
    float total = 0, slope = 0;
    for (int64_t j = 0; j < k; ++j) {  // q + exp(q) = s
      const float s = c[j] - m + shift;
      float q = s > 1 ? std::log(s) : s < -1 ? s : 0.5f * (s - 1), power;
      for (int i = 0; i < 3; ++i) power = std::exp(q), q -= (q + power - s) / (1 + power);
      power = std::exp(q);
      p[j] = power / scale;
      total += p[j], slope += p[j] / (1 + power);
    }
    if (std::fabs(total - 1) < 1e-3f) break;
    m += (total - 1) / slope;
  }
  sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += p[j];
  for (int64_t j = 0; j < k; ++j) p[j] /= sum;
}

// Solves u + scale * p = c with p = sigmoid(u) for each p by itself, with Newton's method.
static void solve_each(const float* c, float scale, int64_t k, float* p) {
  const float shift = std::log(scale);
#pragma omp simd
  for (int64_t j = 0; j < k; ++j) {  // of p and 1 - p, the smaller one is found: the equation is convex there
    const bool is_large = c[j] > 0.5f * scale;
    const float given = is_large ? scale - c[j] : c[j], s = given + shift;
    float u = std::min(0.0f, (s > 1 ? std::log(s) : s < -1 ? s : 0.5f * (s - 1)) - shift), q = 0;
    for (int step = 0; step < 4; ++step) {
      q = 1 / (1 + std::exp(-u));
      u = std::min(0.0f, u - (u + scale * q - given) / (1 + scale * q * (1 - q)));
    }
    q = 1 / (1 + std::exp(-u));
    p[j] = is_large ? 1 - q : q;
  }
}

// KL(q | p), where p and 1 - p are proportional to exp(log_p) and exp(log_rest).
static double divergence(float q, float log_p, float log_rest) {
  return (q > 0 ? q * (std::log(q) - log_p) : 0) + (q < 1 ? (1 - q) * (std::log(1 - q) - log_rest) : 0);
}

// One pass of dual coordinate ascent: `duals` (texts, labels) are probabilities q, and the weights are kept at
// Σ pull (y - q) x over all texts. Text by text in an order, q becomes the best one while all others stay. The sum of the
// probabilities of a text is 1, unless there is a logistic regression of `each` label. Returns the sum of
// KL(q | probabilities of the model) before each step, which is the duality gap divided by the pull.
double ascend(const int32_t* offsets, const int32_t* columns, const float* values, const int64_t* labels,
              const float* pulls, const int64_t* order, int64_t texts, int64_t num_labels, float* weights, float* bias,
              float* duals, int each) {
  const int64_t k = num_labels;
  std::vector<float> found(k), centre(k);
  float *p = found.data(), *c = centre.data();
  double gap = 0;
  for (int64_t t = 0; t < texts; ++t) {
    const int64_t text = order[t], begin = offsets[text], end = offsets[text + 1];
    float* dual = duals + text * k;
    if (t + 4 < texts) __builtin_prefetch(offsets + order[t + 4]);
    if (t + 3 < texts) {  // what the next texts need begins to come from memory
      const int64_t next = order[t + 3];
      for (int64_t i = offsets[next]; i < offsets[next + 1]; i += 16)
        __builtin_prefetch(columns + i), __builtin_prefetch(values + i);
      fetch(duals + next * k, k);
    }
    if (t + 1 < texts)
      for (int64_t i = offsets[order[t + 1]]; i < offsets[order[t + 1] + 1]; ++i) fetch(weights + columns[i] * k, k);

    float square = 1, largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < k; ++j) c[j] = bias[j];
    for (int64_t i = begin; i < end; ++i) {
      const float value = values[i], *row = weights + columns[i] * k;
      square += value * value;
#pragma omp simd
      for (int64_t j = 0; j < k; ++j) c[j] += value * row[j];
    }
    for (int64_t j = 0; j < k; ++j) largest = std::max(largest, c[j]);
    for (int64_t j = 0; j < k; ++j) sum += std::exp(c[j] - largest);
    largest += std::log(sum);
    const float pull = pulls[text], scale = pull * square;
    for (int64_t j = 0; j < k; ++j) {
      const float log_sum = std::max(c[j], 0.0f) + std::log1p(std::exp(-std::fabs(c[j])));
      if (each) gap += divergence(dual[j], c[j] - log_sum, -log_sum);
      else if (dual[j] > 0) gap += dual[j] * (std::log(dual[j]) - c[j] + largest);
      c[j] += scale * dual[j], p[j] = dual[j];
    }
    each ? solve_each(c, scale, k, p) : solve(c, scale, k, p);
    for (int64_t j = 0; j < k; ++j) {
      const float change = pull * (dual[j] - p[j]);
      dual[j] = p[j], p[j] = change, bias[j] += change;
    }
    for (int64_t i = begin; i < end; ++i) {
      float* row = weights + columns[i] * k;
      const float value = values[i];
#pragma omp simd
      for (int64_t j = 0; j < k; ++j) row[j] += value * p[j];
    }
  }
  return gap;
}
}
