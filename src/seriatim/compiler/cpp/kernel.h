// The common part of all generated programs: vectors, functions of one value, packed products, a barrier.
//
// Before it includes this file, a program defines `real` (float or double), and REDUCED if it packs matrices as bfloat16.
// Vectors are the vector extension of the compiler, so that one text serves AVX-512, AVX2, NEON and other machines.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num() { return 0; }
static inline int omp_get_num_threads() { return 1; }
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define TILE_ROWS 8  // 8 x 3 accumulators, 3 columns and 1 row of 32 registers
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define TILE_ROWS 4
#else
#define VECTOR_BYTES 16
#define TILE_ROWS 4
#endif
typedef int64_t count_t;
#define SECOND_CACHE 1500000  // bytes of the second-level cache that one thread can use
#define INLINED __attribute__((always_inline))
#define INLINE static inline INLINED

constexpr count_t LANES = VECTOR_BYTES / sizeof(real);
constexpr count_t PANEL = 3 * LANES;
typedef real vec __attribute__((vector_size(VECTOR_BYTES)));

// Matrices are packed as `real`, as the upper halves of floats, or as bytes, whose columns are scaled after the product.
typedef uint16_t half_t;
typedef int8_t byte_t;
#ifdef REDUCED
typedef half_t packed_t;
#else
typedef real packed_t;
#endif
typedef half_t half_vec __attribute__((vector_size(LANES * 2)));
typedef uint32_t word_vec __attribute__((vector_size(LANES * 4)));
typedef int32_t integer_vec __attribute__((vector_size(LANES * 4)));
typedef float float_vec __attribute__((vector_size(LANES * 4)));
INLINE vec load_packed(const real* p) { vec v; std::memcpy(&v, p, sizeof v); return v; }
INLINE vec load_packed(const half_t* p) {
  half_vec half;
  std::memcpy(&half, p, sizeof half);
  return __builtin_convertvector((float_vec)(__builtin_convertvector(half, word_vec) << 16), vec);
}
INLINE vec load_packed(const byte_t* p) {
  integer_vec integers;
#if defined(__AVX512F__)  // GCC widens vectors of bytes one element after another
  const auto wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
  if (LANES == 16) return std::memcpy(&integers, &wide, sizeof integers), __builtin_convertvector(integers, vec);
#endif
#if defined(__AVX2__)
  const auto half = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
  if (LANES == 8) return std::memcpy(&integers, &half, sizeof integers), __builtin_convertvector(integers, vec);
#endif
  for (count_t i = 0; i < LANES; ++i) integers[i] = p[i];
  return __builtin_convertvector(integers, vec);
}
INLINE void narrow(real x, real* to) { *to = x; }
INLINE void narrow(byte_t x, byte_t* to) { *to = x; }
INLINE void narrow(real x, half_t* to) {  // rounds to the nearest, ties to even; NaN stays NaN
  float f = float(x);
  uint32_t i;
  std::memcpy(&i, &f, sizeof i);
  *to = x == x ? (i + 0x7fff + ((i >> 16) & 1)) >> 16 : 0x7fc0;
}

INLINE vec load(const real* p) { vec v; std::memcpy(&v, p, sizeof v); return v; }
INLINE void store(real* p, vec v) { std::memcpy(p, &v, sizeof v); }
INLINE vec in_register(vec v) {  // for several uses: GCC would read it from memory again for each, at half the speed
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
  return v;
}

// ---- a * b + c, rounded once if the processor can
//
// The compiler must not decide what is fused (-ffp-contract=off): it fuses in some loops and not in others, depending on
// the processor, so that a row of a batch would have other bits than the same row alone. With multiply_add every element
// is computed by the same operations, in every tile, in vectors and in what remains of them.

#if defined(__AVX512F__)
INLINE __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
#elif defined(__FMA__)
INLINE __m256 fused(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE __m256d fused(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
#elif defined(__aarch64__)
INLINE float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
INLINE float64x2_t fused(float64x2_t a, float64x2_t b, float64x2_t c) { return vfmaq_f64(c, a, b); }
#else
#define ROUNDED_TWICE
INLINE vec fused(vec a, vec b, vec c) { return a * b + c; }
#endif
INLINE vec multiply_add(real a, vec b, vec c) { return fused(a - vec{}, b, c); }
INLINE real multiply_add(real a, real b, real c) {
#ifdef ROUNDED_TWICE
  return a * b + c;
#else
  return std::fma(a, b, c);
#endif
}

// ---- functions of one value; all of them propagate NaN

template <typename T> struct Format;
template <> struct Format<float> {
  typedef int32_t bits;
  static constexpr int mantissa = 23, exponent_bias = 127, exponential_terms = 7, logarithm_terms = 6;
  static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  static constexpr float highest = 89.0f, lowest = -87.0f;
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
};
template <> struct Format<double> {
  typedef int64_t bits;
  static constexpr int mantissa = 52, exponent_bias = 1023, exponential_terms = 13, logarithm_terms = 12;
  static constexpr double magic = 6755399441055744.0;
  static constexpr double highest = 710.0, lowest = -708.0;
  static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
};
typedef Format<real> F;
typedef F::bits bits;

INLINE bits bits_of(real x) { bits i; std::memcpy(&i, &x, sizeof i); return i; }
INLINE real from_bits(bits i) { real x; std::memcpy(&x, &i, sizeof x); return x; }

constexpr real inverse_factorial(int k) { return k < 2 ? real(1) : inverse_factorial(k - 1) / real(k); }
template <int K> INLINE real taylor(real r, real sum) {
  constexpr real coefficient = inverse_factorial(K);
  if constexpr (K == 0) return sum;
  else return taylor<K - 1>(r, multiply_add(sum, r, coefficient));
}

// x = n ln 2 + r with |r| <= ln(2)/2; returns e^r - 1 by its Taylor series and 2^(n-1)
INLINE real reduced(real x, real* half_scale) {
  real shifted = multiply_add(x, real(1.4426950408889634), F::magic), n = shifted - F::magic;
  real r = multiply_add(-n, F::ln2_low, multiply_add(-n, F::ln2_high, x));
  *half_scale = from_bits((bits_of(shifted) + (F::exponent_bias - 1)) << F::mantissa);
  return taylor<F::exponential_terms>(r, real(0)) * r;
}
INLINE real f_expm1(real x) {
  real clamped = x > F::highest ? F::highest : x, half;
  clamped = clamped < F::lowest ? F::lowest : clamped;
  real e = reduced(clamped, &half);
  return multiply_add(e, half, half - real(0.5)) * real(2);
}
INLINE real f_exp(real x) {
  real clamped = x > F::highest ? F::highest : x, half;
  clamped = clamped < F::lowest ? F::lowest : clamped;
  real e = reduced(clamped, &half);
  return x < F::lowest ? real(0) : multiply_add(e, half, half) * real(2);
}
INLINE real f_sigmoid(real x) { return real(1) / (real(1) + f_exp(-x)); }
INLINE real f_tanh(real x) {
  real t = -f_expm1(real(-2) * std::fabs(x)), y = t / (real(2) - t);
  return x < real(0) ? -y : y;
}
// m = 2^n * f with f in [1/sqrt 2, sqrt 2); log f = 2 artanh((f - 1) / (f + 1))
INLINE real f_log(real x) {
  bits shifted = bits_of(x) - bits_of(real(0.70710678118654752));
  bits n = shifted >> F::mantissa;
  real f = from_bits(bits_of(x) - (n << F::mantissa)), s = (f - real(1)) / (f + real(1)), q = s * s, sum = 0;
#pragma GCC unroll 16
  for (int k = F::logarithm_terms; k > 0; --k) sum = (sum + real(1) / real(2 * k + 1)) * q;
  real result = multiply_add(real(n), real(0.69314718055994531), real(2) * multiply_add(s, sum, s));
  result = x == real(0) ? -real(INFINITY) : result;
  return x >= real(0) ? (x < real(INFINITY) ? result : x) : real(NAN);
}
INLINE real f_log1p(real x) {  // W. Kahan: log(u) x / (u - 1) with u = fl(1 + x) cancels the rounding of u
  real u = real(1) + x, d = u - real(1);
  real result = f_log(u) * (x / (d == real(0) ? real(1) : d));
  result = d == real(0) ? x : result;
  return u < real(INFINITY) ? result : u;
}
INLINE real f_softplus(real x) { return (x <= real(0) ? real(0) : x) + f_log1p(f_exp(-std::fabs(x))); }
INLINE real f_abs(real x) { return std::fabs(x); }
INLINE real f_sqrt(real x) { return std::sqrt(x); }
INLINE real f_erf(real x) { return std::erf(x); }
INLINE real f_sin(real x) { return std::sin(x); }
INLINE real f_cos(real x) { return std::cos(x); }
INLINE real f_sign(real x) { return x > real(0) ? real(1) : (x < real(0) ? real(-1) : x); }
INLINE real f_power(real x, real y) { return std::pow(x, y); }
INLINE real f_maximum(real a, real b) { return a > b ? a : (b == b ? (a == a ? b : a) : b); }
INLINE real f_minimum(real a, real b) { return a < b ? a : (b == b ? (a == a ? b : a) : b); }
INLINE real f_add(real a, real b) { return a + b; }

// The values 0 ... n - 1, joined by f_add or f_maximum in an order that depends on n alone; `neutral` changes no value.
template <typename J, typename V>
INLINE real reduce(count_t n, real neutral, J join, V value) {
  real parts[LANES], result = neutral;
  count_t j = 0;
  for (count_t k = 0; k < LANES; ++k) parts[k] = neutral;
  for (; j + LANES <= n; j += LANES)
#pragma omp simd
    for (count_t k = 0; k < LANES; ++k) parts[k] = join(parts[k], value(j + k));
  for (count_t k = 0; k < LANES; ++k) result = join(result, parts[k]);
  for (; j < n; ++j) result = join(result, value(j));
  return result;
}

// ---- what one thread computes

struct Thread {
  count_t id, count;
  Thread() : id(omp_get_thread_num()), count(omp_get_num_threads()) {}
  count_t column(count_t width, count_t i) const {  // the columns of a thread start at a whole vector
    count_t start = (width + LANES - 1) / LANES * i / count * LANES;
    return start < width ? start : width;
  }
  count_t first(count_t width) const { return column(width, id); }
  count_t last(count_t width) const { return column(width, id + 1); }
  count_t first_row(count_t rows) const { return rows * id / count; }
  count_t last_row(count_t rows) const { return rows * (id + 1) / count; }
};

struct Barrier {
  std::atomic<count_t> waiting{0}, passed{0};
  void wait(count_t threads) {
    if (threads == 1) return;
    count_t mine = passed.load(std::memory_order_relaxed);
    if (waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      waiting.store(0, std::memory_order_relaxed);
      passed.store(mine + 1, std::memory_order_release);
      return;
    }
    // A thread that is waited for may need this processor, if other programs compute, too; else yielding returns at once.
    for (count_t spins = 0; passed.load(std::memory_order_acquire) == mine; ++spins) {
      if (spins > 64) std::this_thread::yield();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#endif
    }
  }
};

// ---- products with packed matrices

INLINE count_t whole_lanes(count_t columns) { return (columns + LANES - 1) / LANES * LANES; }

// Columns [first, last) of a matrix (depth x columns, strides `row` and `column`) as panels of up to PANEL columns, the
// last one padded with zeros to whole vectors.
template <typename S, typename P>
static void pack(const S* matrix, count_t row, count_t column, count_t depth, count_t first, count_t last, P* packed) {
  for (count_t j = first; j < last;) {
    count_t left = last - j, width = left >= PANEL ? PANEL : whole_lanes(left), filled = left < width ? left : width;
    if (row == 1) {  // reads along the depth, a few columns at a time, so that the written data stays in the cache
      for (count_t k0 = 0; k0 < depth; k0 += 16) {
        count_t k1 = k0 + 16 < depth ? k0 + 16 : depth;
        for (count_t i = 0; i < filled; ++i)
          for (count_t k = k0; k < k1; ++k) narrow(matrix[k + (j + i) * column], packed + k * width + i);
      }
    } else {
      for (count_t k = 0; k < depth; ++k)
        for (count_t i = 0; i < filled; ++i) narrow(matrix[k * row + (j + i) * column], packed + k * width + i);
    }
    if (filled < width)
      for (count_t k = 0; k < depth; ++k)
        for (count_t i = filled; i < width; ++i) packed[k * width + i] = 0;
    packed += width * depth;
    j += width;
  }
}

// Rows times one panel of some vectors, or several. Meanwhile LINES cache lines of each row from `ahead` on are prefetched
// into the second-level cache: a large matrix does not fit into it and is read from memory at every step.
template <int ROWS, int VECTORS, bool ADD, int LINES, int PANELS = 1, typename P>
INLINE void tile(const real* __restrict a, count_t a_row, const P* __restrict b, real* __restrict c, count_t c_row,
                 count_t depth, const P* ahead) {
  constexpr int WIDTH = PANELS * VECTORS;
  vec sum[ROWS][WIDTH];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < WIDTH; ++v) sum[r][v] = ADD ? load(c + r * c_row + v * LANES) : vec{};
  for (count_t k = 0; k < depth; ++k) {
    vec column[WIDTH];
    for (int i = 0; i < LINES; ++i) __builtin_prefetch(ahead + (i * depth + k) * LANES, 0, 2);
    for (int v = 0; v < WIDTH; ++v)
      column[v] = in_register(load_packed(b + ((v / VECTORS * depth + k) * VECTORS + v % VECTORS) * LANES));
    for (int r = 0; r < ROWS; ++r) {
      real row = a[r * a_row + k];
      for (int v = 0; v < WIDTH; ++v) sum[r][v] = multiply_add(row, column[v], sum[r][v]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < WIDTH; ++v) store(c + r * c_row + v * LANES, sum[r][v]);
}

template <int ROWS, int VECTORS, bool ADD, typename P>
static void tiles(count_t rows, const real* a, count_t a_row, const P* b, real* c, count_t c_row, count_t depth,
                  bool far) {
  const P* ahead = b + VECTORS * LANES * depth;
  count_t m = 0;
  for (; m + ROWS <= rows; m += ROWS) {
    const real* rows_here = a + m * a_row;
    real* sums_here = c + m * c_row;
    if (far && m < VECTORS * ROWS) {
      tile<ROWS, VECTORS, ADD, 1>(rows_here, a_row, b, sums_here, c_row, depth, ahead);
      ahead += LANES * depth;
    } else {
      tile<ROWS, VECTORS, ADD, 0>(rows_here, a_row, b, sums_here, c_row, depth, ahead);
    }
  }
  if constexpr (ROWS > 1)
    if (m < rows) tiles<ROWS / 2, VECTORS, ADD>(rows - m, a + m * a_row, a_row, b, c + m * c_row, c_row, depth, false);
}

// A panel whose last vector is not full uses a separate buffer, because the next columns belong to another thread.
template <int VECTORS, bool ADD, typename P>
static void partial(count_t rows, const real* a, count_t a_row, const P* b, real* c, count_t c_row, count_t depth, count_t filled) {
  constexpr count_t width = VECTORS * LANES;
  real buffer[TILE_ROWS * width];
  for (count_t m = 0; m < rows; m += TILE_ROWS) {
    count_t here = rows - m < TILE_ROWS ? rows - m : TILE_ROWS;
    for (count_t r = 0; ADD && r < here; ++r) std::memcpy(buffer + r * width, c + (m + r) * c_row, filled * sizeof(real));
    tiles<TILE_ROWS, VECTORS, ADD>(here, a + m * a_row, a_row, b, buffer, width, depth, false);
    for (count_t r = 0; r < here; ++r) std::memcpy(c + (m + r) * c_row, buffer + r * width, filled * sizeof(real));
  }
}

// c (rows x columns) = a (rows x depth) times a packed matrix, or c += if ADD; `far` says that the matrices of a step do
// not fit into the second-level cache
template <bool ADD, typename P>
static void product(count_t rows, const real* a, count_t a_row, const P* packed, real* c, count_t c_row, count_t depth,
                    count_t columns, bool far) {
  // a row with a single panel would wait for each sum before it adds to it again
  for (; rows == 1 && columns >= 2 * PANEL; columns -= 2 * PANEL, c += 2 * PANEL, packed += 2 * PANEL * depth)
    if (far) tile<1, 3, ADD, 2, 2>(a, a_row, packed, c, c_row, depth, packed + 2 * PANEL * depth);
    else tile<1, 3, ADD, 0, 2>(a, a_row, packed, c, c_row, depth, packed);
  for (; columns >= PANEL; columns -= PANEL, c += PANEL, packed += PANEL * depth)
    tiles<TILE_ROWS, 3, ADD>(rows, a, a_row, packed, c, c_row, depth, far);
  if (columns <= 0) return;
  bool full = columns % LANES == 0;
  if (columns > 2 * LANES) partial<3, ADD>(rows, a, a_row, packed, c, c_row, depth, columns);
  else if (columns > LANES)
    full ? tiles<TILE_ROWS, 2, ADD>(rows, a, a_row, packed, c, c_row, depth, false)
         : partial<2, ADD>(rows, a, a_row, packed, c, c_row, depth, columns);
  else
    full ? tiles<TILE_ROWS, 1, ADD>(rows, a, a_row, packed, c, c_row, depth, false)
         : partial<1, ADD>(rows, a, a_row, packed, c, c_row, depth, columns);
}

// results (count x width) = rows (count x depth) times a matrix with strides, which is packed first unless it is already
extern "C" void multiply(const real* rows, const real* matrix, packed_t* packed, real* results, count_t count,
                         count_t depth, count_t width, count_t row, count_t column, int threads, int is_packed) {
  #pragma omp parallel num_threads(threads)
  {
    const Thread thread;
    const count_t first = thread.first(width), last = thread.last(width);
    const bool far = depth * width * count_t(sizeof(packed_t)) > SECOND_CACHE * thread.count;
    if (!is_packed) pack(matrix, row, column, depth, first, last, packed + first * depth);
    product<false>(count, rows, depth, packed + first * depth, results + first, width, depth, last - first, far);
  }
}
