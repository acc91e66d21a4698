// Products with matrices of 4 bits: integers from -8 to 7, of which 32 in a column share a factor.
//
// The rows that they multiply are rounded to 16 bits, 32 numbers at a time, and split into two bytes, because products of
// bytes are the fastest. Sums of 32 products are exact: their bits depend neither on the processor nor on other rows.
#include <vector>

constexpr count_t GROUP = 32, QUADS = VECTOR_BYTES / 4, COLUMNS = 2 * QUADS;
constexpr int32_t LARGEST = 127 * 256 + 127;
typedef uint8_t bytes_vec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t words_vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t sums_vec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t factors_vec __attribute__((vector_size(2 * QUADS)));
typedef float floats_vec __attribute__((vector_size(VECTOR_BYTES)));

struct Nibbles {  // a group of the depth of COLUMNS columns
  // the integers + 8; 4 bytes hold 4 of a column in their lower halves, and the next 4 in their upper halves
  uint8_t integers[GROUP / 8][2][VECTOR_BYTES];
  uint16_t factors[COLUMNS];  // the upper halves of floats
};

struct Rounded {  // 32 numbers of a row: scale * (256 * high + low)
  int8_t high[GROUP], low[GROUP];
  float scale;
  int32_t start;  // -8 times the sum of the integers, for the 8 that is added to those of the matrix
};

INLINE count_t groups_of(count_t depth) { return (depth + GROUP - 1) / GROUP; }
INLINE count_t panels_of(count_t width) { return (width + COLUMNS - 1) / COLUMNS; }

// Columns [first, last) of a matrix of integers (depth x width), from a whole panel on, and its factors (groups x width).
static void pack_nibbles(const byte_t* matrix, count_t row, count_t column, const uint16_t* factors, count_t depth,
                         count_t width, count_t first, count_t last, Nibbles* packed) {
  auto integer = [&](count_t k, count_t j) { return k < depth && j < width ? matrix[k * row + j * column] + 8 : 8; };
  for (count_t p = first / COLUMNS; p < panels_of(last); ++p)
    for (count_t g = 0; g < groups_of(depth); ++g) {
      Nibbles& to = packed[p * groups_of(depth) + g];
      for (count_t i = 0; i < COLUMNS; ++i) {
        const count_t j = p * COLUMNS + i;
        to.factors[i] = j < width ? factors[g * width + j] : 0;
        for (count_t k = 0; k < GROUP / 2; ++k) {
          const count_t depth_here = g * GROUP + k / 4 * 8 + k % 4;
          to.integers[k / 4][i / QUADS][i % QUADS * 4 + k % 4] = integer(depth_here, j) | integer(depth_here + 4, j) << 4;
        }
      }
    }
}

// A row that is not finite gives NaN.
static void round_row(const real* row, count_t depth, Rounded* to) {
  for (; depth > 0; depth -= GROUP, row += GROUP, ++to) {
    real numbers[GROUP] = {}, largest = 0, zero = 0;
    std::memcpy(numbers, row, (depth < GROUP ? depth : GROUP) * sizeof(real));
#pragma omp simd reduction(max : largest) reduction(+ : zero)
    for (count_t k = 0; k < GROUP; ++k) {
      const real size = std::fabs(numbers[k]);
      largest = largest < size ? size : largest;
      zero += numbers[k] * 0;
    }
    const bool finite = zero == 0;
    if (!finite) std::memset(numbers, 0, sizeof numbers);
    const real inverse = largest > real(1e-30) ? LARGEST / largest : real(0);
    int32_t integers[GROUP], sum = 0;
#pragma omp simd reduction(+ : sum)
    for (count_t k = 0; k < GROUP; ++k) {
      integers[k] = int32_t(bits_of(numbers[k] * inverse + F::magic) - bits_of(F::magic));
      sum += integers[k];
    }
#pragma omp simd
    for (count_t k = 0; k < GROUP; ++k) {
      const int32_t high = (integers[k] + 128) >> 8;
      to->high[k] = int8_t(high);
      to->low[k] = int8_t(integers[k] - 256 * high);
    }
    to->scale = finite ? float(largest / LARGEST) : NAN;
    to->start = -8 * sum;
  }
}

// sums + the products of 4 bytes of each lane with the same 4 signed bytes; bytes are at most 15
INLINE sums_vec add_products(bytes_vec bytes, int32_t quad, sums_vec sums) {
#if defined(__AVX512VNNI__)
  return (sums_vec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, _mm512_set1_epi32(quad));
#elif defined(__AVX512BW__)
  const auto pairs = _mm512_maddubs_epi16((__m512i)bytes, _mm512_set1_epi32(quad));
  return sums + (sums_vec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const auto pairs = _mm256_maddubs_epi16((__m256i)bytes, _mm256_set1_epi32(quad));
  return sums + (sums_vec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  for (int shift = 0; shift < 32; shift += 8) sums += ((sums_vec)bytes >> shift & 255) * int8_t(quad >> shift);
  return sums;
#endif
}

INLINE floats_vec widened(const uint16_t* factors) {
  factors_vec halves;
  std::memcpy(&halves, factors, sizeof halves);
  return (floats_vec)(__builtin_convertvector(halves, sums_vec) << 16);
}

// ROWS rows times a panel
template <int ROWS>
static void nibble_tile(const Rounded* rows, count_t groups, const Nibbles* panel, real* to, count_t to_row, count_t filled) {
  floats_vec total[ROWS][2] = {};
  for (count_t g = 0; g < groups; ++g) {
    const Nibbles& here = panel[g];
    sums_vec high[ROWS][2], low[ROWS][2];
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < 2; ++v) high[r][v] = sums_vec{}, low[r][v] = rows[r * groups + g].start - sums_vec{};
#pragma GCC unroll 8
    for (int q = 0; q < GROUP / 4; ++q) {
      bytes_vec bytes[2];
      for (int v = 0; v < 2; ++v) {
        std::memcpy(&bytes[v], here.integers[q / 2][v], VECTOR_BYTES);
        bytes[v] = (q % 2 ? (bytes_vec)((words_vec)bytes[v] >> 4) : bytes[v]) & 15;
      }
      for (int r = 0; r < ROWS; ++r) {
        int32_t quads[2];
        std::memcpy(quads, rows[r * groups + g].high + 4 * q, 4);
        std::memcpy(quads + 1, rows[r * groups + g].low + 4 * q, 4);
        for (int v = 0; v < 2; ++v) {
          high[r][v] = add_products(bytes[v], quads[0], high[r][v]);
          low[r][v] = add_products(bytes[v], quads[1], low[r][v]);
        }
      }
    }
    for (int v = 0; v < 2; ++v) {
      const floats_vec factors = widened(here.factors + v * QUADS);
      for (int r = 0; r < ROWS; ++r) {
        const floats_vec sums = __builtin_convertvector(256 * high[r][v] + low[r][v], floats_vec);
        total[r][v] += sums * (factors * rows[r * groups + g].scale);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (count_t j = 0; j < filled; ++j) to[r * to_row + j] = total[r][j / QUADS][j % QUADS];
}

// rows (count x depth) times columns [first, last) of a matrix, from a whole panel on
static void multiply_nibbles(count_t count, const real* rows, count_t row, const Nibbles* packed, real* to, count_t to_row,
                             count_t depth, count_t first, count_t last) {
  static thread_local std::vector<Rounded> rounded;
  const count_t groups = groups_of(depth);
  if (count_t(rounded.size()) < count * groups) rounded.resize(count * groups);
  for (count_t r = 0; r < count; ++r) round_row(rows + r * row, depth, &rounded[r * groups]);
  for (; first < last; first += COLUMNS) {
    const count_t filled = last - first < COLUMNS ? last - first : COLUMNS;
    const Nibbles* panel = packed + first / COLUMNS * groups;
    real* sums = to + first;
    count_t r = 0;
    for (; r + 4 <= count; r += 4) nibble_tile<4>(&rounded[r * groups], groups, panel, sums + r * to_row, to_row, filled);
    for (; r < count; ++r) nibble_tile<1>(&rounded[r * groups], groups, panel, sums + r * to_row, to_row, filled);
  }
}
