#include "core/convolution_shape.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/attributes.h"
#include "core/rounding.h"
#include "core/sums.h"

namespace dynq {
namespace {

[[noreturn]] void fail(const ConvGeometry& given, const std::string& message) {
  throw Error(std::string(given.op) + ": " + message);
}

// The checks of what each convolution has. They run in the order of check_geometry(): each relies on those before.
class GeometryCheck {
 public:
  GeometryCheck(const ConvGeometry& given, const Shape& src) : given_(given), src_(src) {}

  void axes_and_channels(const Shape& bias, const Tensor& geometry, ConvolutionShape& conv) const {
    if (src_.rank < 3 || src_.rank > 2 + kSpatialAxes)
      fail("src has shape " + src_.text() + ", expected rank 3, 4 or 5: images, channels, then space");
    read_axes(geometry, conv.axes);
    if (bias.rank != 1) fail("bias has shape " + bias.text() + ", expected one element for each output channel");
    const int64_t in_channels = src_.dims[1] / conv.terms;
    conv.samples = src_.dims[0];
    if (in_channels * conv.terms != src_.dims[1])
      fail("src has shape " + src_.text() + ", expected an even second dimension: " + std::to_string(conv.terms) +
           " terms");
    conv.channels = bias.dims[0];
    if (in_channels == 0 || in_channels % conv.groups != 0)
      fail("src has " + std::to_string(in_channels) + " channels, expected a multiple of group, " +
           std::to_string(conv.groups));
    if (conv.channels % conv.groups != 0)
      fail("bias has " + std::to_string(conv.channels) + " elements, expected a multiple of group, " +
           std::to_string(conv.groups));
    conv.group_inputs = in_channels / conv.groups;
    conv.group_outputs = conv.channels / conv.groups;
  }

  void result(ConvolutionShape& conv) const {
    conv.result = src_;
    conv.result.dims[0] = conv.samples;
    conv.result.dims[1] = conv.channels;
    for (size_t axis = 0; axis < kSpatialAxes; ++axis)  // the last axes are those of src
      if (axis + src_.rank >= kSpatialAxes + 2) conv.result.dims[axis + src_.rank - kSpatialAxes] = conv.axes[axis].out;
    check_size(conv.result);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { dynq::fail(given_, message); }

  // Sets the last axes; the others keep length 1.
  void read_axes(const Tensor& geometry, ConvAxis (&axes)[kSpatialAxes]) const {
    const size_t spatial_rank = src_.rank - 2;
    const Shape& shape = geometry.shape;
    if (shape.rank != 2 || shape.dims[0] != 5 || shape.dims[1] != static_cast<int64_t>(spatial_rank))
      fail("geometry has shape " + shape.text() + ", expected 5x" + std::to_string(spatial_rank) +
           ": kernel shape, strides, dilations, leading pads and trailing pads");
    static constexpr const char* kRows[] = {"kernel shape", "stride", "dilation", "leading pad", "trailing pad"};
    static constexpr int32_t kMinValues[] = {1, 1, 1, 0, 0};
    int64_t values[5][kSpatialAxes];
    for (size_t row = 0; row < 5; ++row)
      for (size_t i = 0; i < spatial_rank; ++i) {
        values[row][i] = load(static_cast<const int32_t*>(geometry.data) + row * spatial_rank + i);
        if (values[row][i] < kMinValues[row])
          fail(std::string("geometry has the ") + kRows[row] + " " + std::to_string(values[row][i]) +
               " for dimension " + std::to_string(i + 2) + ", expected " + std::to_string(kMinValues[row]) +
               " or more");
      }
    for (size_t i = 0; i < spatial_rank; ++i)
      set_axis({values[0][i], values[1][i], values[2][i], values[3][i], values[4][i]}, src_.dims[2 + i], i + 2,
               axes[kSpatialAxes - spatial_rank + i]);
  }

  struct Geometry {
    int64_t kernel, stride, dilation, leading_pad, trailing_pad;
  };

  void set_axis(const Geometry& given, int64_t in, size_t dimension, ConvAxis& axis) const {
    axis.in = in;
    axis.kernel = given.kernel;
    axis.stride = given.stride;
    axis.dilation = given.dilation;
    axis.pad = given.leading_pad;
    const int64_t span = (axis.kernel - 1) * axis.dilation + 1;
    int64_t pads = given.leading_pad + given.trailing_pad;
    if (given_.auto_pad != AutoPad::kExplicit) {
      pads = std::max(int64_t{0}, (divide_up(axis.in, axis.stride) - 1) * axis.stride + span - axis.in);
      axis.pad = given_.auto_pad == AutoPad::kSameUpper ? pads / 2 : pads - pads / 2;
    }
    if (span > axis.in + pads)
      fail("the kernel spans " + std::to_string(span) + " elements of dimension " + std::to_string(dimension) +
           ", expected at most " + std::to_string(axis.in + pads) + ", the length of src with its pads");
    axis.out = (axis.in + pads - span) / axis.stride + 1;
  }

  // Pads may be of any length, and elements() does not detect an overflow.
  void check_size(const Shape& shape) const {
    int64_t most = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(float));
    for (size_t i = 0; i < shape.rank; ++i) most /= std::max<int64_t>(shape.dims[i], 1);
    if (most == 0) fail("dst would have shape " + shape.text() + ", expected fewer than 2^63 bytes");
  }

  const ConvGeometry& given_;
  const Shape& src_;
};

// The checks of what QuantizedConv has.
class Check {
 public:
  Check(const ConvAttributes& attributes, const ConvInputs& inputs) : given_(attributes), in_(inputs) {}

  void parameters(const ConvolutionShape& conv) const {
    check_channels(given_, in_.channel_sum.shape, "channel_sum", conv.channels);
    check_channels(given_, in_.channel_scale.shape, "channel_scale", conv.channels);
    const bool is_one_zp = in_.weight_zp.shape.elements() == 1;
    if (!is_one_zp) check_channels(given_, in_.weight_zp.shape, "weight_zero_point", conv.channels);
    check_samples(in_.scale, "scale", conv.samples);
    check_samples(in_.zero_point, "zero_point", conv.samples);
    check_sums(conv, in_.src.shape.rank - 2, is_one_zp && *static_cast<const int8_t*>(in_.weight_zp.data) == 0);
  }

  void weights(ConvolutionShape& conv) const {
    conv.quads = quads_of(conv);
    check_weight(in_.weight.shape, conv);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { dynq::fail(given_, message); }

  // One element, or [N, 1, ..., 1].
  void check_samples(const Tensor& tensor, const char* name, int64_t samples) const {
    const Shape& shape = tensor.shape;
    if (shape.elements() != 1 && (shape.rank == 0 || shape.dims[0] != samples || shape.elements() != samples))
      fail(std::string(name) + " has shape " + shape.text() + ", expected one element, or " + std::to_string(samples) +
           ", one for each sample");
  }

  // The text has the factors: their product may overflow.
  void check_sums(const ConvolutionShape& conv, size_t spatial_rank, bool is_symmetric) const {
    const int64_t longest = longest_sum(is_symmetric);
    int64_t length = conv.group_inputs;
    std::string factors = std::to_string(length);
    for (size_t i = kSpatialAxes - spatial_rank; i < kSpatialAxes; ++i) {
      factors += "x" + std::to_string(conv.axes[i].kernel);
      length = length > longest ? length : length * conv.axes[i].kernel;
    }
    if (length > longest)
      fail("sums of " + factors + " products may overflow int32, expected at most " + std::to_string(longest));
  }

  int64_t quads_of(const ConvolutionShape& conv) const {
    const ConvAxis(&axes)[kSpatialAxes] = conv.axes;
    return given_.quad_axis == QuadAxis::kWidth
               ? conv.group_inputs * axes[0].kernel * axes[1].kernel * divide_up(axes[2].kernel, kQuad)
               : axes[0].kernel * axes[1].kernel * axes[2].kernel * divide_up(conv.group_inputs, kQuad);
  }

  void check_weight(const Shape& shape, const ConvolutionShape& conv) const {
    Shape expected;
    expected.rank = 4;
    expected.dims[0] = divide_up(conv.channels, kBlockColumns);
    expected.dims[1] = conv.quads;
    expected.dims[2] = kBlockColumns;
    expected.dims[3] = kQuad;
    if (!(shape == expected))
      fail("weight has shape " + shape.text() + ", expected " + expected.text() + ", packed for quad_axis " +
           text_of(given_.quad_axis));
  }

  const ConvAttributes& given_;
  const ConvInputs& in_;
};

}  // namespace

bool is_pointwise(const ConvAxis (&axes)[kSpatialAxes]) {
  return std::all_of(std::begin(axes), std::end(axes),
                     [](const ConvAxis& axis) { return axis.kernel == 1 && axis.stride == 1 && axis.in == axis.out; });
}

ConvGeometry::ConvGeometry(const char* op_name, const Attributes& attributes)
    : op(op_name),
      group(attributes.integer("group", 1)),
      auto_pad(read_encoding(op, attributes, "auto_pad", AutoPad::kExplicit)) {
  if (group < 1) fail(*this, "group is " + std::to_string(group) + ", expected 1 or more");
}

ConvAttributes::ConvAttributes(const char* op_name, const Attributes& attributes)
    : ConvGeometry(op_name, attributes),
      quad_axis(read_encoding(op, attributes, "quad_axis", QuadAxis::kChannels)),
      order(read_encoding(op, attributes, "scale_order", kScalesFirst)),
      terms(read_one_of(op, attributes, "terms", 1, {{1, nullptr}, {2, nullptr}})) {}

ConvInputs::ConvInputs(Context& context)
    : src(context.input(0)),
      scale(context.input(1)),
      zero_point(context.input(2)),
      weight(context.input(3)),
      weight_zp(context.input(4)),
      channel_scale(context.input(5)),
      channel_sum(context.input(6)),
      bias(context.input(7)),
      geometry(context.input(8)) {}

void check_channels(const ConvGeometry& given, const Shape& tensor, const char* name, int64_t channels) {
  if (tensor.rank != 1 || tensor.dims[0] != channels)
    fail(given, std::string(name) + " has shape " + tensor.text() + ", expected " + std::to_string(channels) +
                    ", one element for each output channel");
}

ConvolutionShape check_geometry(const ConvGeometry& given, const Shape& src, const Shape& bias, const Tensor& geometry,
                                int64_t terms) {
  ConvolutionShape conv = {};
  conv.terms = terms;
  conv.groups = given.group;
  const GeometryCheck check(given, src);
  check.axes_and_channels(bias, geometry, conv);
  check.result(conv);
  return conv;
}

ConvolutionShape check_conv(const ConvAttributes& attributes, const ConvInputs& inputs) {
  ConvolutionShape conv =
      check_geometry(attributes, inputs.src.shape, inputs.bias.shape, inputs.geometry, attributes.terms);
  const Check check(attributes, inputs);
  check.parameters(conv);
  check.weights(conv);
  return conv;
}

}  // namespace dynq
