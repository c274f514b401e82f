// The kernel of programs: every step on kVectors vectors, which stay in registers from step to step.

#include "kernels/functions-inl.h"

// How steps load and store one vector: kLanes elements or, of a part, the first `count`. The other lanes of a part hold
// what the first lane holds, so that they change no reduction.
struct WholeVector {
  V::F load(const float* p) const { return V::load(p); }
  V::F or_zeros(V::F a) const { return a; }
  void store(float* p, V::F a) const { V::store<false>(p, a); }
  void store_f16(uint16_t* p, V::F a) const { Float16::store<false>(p, a); }
  template <CodeKind kKind>
  void store_codes(uint8_t* p, V::I codes) const {
    V::store1<kKind>(p, codes, V::set1(int32_t{0}));
  }
};

struct PartOfVector {
  int64_t count;
  V::F load(const float* p) const { return V::load_part(p, count, V::set1(dynq::load(p))); }
  V::F or_zeros(V::F a) const {  // beyond the part
    float lanes[V::kLanes];
    V::store<false>(lanes, a);
    return V::load_part(lanes, count);
  }
  void store(float* p, V::F a) const { V::store_part(p, a, count); }
  void store_f16(uint16_t* p, V::F a) const { Float16::store_part(p, a, count); }
  template <CodeKind kKind>
  void store_codes(uint8_t* p, V::I codes) const {
    V::store_part<kKind>(p, codes, V::set1(int32_t{0}), count);
  }
};

// Of two zeros, the accumulator's.
inline V::F max_or_nan(V::F acc, V::F a) { return V::or_nan(V::max(a, acc), a); }
inline V::F min_or_nan(V::F acc, V::F a) { return V::or_nan(V::min(a, acc), a); }

inline V::F clipped(V::F acc, V::F low, V::F high) { return V::min(high, V::max(low, acc)); }

inline V::F sign_of(V::F acc) {
  const V::F zero = V::set1(0.0f);
  return V::or_nan(V::sub(V::less(zero, acc), V::less(acc, zero)), acc);
}

// At most the highest code; NaN becomes 0.
template <CodeKind kKind>
V::F below_highest(V::F acc) {
  return V::min(V::set1(kKind == kU8 ? 255.0f : 127.0f), V::replace_nan(acc, V::set1(0.0f)));
}

template <CodeKind kKind>
V::F to_codes(V::F acc) {
  const V::F saturated = V::max(V::set1(kKind == kU8 ? 0.0f : -128.0f), below_highest<kKind>(acc));
  return V::add(V::round_float(saturated), V::set1(0.0f));  // -0 becomes 0
}

// The best numbers of a row so far, in four vectors: each of them is compared with every fourth vector of the row. Or
// the partial sums of the row.
constexpr int64_t kSumVectors = kSums / V::kLanes;
struct Best {
  V::F lanes[kSumVectors > 4 ? kSumVectors : 4];
  V::F head;  // NaN if one of the first kHeadElements numbers of the row is
};

// The steps that only compute: X(step, what it makes of x, and of its operands a and b if it has these; `zero` is one).
#define ORT_DYNQ_UNARY_STEPS(X)                  \
  X(kAbs, V::abs(x))                             \
  X(kNeg, V::negate(x))                          \
  X(kSqrt, V::sqrt(x))                           \
  X(kRound, V::round_float(x))                   \
  X(kFloor, V::floor(x))                         \
  X(kCeil, V::ceil(x))                           \
  X(kSign, sign_of(x))                           \
  X(kToFloat16, V::rounded_to_f16(x))            \
  X(kToInt8, to_codes<kS8>(x))                   \
  X(kToUint8, to_codes<kU8>(x))                  \
  X(kToInt32, V::to_float(V::round_wrapping(x))) \
  X(kSigmoid, sigmoid_of<V>(x))                  \
  X(kGelu, gelu_of<V>(x))
#define ORT_DYNQ_BINARY_STEPS(X)             \
  X(kLoad, a)                                \
  X(kAdd, V::add(x, a))                      \
  X(kSub, V::sub(x, a))                      \
  X(kSubFrom, V::sub(a, x))                  \
  X(kMul, V::mul(x, a))                      \
  X(kDiv, V::div(x, a))                      \
  X(kDivInto, V::div(a, x))                  \
  X(kMax, max_or_nan(x, a))                  \
  X(kMin, min_or_nan(x, a))                  \
  X(kEqual, V::equal(x, a))                  \
  X(kLess, V::less(x, a))                    \
  X(kLessOrEqual, V::less_or_equal(x, a))    \
  X(kGreater, V::less(a, x))                 \
  X(kGreaterOrEqual, V::less_or_equal(a, x)) \
  X(kLeakyRelu, V::choose(V::less(x, zero), V::mul(a, x), x))
#define ORT_DYNQ_TERNARY_STEPS(X) \
  X(kClip, clipped(x, a, b))      \
  X(kWhere, V::choose(x, V::add(a, zero), b))

// The accumulators of one tile: kVectors vectors. All functions are inlined, so that they stay in registers.
template <int kVectors, class Part>
struct Tile {
  static constexpr int64_t L = V::kLanes;
  V::F acc[kVectors];
  const int64_t row, col;
  const Part part;

  template <class T>
  ORT_DYNQ_INLINE T* at(const StepOperand& operand) const {
    return reinterpret_cast<T*>(const_cast<char*>(operand.at) + row * operand.row_bytes + col * operand.element_bytes);
  }

  template <class Function>
  ORT_DYNQ_INLINE void each(const Function& function) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) function(v);
  }

  template <class Function>
  ORT_DYNQ_INLINE void unary(const Function& function) {
    each([&](int v) ORT_DYNQ_INLINE_LAMBDA { acc[v] = function(acc[v]); });
  }

  template <class Function>
  ORT_DYNQ_INLINE void binary(const Step& step, const Function& function) {
    const float* p = at<const float>(step.a);
    if (step.a.is_vector) {
      each([&](int v) ORT_DYNQ_INLINE_LAMBDA { acc[v] = function(acc[v], part.load(p + v * L)); });
    } else {
      const V::F a = V::set1(dynq::load(p));
      each([&](int v) ORT_DYNQ_INLINE_LAMBDA { acc[v] = function(acc[v], a); });
    }
  }

  template <class Function>
  ORT_DYNQ_INLINE void ternary(const Step& step, const Function& function) {
    const float *p = at<const float>(step.a), *q = at<const float>(step.b);
    if (step.a.is_vector || step.b.is_vector) {
      const auto load = [&](const StepOperand& operand, const float* from, int v) ORT_DYNQ_INLINE_LAMBDA {
        return operand.is_vector ? part.load(from + v * L) : V::set1(dynq::load(from));
      };
      each([&](int v) ORT_DYNQ_INLINE_LAMBDA { acc[v] = function(acc[v], load(step.a, p, v), load(step.b, q, v)); });
    } else {
      const V::F a = V::set1(dynq::load(p)), b = V::set1(dynq::load(q));
      each([&](int v) ORT_DYNQ_INLINE_LAMBDA { acc[v] = function(acc[v], a, b); });
    }
  }

  template <CodeKind kKind>
  ORT_DYNQ_INLINE void store_codes(const Step& step) const {
    uint8_t* to = at<uint8_t>(step.a);
    // Packing saturates to the lowest code.
    const auto codes = [&](int v) ORT_DYNQ_INLINE_LAMBDA { return V::round(below_highest<kKind>(acc[v])); };
    if constexpr (kVectors % 4 == 0) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v += 4)
        V::template store_codes8<false>(to + v * L, V::template pack8<kKind>(V::pack16(codes(v), codes(v + 1)),
                                                                             V::pack16(codes(v + 2), codes(v + 3))));
    } else {
      for (int v = 0; v < kVectors; ++v) part.template store_codes<kKind>(to + v * L, codes(v));
    }
  }

  template <class Function>
  ORT_DYNQ_INLINE void reduce(Best& best, const Function& function) const {
    if (col < kHeadElements) {
      V::F head = col == 0 ? acc[0] : V::or_nan(best.head, acc[0]);
      for (int v = 1; v < kVectors && v * L < kHeadElements; ++v) head = V::or_nan(head, acc[v]);
      best.head = head;
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) best.lanes[v % 4] = function(acc[v], best.lanes[v % 4]);
  }

  ORT_DYNQ_INLINE void add_to(Best& sums) const {
    const int64_t first = col / L;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      V::F& lanes = sums.lanes[(first + v) % kSumVectors];
      lanes = V::add(lanes, part.or_zeros(acc[v]));
    }
  }

  // All steps. `best` is for the first reduction of the pass.
  void run(const Pass& pass, Best* best) {
    const V::F zero = V::set1(0.0f);
    const Step* const end = pass.steps + pass.count;
    for (const Step* step = pass.steps; step < end; ++step) {
      switch (step->kind) {
#define ORT_DYNQ_CASE(kind, result)       \
  case StepKind::kind:                    \
    unary([](V::F x) { return result; }); \
    break;
        ORT_DYNQ_UNARY_STEPS(ORT_DYNQ_CASE)
#undef ORT_DYNQ_CASE
#define ORT_DYNQ_CASE(kind, result)                                         \
  case StepKind::kind:                                                      \
    binary(*step, [=]([[maybe_unused]] V::F x, V::F a) { return result; }); \
    break;
        ORT_DYNQ_BINARY_STEPS(ORT_DYNQ_CASE)
#undef ORT_DYNQ_CASE
#define ORT_DYNQ_CASE(kind, result)                                 \
  case StepKind::kind:                                              \
    ternary(*step, [=](V::F x, V::F a, V::F b) { return result; }); \
    break;
        ORT_DYNQ_TERNARY_STEPS(ORT_DYNQ_CASE)
#undef ORT_DYNQ_CASE
        case StepKind::kStore: {
          auto* p = at<float>(step->a);
          each([&](int v) ORT_DYNQ_INLINE_LAMBDA { part.store(p + v * L, acc[v]); });
          break;
        }
        case StepKind::kStoreF16: {
          auto* p = at<uint16_t>(step->a);
          each([&](int v) ORT_DYNQ_INLINE_LAMBDA { part.store_f16(p + v * L, acc[v]); });
          break;
        }
        case StepKind::kStoreInt8:
          store_codes<kS8>(*step);
          break;
        case StepKind::kStoreUint8:
          store_codes<kU8>(*step);
          break;
        case StepKind::kReduceMax:
          reduce(*best++, [](V::F x, V::F a) { return V::max(x, a); });
          break;
        case StepKind::kReduceMin:
          reduce(*best++, [](V::F x, V::F a) { return V::min(x, a); });
          break;
        case StepKind::kReduceSum:
          add_to(*best++);
          break;
        default:  // spares a comparison for each step
          ORT_DYNQ_UNREACHABLE();
      }
    }
  }
};

#undef ORT_DYNQ_UNARY_STEPS
#undef ORT_DYNQ_BINARY_STEPS
#undef ORT_DYNQ_TERNARY_STEPS

template <int kVectors>
ORT_DYNQ_ONE_COPY void run_tile(const Pass& pass, int64_t row, int64_t col, Best* best) {
  Tile<kVectors, WholeVector>{{}, row, col, {}}.run(pass, best);
}

ORT_DYNQ_ONE_COPY void run_part(const Pass& pass, int64_t row, int64_t col, int64_t count, Best* best) {
  Tile<1, PartOfVector>{{}, row, col, {count}}.run(pass, best);
}

// The second half of the partial sums is added to the first half, until one is left.
inline float sum_of(Best& sums) {
  for (int64_t half = kSumVectors / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) sums.lanes[i] = V::add(sums.lanes[i], sums.lanes[half + i]);
  float lanes[V::kLanes];
  V::store<false>(lanes, sums.lanes[0]);
  for (int64_t half = V::kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[half + i];
  return lanes[0];
}

// The best numbers of a row become the number of its reduction.
inline void finish_reduction(const Step& step, Best& best, int64_t row, bool begins_row) {
  auto* to = reinterpret_cast<float*>(const_cast<char*>(step.a.at) + row * step.a.row_bytes);
  if (step.kind == StepKind::kReduceSum) {
    store(to, sum_of(best));
    return;
  }
  const V::F* lanes = best.lanes;
  const float number = step.kind == StepKind::kReduceMax
                           ? V::highest(V::max(V::max(lanes[0], lanes[1]), V::max(lanes[2], lanes[3])))
                           : V::lowest(V::min(V::min(lanes[0], lanes[1]), V::min(lanes[2], lanes[3])));
  store(to, begins_row && V::has_nan(best.head, best.head) ? kNan : number);
}

#include "kernels/simd/short-pass-inl.h"

void run_pass(const Pass& pass) {
  if (run_short_pass(pass)) return;
  constexpr int64_t L = V::kLanes;
  const Step* reductions[kMaxReductions];
  int count = 0;
  for (int64_t i = 0; i < pass.count; ++i)
    if (pass.steps[i].kind >= StepKind::kReduceMax) reductions[count++] = &pass.steps[i];
  Best best[kMaxReductions];
  for (int64_t row = 0; row < pass.rows; ++row) {
    for (int i = 0; i < count; ++i)
      for (V::F& lanes : best[i].lanes) lanes = V::set1(identity_of(reductions[i]->kind));
    int64_t col = 0;
    for (; col + 8 * L <= pass.cols; col += 8 * L) run_tile<8>(pass, row, col, best);
    for (; col + 4 * L <= pass.cols; col += 4 * L) run_tile<4>(pass, row, col, best);
    for (; col + 2 * L <= pass.cols; col += 2 * L) run_tile<2>(pass, row, col, best);
    for (; col + L <= pass.cols; col += L) run_tile<1>(pass, row, col, best);
    if (col < pass.cols) run_part(pass, row, col, pass.cols - col, best);
    for (int i = 0; i < count; ++i) finish_reduction(*reductions[i], best[i], row, pass.begins_row);
  }
}
