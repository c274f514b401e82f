// AffineDequantize: dequantization with scales that broadcast, as exporters write it with Cast, Sub and Mul.
#include "core/layout.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

// The groups of scales that broadcast to src as in NumPy: aligned at the last dimension, each dimension 1 or src's.
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

class AffineDequantize : public Node {
 public:
  static constexpr const char* kName = "AffineDequantize";
  explicit AffineDequantize(const Attributes&) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2);
    const Groups groups = broadcast_groups(kName, src.shape, scale.shape, zero_point);
    const CodeKind kind = src.type == kInt8 ? kS8 : kU8;
    const DequantizeWork work = {{src, context.output(0, src.shape), scale.type, scale, zero_point},
                                 active_kernels().dequantize[kind],
                                 kPortableKernels.dequantize[kind],
                                 scale.type == kFloat16 ? active_kernels().dequantize_f16[kind] : nullptr};
    run_grouped(src.shape, groups, work, context);
  }
};

}  // namespace

Operator affine_dequantize() {
  return {AffineDequantize::kName,
          3,
          {{{kUint8, kFloat, kUint8}, {kFloat}},
           {{kInt8, kFloat, kInt8}, {kFloat}},
           {{kUint8, kFloat16, kUint8}, {kFloat16}},
           {{kInt8, kFloat16, kInt8}, {kFloat16}}},
          make_node<AffineDequantize>,
          type_of_input<1>};
}

}  // namespace dynq
