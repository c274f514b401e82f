// AffineQuantize, AffineFakeQuantize and AffineDequantize: chains whose scale and zero point are computed outside.
#include "operators/affine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "operators/operators.h"

namespace dynq {
namespace {

int64_t checked(const char* op, const Attributes& attributes, const char* name, int64_t absent, int64_t low,
                int64_t high) {
  const int64_t value = attributes.integer(name, absent);
  if (value < low || value > high)
    throw Error(std::string(op) + ": " + name + " is " + std::to_string(value) + ", expected " + std::to_string(low) +
                " to " + std::to_string(high));
  return value;
}

}  // namespace

AffineArithmetic::AffineArithmetic(const char* op, const Attributes& attributes, bool to_codes)
    : quotient_(static_cast<Quotient>(checked(op, attributes, "scaling", kDivide, 0, kQuotients - 1))),
      order_(static_cast<Order>(checked(op, attributes, "rounding_order", kRoundThenAdd, 0, kOrders - 1))),
      code_type_(static_cast<Type>(
          checked(op, attributes, "code_type", to_codes ? kInt8 : kFloat, to_codes ? kUint8 : kFloat, kInt8))),
      output_dtype_(to_codes ? static_cast<Type>(checked(op, attributes, "output_dtype", kInt8, kUint8, kInt8)) : code_type_),
      quant_min_(attributes.integer("quant_min", code_type_ == kUint8 ? 0 : -128)),
      quant_max_(attributes.integer("quant_max", code_type_ == kUint8 ? 255 : 127)) {
  const bool clip = checked(op, attributes, "clip", 1, 0, 1) != 0;
  const int64_t nan = checked(op, attributes, "nan_code", code_type_ == kFloat ? 2 : 0, 0, 2);
  if ((nan == 2) != (code_type_ == kFloat))
    throw Error(std::string(op) + ": nan_code is " + std::to_string(nan) + " for codes of " + name_of(code_type_) +
                ", expected " + (code_type_ == kFloat ? "2" : "0 or 1"));
  if (quant_min_ > quant_max_)
    throw Error(std::string(op) + ": quant_min is " + std::to_string(quant_min_) + ", quant_max " +
                std::to_string(quant_max_) + ", expected quant_min <= quant_max");
  if (code_type_ != kFloat) {
    const int64_t low = code_type_ == kUint8 ? 0 : -128, high = low + 255;
    if (!clip || quant_min_ < low || quant_max_ > high)
      throw Error(std::string(op) + ": codes are clipped to " +
                  (clip ? std::to_string(quant_min_) + " to " + std::to_string(quant_max_) : "nothing") +
                  ", expected a range within " + std::to_string(low) + " to " + std::to_string(high) + " of " +
                  name_of(code_type_));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  affine_.low = clip ? static_cast<float>(quant_min_) : -infinity;
  affine_.high = clip ? static_cast<float>(quant_max_) : infinity;
  affine_.nan = nan == 0 ? 0.0f : nan == 1 ? affine_.low : std::numeric_limits<float>::quiet_NaN();
  affine_.zero = code_type_ == kFloat ? -0.0f : static_cast<float>(offset());  // integers have no negative zero
  target_ = !to_codes ? kToFloat : output_dtype_ == kUint8 ? kToU8 : kToS8;
}

bool AffineArithmetic::is_bounded(float low, float high, float scale, float zero_point) const {
  const bool is_whole = zero_point == std::nearbyint(zero_point);
  if (!(scale >= kSmallestSafeScale && scale <= kLargestSafeScale && is_whole &&
        std::fabs(zero_point) <= static_cast<float>(kNarrowZeroPoint)))
    return false;
  // A zero point added to a quotient that is too small for a float decides the sign of the code 0.
  if (quotient_ == kDivide && order_ == kAddThenRound && code_type_ == kFloat) return false;
  // Quotients grow with x, rounded or not, so that the ends answer for all between them.
  for (const float x : {low, high}) {
    const float t = quotient_ == kDivide ? x / scale : quotient_ == kMultiply ? x * scale : x * (1.0f / scale);
    const float code = order_ == kAddThenRound   ? std::nearbyint(t + zero_point)
                       : order_ == kRoundThenAdd ? std::nearbyint(t) + zero_point
                                                 : std::nearbyint(t);
    if (!(code >= std::max(affine_.low, -kLargestSafeClip) && code <= std::min(affine_.high, kLargestSafeClip)))
      return false;
  }
  return true;
}

Kernel AffineArithmetic::bounded_kernel(const KernelTable& table) const {
  if (target_ == kToFloat) return table.bounded[quotient_][order_ == kAddThenRound];
  if (quotient_ != kDivide || order_ == kAddThenRound) return table.affine[quotient_][order_][target_][kPerRow];
  return table.quantize[kOnnx][target_ == kToU8 ? kU8 : kS8][kPerRow];
}

const Kernel* AffineArithmetic::kernels(const KernelTable& table) const {
  return table.affine[quotient_][order_][target_];
}

namespace {

// Scales that broadcast to src as NumPy would have it: aligned at the last dimension, each dimension 1 or src's.
Groups broadcast_groups(const char* op, const Shape& src, const Shape& scales, const Tensor& zps) {
  Groups groups;
  groups.counts.rank = src.rank;
  bool fits = scales.rank <= src.rank;
  for (size_t i = 0; i < src.rank && fits; ++i) {
    const size_t missing = src.rank - scales.rank;
    groups.counts.dims[i] = i < missing ? 1 : scales.dims[i - missing];
    fits = groups.counts.dims[i] == 1 || groups.counts.dims[i] == src.dims[i];
  }
  if (!fits)
    throw Error(std::string(op) + ": scale has shape " + scales.text() + ", expected one that broadcasts to " +
                src.text());
  if (zps.shape.elements() != 1 && !(zps.shape == scales))
    throw Error(std::string(op) + ": zero_point has shape " + zps.shape.text() + ", expected that of scale, " +
                scales.text() + ", or one element");
  return groups;
}

template <bool kToCodes>
class AffineQuantize : public Node {
 public:
  static constexpr const char* kName = kToCodes ? "AffineQuantize" : "AffineFakeQuantize";
  explicit AffineQuantize(const Attributes& attributes) : arithmetic_(kName, attributes, kToCodes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2);
    const Groups groups = broadcast_groups(kName, src.shape, scale.shape, zero_point);
    if (kToCodes && zero_point.type != arithmetic_.output_dtype())
      throw Error(std::string(kName) + ": zero_point is " + name_of(zero_point.type) + ", expected output_dtype, " +
                  name_of(arithmetic_.output_dtype()));
    const KernelTable& table = active_kernels();
    run_grouped(
        src.shape, groups,
        {src.data, sizeof(float), context.output(0, src.shape), kToCodes ? 1 : sizeof(float),
         static_cast<const float*>(scale.data), zero_point, arithmetic_.kernels(table), nullptr, &arithmetic_.affine()},
        context);
  }

 private:
  AffineArithmetic arithmetic_;
};

class AffineDequantize : public Node {
 public:
  static constexpr const char* kName = "AffineDequantize";

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2);
    const Groups groups = broadcast_groups(kName, src.shape, scale.shape, zero_point);
    const CodeType type = src.type == kInt8 ? kS8 : kU8;
    run_grouped(src.shape, groups,
                {src.data, 1, context.output(0, src.shape), sizeof(float), static_cast<const float*>(scale.data),
                 zero_point, active_kernels().dequantize[type], portable_kernels().dequantize[type]},
                context);
  }
};

template <class T>
std::unique_ptr<Node> make(const Attributes& attributes) {
  return std::make_unique<T>(attributes);
}

}  // namespace

Operator affine_quantize() {
  return {AffineQuantize<true>::kName,
          3,
          {{{kFloat, kFloat, kUint8}, {kUint8}}, {{kFloat, kFloat, kInt8}, {kInt8}}},
          make<AffineQuantize<true>>,
          [](const Attributes&, const std::vector<Type>& inputs) { return inputs[2]; }};
}

Operator affine_fake_quantize() {
  return {AffineQuantize<false>::kName,
          3,
          {{{kFloat, kFloat, kFloat}, {kFloat}},
           {{kFloat, kFloat, kUint8}, {kFloat}},
           {{kFloat, kFloat, kInt8}, {kFloat}},
           {{kFloat, kFloat, kInt32}, {kFloat}}},
          make<AffineQuantize<false>>,
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

Operator affine_dequantize() {
  return {AffineDequantize::kName,
          3,
          {{{kUint8, kFloat, kUint8}, {kFloat}}, {{kInt8, kFloat, kInt8}, {kFloat}}},
          [](const Attributes&) -> std::unique_ptr<Node> { return std::make_unique<AffineDequantize>(); },
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

}  // namespace dynq
