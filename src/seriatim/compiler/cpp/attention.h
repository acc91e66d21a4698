// The attention of one query to the entries of a memory, and its vector-Jacobian product.
//
// The score of an entry is scale * query . key, or with a vector v that of additive attention, v . tanh(query + key). With
// `before`, the weights of the step before, a filter over their neighbours is added to the scores.

struct Entries {  // of one row
  const real *keys, *values;
  count_t key_step, value_step;      // the distances between entries
  count_t known, time;               // how many there are, and how many places for weights
  count_t key_size, size;            // of a key and of a value
};

struct Scoring {
  real scale;
  const real* vector;  // of additive scores, or null
  const real* filter;  // or null
  count_t taps;        // the size of the filter
};

struct AttentionGradients {  // where they are stored; those of the vector, the filter and the keys are added
  real *scores, *query;
  real *keys, *vector;     // of additive scores
  real *before, *filter;   // with a filter
};

// The number of entries that a row knows, whatever its length says.
INLINE count_t clamped(count_t length, count_t time) { return length < 0 ? 0 : (length < time ? length : time); }

INLINE real dot(const real* a, const real* b, count_t n) {
  real parts[4 * LANES] = {}, sum = 0;
  count_t j = 0;
  for (; j + 4 * LANES <= n; j += 4 * LANES)
#pragma omp simd
    for (count_t l = 0; l < 4 * LANES; ++l) parts[l] = multiply_add(a[j + l], b[j + l], parts[l]);
  for (; j + LANES <= n; j += LANES)
#pragma omp simd
    for (count_t l = 0; l < LANES; ++l) parts[l] = multiply_add(a[j + l], b[j + l], parts[l]);
  for (count_t l = 0; l < 4 * LANES; ++l) sum += parts[l];
  for (; j < n; ++j) sum = multiply_add(a[j], b[j], sum);
  return sum;
}

INLINE void add_multiple(real factor, const real* from, count_t n, real* to) {
#pragma omp simd
  for (count_t j = 0; j < n; ++j) to[j] = multiply_add(factor, from[j], to[j]);
}

INLINE real additive(const real* query, const real* key, const real* vector, count_t n) {
  return reduce(n, real(0), f_add, [&](count_t j) INLINED { return vector[j] * f_tanh(query[j] + key[j]); });
}

INLINE void softmax(real* scores, count_t n) {
  const real largest = reduce(n, -real(INFINITY), f_maximum, [&](count_t j) INLINED { return scores[j]; });
#pragma omp simd
  for (count_t j = 0; j < n; ++j) scores[j] = f_exp(scores[j] - largest);
  const real factor = real(1) / reduce(n, real(0), f_add, [&](count_t j) INLINED { return scores[j]; });
  for (count_t j = 0; j < n; ++j) scores[j] *= factor;
}

// Writes the weights, zero beyond the known entries, and the context, which is zero without entries.
static void attend_entries(const Entries& m, const Scoring& f, const real* query, const real* before, real* weights, real* to) {
  for (count_t s = 0; s < m.known; ++s) {
    const real* key = m.keys + s * m.key_step;
    weights[s] = f.vector ? additive(query, key, f.vector, m.key_size) : f.scale * dot(query, key, m.key_size);
  }
  for (count_t s = 0; before && s < m.known; ++s)
    for (count_t j = 0; j < f.taps; ++j) {
      const count_t position = s + j - f.taps / 2;
      if (0 <= position && position < m.time) weights[s] += f.filter[j] * before[position];
    }
  if (m.known) softmax(weights, m.known);
  for (count_t s = m.known; s < m.time; ++s) weights[s] = 0;
  std::memset(to, 0, m.size * sizeof(real));
  for (count_t s = 0; s < m.known; ++s) add_multiple(weights[s], m.values + s * m.value_step, m.size, to);
}

// `cotangent` is that of the context, `carry` that of the weights, or null.
static void attend_gradient(const Entries& m, const Scoring& f, const real* query, const real* before, const real* weights,
                            const real* cotangent, const real* carry, const AttentionGradients& g) {
  real mean = 0;
  for (count_t s = 0; s < m.known; ++s) {
    g.scores[s] = dot(cotangent, m.values + s * m.value_step, m.size) + (carry ? carry[s] : real(0));
    mean += weights[s] * g.scores[s];
  }
  for (count_t s = 0; s < m.known; ++s) g.scores[s] = weights[s] * (g.scores[s] - mean);
  for (count_t s = m.known; s < m.time; ++s) g.scores[s] = 0;
  std::memset(g.query, 0, m.key_size * sizeof(real));
  for (count_t s = 0; s < m.known; ++s) {
    const real slope = g.scores[s], *key = m.keys + s * m.key_step;
    if (!f.vector) {
      add_multiple(f.scale * slope, key, m.key_size, g.query);
      continue;
    }
    real *sum = g.query, *keys = g.keys + s * m.key_size, *vector = g.vector;
#pragma omp simd
    for (count_t j = 0; j < m.key_size; ++j) {
      const real hidden = f_tanh(query[j] + key[j]), inner = slope * f.vector[j] * (real(1) - hidden * hidden);
      vector[j] += slope * hidden;
      sum[j] += inner;
      keys[j] += inner;
    }
  }
  for (count_t s = 0; before && s < m.time; ++s) {
    real sum = 0;
    for (count_t j = 0; j < f.taps; ++j) {
      const count_t position = s - j + f.taps / 2;  // of the score that the weight at s is a part of
      if (position < 0 || position >= m.known) continue;
      sum += f.filter[j] * g.scores[position];
      g.filter[j] += before[s] * g.scores[position];
    }
    g.before[s] = sum;
  }
}
