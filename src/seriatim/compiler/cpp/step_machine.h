// Runs one step of a model: a list of instructions on rows of features, in one call.
//
// Before it includes this file, a program defines the kinds of instructions and STEP_MAPS, those of single elements.
//
// Every memory holds a row for each row of the batch, or one row for all of them. Threads share the columns of products
// and the heads of attention. All other instructions compute rows on their own: threads share the rows if there are
// enough of them; else the first thread computes a short instruction, and all threads a long one.

#include "attention.h"
#include "nibbles.h"

typedef const double* doubles;

struct Operand {
  count_t memory, offset, row;  // where: its number, the first feature, the distance between rows (0: one row for all)
  count_t step[4];              // the distances between elements along the dimensions of a row
};

struct Instruction {
  count_t kind;       // what it computes
  count_t outer;      // whether all threads share its outermost dimension on few rows; else the first computes it
  count_t wait;       // whether all threads must have finished the instructions before
  count_t size[4];    // the dimensions of the elements of a row
  Operand to, from[4];
  double number[2];
  count_t extra[8];
};

struct Cache {  // keys and values of past inputs (batch, heads, entries, size), or a memory (batch, entries, size)
  real* entries;
  count_t row, head, count;  // the distances between rows, and heads or entries of a memory; the number of entries
};

struct Shard {  // what a thread computes of an instruction: rows, and elements of the outermost dimension
  count_t first_row, last_row, first, last;
};

struct Call {
  void* const* memories;
  const Cache* caches;
  count_t rows;
  std::atomic<int>* failed;

  real* at(const Operand& x, count_t row) const { return (real*)memories[x.memory] + x.offset + row * x.row; }
  const int64_t* integers(const Operand& x, count_t row) const {
    return (const int64_t*)memories[x.memory] + x.offset + row * x.row;
  }
};

// The innermost elements of an instruction: n of them, `w` apart in the result, and `s`, `t`, `u` apart in a, b, c.
struct Line {
  real* to;
  const real *a, *b, *c;
  count_t n, w, s, t, u;
};

// Calls a function for every line.
static void lines(const Instruction& i, const Call& call, const Shard& shard, void (*compute)(const Line&)) {
  const Operand &to = i.to, &a = i.from[0], &b = i.from[1], &c = i.from[2];
  Line line{nullptr, nullptr, nullptr, nullptr, i.size[3], to.step[3], a.step[3], b.step[3], c.step[3]};
  for (count_t r = shard.first_row; r < shard.last_row; ++r)
    for (count_t x = shard.first; x < shard.last; ++x)
      for (count_t y = 0; y < i.size[1]; ++y)
        for (count_t z = 0; z < i.size[2]; ++z) {
          auto at = [&](const Operand& o) { return call.at(o, r) + x * o.step[0] + y * o.step[1] + z * o.step[2]; };
          line.to = at(to), line.a = at(a), line.b = at(b), line.c = at(c);
          compute(line);
        }
}

template <typename F>
INLINE void map1(const Line& l, F f) {
  if (l.s == 1 && l.w == 1) {
#pragma omp simd
    for (count_t j = 0; j < l.n; ++j) l.to[j] = f(l.a[j]);
  } else {
#pragma GCC novector
    for (count_t j = 0; j < l.n; ++j) l.to[j * l.w] = f(l.a[j * l.s]);
  }
}

template <typename F>
INLINE void map2(const Line& l, F f) {
  if (l.s == 1 && l.t == 1 && l.w == 1) {
#pragma omp simd
    for (count_t j = 0; j < l.n; ++j) l.to[j] = f(l.a[j], l.b[j]);
  } else if (l.s == 1 && l.t == 0 && l.w == 1) {
    const real y = l.b[0];
#pragma omp simd
    for (count_t j = 0; j < l.n; ++j) l.to[j] = f(l.a[j], y);
  } else {
#pragma GCC novector
    for (count_t j = 0; j < l.n; ++j) l.to[j * l.w] = f(l.a[j * l.s], l.b[j * l.t]);
  }
}

static void choose(const Line& l) {
  for (count_t j = 0; j < l.n; ++j) l.to[j * l.w] = l.a[j * l.s] != real(0) ? l.b[j * l.t] : l.c[j * l.u];
}

// Combines a line with the result: with one element of it, or with each.
template <typename F>
INLINE void reduce_line(const Line& l, real neutral, F f) {
  if (l.w) {
    if (l.s == 1 && l.w == 1) {
#pragma omp simd
      for (count_t j = 0; j < l.n; ++j) l.to[j] = f(l.to[j], l.a[j]);
    } else {
#pragma GCC novector
      for (count_t j = 0; j < l.n; ++j) l.to[j * l.w] = f(l.to[j * l.w], l.a[j * l.s]);
    }
    return;
  }
  if (l.s == 1) l.to[0] = f(l.to[0], reduce(l.n, neutral, f, [&](count_t j) INLINED { return l.a[j]; }));
  else
    for (count_t j = 0; j < l.n; ++j) l.to[0] = f(l.to[0], l.a[j * l.s]);
}

// Adds products of elements: the same numbers, in the same order, as products that are stored and then summed.
INLINE void contract_line(const Line& l) {
  const real *a = l.a, *b = l.b;
  if (!l.w && l.s == 1 && l.t == 1) l.to[0] += reduce(l.n, real(0), f_add, [&](count_t j) INLINED { return a[j] * b[j]; });
  else if (!l.w) l.to[0] += reduce(l.n, real(0), f_add, [&](count_t j) INLINED { return a[j * l.s] * b[j * l.t]; });
  else if (l.w == 1 && l.s == 1 && l.t == 0) {
    const real y = b[0];
#pragma omp simd
    for (count_t j = 0; j < l.n; ++j) l.to[j] += a[j] * y;
  } else if (l.w == 1 && l.s == 1 && l.t == 1) {
#pragma omp simd
    for (count_t j = 0; j < l.n; ++j) l.to[j] += a[j] * b[j];
  } else {
#pragma GCC novector
    for (count_t j = 0; j < l.n; ++j) l.to[j * l.w] += a[j * l.s] * b[j * l.t];
  }
}

// Reduces dimensions along which the result does not move; the result begins as `start`.
static void reduce_lines(const Instruction& i, const Call& call, const Shard& shard, real start, void (*compute)(const Line&)) {
  const count_t* step = i.to.step;
  for (count_t r = shard.first_row; r < shard.last_row; ++r)
    for (count_t x = shard.first; x < (step[0] ? shard.last : shard.first + 1); ++x)
      for (count_t y = 0; y < (step[1] ? i.size[1] : 1); ++y)
        for (count_t z = 0; z < (step[2] ? i.size[2] : 1); ++z)
          for (count_t j = 0; j < (step[3] ? i.size[3] : 1); ++j)
            call.at(i.to, r)[x * step[0] + y * step[1] + z * step[2] + j * step[3]] = start;
  lines(i, call, shard, compute);
}

// rows of a table (extra[0] rows) at the places in from[1]
static void gather(const Instruction& i, const Call& call, const Shard& shard) {
  for (count_t r = shard.first_row; r < shard.last_row; ++r) {
    const int64_t index = *call.integers(i.from[1], r);
    if (index < 0 || index >= i.extra[0]) call.failed->store(1);
    else std::memcpy(call.at(i.to, r), call.at(i.from[0], 0) + index * i.size[3], i.size[3] * sizeof(real));
  }
}

// from[0] + number[0] as integers
static void count_on(const Instruction& i, const Call& call, const Shard& shard) {
  for (count_t r = shard.first_row; r < shard.last_row; ++r)
    ((int64_t*)call.memories[i.to.memory])[r] = *call.integers(i.from[0], r) + int64_t(i.number[0]);
}

// Rotates the pairs (x_p, x_{p + half}) of the first extra[1] of extra[0] heads of width extra[2] by position times
// frequency, in double precision, because positions are large; from[1] the positions, from[2] the frequencies.
static void rotate(const Instruction& i, const Call& call, const Shard& shard) {
  const count_t heads = i.extra[0], rotated = i.extra[1], size = i.extra[2], half = size / 2;
  doubles frequencies = (doubles)call.memories[i.from[2].memory];
  real* scratch = (real*)call.memories[i.from[3].memory];
  for (count_t r = shard.first_row; r < shard.last_row; ++r) {
    real *to = call.at(i.to, r), *cosine = scratch + r * i.from[3].row, *sine = cosine + half;
    const real* from = call.at(i.from[0], r);
    const double position = double(*call.integers(i.from[1], r));
    for (count_t p = 0; p < half; ++p) {
      cosine[p] = real(std::cos(position * frequencies[p]));
      sine[p] = real(std::sin(position * frequencies[p]));
    }
    std::memcpy(to, from, heads * size * sizeof(real));
    for (count_t h = 0; h < rotated; ++h)
      for (count_t p = 0; p < half; ++p) {
        const real a = from[h * size + p], b = from[h * size + p + half];
        to[h * size + p] = a * cosine[p] - b * sine[p];
        to[h * size + p + half] = b * cosine[p] + a * sine[p];
      }
  }
}

// sines at even features and cosines at odd ones, of position times frequency; from[0] the positions, from[1] frequencies
static void sinusoids(const Instruction& i, const Call& call, const Shard& shard) {
  doubles frequencies = (doubles)call.memories[i.from[1].memory];
  for (count_t r = shard.first_row; r < shard.last_row; ++r) {
    const double position = double(*call.integers(i.from[0], r));
    real* to = call.at(i.to, r);
    for (count_t j = 0; j < i.size[3]; ++j)
      to[j] = real(j % 2 ? std::cos(position * frequencies[j / 2]) : std::sin(position * frequencies[j / 2]));
  }
}

// What is added to the scores of a query: a slope times the distance, and sums of the logarithms of forget gates, which
// lie `size` numbers apart, the newest of them elsewhere. A sink is the score of a further entry without a value.
struct Biases {
  real slope;
  const real *gates, *newest_gate, *sink;
};

// The attention of one query to `known` entries.
INLINE void attend(const real* query, const real* keys, const real* values, count_t known, count_t size, real scale,
                   const Biases& biases, real* scores, real* to) {
  for (count_t s = 0; s < known; ++s) scores[s] = scale * dot(query, keys + s * size, size);
  if (biases.slope != real(0))
    for (count_t s = 0; s < known; ++s) scores[s] -= biases.slope * real(known - 1 - s);
  if (biases.gates) {
    double forgotten = *biases.newest_gate;
    for (count_t s = known - 2; s >= 0; --s) {
      scores[s] += real(forgotten);
      forgotten += biases.gates[s * size];
    }
  }
  if (biases.sink) scores[known] = *biases.sink;
  softmax(scores, biases.sink ? known + 1 : known);
  for (count_t j = 0; j < size; ++j) to[j] = 0;
  for (count_t s = 0; s < known; ++s) {
    add_multiple(scores[s], values + s * size, size, to);
  }
}

// Appends an entry to a cache and attends to its newest entries: from[0] queries, from[1] the entry, from[2] how many
// inputs a row has read, from[3] slopes of all heads, if extra[5], and then sinks, if extra[6]. extra: the cache, heads of
// queries, heads of keys, size of a head, window (0: none). number[0]: scale of the scores. A cache whose keys are its
// values has the same heads of entries for both. If extra[7], the heads after both hold the logarithms of forget gates.
static void append_and_attend(const Instruction& i, const Call& call, const Shard& shard, real* scores) {
  const Cache& cache = call.caches[i.extra[0]];
  const count_t heads = i.extra[1], entry_heads = i.size[1], keys = i.extra[2], size = i.extra[3], group = heads / keys;
  const count_t values = entry_heads == keys ? 0 : keys, gates = 2 * keys;
  for (count_t r = shard.first_row; r < shard.last_row; ++r) {
    const int64_t seen = *call.integers(i.from[2], r);
    count_t known = (seen < cache.count ? seen : cache.count) + 1;
    if (i.extra[4] && known > i.extra[4]) known = i.extra[4];
    const count_t first = cache.count + 1 - known;
    for (count_t k = shard.first; k < shard.last; ++k) {
      real* key = cache.entries + r * cache.row + k * cache.head;
      real* value = cache.entries + r * cache.row + (values + k) * cache.head;
      std::memcpy(key + cache.count * size, call.at(i.from[1], r) + k * size, size * sizeof(real));
      if (values)
        std::memcpy(value + cache.count * size, call.at(i.from[1], r) + (values + k) * size, size * sizeof(real));
      if (i.extra[7] && k == 0)
        for (count_t g = gates; g < entry_heads; ++g)
          std::memcpy(cache.entries + r * cache.row + g * cache.head + cache.count * size,
                      call.at(i.from[1], r) + g * size, size * sizeof(real));
      for (count_t h = k * group; h < (k + 1) * group; ++h) {
        Biases biases{real(0), nullptr, nullptr, nullptr};
        if (i.extra[5]) biases.slope = call.at(i.from[3], 0)[h];
        if (i.extra[6]) biases.sink = call.at(i.from[3], 0) + (i.extra[5] ? heads : 0) + h;
        if (i.extra[7]) {
          biases.newest_gate = call.at(i.from[1], r) + gates * size + h;
          biases.gates = cache.entries + r * cache.row + (gates + h / size) * cache.head + first * size + h % size;
        }
        attend(call.at(i.from[0], r) + h * size, key + first * size, value + first * size, known, size, real(i.number[0]),
               biases, scores, call.at(i.to, r) + h * size);
      }
    }
  }
}

// Attends to a memory: from[0] queries, from[1] the length of the memory of each row; extra: the cache that holds it, the
// number of heads, and their size. A row without memory gives zeros.
static void attend_to_memory(const Instruction& i, const Call& call, const Shard& shard, real* scores) {
  const Cache& cache = call.caches[i.extra[0]];
  const count_t heads = i.extra[1], size = i.extra[2];
  for (count_t r = shard.first_row; r < shard.last_row; ++r)
    for (count_t h = shard.first; h < shard.last; ++h) {
      const int64_t length = *call.integers(i.from[1], r);
      const count_t known = length < cache.count ? length : cache.count;
      const real* keys = cache.entries + r * cache.row + h * cache.head;
      real* to = call.at(i.to, r) + h * size;
      if (known) attend(call.at(i.from[0], r) + h * size, keys, keys + heads * cache.head, known, size, real(i.number[0]),
                        Biases{real(0), nullptr, nullptr, nullptr}, scores, to);
      else std::memset(to, 0, size * sizeof(real));
    }
}

// Attends to the entries of a memory: from[0] the query, from[1] the length of the memory of each row, from[2] the vector
// of additive scores, if extra[4]; extra: the caches of the values and of the keys, the sizes of a key and of a value. A
// row without memory gives zeros. If extra[7], scores also depend on the weights of the step before, those of cache
// extra[5], through the filter from[3] of extra[7] numbers, and the new weights are written to extra[6].
static void attend_to_rows(const Instruction& i, const Call& call, const Shard& shard, real* scores) {
  const Cache &values = call.caches[i.extra[0]], &keys = call.caches[i.extra[1]];
  const count_t taps = i.extra[7], time = values.count;
  for (count_t r = shard.first_row; r < shard.last_row; ++r) {
    const count_t known = clamped(*call.integers(i.from[1], r), time);
    const Entries entries{keys.entries + r * keys.row, values.entries + r * values.row, keys.head, values.head, known, time,
                          i.extra[2], i.extra[3]};
    const Scoring scoring{real(i.number[0]), i.extra[4] ? call.at(i.from[2], 0) : nullptr, call.at(i.from[3], 0), taps};
    const real* before = nullptr;
    real* weights = scores;
    if (taps) {
      before = call.caches[i.extra[5]].entries + r * call.caches[i.extra[5]].row;
      weights = call.caches[i.extra[6]].entries + r * call.caches[i.extra[6]].row;
    }
    attend_entries(entries, scoring, call.at(i.from[0], r), before, weights, call.at(i.to, r));
  }
}

// The columns of a thread start at a whole panel, so that any number of threads can use the same packed matrix.
INLINE count_t panel_column(count_t width, count_t panel, count_t i, count_t threads) {
  const count_t start = (width + panel - 1) / panel * i / threads * panel;
  return start < width ? start : width;
}

// The formats of packed matrices. After a matrix of bytes follow the factors of its columns.
enum PackedAs { REAL, HALF, BYTE, NIBBLE };

struct Columns {  // those of a thread
  count_t first, last;
  Columns(const Thread& thread, count_t width, count_t format) {
    const count_t panel = format == NIBBLE ? COLUMNS : PANEL;
    first = panel_column(width, panel, thread.id, thread.count);
    last = panel_column(width, panel, thread.id + 1, thread.count);
  }
};

// Returns the bytes of a packed matrix and its factors, in whole lines of the cache.
extern "C" count_t packed_bytes(count_t depth, count_t width, int format) {
  const count_t numbers = depth * whole_lanes(width), size[] = {numbers * count_t(sizeof(real)), 2 * numbers,
      numbers + width * count_t(sizeof(real)), panels_of(width) * groups_of(depth) * count_t(sizeof(Nibbles))};
  return (size[format] + 63) / 64 * 64;
}

template <typename P>
INLINE void multiply_with(const P* packed, const Instruction& i, const Call& call, const Columns& columns, bool far) {
  const count_t depth = i.extra[0];
  product<false>(call.rows, call.at(i.from[0], 0), i.from[0].row, packed + columns.first * depth,
                 call.at(i.to, 0) + columns.first, i.to.row, depth, columns.last - columns.first, far);
}

// rows times a packed matrix: from[0] the rows, from[1] the matrix; extra: depth, width, format
static void multiply(const Instruction& i, const Call& call, const Thread& thread, bool far) {
  const count_t depth = i.extra[0], width = i.extra[1], format = i.extra[2];
  const Columns columns(thread, width, format);
  const void* packed = call.memories[i.from[1].memory];
  if (format == REAL) return multiply_with((const real*)packed, i, call, columns, far);
  if (format == HALF) return multiply_with((const half_t*)packed, i, call, columns, far);
  if (format == NIBBLE)
    return multiply_nibbles(call.rows, call.at(i.from[0], 0), i.from[0].row, (const Nibbles*)packed, call.at(i.to, 0),
                            i.to.row, depth, columns.first, columns.last);
  multiply_with((const byte_t*)packed, i, call, columns, far);
  const real* factors = (const real*)((const byte_t*)packed + depth * whole_lanes(width));
  for (count_t r = 0; r < call.rows; ++r) {
    real* row = call.at(i.to, r);
#pragma omp simd
    for (count_t j = columns.first; j < columns.last; ++j) row[j] *= factors[j];
  }
}

static void compute(const Instruction& i, const Call& call, const Shard& shard, real* scores) {
  switch (i.kind) {
#define MAP1(NUMBER, VALUE) \
  case NUMBER: return lines(i, call, shard, [](const Line& l) { map1(l, [](real a) { return real(VALUE); }); });
#define MAP2(NUMBER, VALUE) \
  case NUMBER: return lines(i, call, shard, [](const Line& l) { map2(l, [](real a, real b) { return real(VALUE); }); });
    STEP_MAPS
    case CHOOSE: return lines(i, call, shard, choose);
    case SUM:
      return reduce_lines(i, call, shard, real(0), [](const Line& l) { reduce_line(l, real(0), f_add); });
    case CONTRACT: return reduce_lines(i, call, shard, real(0), contract_line);
    case AMAX:
      return reduce_lines(i, call, shard, -real(INFINITY), [](const Line& l) { reduce_line(l, -real(INFINITY), f_maximum); });
    case GATHER: return gather(i, call, shard);
    case COUNT_ON: return count_on(i, call, shard);
    case ROTATE: return rotate(i, call, shard);
    case SINUSOIDS: return sinusoids(i, call, shard);
    case APPEND_AND_ATTEND: return append_and_attend(i, call, shard, scores);
    case ATTEND_TO_MEMORY: return attend_to_memory(i, call, shard, scores);
    case ATTEND_TO_ROWS: return attend_to_rows(i, call, shard, scores);
  }
}

// Returns 0, or 1 if an index lies outside a table. Scores: `scores_size` numbers for each thread.
extern "C" int run_step(const Instruction* program, count_t length, void* const* memories, const Cache* caches, count_t rows,
                        int threads, int far, real* scores, count_t scores_size) {
  Barrier barrier;
  std::atomic<int> failed{0};
  const Call call{memories, caches, rows, &failed};
  #pragma omp parallel num_threads(threads)
  {
    const Thread thread;
    real* const mine = scores + thread.id * scores_size;
    for (const Instruction* i = program; i < program + length; ++i) {
      if (i->wait) barrier.wait(thread.count);
      if (i->kind == PRODUCT) {
        multiply(*i, call, thread, far);
        continue;
      }
      if (rows >= thread.count) {
        compute(*i, call, Shard{thread.first_row(rows), thread.last_row(rows), 0, i->size[0]}, mine);
      } else if (i->outer) {
        compute(*i, call, Shard{0, rows, thread.first_row(i->size[0]), thread.last_row(i->size[0])}, mine);
      } else if (thread.id == 0) {
        compute(*i, call, Shard{0, rows, 0, i->size[0]}, mine);
      }
    }
  }
  return failed.load();
}

// Packs a matrix of `real`, or of integers and their factors: `real` for bytes, upper halves of floats for nibbles.
extern "C" void pack_matrix(const void* matrix, count_t row, count_t column, count_t depth, count_t width, int format,
                            const void* factors, int threads, void* packed) {
  #pragma omp parallel num_threads(threads)
  {
    const Columns columns(Thread(), width, format);
    const count_t first = columns.first, last = columns.last, start = first * depth;
    if (format == REAL) pack((const real*)matrix, row, column, depth, first, last, (real*)packed + start);
    if (format == HALF) pack((const real*)matrix, row, column, depth, first, last, (half_t*)packed + start);
    if (format == BYTE) pack((const byte_t*)matrix, row, column, depth, first, last, (byte_t*)packed + start);
    if (format == NIBBLE)
      pack_nibbles((const byte_t*)matrix, row, column, (const uint16_t*)factors, depth, width, first, last, (Nibbles*)packed);
  }
  if (format == BYTE) std::memcpy((byte_t*)packed + depth * whole_lanes(width), factors, width * sizeof(real));
}
