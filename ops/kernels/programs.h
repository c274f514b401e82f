// The interface of the kernels of programs: short lists of steps over the elements of rows. core/program.cc makes such
// lists from the text of a program. portable_programs.cc defines the correct results; every other kernel returns the
// same bits.
//
// A kernel runs a pass: all steps, over the elements of each row in turn. It keeps one number for each element, the
// accumulator `acc`, in registers. A step changes it by an operand, stores it, or reduces it to one number for the row.
#pragma once

#include <stdint.h>

#include "kernels/numbers.h"

namespace dynq {

// Every operation rounds to float32 once. Comparisons give 1 or 0. In kMax and kMin, NaN of either operand stays NaN;
// of two zeros, the result may be either.
enum class StepKind : int32_t {
  kLoad,     // acc = a
  kAdd,      // acc + a
  kSub,      // acc - a
  kSubFrom,  // a - acc
  kMul,      // acc * a
  kDiv,      // acc / a
  kDivInto,  // a / acc
  kMax,
  kMin,
  kEqual,           // acc == a
  kLess,            // acc < a
  kLessOrEqual,     // acc <= a
  kGreater,         // acc > a
  kGreaterOrEqual,  // acc >= a
  kLeakyRelu,       // acc < 0 ? a * acc : acc
  kClip,            // acc < a ? a : acc, then acc > b ? b : acc
  kWhere,           // acc != 0 ? a + 0 : b
  kAbs,
  kNeg,
  kSqrt,
  kRound,  // half to even
  kFloor,
  kCeil,
  kSign,       // NaN stays NaN; both zeros give 0
  kToFloat16,  // rounds to float16
  kToInt8,     // rounds half to even and saturates; NaN and -0 become 0
  kToUint8,    // the same
  kToInt32,    // rounds half to even; NaN and numbers beyond int32 become the lowest int32, -0 becomes 0
  kSigmoid,    // functions-inl.h has these functions
  kGelu,
  kStore,      // a = acc
  kStoreF16,   // NaN keeps its sign and no other bits
  kStoreInt8,  // as kToInt8
  kStoreUint8,
  // Reductions are the last ones in this list.
  kReduceMax,  // a = the largest acc of the row. It is NaN if one of the first kHeadElements is; any other NaN is
               // ignored.
  kReduceMin,
  kReduceSum,  // a = the sum: see kSums
};

// The number of a reduction of no elements.
static inline float identity_of(StepKind reduction) {
  switch (reduction) {
    case StepKind::kReduceMax:
      return -kInfinity;
    case StepKind::kReduceMin:
      return kInfinity;
    default:
      return 0.0f;
  }
}

// An operand: numbers in memory. `row_bytes` and `element_bytes` lead to the number of the next row and element.
struct StepOperand {
  const char* at;
  int64_t row_bytes;
  int64_t element_bytes;  // 0, or the size of an element
  bool is_vector;         // each element has its own number, adjacent in memory; otherwise all share one
};

// The memory of kStore and of reductions is written. Everything may be unaligned.
struct Step {
  StepKind kind;
  StepOperand a, b;
};

// A value that several steps of a pass read is stored by a step with element_bytes 0 and is_vector: in a buffer for
// kTileElements floats, which each tile uses again.
constexpr int64_t kTileElements = 128;

constexpr int64_t kMaxReductions = 4;  // of one pass

// A row with a NaN in its first elements is reduced again, by core/row_extremes.h: there a NaN in one of the first 11
// may hide numbers. 16 elements are whole vectors.
constexpr int64_t kHeadElements = 16;

// A sum has this many partial sums. Element i of a row is added to number i % kSums, in order. Then the second half of
// the partial sums is added to the first half, until one is left. All begin with 0.
constexpr int64_t kSums = 32;

// The coefficients of functions-inl.h, the highest power first.
constexpr float kPowerOf2[] = {0.00015353257185779512f,
                               0.0013399003073573112f,
                               0.00961843878030777f,
                               0.05550331994891167f,
                               0.24022647738456726f,
                               0.6931471824645996f,
                               1.0f};
constexpr float kGelu[] = {-0.09450025856494904f, 0.35453274846076965f, -0.29052290320396423f, 0.3034745156764984f,
                           0.013249465264379978f, 0.11527300626039505f, 0.09849343448877335f};

struct Pass {
  const Step* steps;
  int64_t count;
  int64_t rows, cols;  // cols is not 0
  bool begins_row;     // false: the first elements are not those of a row, for reductions
};

// Of two zeros, the portable kernel reduces to the first one in the row, other kernels to any of them.
using PassKernel = void (*)(const Pass&);

void run_portable_pass(const Pass& pass);

}  // namespace dynq
