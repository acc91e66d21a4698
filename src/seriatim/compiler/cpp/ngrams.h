// The n-grams that end at each token of a text, and how likely the tokens are; see counting/ngrams/table.py, which has
// the same in operations on whole arrays.

#include <cmath>
#include <cstdint>

struct Order {  // see `Order` in counting/ngrams/table.py
  const int64_t *key, size;
  const double *probability, *backoff;
};

// Binary searches that go on side by side, so that the processor waits for the memory of all of them at once.
struct Searches {
  static const int TOGETHER = 32;
  const Order& order;
  int count = 0;
  int64_t target[TOGETHER], *result[TOGETHER];

  void add(int64_t key, int64_t* where) {
    target[count] = key, result[count] = where;
    if (++count == TOGETHER) run();
  }
  void run() {
    const int64_t* base[TOGETHER];
    for (int i = 0; i < count; ++i) base[i] = order.key;
    for (int64_t size = order.size; size > 1; size -= size / 2)
      for (int i = 0; i < count; ++i) base[i] += base[i][size / 2 - 1] < target[i] ? size / 2 : 0;
    for (int i = 0; i < count; ++i) *result[i] = order.size && *base[i] == target[i] ? base[i] - order.key : -1;
    count = 0;
  }
};

// `text` (tokens) has -1 for no token. The results are the indices of the n-grams that end at each token, -1 for those
// that are not in the tables (orders, tokens), and log p of each token (tokens), in nats, 0 for no token.
extern "C" void look_up(const Order* orders, int64_t count, int64_t vocabulary, const int64_t* text, int64_t tokens,
                        int64_t* indices, double* result) {
  for (int64_t t = 0; t < tokens; ++t) indices[t] = text[t];
  for (int64_t n = 1; n < count; ++n) {
    int64_t* found = indices + n * tokens;
    const int64_t* before = found - tokens;
    Searches searches{orders[n]};
    for (int64_t t = 0; t < tokens; ++t) {
      found[t] = -1;
      if (t && before[t - 1] >= 0 && text[t] >= 0) searches.add(before[t - 1] * vocabulary + text[t], found + t);
    }
    searches.run();
  }
  for (int64_t t = 0; t < tokens; ++t) {
    double total = 0;
    int64_t n = count - 1;
    for (; n > 0 && indices[n * tokens + t] < 0; --n)
      if (const int64_t context = t ? indices[(n - 1) * tokens + t - 1] : -1; context >= 0)
        total += std::log(orders[n - 1].backoff[context]);
    const int64_t index = indices[n * tokens + t];
    result[t] = index < 0 ? 0 : total + std::log(orders[n].probability[index]);
  }
}
