// Both directions of a loop whose heads are recurrences of their own. Threads share the heads of all rows.
//
// Before it includes this file, a program defines the sizes HEADS, STATE (numbers in the state of a head, with padding),
// BLOCK, KEPT, OWN, SCRATCH, LEAVES, the tables state_offsets and state_widths, and the functions of one step.
//
// The state of a head stays in memory of its thread for all steps. Forward, it is copied to a checkpoint before every
// BLOCK steps. Backward, the states of a block are computed again from its checkpoint, with the vectors of its steps.
#include <memory>
#include <utility>

// Memory of one thread; every array in it begins at a whole vector.
struct Workspace {
  std::unique_ptr<real[]> memory;
  real* at;
  explicit Workspace(count_t size) : memory(new real[size + 64]), at(memory.get()) {
    while (uintptr_t(at) % 64) ++at;
  }
  real* take(count_t size) { real* start = at; at += (size + 15) / 16 * 16; return start; }
};

static void copy_in(real* const* leaves, count_t b, count_t h, real* state) {
  for (count_t i = 0; i < LEAVES; ++i)
    std::memcpy(state + state_offsets[i], leaves[i] + (b * HEADS + h) * state_widths[i], state_widths[i] * sizeof(real));
}
static void copy_out(const real* state, count_t b, count_t h, real* const* leaves) {
  for (count_t i = 0; i < LEAVES; ++i)
    std::memcpy(leaves[i] + (b * HEADS + h) * state_widths[i], state + state_offsets[i], state_widths[i] * sizeof(real));
}

// From the leaves of the state `first` to `last` (batch, HEADS, width). Rows are sorted by length, the longest first.
// `checkpoints` (batch, HEADS, blocks, STATE) may be null.
extern "C" void forward(void* const* p, real* const* first, real* const* last, real* checkpoints, const count_t* counts,
                        const count_t* starts, count_t steps, count_t batch, int threads) {
  const count_t blocks = (steps + BLOCK - 1) / BLOCK;
  #pragma omp parallel num_threads(threads)
  {
    const Thread thread;
    Workspace workspace(2 * STATE + OWN + SCRATCH + 64);
    real *before = workspace.take(STATE), *after = workspace.take(STATE);
    real *own = workspace.take(OWN), *scratch = workspace.take(SCRATCH);
    std::memset(before, 0, STATE * sizeof(real));  // what lies between the leaves
    std::memset(after, 0, STATE * sizeof(real));
    for (count_t head = thread.id; head < batch * HEADS; head += thread.count) {
      const count_t b = head / HEADS, h = head % HEADS;
      copy_in(first, b, h, before);
      for (count_t t = 0; t < steps && counts[t] > b; ++t) {
        if (checkpoints && t % BLOCK == 0)
          std::memcpy(checkpoints + (head * blocks + t / BLOCK) * STATE, before, STATE * sizeof(real));
        forward_step(p, starts[t] + b, h, thread.id, scratch, before, after, own);
        std::swap(before, after);
      }
      copy_out(before, b, h, last);
    }
  }
}

// From the cotangents of the last state to those of the first.
extern "C" void backward(void* const* p, real* const* last, real* const* first, real* checkpoints, const count_t* counts,
                         const count_t* starts, count_t steps, count_t batch, int threads) {
  const count_t blocks = (steps + BLOCK - 1) / BLOCK;
  #pragma omp parallel num_threads(threads)
  {
    const Thread thread;
    Workspace workspace((BLOCK + 3) * STATE + BLOCK * KEPT + OWN + SCRATCH + 64);
    real *states = workspace.take((BLOCK + 1) * STATE), *kept = workspace.take(BLOCK * KEPT);
    real *carry = workspace.take(STATE), *next = workspace.take(STATE);
    real *own = workspace.take(OWN), *scratch = workspace.take(SCRATCH);
    for (count_t head = thread.id; head < batch * HEADS; head += thread.count) {
      const count_t b = head / HEADS, h = head % HEADS;
      copy_in(last, b, h, carry);
      count_t length = 0;
      while (length < steps && counts[length] > b) ++length;
      for (count_t block = (length + BLOCK - 1) / BLOCK - 1; block >= 0; --block) {
        const count_t begin = block * BLOCK, end = begin + BLOCK < length ? begin + BLOCK : length;
        std::memcpy(states, checkpoints + (head * blocks + block) * STATE, STATE * sizeof(real));
        for (count_t t = begin, i = 0; t < end; ++t, ++i)
          again_step(p, starts[t] + b, h, thread.id, scratch, states + i * STATE, states + (i + 1) * STATE, kept + i * KEPT);
        for (count_t t = end - 1, i = t - begin; t >= begin; --t, --i) {
          adjoint_step(p, starts[t] + b, h, thread.id, scratch, states + i * STATE, states + (i + 1) * STATE,
                       kept + i * KEPT, own, carry, next);
          std::swap(carry, next);
        }
      }
      copy_out(carry, b, h, first);
    }
  }
}
