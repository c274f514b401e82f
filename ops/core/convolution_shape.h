// QuantizedConv's attributes and inputs, checked: what a convolution is, before anything is prepared or computed.
#pragma once

#include "core/conv_image.h"
#include "core/encodings.h"
#include "core/operator.h"

namespace dynq {

struct ConvAttributes {
  ConvAttributes(const char* op_name, const Attributes& attributes);

  const char* op;  // in messages
  int64_t group;
  AutoPad auto_pad;
  QuadAxis quad_axis;
  ScaleOrder order;
  int64_t terms;  // codes of an element: 1 or 2
};

struct ConvInputs {
  static constexpr size_t kCount = 9;

  explicit ConvInputs(Context& context);

  Tensor src, scale, zero_point, weight, weight_zp, channel_scale, channel_sum, bias, geometry;
};

struct ConvolutionShape {
  ConvAxis axes[kSpatialAxes];
  int64_t terms, samples, channels, groups;
  int64_t group_inputs, group_outputs;
  int64_t quads;  // of the weights of an output channel
  Shape result;
};

// Throws Error if the inputs do not fit each other.
ConvolutionShape check_conv(const ConvAttributes& attributes, const ConvInputs& inputs);

}  // namespace dynq
