// The attributes and inputs of convolutions, checked: what one is, before anything is prepared or computed.
#pragma once

#include "core/conv_image.h"
#include "core/encodings.h"
#include "core/operator.h"

namespace dynq {

// Whether an output depends on one position of the input, at the same place.
bool is_pointwise(const ConvAxis (&axes)[kSpatialAxes]);

// Of each operator of convolutions.
struct ConvGeometry {
  ConvGeometry(const char* op_name, const Attributes& attributes);

  const char* op;  // in messages
  int64_t group;
  AutoPad auto_pad;
};

// Of QuantizedConv.
struct ConvAttributes : ConvGeometry {
  ConvAttributes(const char* op_name, const Attributes& attributes);

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
  int64_t quads;  // of the packed weights of an output channel
  Shape result;
};

// Reads and checks what each operator of convolutions has: all but `quads`. `src` has `terms` channels for each input
// channel. Throws Error if the inputs do not fit each other, as the functions below do.
ConvolutionShape check_geometry(const ConvGeometry& given, const Shape& src, const Shape& bias, const Tensor& geometry,
                                int64_t terms = 1);

// Checks that a tensor has one element for each output channel.
void check_channels(const ConvGeometry& given, const Shape& tensor, const char* name, int64_t channels);

// Checks all inputs of QuantizedConv.
ConvolutionShape check_conv(const ConvAttributes& attributes, const ConvInputs& inputs);

}  // namespace dynq
