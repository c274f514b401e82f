// WordConv: a convolution of floats by weights of 12 bits, to float32.
//
// Each sample of src becomes words of 13 bits with one step. A row of the product is an output channel, a column an
// output position, and the sums of each 256 weights are exact in int32 (kernels/portable_compressed.cc). Tasks are some
// positions of a group of a sample, or some of its channels there: they copy what these positions read to panels.
//
// WordConvProgram is the same, and then a program for each element of the output, while it is in the cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/conv_patches.h"
#include "core/convolution_shape.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/verbose.h"
#include "core/words.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int64_t kBlock = kMaxProducts;    // weights of an output channel with an exact sum
constexpr int64_t kPanelBlocks = 2;         // that have panels at the same time
constexpr int64_t kPanelWords = 128 << 10;  // of a tile, which stay in the second-level cache
constexpr int64_t kPieceWords = 64 << 10;   // of the weights of a piece, which stay there, too
constexpr int64_t kMinPieceRows = 12, kMaxPieceRows = 96;
constexpr int64_t kMinPositions = 96, kMaxPositions = 512;  // of a tile, unless there are fewer

enum Input { kSrc, kWeight, kChannelScale, kBias, kGeometry, kInputs };

// What all tasks of a run share.
struct Run : ConvolutionShape {
  Run(const ConvolutionShape& shape, const Tensor& weight, const Tensor& scale, const Tensor& bias);

  int64_t size_of_block(int64_t block) const { return std::min(kBlock, depth - block * kBlock); }
  int64_t blocks() const { return divide_up(depth, kBlock); }
  int64_t columns(int64_t count) const { return round_up(count, active_compressed().panel_columns); }

  int64_t depth;                    // the weights of an output channel
  int64_t in_positions, positions;  // of the input and of the output
  int64_t sample_words;
  AlignedArray<int16_t> copy;  // of weights that a caller has at an odd address
  const int16_t* weight;       // [channels, depth]
  const float* bias;
  AlignedArray<float> scales;         // of the channels
  AlignedArray<int16_t> words, last;  // of src; of an odd last block of weights, with a 0 behind each
  AlignedArray<float> steps;          // of the samples
  float* dst = nullptr;
};

bool is_aligned(const Tensor& words) { return reinterpret_cast<uintptr_t>(words.data) % alignof(int16_t) == 0; }

int64_t count_of(const ConvAxis (&axes)[kSpatialAxes], int64_t ConvAxis::* length) {
  return axes[0].*length * axes[1].*length * axes[2].*length;
}

Run::Run(const ConvolutionShape& shape, const Tensor& weight_tensor, const Tensor& scale, const Tensor& bias_tensor)
    : ConvolutionShape(shape),
      depth(group_inputs * count_of(axes, &ConvAxis::kernel)),
      in_positions(count_of(axes, &ConvAxis::in)),
      positions(count_of(axes, &ConvAxis::out)),
      sample_words(groups * group_inputs * in_positions),
      copy(is_aligned(weight_tensor) ? 0 : channels * depth),
      weight(is_aligned(weight_tensor) ? static_cast<const int16_t*>(weight_tensor.data) : copy.get()),
      bias(static_cast<const float*>(bias_tensor.data)),
      scales(channels),
      words(samples * sample_words),
      last(depth % 2 == 0 ? 0 : channels * (depth % kBlock + 1)),
      steps(samples) {
  if (!is_aligned(weight_tensor))
    std::memcpy(copy.get(), weight_tensor.data, static_cast<size_t>(channels * depth) * sizeof(int16_t));
  std::memcpy(scales.get(), scale.data, static_cast<size_t>(channels) * sizeof(float));
  const int64_t count = depth % kBlock;
  for (int64_t c = 0; c < channels && depth % 2 != 0; ++c) {
    int16_t* const to = last.get() + c * (count + 1);
    std::memcpy(to, weight + (c + 1) * depth - count, static_cast<size_t>(count) * sizeof(int16_t));
    to[count] = 0;
  }
}

// Which tasks there are: of a group of a sample, tiles * channel_parts.
struct Cut {
  int64_t tile, tiles, channel_parts, piece_rows;

  explicit Cut(const Run& run) {
    const CompressedKernels& kernels = active_compressed();
    const int64_t images = run.samples * run.groups, products = images * run.group_outputs * run.positions * run.depth;
    const int64_t of_image = divide_up(wanted_tasks(products), images);
    const int64_t depth = std::min(run.depth, kPanelBlocks * kBlock);
    const int64_t rows = kPieceWords / depth / kernels.score_rows * kernels.score_rows;
    piece_rows = std::clamp(rows, round_up(kMinPieceRows, kernels.score_rows), kMaxPieceRows);
    const int64_t most = std::clamp(kPanelWords / depth / kernels.panel_columns * kernels.panel_columns,
                                    kernels.panel_columns, kMaxPositions);
    tile = std::min(most, std::max(kMinPositions, run.columns(divide_up(run.positions, of_image))));
    tiles = divide_up(run.positions, tile);
    channel_parts = std::clamp<int64_t>(of_image / tiles, 1, divide_up(run.group_outputs, piece_rows));
  }
};

// Some positions of a group of a sample, and channels [begin, end) there.
struct Part {
  int64_t sample, group, first, count, begin, end;
};

// The panels of some blocks of a part.
class Panels {
 public:
  Panels(const Run& run, const Part& part);

  // Writes those of blocks [first, end), at most kPanelBlocks.
  void write(int64_t first, int64_t end);
  bool has_first() const { return first_ == 0; }
  bool has_last() const { return end_ == run_.blocks(); }

  // Adds their products with rows [begin, end) of the weights of the group to their scores.
  void multiply(int64_t begin, int64_t end) const;

 private:
  // Adds those of `groups` blocks from `block` on, which have the same size.
  void add(int64_t begin, int64_t end, int64_t block, int64_t groups) const;

  int64_t stride_of(int64_t block) const {
    return round_up(run_.size_of_block(block), active_compressed().panel_rows) * active_compressed().panel_columns;
  }
  int16_t* block_at(int64_t block) const { return panels_.get() + (block - first_) * kBlock * columns_; }

  const Run& run_;
  const Part& part_;
  const ConvPatches patches_;
  const bool has_rows_;  // the image has them as the patches do
  const int64_t columns_;
  const int16_t* const image_;
  int64_t first_ = 0, end_ = 0;
  const AlignedArray<int16_t> rows_, panels_;  // the patches of a block; [blocks, panels, weights, panel columns]
  const AlignedArray<float> steps_;            // of the columns
};

Panels::Panels(const Run& run, const Part& part)
    : run_(run),
      part_(part),
      patches_(run.axes, part.first, part.count),
      has_rows_(is_pointwise(run.axes)),
      columns_(run.columns(part.count)),
      image_(run.words.get() + part.sample * run.sample_words + part.group * run.group_inputs * run.in_positions),
      rows_(has_rows_ ? 0 : kBlock * part.count),
      panels_(round_up(std::min(run.depth, kPanelBlocks * kBlock), active_compressed().panel_rows) * columns_),
      steps_(columns_) {
  std::fill_n(steps_.get(), columns_, run.steps[part.sample]);
}

void Panels::write(int64_t first, int64_t end) {
  first_ = first;
  end_ = end;
  PanelPack pack = {};
  pack.cols = part_.count;
  pack.codes = rows_.get();
  pack.code_stride = has_rows_ ? run_.in_positions : part_.count;
  for (int64_t block = first; block < end; ++block) {
    const int64_t row = block * kBlock;
    pack.depth = run_.size_of_block(block);
    if (has_rows_)
      pack.codes = image_ + row * run_.in_positions + part_.first;
    else
      patches_.write(image_, row, pack.depth, rows_.get(), part_.count);
    pack.panels = block_at(block);
    pack.panel_stride = stride_of(block);
    active_compressed().pack[kWords](pack);
  }
}

void Panels::multiply(int64_t begin, int64_t end) const {
  const int64_t whole = std::min(end_, run_.depth / kBlock);
  if (whole > first_) add(begin, end, first_, whole - first_);
  if (whole < end_) add(begin, end, whole, 1);
}

void Panels::add(int64_t begin, int64_t end, int64_t block, int64_t groups) const {
  const int64_t channel = part_.group * run_.group_outputs + begin, size = run_.size_of_block(block);
  const bool is_odd = size % 2 != 0;
  PanelScores scores = {};
  scores.product.words =
      is_odd ? run_.last.get() + channel * (size + 1) : run_.weight + channel * run_.depth + block * kBlock;
  scores.product.word_stride = is_odd ? size + 1 : run_.depth;
  scores.product.rows = end - begin;
  scores.product.depth = size;
  scores.product.cols = part_.count;
  scores.product.panels = block_at(block);
  scores.product.panel_stride = stride_of(block);
  scores.groups = groups;
  scores.group_words = kBlock;
  scores.group_panels = kBlock * columns_;
  scores.steps = run_.scales.get() + channel;
  scores.scales = steps_.get();
  scores.adds = true;
  scores.scores = run_.dst + (part_.sample * run_.channels + channel) * run_.positions + part_.first;
  scores.score_stride = run_.positions;
  active_compressed().panel_scores(scores);
}

class WordConv : public Node {
 public:
  explicit WordConv(const Attributes& attributes, const char* name = "WordConv") : geometry_(name, attributes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(kSrc), weight = context.input(kWeight), scale = context.input(kChannelScale);
    const Tensor bias = context.input(kBias);
    const ConvolutionShape shape = check_geometry(geometry_, src.shape, bias.shape, context.input(kGeometry));
    check_channels(geometry_, scale.shape, "channel_scale", shape.channels);
    check_weight(shape, src.shape.rank, weight.shape);
    range_.check(geometry_.op, context, kWeight);
    ProgramTensors operands;
    if (tail_) operands = tail_->tensors(context, kInputs, shape.result, 2);
    auto* const dst = static_cast<float*>(context.output(0, shape.result));
    if (shape.result.elements() == 0) return;
    Run run(shape, weight, scale, bias);
    run.dst = dst;
    quantize(context, static_cast<const float*>(src.data), run);
    multiply(context, run, operands);
  }

 private:
  void check_weight(const ConvolutionShape& conv, size_t rank, const Shape& weight) const {
    Shape expected;
    expected.rank = rank;
    expected.dims[0] = conv.channels;
    expected.dims[1] = conv.group_inputs;
    for (size_t i = 2; i < rank; ++i) expected.dims[i] = conv.axes[i + kSpatialAxes - rank].kernel;
    if (!(weight == expected))
      throw Error(std::string(geometry_.op) + ": weight has shape " + weight.text() + ", expected " + expected.text());
  }

  // Large samples are cut into parts. Each has a step of its own first: that of the sample is the largest one.
  static void quantize(Context& context, const float* src, const Run& run) {
    const int64_t size = run.sample_words, parts = part_count(size, kMaxTasks), tasks = run.samples * parts;
    const AlignedArray<float> steps(tasks);
    const auto run_all = [&](bool has_steps) {
      run_tasks(context, tasks, [&](int64_t task) {
        const int64_t sample = task / parts, part = task % parts;
        const int64_t begin = size * part / parts, count = size * (part + 1) / parts - begin,
                      at = sample * size + begin;
        float step = run.steps[sample];
        if (has_steps && steps[task] == step) return;
        active_compressed().quantize_words({src + at, count, nullptr, 1, count, run.words.get() + at, count,
                                            has_steps ? &step : steps.get() + task, kLargestOfSrc, has_steps});
      });
    };
    run_all(false);
    for (int64_t sample = 0; sample < run.samples; ++sample) {
      const float* const first = steps.get() + sample * parts;
      const bool is_known = std::none_of(first, first + parts, [](float step) { return step != step; });
      run.steps[sample] = is_known ? *std::max_element(first, first + parts) : kNan;
    }
    if (parts > 1) run_all(true);
  }

  void multiply(Context& context, const Run& run, const ProgramTensors& operands) const {
    const Cut cut(run);
    if (is_verbose()) report(run);
    run_last_tasks(context, run.samples * run.groups * cut.tiles * cut.channel_parts, [&](int64_t task) {
      const int64_t some = task % cut.channel_parts, tile = task / cut.channel_parts % cut.tiles;
      const int64_t image = task / cut.channel_parts / cut.tiles, first = tile * cut.tile;
      const int64_t pieces = divide_up(run.group_outputs, cut.piece_rows);
      const Part part = {image / run.groups,
                         image % run.groups,
                         first,
                         std::min(cut.tile, run.positions - first),
                         pieces * some / cut.channel_parts * cut.piece_rows,
                         std::min(run.group_outputs, pieces * (some + 1) / cut.channel_parts * cut.piece_rows)};
      Panels panels(run, part);
      for (int64_t block = 0; block < run.blocks(); block += kPanelBlocks) {
        panels.write(block, std::min(block + kPanelBlocks, run.blocks()));
        for (int64_t row = part.begin; row < part.end; row += cut.piece_rows)
          multiply_piece(run, panels, part, row, std::min(row + cut.piece_rows, part.end), operands);
      }
    });
  }

  void multiply_piece(const Run& run, const Panels& panels, const Part& part, int64_t begin, int64_t end,
                      const ProgramTensors& operands) const {
    const int64_t channel = part.group * run.group_outputs + begin, row = part.sample * run.channels + channel;
    for (int64_t i = 0; i < end - begin && panels.has_first(); ++i) {
      float* const to = run.dst + (row + i) * run.positions + part.first;
      const float bias = load(run.bias + channel + i);
      for (int64_t position = 0; position < part.count; ++position) store(to + position, bias);
    }
    panels.multiply(begin, end);
    if (tail_ && panels.has_last()) tail_->run(operands, run.dst, row, row + end - begin, part.first, part.count);
  }

  void report(const Run& run) const {
    std::fprintf(stderr, "ort_dynq: %s %s to %s channels, %s weights each, %s outputs: %s\n", geometry_.op,
                 std::to_string(run.groups * run.group_inputs).c_str(), std::to_string(run.channels).c_str(),
                 std::to_string(run.depth).c_str(), std::to_string(run.samples * run.positions).c_str(),
                 active_isa().name);
  }

  const ConvGeometry geometry_;
  const WordRange range_;

 protected:
  std::optional<Tail> tail_;
};

class WordConvProgram : public WordConv {
 public:
  explicit WordConvProgram(const Attributes& attributes) : WordConv(attributes, "WordConvProgram") {
    tail_.emplace("WordConvProgram", attributes);
  }
};

}  // namespace

Operator word_conv() {
  Operator op = {
      "WordConv", kInputs, {{{kFloat, kInt16, kFloat, kFloat, kInt32}, {kFloat}}}, make_node<WordConv>, always_float};
  op.columns_input = Operator::kNoInput;
  return op;
}

Operator word_conv_program() { return with_program(word_conv(), "WordConvProgram", make_node<WordConvProgram>); }

}  // namespace dynq
