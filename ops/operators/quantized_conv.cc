// QuantizedConv: a convolution of 8-bit codes by packed 8-bit weights, to float32 or float16.
//
// kernels/portable_products.cc has the arithmetic, core/conv_image.h the form in which kernels read the input.
// compute() checks the inputs and cuts the output into tasks: samples, tiles of positions, and channels. For each
// group, a task writes the image of its tile and multiplies it by the weights of 16 output channels at once.
//
// Many pointwise products may take Strassen's algorithm (core/strassen.h).
//
// QuantizedConvProgram is the same, and then a program for each element of the output, while it is in the cache.
//
// More than 450 lines: the checks of the inputs, the cutting into tasks and the tasks share the geometry of a run.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/attributes.h"
#include "core/conv_image.h"
#include "core/conv_rows.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/strassen.h"
#include "core/sums.h"
#include "core/winograd.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr size_t kInputs = 9;
constexpr int64_t kImageBytes = 128 << 10;  // of the image of a tile, so that it stays in the second-level cache
constexpr int64_t kTilePositions = 2048;    // their sums stay there, too
constexpr int64_t kRowPositions = 512;      // of the last axis
constexpr int64_t kRowBytes = 1 << 20;      // of the image of one row, unless it has kFewestRowPositions or fewer
constexpr int64_t kFewestRowPositions = 16;
constexpr int64_t kSmallTask = 1 << 21, kLargeTask = 1 << 24;  // products; a task takes at least some microseconds
constexpr int64_t kOutput = 256;  // products that take as long as one output; a depthwise output takes little more
constexpr int64_t kFewTasks = 8, kMostTasks = 64;
constexpr int64_t kFewestPositions = 192;  // of a tile: adjacent tiles have rows of the input in common
constexpr int64_t kFewestChannels = 128;   // of a task, if other tasks write the same image
constexpr int64_t kCopy = 6;               // quads that could be multiplied while a vector of outputs is copied

class QuantizedConv : public Node {
 public:
  explicit QuantizedConv(const Attributes& attributes, const char* name = "QuantizedConv")
      : name_(name),
        group_(attributes.integer("group", 1)),
        auto_pad_(read_encoding(name_, attributes, "auto_pad", AutoPad::kExplicit)),
        quad_axis_(read_encoding(name_, attributes, "quad_axis", QuadAxis::kChannels)),
        order_(read_encoding(name_, attributes, "scale_order", kScalesFirst)),
        terms_(read_one_of(name_, attributes, "terms", 1, {{1, nullptr}, {2, nullptr}})) {
    if (group_ < 1) fail("group is " + std::to_string(group_) + ", expected 1 or more");
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2),
                 weight = context.input(3), weight_zp = context.input(4), channel_scale = context.input(5),
                 channel_sum = context.input(6), bias = context.input(7), geometry = context.input(8);
    if (src.shape.rank < 3 || src.shape.rank > 2 + kSpatialAxes)
      fail("src has shape " + src.shape.text() + ", expected rank 3, 4 or 5: images, channels, then space");
    Conv conv;
    read_axes(src.shape, geometry, conv.axes);
    if (bias.shape.rank != 1)
      fail("bias has shape " + bias.shape.text() + ", expected one element for each output channel");
    const int64_t in_channels = src.shape.dims[1] / terms_;
    conv.terms = terms_;
    conv.samples = src.shape.dims[0];
    if (in_channels * terms_ != src.shape.dims[1])
      fail("src has shape " + src.shape.text() + ", expected an even second dimension: " + std::to_string(terms_) +
           " terms");
    conv.channels = bias.shape.dims[0];
    if (in_channels == 0 || in_channels % group_ != 0)
      fail("src has " + std::to_string(in_channels) + " channels, expected a multiple of group, " +
           std::to_string(group_));
    if (conv.channels % group_ != 0)
      fail("bias has " + std::to_string(conv.channels) + " elements, expected a multiple of group, " +
           std::to_string(group_));
    conv.group_inputs = in_channels / group_;
    conv.group_outputs = conv.channels / group_;
    check_channels(channel_sum, "channel_sum", conv.channels);
    check_channels(channel_scale, "channel_scale", conv.channels);
    if (weight_zp.shape.elements() != 1) check_channels(weight_zp, "weight_zero_point", conv.channels);
    check_samples(scale, "scale", conv.samples);
    check_samples(zero_point, "zero_point", conv.samples);
    const bool is_one_zp = weight_zp.shape.elements() == 1;
    const int32_t one_zp = is_one_zp ? *static_cast<const int8_t*>(weight_zp.data) : 0;
    check_sums(conv, src.shape.rank - 2, is_one_zp && one_zp == 0);
    conv.quads = quads_of(conv);
    check_weight(weight.shape, conv);

    Shape shape = src.shape;
    shape.dims[0] = conv.samples;
    shape.dims[1] = conv.channels;
    for (size_t i = 2; i < src.shape.rank; ++i) shape.dims[i] = conv.axes[kSpatialAxes - src.shape.rank + i].out;
    check_size(shape);
    float& lowest = conv.all.scaling.lowest = -INFINITY;
    float& highest = conv.all.scaling.highest = INFINITY;
    conv.tail = tail_ && !tail_->is_clip(lowest, highest) ? &*tail_ : nullptr;
    if (conv.tail != nullptr && bias.type != kFloat)
      fail(std::string("bias is ") + name_of(bias.type) + ", expected float32 for a program that does more than clip");
    if (tail_) conv.tail_tensors = tail_->tensors(context, kInputs, shape, 2);
    conv.dst = context.output(0, shape);
    conv.dst_storage = storage_of(bias.type);
    if (shape.elements() == 0) return;
    conv.src = static_cast<const uint8_t*>(src.data);
    conv.weights = static_cast<const int8_t*>(weight.data);
    ConvBlock& all = conv.all;
    all.input.quads = conv.quads;
    conv.scales = static_cast<const float*>(scale.data);
    conv.has_scales_of_samples = scale.shape.elements() != 1;
    conv.zps = static_cast<const uint8_t*>(zero_point.data);
    conv.has_zps_of_samples = zero_point.shape.elements() != 1;
    all.weights.zps = is_one_zp ? nullptr : static_cast<const int8_t*>(weight_zp.data);
    all.weights.zp = one_zp;
    all.scaling.channel_scales = static_cast<const float*>(channel_scale.data);
    all.scaling.channel_sums = static_cast<const int32_t*>(channel_sum.data);
    all.scaling.bias = FloatReader(bias).read(0, conv.channels, conv.bias);
    if (terms_ > 1) conv.separate_terms();
    all.scaling.order = order_;
    conv.flip = src.type == kInt8 ? 0x80 : 0;
    conv.quad_axis = quad_axis_;
    conv.move_axes();
    conv.merge_axes();
    conv.is_winograd = takes_winograd({conv.axes, quad_axis_, conv.samples, conv.group_inputs, conv.group_outputs});
    conv.in_strassen =
        conv.can_take_strassen(group_) && takes_strassen_conv({conv.channels, conv.quads * kQuad,
                                                               conv.axes[0].out * conv.axes[1].out * conv.axes[2].out});
    conv.in_rows = !conv.is_winograd && !conv.in_strassen && bias.type == kFloat &&
                   takes_conv_rows({conv.axes, conv.samples, conv.has_scales_of_samples || conv.has_zps_of_samples,
                                    group_, conv.group_outputs, conv.quads});
    if (!conv.in_rows && !conv.in_strassen) conv.merge_samples();
    conv.run(context);
  }

 private:
  struct Conv {
    ConvAxis axes[kSpatialAxes];
    int64_t terms, samples, channels, group_inputs, group_outputs, quads;
    bool has_samples_as_axis = false;  // the first one
    bool is_winograd, in_rows, in_strassen;
    const uint8_t* src;
    const float* scales;  // of the codes
    const uint8_t* zps;   // likewise, of the type of the codes
    bool has_scales_of_samples, has_zps_of_samples;
    const int8_t* weights;
    void* dst;
    Storage dst_storage;
    uint8_t flip;
    QuadAxis quad_axis;
    const Tail* tail;  // or null
    ProgramTensors tail_tensors;
    ConvBlock all;  // the fields that all blocks share
    // With two terms, the bias and the limits belong to their sum.
    float lowest, highest;
    float no_bias[2 * kBlockColumns];
    Scratch<float, 64> bias;

    void separate_terms() {
      std::fill(std::begin(no_bias), std::end(no_bias), -0.0f);
      lowest = std::exchange(all.scaling.lowest, -INFINITY);
      highest = std::exchange(all.scaling.highest, INFINITY);
    }

    // The elements of a channel of the output; then from an element of the first axis to the next; likewise for src.
    int64_t out_positions() const { return (has_samples_as_axis ? 1 : axes[0].out) * axes[1].out * axes[2].out; }
    int64_t out_plane() const { return (has_samples_as_axis ? channels : 1) * axes[1].out * axes[2].out; }
    int64_t in_positions() const { return (has_samples_as_axis ? 1 : axes[0].in) * axes[1].in * axes[2].in; }
    int64_t in_plane() const {
      return (has_samples_as_axis ? terms * channels / group_outputs * group_inputs : 1) * axes[1].in * axes[2].in;
    }

    // Whether the outputs of a tile are adjacent, as those of pointwise kernels are, and kernels may write to them.
    bool can_take_strassen(int64_t groups) const {
      const auto is_pointwise = [](const ConvAxis& axis) { return axis.kernel == 1; };
      return groups == 1 && terms == 1 && dst_storage.narrow == nullptr && quad_axis == QuadAxis::kChannels &&
             std::all_of(std::begin(axes), std::end(axes), is_pointwise);
    }

    // Images of one column become images of one row: long rows are cheaper. Quads along the width belong to their axis.
    void move_axes() {
      const auto is_used = [](const ConvAxis& axis) { return axis.in != 1 || axis.kernel != 1 || axis.out != 1; };
      while (quad_axis == QuadAxis::kChannels && !is_used(axes[2]) && (is_used(axes[1]) || is_used(axes[0]))) {
        axes[2] = axes[1];
        axes[1] = axes[0];
        axes[0] = ConvAxis();
      }
    }

    // A pointwise convolution does not depend on the shape of rows, and long rows are cheaper.
    void merge_axes() {
      ConvAxis merged;
      for (const ConvAxis& axis : axes) {
        if (axis.kernel != 1 || axis.stride != 1 || axis.in != axis.out) return;
        merged.in = merged.out = merged.in * axis.in;
      }
      axes[0] = axes[1] = ConvAxis();
      axes[2] = merged;
    }

    // The positions of one small sample would leave lanes of vectors empty: an axis that is not used has the samples.
    // The outputs of a call of a kernel have one scale.
    void merge_samples() {
      const ConvAxis& first = axes[0];
      if (samples == 1 || has_scales_of_samples || has_zps_of_samples || first.in != 1 || first.kernel != 1 ||
          first.out != 1 || first.stride != 1)
        return;
      ConvAxis merged[kSpatialAxes] = {first, axes[1], axes[2]};
      merged[0].in = merged[0].out = samples;
      const ConvTile one = {{0, 0, 0}, {1, axes[1].out, axes[2].out}}, two = {{0, 0, 0}, {2, axes[1].out, axes[2].out}};
      const int64_t alone =
          round_up(ConvImage(axes, quad_axis, group_inputs, group_outputs, one).positions(), kBlockColumns);
      const int64_t together = ConvImage(merged, quad_axis, group_inputs, group_outputs, two).position(1, 0);
      if (!is_winograd && together * (quads + kCopy) >= alone * quads) return;
      axes[0] = merged[0];
      samples = 1;
      has_samples_as_axis = true;
    }

    void run(Context& context) const {
      const int64_t products =
          terms * samples * axes[0].out * channels * axes[1].out * axes[2].out * (quads * kQuad + kOutput);
      const int64_t wanted = std::max(
          {int64_t{1}, std::min(products / kSmallTask, kFewTasks), std::min(products / kLargeTask, kMostTasks)});
      int64_t tile[kSpatialAxes], tiles[kSpatialAxes];
      if (is_winograd)
        choose_winograd_box(axes, group_inputs, tile);
      else
        choose_tile(wanted, tile);
      for (int i = 0; i < kSpatialAxes; ++i) tiles[i] = divide_up(axes[i].out, tile[i]);
      const int64_t all_tiles = tiles[0] * tiles[1] * tiles[2];
      // Whole samples are rows of one product, unless there are too few tasks.
      const int64_t most = kConvRows / (tile[0] * tile[1] * tile[2]);
      const int64_t together =
          in_rows && all_tiles == 1 ? std::clamp(most, int64_t{1}, divide_up(samples, wanted)) : int64_t{1};
      const int64_t units = divide_up(samples, together);
      const int64_t channel_unit = channels == group_outputs ? std::max(kFewestChannels, kBlockColumns) : kBlockColumns;
      const int64_t parts =
          std::clamp(divide_up(wanted, units * all_tiles), int64_t{1}, std::max(int64_t{1}, channels / channel_unit));
      const int64_t blocks = divide_up(channels, kBlockColumns);
      run_tasks(context, units * all_tiles * parts, [&](int64_t task) {
        const int64_t part = task % parts;
        int64_t index = task / parts % all_tiles;
        ConvTile box;
        for (int i = kSpatialAxes - 1; i >= 0; --i) {
          const int64_t at = index % tiles[i];
          index /= tiles[i];
          box.first[i] = at * tile[i];
          box.count[i] = std::min(tile[i], axes[i].out - box.first[i]);
        }
        const int64_t unit = task / parts / all_tiles, channel = blocks * part / parts * kBlockColumns;
        const int64_t end = std::min(channels, blocks * (part + 1) / parts * kBlockColumns);
        const int64_t sample = samples * unit / units, last = samples * (unit + 1) / units;
        if (is_winograd)
          run_winograd(sample, box, channel, end);
        else if (in_rows)
          run_rows(sample, last - sample, box, channel, end);
        else
          run_tile(sample, box, channel, end);
      });
    }

    // Tiles have whole rows, unless rows are long, and as many rows as fit kImageBytes and kTilePositions, but fewer if
    // there are too few tasks.
    void choose_tile(int64_t wanted, int64_t (&tile)[kSpatialAxes]) const {
      const auto part = [](int64_t count, int64_t most) {  // equal parts of at most `most`
        return divide_up(count, divide_up(count, std::max(int64_t{1}, std::min(most, count))));
      };
      tile[0] = tile[1] = tile[2] = 1;
      const auto form_of = [&](int axis, int64_t count) {
        ConvTile box = {{0, 0, 0}, {tile[0], tile[1], tile[2]}};
        box.count[axis] = count;
        return ConvImage(axes, quad_axis, group_inputs, group_outputs, box);
      };
      const int64_t most_positions = in_rows ? kConvRows : kTilePositions;
      int64_t row = part(axes[2].out, std::min(kRowPositions, most_positions));
      if (const int64_t bytes = form_of(2, row).bytes(); bytes > kRowBytes)
        row = part(axes[2].out, std::max(kFewestRowPositions, row * kRowBytes / bytes));
      tile[2] = in_strassen ? std::min(axes[2].out, round_up(row, kStrassenColumns)) : row;
      for (int i = 1; i >= 0; --i) {
        if (i == 0 && tile[1] < axes[1].out) break;
        const ConvImage two = form_of(i, 2);
        const int64_t one = form_of(i, 1).bytes(), each = std::max(int64_t{1}, two.bytes() - one);
        int64_t most = 1 + std::max(int64_t{0}, (in_strassen ? 2 : 1) * kImageBytes / terms - one) / each;
        most = std::min(most, std::max(int64_t{1}, most_positions / two.position(i == 0, i == 1)));
        if (channels == group_outputs) {
          const int64_t others = samples * divide_up(axes[2].out, tile[2]) * (i == 1 ? axes[0].out : 1);
          most = std::min(most, std::max(divide_up(kFewestPositions, tile[1] * tile[2]),
                                         divide_up(axes[i].out, divide_up(wanted, others))));
        }
        tile[i] = part(axes[i].out, most);
      }
    }

    void run_tile(int64_t sample, const ConvTile& tile, int64_t channel, int64_t end) const {
      ConvImage form(axes, quad_axis, group_inputs, group_outputs, tile);
      form.prepare(in_plane());
      const std::vector<int64_t> offsets = form.offsets();
      const int64_t image_bytes = form.bytes() + kConvSlack * kQuad;
      const std::unique_ptr<uint8_t[]> images = allocate<uint8_t>(terms * image_bytes);
      const int64_t positions = form.positions();
      const auto [n0, n1, n2] = tile.count;
      // Kernels write to the output if positions are adjacent there, or row by row if that takes fewer vectors.
      // Otherwise, and if the output is float16, they write to a buffer, as the second of two terms always does.
      const bool is_row = n0 * n1 == 1;
      const bool has_planes = n1 == axes[1].out && !has_samples_as_axis;
      const bool is_whole = n0 * n1 * n2 == positions && (is_row || (n2 == axes[2].out && (n0 == 1 || has_planes)));
      const bool by_rows = !is_whole && n0 == 1 && writes_rows(form, n1, n2);
      const ProductKernels& products = *active_isa().products;
      const bool in_tiles = products.conv_tiles != nullptr && fits_tiles(form);
      const bool rounds = dst_storage.narrow != nullptr, is_direct = !rounds && (is_whole || by_rows);
      const bool takes_strips = in_strassen && is_whole && positions >= kStrassenColumns;
      const int64_t most_channels =
          takes_strips ? choose_strassen_channels(end - channel) : (in_tiles ? 2 : 1) * kBlockColumns;
      const bool is_dense = is_whole || (by_rows && n2 == axes[2].out);  // in a buffer that is rounded
      const int64_t buffer_size = std::min(group_outputs, most_channels) * positions;
      const std::unique_ptr<float[]> sums = allocate<float>(is_direct ? 0 : buffer_size);
      const std::unique_ptr<float[]> second = allocate<float>(terms > 1 ? buffer_size : 0);
      const std::unique_ptr<uint16_t[]> rounded = allocate<uint16_t>(rounds && !is_dense ? buffer_size : 0);
      ConvBlock block = all;
      const float scale = scale_of(sample);
      block.scaling.zp = zp_of(sample);
      block.rows = by_rows ? n1 : 1;
      block.cols = by_rows ? n2 : positions;
      block.input.row_stride = form.row_positions();
      block.input.position_bytes = form.position_bytes();
      block.input.kernel_rows = form.kernel_rows();
      block.input.offsets = offsets.data();
      const bool has_weight_zps = has_zero_points(all.weights);
      const std::vector<int8_t> ones = has_weight_zps ? form.ones() : std::vector<int8_t>();
      const int64_t code_sums_size = has_weight_zps ? positions + kConvSlack : 0;
      const std::unique_ptr<int32_t[]> code_sums = allocate<int32_t>(terms * code_sums_size);
      block.weights.ones = ones.data();
      const ConvKernel kernel = in_tiles ? products.conv_tiles : products.conv;
      block.input.run = form.run();
      block.input.run_bytes = form.run_bytes();
      block.weights.stride = quads * kQuad * kBlockColumns;
      const int64_t tiles_bytes = in_tiles ? conv_tiles_bytes(block.input.run, block.input.run_bytes) : 0;
      const std::unique_ptr<uint8_t[]> tiles = allocate<uint8_t>(terms * tiles_bytes + kTileBytes);
      const std::unique_ptr<uint8_t[]> wide_weights = allocate<uint8_t>(products.conv_quad_bytes * quads);
      block.scratch.weights = wide_weights.get();
      uint8_t* const aligned_tiles =
          tiles.get() + (kTileBytes - reinterpret_cast<uintptr_t>(tiles.get()) % kTileBytes) % kTileBytes;
      const auto image_of = [&](int64_t term) { return images.get() + term * image_bytes; };
      const auto use_term = [&](int64_t term) {
        block.input.image = image_of(term);
        block.scaling.scale = term < terms - 1 ? scale * kTermRatio : scale;
        block.scratch.code_sums = code_sums.get() + term * code_sums_size;
        block.scratch.tiles = aligned_tiles + term * tiles_bytes;
      };
      for (int64_t term = 0; term < terms; ++term)
        std::memset(image_of(term) + form.bytes(), 0, static_cast<size_t>(kConvSlack * kQuad));
      int64_t group = -1;
      while (channel < end) {
        if (group != channel / group_outputs) {
          const bool is_first = group < 0;
          group = channel / group_outputs;
          for (int64_t term = 0; term < terms; ++term) {
            use_term(term);
            form.write(source_of(term, sample, group), is_first, image_of(term));
            if (has_weight_zps) products.sum_conv_codes(block);
            if (in_tiles) products.pack_conv_tiles(block);
          }
        }
        const int64_t next =
            std::min({end, (group + 1) * group_outputs, channel - channel % kBlockColumns + most_channels});
        block.channels = next - channel;
        block.weights.packed =
            weights + channel / kBlockColumns * block.weights.stride + channel % kBlockColumns * kQuad;
        if (all.weights.zps != nullptr) block.weights.zps = all.weights.zps + channel;
        block.scaling.channel_scales = all.scaling.channel_scales + channel;
        block.scaling.channel_sums = all.scaling.channel_sums + channel;
        block.scaling.bias = terms > 1 ? no_bias : all.scaling.bias + channel;
        const int64_t to = first_of(sample, tile, channel);
        const ConvOutput of_terms[] = {
            is_direct ? ConvOutput{static_cast<float*>(dst) + to, axes[2].out, out_positions()}
                      : ConvOutput{sums.get(), n2, positions},
            {second.get(), n2, positions},
        };
        if (takes_strips) {
          block.output = of_terms[0];
          run_strassen(block, tile, sample, channel);
          channel = next;
          continue;
        }
        for (int64_t term = 0; term < terms; ++term) {
          use_term(term);
          block.output = of_terms[term];
          kernel(block);
        }
        if (terms > 1) add_terms(block, of_terms[0], of_terms[1], all.scaling.bias + channel);
        for (int64_t c = 0; !is_direct && is_dense && c < block.channels; ++c)
          dst_storage.narrow(sums.get() + c * positions, element(dst, dst_storage, to + c * out_positions()),
                             n0 * n1 * n2);
        if (!is_direct && !is_dense) write_rows(form, tile, by_rows, block.channels, sums.get(), rounded.get(), to);
        if (tail != nullptr) run_tail(tile, sample, channel, next);
        channel = next;
      }
    }

    // Runs a block of up to kStrassenRows channels by Strassen's algorithm, and the program on its outputs. Positions
    // that do not fill a strip take the direct form.
    void run_strassen(const ConvBlock& all_positions, const ConvTile& tile, int64_t sample, int64_t channel) const {
      const ProductKernels& products = *active_isa().products;
      const int64_t depth = quads * kQuad;
      const AlignedArray<int16_t> operands(strassen_codes_size(all_positions.channels, depth));
      for (int64_t row = 0; row < strassen_half_rows(all_positions.channels); ++row)
        products.strassen->form_channel(all_positions.weights.packed, all_positions.weights.stride,
                                        all_positions.channels, depth, row, operands.get());
      for (int64_t position = 0; position < all_positions.cols; position += kStrassenColumns) {
        ConvBlock block = all_positions;
        block.cols = std::min(kStrassenColumns, all_positions.cols - position);
        block.input.image += position * kQuad;
        block.output.dst += position;
        if (block.scratch.code_sums != nullptr) block.scratch.code_sums += position;
        if (block.cols == kStrassenColumns)
          products.strassen->conv(block, operands.get());
        else
          run_blocks(products.conv, block);
        if (tail != nullptr) run_tail(tile, sample, channel, channel + block.channels, position, block.cols);
      }
    }

    // Runs a kernel on each block of 16 channels.
    static void run_blocks(ConvKernel kernel, const ConvBlock& all_channels) {
      for (int64_t channel = 0; channel < all_channels.channels; channel += kBlockColumns) {
        ConvBlock block = all_channels;
        block.channels = std::min(kBlockColumns, all_channels.channels - channel);
        block.weights.packed += channel / kBlockColumns * block.weights.stride;
        if (block.weights.zps != nullptr) block.weights.zps += channel;
        block.scaling.channel_scales += channel;
        block.scaling.channel_sums += channel;
        block.scaling.bias += channel;
        block.output.dst += channel * block.output.channel_stride;
        kernel(block);
      }
    }

    // As run_tile(), with a fourth or a half of the products.
    void run_winograd(int64_t sample, const ConvTile& box, int64_t channel, int64_t end) const {
      const WinogradKernels& kernels = *active_isa().products->winograd;
      const WinogradImage form(axes, group_inputs, box);
      const auto [n0, n1, n2] = box.count;
      const int64_t positions = n0 * n1 * n2;
      WinogradBlock block = {};
      form.describe(block.input);
      const int64_t codes_size = winograd_codes_size(block.input);
      const bool has_weight_zps = has_zero_points(all.weights),
                 has_parts = block.input.kernel.has_limit(round_up(group_inputs, kQuad));
      const bool is_direct = terms == 1 && dst_storage.narrow == nullptr;
      const int64_t sums_size = std::min(group_outputs, kBlockColumns) * positions;
      const AlignedArray<uint8_t> image(form.bytes());
      const AlignedArray<int16_t> codes(terms * codes_size), weights_scratch(kWinogradWeightsSize);
      const AlignedArray<int32_t> sums(winograd_sums_size(block.input)),
          parts(has_parts ? winograd_parts_size(block.input) : 0);
      const std::unique_ptr<int32_t[]> code_sums = allocate<int32_t>(has_weight_zps ? terms * positions : 0);
      const std::unique_ptr<float[]> outputs = allocate<float>(is_direct ? 0 : terms * sums_size);
      block.input.image = image.get();
      block.quads = divide_up(group_inputs, kQuad);
      block.zp = all.weights.zp;
      block.code_plane_stride = n1 * n2;
      block.code_row_stride = n2;
      block.scaling = all.scaling;
      block.scaling.zp = zp_of(sample);
      block.output = is_direct ? WinogradOutput{nullptr, out_positions(), out_plane(), axes[2].out, 0, 0}
                               : WinogradOutput{nullptr, positions, n1 * n2, n2, 0, 0};
      block.output.row_step = axes[1].dilation;
      block.output.col_step = axes[2].dilation;
      block.scratch = {codes.get(), weights_scratch.get(), sums.get(), parts.get()};
      const auto use_term = [&](int64_t term) {
        block.scaling.scale = term < terms - 1 ? scale_of(sample) * kTermRatio : scale_of(sample);
        block.scratch.codes = codes.get() + term * codes_size;
        block.code_sums = code_sums.get() + (has_weight_zps ? term * positions : 0);
      };
      int64_t group = -1;
      while (channel < end) {
        if (group != channel / group_outputs) {
          group = channel / group_outputs;
          for (int64_t term = 0; term < terms; ++term) {
            use_term(term);
            form.write(source_of(term, sample, group), kernels, image.get());
            if (has_weight_zps) form.sum_codes(image.get(), code_sums.get() + term * positions);
            kernels.transform_codes(block);
          }
        }
        const int64_t next =
            std::min({end, (group + 1) * group_outputs, channel - channel % kBlockColumns + kBlockColumns});
        block.first = channel % kBlockColumns;
        block.channels = next - channel;
        block.packed = weights + channel / kBlockColumns * quads * kQuad * kBlockColumns;
        block.zps = all.weights.zps == nullptr ? nullptr : all.weights.zps + channel;
        block.scaling.channel_scales = all.scaling.channel_scales + channel;
        block.scaling.channel_sums = all.scaling.channel_sums + channel;
        block.scaling.bias = terms > 1 ? no_bias : all.scaling.bias + channel;
        for (int64_t term = 0; term < terms; ++term) {
          use_term(term);
          block.output.dst =
              is_direct ? static_cast<float*>(dst) + first_of(sample, box, channel) : outputs.get() + term * sums_size;
          kernels.convolve(block);
        }
        if (terms > 1)
          for (int64_t c = 0; c < block.channels; ++c)
            add_row(outputs.get() + c * positions, outputs.get() + sums_size + c * positions,
                    load(all.scaling.bias + channel + c), positions);
        if (!is_direct) write_box(sample, box, channel, block.channels, outputs.get());
        if (tail != nullptr) run_tail(box, sample, channel, next);
        channel = next;
      }
    }

    // As run_tile(), for `count` samples, by a matrix product: the codes of each position are a row.
    void run_rows(int64_t sample, int64_t count, const ConvTile& tile, int64_t channel, int64_t end) const {
      ConvImage form(axes, quad_axis, group_inputs, group_outputs, tile);
      form.prepare(in_plane());
      const std::vector<int64_t> offsets = form.offsets();
      const auto [n0, n1, n2] = tile.count;
      const int64_t positions = n0 * n1 * n2, rows = count * positions, depth = quads * kQuad;
      const int64_t image_bytes = form.bytes() + kConvSlack * kQuad;
      const AlignedArray<uint8_t> image(image_bytes), codes(terms * rows * depth);
      const AlignedArray<float> outputs(terms * rows * kConvColumns), row_scales(terms * rows);
      const AlignedArray<int32_t> row_zps(rows), sums(has_zero_points(all.weights) ? terms * rows : 0);
      const std::vector<int8_t> ones = has_zero_points(all.weights) ? form.ones() : std::vector<int8_t>();
      std::memset(image.get() + form.bytes(), 0, static_cast<size_t>(kConvSlack * kQuad));
      for (int64_t i = 0; i < count; ++i) {
        std::fill_n(row_zps.get() + i * positions, positions, zp_of(sample + i));
        for (int64_t term = 0; term < terms; ++term) {
          const int64_t row = term * rows + i * positions;
          form.write(source_of(term, sample + i, 0), true, image.get());
          write_conv_rows(form, tile, offsets, image.get(), codes.get() + row * depth);
          if (sums.get() != nullptr) sum_conv_rows(codes.get() + row * depth, positions, ones, sums.get() + row);
          const float scale = scale_of(sample + i);
          std::fill_n(row_scales.get() + row, positions, term < terms - 1 ? scale * kTermRatio : scale);
        }
      }
      float no_biases[kConvColumns];
      std::fill(std::begin(no_biases), std::end(no_biases), -0.0f);
      ProductBlock block = {};
      block.rows = rows;
      block.depth = depth;
      block.groups = block.codes.scale_groups = block.columns.scale_groups = 1;
      block.codes.stride = depth;
      block.codes.zps = row_zps.get();
      block.codes.has_one_zp = !has_zps_of_samples;
      block.weights.stride = depth * kBlockColumns;
      block.weights.zp = all.weights.zp;
      block.order = all.scaling.order;
      for (int64_t next; channel < end; channel = next) {
        next = std::min(end, channel + kConvColumns);
        block.cols = next - channel;
        block.weights.packed = weights + channel / kBlockColumns * block.weights.stride;
        if (all.weights.zps != nullptr) block.weights.zps = all.weights.zps + channel;
        block.columns.scales = all.scaling.channel_scales + channel;
        block.columns.sums = all.scaling.channel_sums + channel;
        block.columns.bias = terms > 1 ? no_biases : all.scaling.bias + channel;
        for (int64_t term = 0; term < terms; ++term) {
          block.codes.data = codes.get() + term * rows * depth;
          block.codes.scales = row_scales.get() + term * rows;
          block.codes.sums = sums.get() == nullptr ? nullptr : sums.get() + term * rows;
          block.output = {outputs.get() + term * rows * kConvColumns, kConvColumns, false};
          active_isa().products->gemm_qc8w(block);
        }
        for (int64_t row = 0; terms > 1 && row < rows; ++row)
          add_biases(outputs.get() + row * kConvColumns, outputs.get() + (rows + row) * kConvColumns,
                     all.scaling.bias + channel, block.cols);
        const float least = terms > 1 ? lowest : all.scaling.lowest, most = terms > 1 ? highest : all.scaling.highest;
        const int64_t adjacent = n2 == axes[2].out ? n1 * n2 : n2;
        const float* from = outputs.get();
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t i0 = 0; i0 < n0; ++i0)
            for (int64_t at = 0; at < n1 * n2; at += adjacent, from += adjacent * kConvColumns)
              transpose_clipped(from, kConvColumns, adjacent, block.cols, least, most,
                                static_cast<float*>(dst) + first_of(sample + i, tile, channel) + i0 * out_plane() +
                                    at / n2 * axes[2].out,
                                out_positions());
          if (tail != nullptr) run_tail(tile, sample + i, channel, next);
        }
      }
    }

    static void add_biases(float* __restrict first, const float* __restrict second, const float* biases,
                           int64_t count) {
      for (int64_t i = 0; i < count; ++i) first[i] = first[i] + second[i] + load(biases + i);
    }

    float scale_of(int64_t sample) const { return load(scales + (has_scales_of_samples ? sample : 0)); }
    int32_t zp_of(int64_t sample) const { return zps[has_zps_of_samples ? sample : 0] ^ flip; }

    ConvSource source_of(int64_t term, int64_t sample, int64_t group) const {
      const int64_t image = sample * terms + term;
      const uint8_t* codes = src + (image * (channels / group_outputs) + group) * group_inputs * in_positions();
      return {codes, in_positions(), in_plane(), flip, static_cast<uint8_t>(zp_of(sample))};
    }

    // The number of the first element of a tile and channel.
    int64_t first_of(int64_t sample, const ConvTile& tile, int64_t channel) const {
      return (sample * channels + channel) * out_positions() + tile.first[0] * out_plane() +
             tile.first[1] * axes[2].out + tile.first[2];
    }

    // Writes `count` channels of a box from `from`, which has no other elements.
    void write_box(int64_t sample, const ConvTile& box, int64_t channel, int64_t count, const float* from) const {
      const auto [n0, n1, n2] = box.count;
      const int64_t row = n2 == axes[2].out ? n1 * n2 : n2;
      for (int64_t c = 0; c < count; ++c)
        for (int64_t i0 = 0; i0 < n0; ++i0)
          for (int64_t at = 0; at < n1 * n2; at += row, from += row) {
            const int64_t to = first_of(sample, box, channel + c) + i0 * out_plane() + at / n2 * axes[2].out;
            if (dst_storage.narrow != nullptr)
              dst_storage.narrow(from, element(dst, dst_storage, to), row);
            else
              std::memcpy(static_cast<float*>(dst) + to, from, static_cast<size_t>(row) * sizeof(float));
          }
    }

    // Null if there is nothing to allocate.
    template <typename T>
    static std::unique_ptr<T[]> allocate(int64_t count) {
      return std::unique_ptr<T[]>(count == 0 ? nullptr : new T[static_cast<size_t>(count)]);
    }

    // first = clip(first + second + bias). NaN and zeros stay as they are.
    void add_terms(const ConvBlock& block, const ConvOutput& first, const ConvOutput& second,
                   const float* of_channels) const {
      for (int64_t c = 0; c < block.channels; ++c)
        for (int64_t row = 0; row < block.rows; ++row)
          add_row(first.dst + c * first.channel_stride + row * first.row_stride,
                  second.dst + c * second.channel_stride + row * second.row_stride, load(of_channels + c), block.cols);
    }

    void add_row(float* __restrict first, const float* __restrict second, float of_channel, int64_t count) const {
      for (int64_t i = 0; i < count; ++i) {
        float sum = load(first + i) + second[i] + of_channel;
        sum = sum < lowest ? lowest : sum;
        store(first + i, sum > highest ? highest : sum);
      }
    }

    // Runs the program on `count` adjacent outputs of each channel, from `position` of the tile on.
    void run_tail(const ConvTile& tile, int64_t sample, int64_t begin, int64_t end, int64_t position,
                  int64_t count) const {
      const int64_t plane = tile.first[0];
      const int64_t first = (has_samples_as_axis ? plane : sample) * channels;
      const int64_t at = has_samples_as_axis ? 0 : plane * axes[1].out * axes[2].out;
      tail->run(tail_tensors, static_cast<float*>(dst), first + begin, first + end,
                at + tile.first[1] * axes[2].out + tile.first[2] + position, count);
    }

    // Runs the program on the tile of channels [begin, end).
    void run_tail(const ConvTile& tile, int64_t sample, int64_t begin, int64_t end) const {
      const auto [n0, n1, n2] = tile.count;
      const bool has_rows = n2 == axes[2].out, has_planes = has_rows && n1 == axes[1].out && !has_samples_as_axis;
      const int64_t adjacent = has_planes ? n0 * n1 * n2 : has_rows ? n1 * n2 : n2;
      for (int64_t i0 = 0; i0 < (has_planes ? 1 : n0); ++i0) {
        const int64_t plane = tile.first[0] + i0;
        const int64_t first = (has_samples_as_axis ? plane : sample) * channels;  // rows count through all samples
        const int64_t at = has_samples_as_axis ? 0 : plane * axes[1].out * axes[2].out;
        for (int64_t i1 = 0; i1 < (has_rows ? 1 : n1); ++i1)
          tail->run(tail_tensors, static_cast<float*>(dst), first + begin, first + end,
                    at + (tile.first[1] + i1) * axes[2].out + tile.first[2], adjacent);
      }
    }

    // Whether AMX is used: its tiles need whole blocks of channels, runs that fill at least half of a tile, and sums
    // long enough to pay for packing and conversion.
    bool fits_tiles(const ConvImage& form) const {
      return (channels == group_outputs || group_outputs % kBlockColumns == 0) && quads >= 2 * kTileRows &&
             2 * form.run() >= round_up(form.run(), kTileRows);
    }

    // Whether covering each row with vectors takes fewer of them than covering all positions, whose outputs are copied.
    bool writes_rows(const ConvImage& form, int64_t rows, int64_t cols) const {
      return form.position_bytes() < kQuad && group_outputs <= kFewOutputs &&
             rows * divide_up(cols, kBlockColumns) * quads <
                 divide_up(form.positions(), kBlockColumns) * (quads + kCopy);
    }

    // Writes channels of a tile. `sums` has all positions of the image or, if `by_rows`, the positions of the tile.
    // `rounded` is a buffer for as many float16, or null. `to` is the number of the first element.
    void write_rows(const ConvImage& form, const ConvTile& tile, bool by_rows, int64_t count, const float* sums,
                    uint16_t* rounded, int64_t to) const {
      const int64_t n0 = tile.count[0], n1 = tile.count[1], n2 = tile.count[2];
      const int64_t positions = form.positions();
      const void* from = sums;
      if (rounded != nullptr) {
        for (int64_t c = 0; c < count; ++c)
          dst_storage.narrow(sums + c * positions, rounded + c * positions, by_rows ? n1 * n2 : positions);
        from = rounded;
      }
      const int64_t row_step = by_rows ? n2 : form.position(0, 1), bytes = dst_storage.bits / 8;
      const auto copy = [&](auto size) {
        for (int64_t i0 = 0; i0 < n0; ++i0)
          for (int64_t c = 0; c < count; ++c) {
            const auto* row = static_cast<const char*>(from) + (c * positions + form.position(i0, 0)) * bytes;
            auto* dst_row = static_cast<char*>(dst) + (to + i0 * out_plane() + c * out_positions()) * bytes;
            for (int64_t i1 = 0; i1 < n1; ++i1, row += row_step * bytes, dst_row += axes[2].out * bytes)
              std::memcpy(dst_row, row, size);
          }
      };
      switch (n2 * bytes) {  // a call of memcpy would take longer than copying a few elements
        case 4:
          return copy(std::integral_constant<size_t, 4>());
        case 8:
          return copy(std::integral_constant<size_t, 8>());
        case 16:
          return copy(std::integral_constant<size_t, 16>());
        default:
          return copy(static_cast<size_t>(n2 * bytes));
      }
    }
  };

  [[noreturn]] void fail(const std::string& message) const { throw Error(std::string(name_) + ": " + message); }

  // Sets the last axes; the others keep length 1.
  void read_axes(const Shape& src, const Tensor& geometry, ConvAxis (&axes)[kSpatialAxes]) const {
    const size_t spatial_rank = src.rank - 2;
    const Shape& shape = geometry.shape;
    if (shape.rank != 2 || shape.dims[0] != 5 || shape.dims[1] != static_cast<int64_t>(spatial_rank))
      fail("geometry has shape " + shape.text() + ", expected 5x" + std::to_string(spatial_rank) +
           ": kernel shape, strides, dilations, leading pads and trailing pads");
    static constexpr const char* kRows[] = {"kernel shape", "stride", "dilation", "leading pad", "trailing pad"};
    static constexpr int32_t kLeast[] = {1, 1, 1, 0, 0};
    int64_t values[5][kSpatialAxes];
    for (size_t row = 0; row < 5; ++row)
      for (size_t i = 0; i < spatial_rank; ++i) {
        values[row][i] = load(static_cast<const int32_t*>(geometry.data) + row * spatial_rank + i);
        if (values[row][i] < kLeast[row])
          fail(std::string("geometry has the ") + kRows[row] + " " + std::to_string(values[row][i]) +
               " for dimension " + std::to_string(i + 2) + ", expected " + std::to_string(kLeast[row]) + " or more");
      }
    for (size_t i = 0; i < spatial_rank; ++i) {
      ConvAxis& axis = axes[kSpatialAxes - spatial_rank + i];
      axis.in = src.dims[2 + i];
      axis.kernel = values[0][i];
      axis.stride = values[1][i];
      axis.dilation = values[2][i];
      const int64_t span = (axis.kernel - 1) * axis.dilation + 1;
      int64_t pads = values[3][i] + values[4][i];
      axis.pad = values[3][i];
      if (auto_pad_ != AutoPad::kExplicit) {
        pads = std::max(int64_t{0}, (divide_up(axis.in, axis.stride) - 1) * axis.stride + span - axis.in);
        axis.pad = auto_pad_ == AutoPad::kSameUpper ? pads / 2 : pads - pads / 2;
      }
      if (span > axis.in + pads)
        fail("the kernel spans " + std::to_string(span) + " elements of dimension " + std::to_string(i + 2) +
             ", expected at most " + std::to_string(axis.in + pads) + ", the length of src with its pads");
      axis.out = (axis.in + pads - span) / axis.stride + 1;
    }
  }

  // One element, or [N, 1, ..., 1].
  void check_samples(const Tensor& tensor, const char* name, int64_t samples) const {
    const Shape& shape = tensor.shape;
    if (shape.elements() != 1 && (shape.rank == 0 || shape.dims[0] != samples || shape.elements() != samples))
      fail(std::string(name) + " has shape " + shape.text() + ", expected one element, or " + std::to_string(samples) +
           ", one for each sample");
  }

  void check_channels(const Tensor& tensor, const char* name, int64_t channels) const {
    if (tensor.shape.rank != 1 || tensor.shape.dims[0] != channels)
      fail(std::string(name) + " has shape " + tensor.shape.text() + ", expected " + std::to_string(channels) +
           ", one element for each output channel");
  }

  // The text has the factors: their product may overflow.
  void check_sums(const Conv& conv, size_t spatial_rank, bool is_symmetric) const {
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

  // Pads may be of any length, and elements() does not detect an overflow.
  void check_size(const Shape& shape) const {
    int64_t most = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(float));
    for (size_t i = 0; i < shape.rank; ++i) most /= std::max<int64_t>(shape.dims[i], 1);
    if (most == 0) fail("dst would have shape " + shape.text() + ", expected fewer than 2^63 bytes");
  }

  int64_t quads_of(const Conv& conv) const {
    const ConvAxis(&axes)[kSpatialAxes] = conv.axes;
    return quad_axis_ == QuadAxis::kWidth
               ? conv.group_inputs * axes[0].kernel * axes[1].kernel * divide_up(axes[2].kernel, kQuad)
               : axes[0].kernel * axes[1].kernel * axes[2].kernel * divide_up(conv.group_inputs, kQuad);
  }

  void check_weight(const Shape& shape, const Conv& conv) const {
    Shape expected;
    expected.rank = 4;
    expected.dims[0] = divide_up(conv.channels, kBlockColumns);
    expected.dims[1] = conv.quads;
    expected.dims[2] = kBlockColumns;
    expected.dims[3] = kQuad;
    if (!(shape == expected))
      fail("weight has shape " + shape.text() + ", expected " + expected.text() + ", packed for quad_axis " +
           text_of(quad_axis_));
  }

  const char* name_;
  int64_t group_;
  AutoPad auto_pad_;
  QuadAxis quad_axis_;
  ScaleOrder order_;
  int64_t terms_;

 protected:
  std::optional<Tail> tail_;
};

class QuantizedConvProgram : public QuantizedConv {
 public:
  explicit QuantizedConvProgram(const Attributes& attributes) : QuantizedConv(attributes, "QuantizedConvProgram") {
    tail_.emplace("QuantizedConvProgram", attributes);
  }
};

}  // namespace

Operator quantized_conv() {
  Operator op = {"QuantizedConv",
                 kInputs,
                 {{{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat, kInt32}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat, kInt32}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat16, kInt32}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat16, kInt32}, {kFloat16}}},
                 make_node<QuantizedConv>,
                 type_of_input<7>};
  op.columns_input = Operator::kNoInput;
  return op;
}

Operator quantized_conv_program() {
  return with_program(quantized_conv(), "QuantizedConvProgram", make_node<QuantizedConvProgram>);
}

}  // namespace dynq
