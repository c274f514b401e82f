// QuantizedMatMul: 8-bit codes of rows times packed weights of 8, 4 or 2 bits, to float32 or float16.
//
// kernels/portable_products.cc has the arithmetic. compute() checks the inputs, prepares codes, scales and zero points
// of rows, and cuts the output into tasks. src is used in place, unless its codes are int8, its rows are no multiple of
// 4 bytes, or the kernel takes tiles. Stacked weights are several products of one shape, whose tasks run together.
// 2-bit weights become 4-bit weights strip by strip, unless there are few rows.
//
// QuantizedMatMulProgram is the same, and then a program for each element of the result, while it is in the cache.
// Many rows may take Strassen's algorithm (core/strassen.h).
//
// More than 450 lines: one operator, whose preparation, tasks and pieces read the same block of the product.
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/attributes.h"
#include "core/formats.h"
#include "core/matrices.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/strassen.h"
#include "core/sums.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr size_t kInputs = 8;
constexpr int64_t kStrip = 64;              // a multiple of the columns of every kernel's tile
constexpr int64_t kRowUnit = 12;            // likewise for rows; with AMX 32
constexpr int64_t kTaskProducts = 1 << 19;  // products of the smallest task: some microseconds
constexpr int64_t kMostTasks = 64;
constexpr int64_t kPieceRows = 96;          // rows of a piece: a multiple of kRowUnit and of two tiles
constexpr int64_t kPieceColumns = kStrip;   // columns likewise
constexpr int64_t kStreamBytes = 4 << 20;   // larger outputs do not fit the second-level cache
constexpr int64_t kOperandBytes = 4 << 20;  // of Strassen's algorithm at once, or those of one part of the rows
static_assert(kStrassenColumns == kPieceColumns, "so many rows of a strip are one piece");

class QuantizedMatMul : public Node {
 public:
  explicit QuantizedMatMul(const Attributes& attributes, const char* name = "QuantizedMatMul")
      : name_(name),
        bits_(read_one_of(name_, attributes, "bits", 8, {{8, nullptr}, {4, nullptr}, {2, nullptr}})),
        group_size_(read_group_size(name_, attributes)),
        terms_(read_one_of(name_, attributes, "terms", 1, {{1, nullptr}, {2, nullptr}})),
        order_(read_encoding(name_, attributes, "scale_order", kScalesFirst)) {
    if (group_size_ > 0 && order_ != kColumnFirst)
      fail("scale_order is " + text_of(order_) + " for groups, expected " + text_of(kColumnFirst));
  }

  void compute(Context& context) const override {
    Product product;
    ProductBlock& all = product.all;
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2),
                 weight = context.input(3), weight_zp = context.input(4), column_scale = context.input(5),
                 column_sum = context.input(6), bias = context.input(7);
    if (src.shape.rank == 0) fail("src is a scalar, expected rank 1 or more");
    const int64_t depth = src.shape.dims[src.shape.rank - 1] / terms_;
    if (depth * terms_ != src.shape.dims[src.shape.rank - 1])
      fail("src has shape " + src.shape.text() + ", expected an even last dimension: " + std::to_string(terms_) +
           " terms");
    all.groups = 1;
    if (group_size_ > 0) {
      if (depth == 0 || depth % group_size_ != 0)
        fail("group_size is " + std::to_string(group_size_) + ", expected a divisor of K, " + std::to_string(depth));
      all.groups = depth / group_size_;
    }
    if (bias.shape.rank == 0) fail("bias has shape scalar, expected one element for each column");
    const int64_t columns = all.cols = bias.shape.dims[bias.shape.rank - 1];
    all.depth = round_up(depth, unit());
    const Shape stack = stack_of(weight.shape, columns, all.depth);
    if (bias.shape.rank != stack.rank + 1 || !begins_with(bias.shape, stack))
      fail("bias has shape " + bias.shape.text() + ", expected one element for each column" + of_stack(stack));
    check_columns(column_sum, "column_sum", stack, all.groups, columns, 0);
    check_columns(column_scale, "column_scale", stack, all.groups, columns, 1);
    if (weight_zp.shape.elements() != 1)
      check_columns(weight_zp, "weight_zero_point", stack, all.groups, columns, all.groups);
    const ScaleShape rows = scale_shape(src.shape, scale.shape, all.groups);
    if (zero_point.shape.elements() != 1 && !(zero_point.shape == scale.shape))
      fail("zero_point has shape " + zero_point.shape.text() + ", expected that of scale, " + scale.shape.text() +
           ", or one element");
    // A single element may be of rank 2, too. Tensors without elements may have no data.
    const bool is_one_zp = weight_zp.shape.elements() == 1;
    all.weights.zps_stride = columns;
    all.weights.zps = is_one_zp ? nullptr : static_cast<const int8_t*>(weight_zp.data);
    all.weights.zp = is_one_zp ? *static_cast<const int8_t*>(weight_zp.data) : 0;
    const bool is_symmetric = bits_ == 8 && is_one_zp && all.weights.zp == 0;
    const int64_t length = depth / all.groups, longest = longest_sum(is_symmetric);
    if (length > longest)
      fail("sums of " + std::to_string(length) + " products may overflow int32, expected at most " +
           std::to_string(longest));

    Shape shape;
    MatrixPairs pairs;
    if (!find_pairs(src.shape, stack, shape, pairs))
      fail("src has shape " + src.shape.text() + ", expected [..., M, K] whose leading dimensions broadcast" +
           of_stack(stack));
    shape.dims[shape.rank++] = columns;
    product.tail = tail_ ? &*tail_ : nullptr;
    if (tail_) product.tail_tensors = tail_->tensors(context, kInputs, shape, shape.rank - 1);
    product.dst = context.output(0, shape);
    product.dst_storage = storage_of(bias.type);
    all.output.dst = bias.type == kFloat ? static_cast<float*>(product.dst) : nullptr;
    if (shape.elements() == 0) return;
    product.terms = terms_;
    all.rows = pairs.rows * terms_;
    product.set_pairs(pairs, src.shape);
    all.output.stride = columns;
    all.weights.packed = static_cast<const int8_t*>(weight.data);
    all.weights.stride = all.depth * kBlockColumns * bits_ / 8;
    all.columns.scale_groups = column_scale.shape.dims[stack.rank];
    all.columns.scales_stride = all.columns.sums_stride = columns;
    if (column_scale.type == kFloat)
      all.columns.scales = static_cast<const float*>(column_scale.data);
    else
      all.columns.halves = static_cast<const uint16_t*>(column_scale.data);
    if (column_sum.shape.dims[stack.rank] > 0) all.columns.sums = static_cast<const int32_t*>(column_sum.data);
    all.columns.bias = FloatReader(bias).read(0, bias.shape.elements(), product.bias);
    if (terms_ > 1) product.separate_bias(bias.shape.elements());
    all.order = order_;
    all.output.stream = shape.elements() * static_cast<int64_t>(sizeof(float)) > kStreamBytes && !tail_;
    const ProductKernels& kernels = *active_isa().products;
    const bool is_8bit = bits_ == 8;
    const bool in_groups = rows.groups > 1 || all.columns.scale_groups > 1;
    const bool tiles_fit = all.groups == 1 ? is_8bit : group_size_ <= kLongestTileGroup;
    product.in_tiles = kernels.gemm_qc8w_tiles != nullptr && tiles_fit && all.rows >= kTileRows;
    all.codes.has_ones =
        all.columns.sums == nullptr && in_groups && all.rows <= kMostSummedRows && stack.elements() == 1;
    const bool makes_sums = kernels.makes_sums_4bit && !is_8bit && !product.in_tiles && !all.codes.has_ones &&
                            all.rows >= kLeastSummingRows && depth > 0 && depth == all.depth &&
                            depth <= all.groups * kLongestSummedGroup;
    if (all.columns.sums == nullptr && !makes_sums && !all.codes.has_ones)
      product.sum_columns = is_8bit ? kernels.sum_columns_8bit : kernels.sum_columns_4bit;
    all.rows += all.codes.has_ones;
    product.code_rows += all.codes.has_ones;
    const bool has_zps_of_8 = is_one_zp && (all.weights.zp & 15) == 8;
    const bool of_few =
        bits_ == 2 && all.codes.has_ones && all.rows <= kMost2BitRows + 1 && group_size_ <= kLongest2BitGroup;
    product.widens_2bit = bits_ == 2 && !of_few;
    const bool needs_sums = is_8bit ? !is_symmetric : kernels.sums_codes_4bit && !has_zps_of_8 && all.rows > 2;
    product.prepare_codes(context, src, depth, all.codes.has_ones || needs_sums);
    product.prepare_rows(src, scale, zero_point, rows);
    all.is_bounded = all.groups > 1 && all.rows >= kTileRows && product.has_bounded_groups(bits_);
    const ProductKernel in_rows = of_few           ? kernels.gemm_qb2w
                                  : !is_8bit       ? kernels.gemm_qb4w
                                  : all.groups > 1 ? kernels.gemm_qb8w
                                                   : kernels.gemm_qc8w;
    const ProductKernel in_tiles = all.groups == 1 ? kernels.gemm_qc8w_tiles
                                   : is_8bit       ? kernels.gemm_qb8w_tiles
                                                   : kernels.gemm_qb4w_tiles;
    if (is_8bit && all.groups == 1 && !product.in_tiles && takes_strassen({all.rows, all.depth, all.cols}))
      product.run_strassen(context, in_rows);
    else
      product.run(context, product.in_tiles ? in_tiles : in_rows, bits_);
  }

 private:
  // How many adjacent rows share a scale, and how many scales a row has.
  struct ScaleShape {
    int64_t rows_per_scale, groups;
  };

  struct Product {
    // The whole output as one block, or of stacked weights the first matrix of each input and of the output. With two
    // terms, it has two rows for each row of the output. all.output.dst is null if the output is float16.
    ProductBlock all = {};
    Scratch<MatrixPair, 32> pair_memory;
    MatrixPair* pairs;  // of matrices of codes and weights
    int64_t pair_count;
    int64_t code_rows;  // of all matrices of codes
    void* dst;
    Storage dst_storage;
    int64_t terms;
    const float* bias_of_terms = nullptr;   // which is added to their sum; all.columns.bias has no effect then
    ColumnSumKernel sum_columns = nullptr;  // if neither the model nor the kernel of the product has the sums
    ProductCodes codes_of_ones;             // a row for sum_columns
    bool widens_2bit;                       // the kernel takes 4-bit weights
    bool in_tiles;                          // the codes are in tiles
    const Tail* tail;                       // or null
    ProgramTensors tail_tensors;
    Scratch<uint8_t, 4096> codes, ones;
    Scratch<int32_t, 64> row_sums, zps, sums_of_ones;
    Scratch<float, 64> scales, bias, no_bias;

    void set_pairs(const MatrixPairs& found, const Shape& src) {
      pair_count = found.count;
      found.write(pairs = pair_memory.allocate(pair_count));
      code_rows = terms;
      for (size_t axis = 0; axis + 1 < src.rank; ++axis) code_rows *= src.dims[axis];
    }

    void separate_bias(int64_t count) {
      bias_of_terms = all.columns.bias;
      float* zeros = no_bias.allocate(count);
      std::fill(zeros, zeros + count, -0.0f);
      all.columns.bias = zeros;
    }

    // Computed sums of columns are within 128 times the size of a group.
    bool has_bounded_groups(int64_t bits) const {
      if (all.columns.sums != nullptr) {
        for (int64_t i = 0; i < pair_count; ++i)
          if ((i == 0 || pairs[i].right != pairs[i - 1].right) && !dynq::has_bounded_groups(matrix(pairs[i]), bits))
            return false;
        return true;
      }
      return (bits < 8 || all.codes.sums == nullptr) && all.depth <= all.groups * kLongestTileGroup &&
             (!in_tiles || all.codes.scale_groups == 1);
    }

    void prepare_codes(Context& context, const Tensor& src, int64_t depth, bool needs_sums) {
      const auto* from = static_cast<const uint8_t*>(src.data);
      const uint8_t flip = src.type == kInt8 ? 0x80 : 0;
      const bool copies = !in_tiles && (flip != 0 || depth != all.depth || all.codes.has_ones);
      const int64_t given = code_rows - all.codes.has_ones;
      all.codes.data = from;
      all.codes.stride = all.depth;
      if (in_tiles) pack_tiles(context, from, depth, flip);
      uint8_t* copy = copies ? codes.allocate(code_rows * all.depth) : nullptr;
      int32_t* sums = needs_sums ? row_sums.allocate(code_rows * all.groups) : nullptr;
      if (copies) all.codes.data = copy;
      all.codes.sums = sums;
      if (all.codes.has_ones)
        set_ones(depth, copy + given * all.depth, needs_sums ? sums + given * all.groups : nullptr);
      else if (sum_columns != nullptr)
        set_ones(depth, ones.allocate(all.depth), sums_of_ones.allocate(all.groups));
      if (!copies && !needs_sums) return;
      const int64_t tasks = part_count(given * depth, given);
      run_tasks(context, tasks, [&](int64_t task) {
        for (int64_t row = given * task / tasks; row < given * (task + 1) / tasks; ++row) {
          if (copies) copy_row(from + row * depth, depth, flip, copy + row * all.depth);
          if (needs_sums) add_row(from + row * depth, depth, flip, sums + row * all.groups);
        }
      });
    }

    void set_ones(int64_t depth, uint8_t* row, int32_t* sums) {
      std::memset(row, 1, static_cast<size_t>(depth));
      std::memset(row + depth, 0, static_cast<size_t>(all.depth - depth));
      if (sums != nullptr) std::fill(sums, sums + all.groups, static_cast<int32_t>(depth / all.groups));
      codes_of_ones = all.codes;
      codes_of_ones.data = row;
      codes_of_ones.sums = sums;
    }

    void copy_row(const uint8_t* from, int64_t depth, uint8_t flip, uint8_t* to) const {
      for (int64_t i = 0; i < depth; ++i) to[i] = from[i] ^ flip;
      std::memset(to + depth, 0, static_cast<size_t>(all.depth - depth));
    }

    void add_row(const uint8_t* from, int64_t depth, uint8_t flip, int32_t* sums) const {
      const int64_t size = depth / all.groups;
      for (int64_t group = 0; group < all.groups; ++group, from += size) {
        int32_t sum = 0;
        for (int64_t i = 0; i < size; ++i) sum += from[i] ^ flip;
        sums[group] = sum;
      }
    }

    int64_t row_tiles() const { return (all.rows + kTileRows - 1) / kTileRows; }

    // The last tiles of each matrix are padded with 0. A row of a tile is one cache line.
    void pack_tiles(Context& context, const uint8_t* src, int64_t depth, uint8_t flip) {
      const int64_t tiles_of_all = row_tiles() * (code_rows / all.rows);
      all.codes.stride = round_up(depth, kTileBytes) * kTileRows;
      uint8_t* tiles = codes.allocate(tiles_of_all * all.codes.stride + kTileBytes - 1);
      tiles += -reinterpret_cast<uintptr_t>(tiles) % kTileBytes;
      all.codes.data = tiles;
      const int64_t tasks = part_count(code_rows * depth, tiles_of_all);
      run_tasks(context, tasks, [&](int64_t task) {
        for (int64_t tile = tiles_of_all * task / tasks; tile < tiles_of_all * (task + 1) / tasks; ++tile) {
          const int64_t row = tile % row_tiles() * kTileRows;
          const int64_t rows = std::min(kTileRows, all.rows - row);
          const uint8_t* from = src + (tile / row_tiles() * all.rows + row) * depth;
          for (int64_t i = 0; i < kTileRows; ++i) {
            uint8_t* to = tiles + tile * all.codes.stride + i * kTileBytes;
            for (int64_t first = 0; first < depth; first += kTileBytes, to += kTileRows * kTileBytes)
              if (i < rows)
                pack_row(from + i * depth + first, depth - first, flip, to);
              else
                std::memset(to, 0, kTileBytes);
          }
        }
      });
    }

    // Up to 64 codes of one row; padding is 0.
    static void pack_row(const uint8_t* from, int64_t count, uint8_t flip, uint8_t* to) {
      if (count >= kTileBytes && flip == 0) {
        std::memcpy(to, from, kTileBytes);
        return;
      }
      for (int64_t i = 0; i < kTileBytes; ++i) to[i] = i < count ? from[i] ^ flip : 0;
    }

    void prepare_rows(const Tensor& src, const Tensor& scale, const Tensor& zero_point, const ScaleShape& shape) {
      all.codes.scale_groups = shape.groups;
      float* row_scales = scales.allocate(code_rows * shape.groups);
      int32_t* row_zps = zps.allocate(code_rows * shape.groups);
      all.codes.scales = row_scales;
      all.codes.zps = row_zps;
      const bool zps_vary = zero_point.shape.elements() != 1;
      const int64_t given = code_rows - all.codes.has_ones;
      all.codes.has_one_zp = !zps_vary && !all.codes.has_ones;
      for (int64_t row = 0; row < given; ++row)
        for (int64_t group = 0; group < shape.groups; ++group) {
          const int64_t from = row / terms / shape.rows_per_scale * shape.groups + group, zp = zps_vary ? from : 0;
          const float of_row = load(static_cast<const float*>(scale.data) + from);
          *row_scales++ = row % terms < terms - 1 ? of_row * kTermRatio : of_row;
          *row_zps++ = src.type == kInt8 ? static_cast<const int8_t*>(zero_point.data)[zp] + 128
                                         : static_cast<const uint8_t*>(zero_point.data)[zp];
        }
      if (!all.codes.has_ones) return;
      std::fill(row_scales, row_scales + shape.groups, 0.0f);
      std::fill(row_zps, row_zps + shape.groups, 0);
    }

    // Tasks are matrices, or strips of their columns: the weights of a strip stay in the caches for all rows. Strips
    // are cut into rows only if there are too few of them, and many of them only into parts of whole units.
    void run(Context& context, ProductKernel kernel, int64_t bits) const {
      const int64_t strips = (all.cols + kStrip - 1) / kStrip, unit = in_tiles ? 2 * kTileRows : kRowUnit;
      const int64_t fewest_strips = 8, tasks = task_count(bits);
      const int64_t units = std::max((all.rows + (strips < fewest_strips ? unit - 1 : 0)) / unit, int64_t{1});
      const int64_t pair_tasks = std::clamp(tasks, int64_t{1}, pair_count);
      const int64_t tasks_of_pair = (tasks + pair_tasks - 1) / pair_tasks;
      // Few rows are memory-bound: the first columns of a task wait for weights and scales that nothing has prefetched.
      const int64_t most_tasks =
          all.rows > kMostSummedRows + 1 ? strips : std::max(strips / 4, std::min(strips, int64_t{8}));
      const int64_t column_tasks = std::clamp(tasks_of_pair, int64_t{1}, most_tasks);
      const int64_t row_tasks = std::clamp((tasks_of_pair + column_tasks - 1) / column_tasks, int64_t{1}, units);
      run_last_tasks(context, pair_tasks * column_tasks * row_tasks, [&](int64_t index) {
        const int64_t pair_task = index / (column_tasks * row_tasks);
        const int64_t column_task = index / row_tasks % column_tasks, row_task = index % row_tasks;
        const int64_t row = units * row_task / row_tasks * unit;
        const int64_t end = row_task + 1 < row_tasks ? units * (row_task + 1) / row_tasks * unit : all.rows;
        const int64_t col = strips * column_task / column_tasks * kStrip;
        const int64_t end_col = strips * (column_task + 1) / column_tasks * kStrip;
        for (int64_t i = pair_count * pair_task / pair_tasks; i < pair_count * (pair_task + 1) / pair_tasks; ++i) {
          run_block(kernel, part_of(matrix(pairs[i]), row, end - row, col, end_col - col),
                    pairs[i].result * all.rows + row, col);
        }
      });
    }

    // Parts of the rows and strips of the columns are tasks. All strips share the operands of a part. Columns that do
    // not fill a strip take the direct kernel.
    void run_strassen(Context& context, ProductKernel direct) const {
      const StrassenKernels& kernels = *active_isa().products->strassen;
      const int64_t strips = (all.cols + kStrip - 1) / kStrip;
      const int64_t part_rows = choose_strassen_rows({all.rows, all.depth, all.cols}, task_count(8));
      const int64_t parts = (all.rows + part_rows - 1) / part_rows, size = strassen_codes_size(part_rows, all.depth);
      const int64_t fitting = kOperandBytes / (size * static_cast<int64_t>(sizeof(int16_t)));
      const int64_t at_once = std::clamp(fitting, int64_t{1}, parts);
      const AlignedArray<int16_t> operands(at_once * size);
      for (int64_t i = 0; i < pair_count; ++i)
        for (int64_t first = 0; first < parts; first += at_once) {
          const ProductBlock block = matrix(pairs[i]);
          const int64_t count = std::min(at_once, parts - first);
          const auto rows_of = [&](int64_t part) { return std::min(part_rows, all.rows - part * part_rows); };
          const int64_t half_rows = strassen_half_rows(part_rows);
          const int64_t forming = part_count(count * part_rows * all.depth, count * half_rows);
          run_tasks(context, forming, [&](int64_t task) {
            for (int64_t at = count * half_rows * task / forming; at < count * half_rows * (task + 1) / forming; ++at) {
              const int64_t part = at / half_rows, row = at % half_rows, rows = rows_of(first + part);
              if (row < strassen_half_rows(rows))
                kernels.form_codes(block.codes.data + (first + part) * part_rows * block.codes.stride,
                                   block.codes.stride, rows, all.depth, row, operands.get() + part * size);
            }
          });
          run_tasks(context, count * strips, [&](int64_t task) {
            const int64_t part = task / strips, row = (first + part) * part_rows, col = task % strips * kStrip;
            ProductBlock strip = part_of(block, row, rows_of(first + part), col, kStrip);
            const bool is_whole = strip.cols == kStrip;
            if (is_whole) strip.codes.data = reinterpret_cast<const uint8_t*>(operands.get() + part * size);
            run_block(is_whole ? kernels.gemm_qc8w : direct, strip, pairs[i].result * all.rows + row, col);
          });
        }
    }

    // An even number, for two threads.
    int64_t task_count(int64_t bits) const {
      // Reading a weight of 8 bits takes as long as 4 products; tiles are 4 times as fast.
      const int64_t work =
          pair_count * round_up(all.cols, kStrip) * all.depth * (all.rows + bits / 2) / (in_tiles ? 4 : 1);
      return std::min(work / (2 * kTaskProducts) * 2, kMostTasks);
    }

    void run_block(ProductKernel kernel, const ProductBlock& block, int64_t row, int64_t col) const {
      const bool widens_scales = all.columns.halves != nullptr && !all.codes.has_ones;
      if (sum_columns == nullptr && !widens_scales && !widens_2bit)
        run_task(kernel, block, row, col);
      else
        run_prepared(kernel, block, row, col);
    }

    // What is made of the columns of a strip before its products: its weights stay in the caches.
    struct Prepared {
      Scratch<int8_t, 4096> weights;
      Scratch<int32_t, 4096> sums;
      Scratch<float, 4096> scales;
    };

    void run_prepared(ProductKernel kernel, const ProductBlock& task, int64_t row, int64_t col) const {
      Prepared prepared;
      for (int64_t first = 0; first < task.cols; first += kStrip)
        run_strip(kernel, part_of(task, 0, task.rows, first, kStrip), row, col + first, prepared);
    }

    void run_strip(ProductKernel kernel, ProductBlock block, int64_t row, int64_t col, Prepared& prepared) const {
      if (widens_2bit) {
        const int64_t bytes = (block.cols + kBlockColumns - 1) / kBlockColumns * block.weights.stride;
        int8_t* to = prepared.weights.allocate(2 * bytes);
        widen_2bit_weights(block.weights.packed, bytes, to);
        block.weights.packed = to;
        block.weights.stride *= 2;
      }
      if (sum_columns != nullptr) {
        ProductBlock of_ones = block;
        of_ones.codes = codes_of_ones;
        int32_t* to = prepared.sums.allocate(all.groups * block.cols);
        sum_columns(of_ones, to);
        block.columns.sums = to;
        block.columns.sums_stride = block.cols;
      }
      if (block.columns.halves != nullptr && !block.codes.has_ones) {
        float* to = prepared.scales.allocate(block.columns.scale_groups * block.cols);
        // Hardware does not prefetch lines so far apart, and they may share a set of the first-level cache.
        constexpr int64_t kAhead = 6, kElements = 32;  // of a line
        for (int64_t group = 0; group < block.columns.scale_groups; ++group) {
          const uint16_t* from = block.columns.halves + group * block.columns.scales_stride;
          for (int64_t i = 0; i < block.cols && group + kAhead < block.columns.scale_groups; i += kElements)
            ORT_DYNQ_PREFETCH(from + kAhead * block.columns.scales_stride + i);
          storage_of(kFloat16).widen(from, to + group * block.cols, block.cols);
        }
        block.columns.scales = to;
        block.columns.halves = nullptr;
        block.columns.scales_stride = block.cols;
      }
      run_task(kernel, block, row, col);
    }

    // A line of 2-bit weights is two lines of 4-bit weights.
    static void widen_2bit_weights(const int8_t* from, int64_t bytes, int8_t* to) {
      constexpr int64_t kLine = kBlockColumns * kQuad;
      for (int64_t line = 0; line < bytes; line += kLine)
        for (int64_t i = 0; i < kLine; ++i) {
          const auto both = static_cast<uint8_t>(from[line + i]);
          to[2 * line + i] = static_cast<int8_t>(both & 0x33);
          to[2 * line + kLine + i] = static_cast<int8_t>(both >> 2 & 0x33);
        }
    }

    // The program runs after each task, whose results are in the second-level cache.
    void run_task(ProductKernel kernel, const ProductBlock& block, int64_t row, int64_t col) const {
      if (dst_storage.narrow == nullptr && terms == 1)
        kernel(block);
      else
        run_in_pieces(kernel, block, row, col);
      const int64_t rows = (block.rows - block.codes.has_ones) / terms;
      if (tail != nullptr)
        tail->run(tail_tensors, static_cast<float*>(dst), row / terms, row / terms + rows, col, block.cols);
    }

    // Computes a task piece by piece. Adds the terms of each piece and rounds it to float16 while it is in the
    // first-level cache. Few rows are one piece: their kernels read long streams of weights.
    void run_in_pieces(ProductKernel kernel, const ProductBlock& task, int64_t row, int64_t col) const {
      const int64_t columns = task.rows <= kMostSummedRows + 1 ? round_up(task.cols, kPieceColumns) : kPieceColumns;
      const int64_t rows = task.rows <= kStrassenRows ? task.rows : kPieceRows;
      Scratch<float, kStrassenRows * kPieceColumns> memory;
      float* const piece = memory.allocate(rows * columns);
      for (int64_t right = 0; right < task.cols; right += columns)
        for (int64_t down = 0; down < task.rows; down += rows) {
          ProductBlock block = part_of(task, down, rows, right, columns);
          block.output = {piece, columns, false};
          kernel(block);
          for (int64_t i = 0; i < block.rows - block.codes.has_ones; i += terms) {
            float* of_row = piece + i * columns;
            if (terms > 1)
              add_terms(of_row, of_row + columns, bias_of_terms + (block.columns.bias - all.columns.bias), block.cols);
            const int64_t at = (row + down + i) / terms * all.cols + col + right;
            if (dst_storage.narrow != nullptr)
              dst_storage.narrow(of_row, element(dst, dst_storage, at), block.cols);
            else
              std::memcpy(static_cast<float*>(dst) + at, of_row, static_cast<size_t>(block.cols) * sizeof(float));
          }
        }
    }

    static void add_terms(float* __restrict first, const float* __restrict second, const float* bias, int64_t count) {
      for (int64_t i = 0; i < count; ++i) first[i] = first[i] + second[i] + load(bias + i);
    }

    // The product of one pair of matrices.
    ProductBlock matrix(const MatrixPair& pair) const {
      ProductBlock block = all;
      const int64_t rows = pair.left * all.rows, columns = pair.right * all.cols;
      block.codes.data += (in_tiles ? pair.left * row_tiles() : rows) * all.codes.stride;
      block.codes.scales += rows * all.codes.scale_groups;
      block.codes.zps += rows * all.codes.scale_groups;
      if (block.codes.sums != nullptr) block.codes.sums += rows * all.groups;
      block.weights.packed += pair.right * ((all.cols + kBlockColumns - 1) / kBlockColumns) * all.weights.stride;
      if (block.weights.zps != nullptr) block.weights.zps += columns * all.groups;
      if (block.columns.scales != nullptr) block.columns.scales += columns * all.columns.scale_groups;
      if (block.columns.halves != nullptr) block.columns.halves += columns * all.columns.scale_groups;
      if (block.columns.sums != nullptr) block.columns.sums += columns * all.groups;
      block.columns.bias += columns;
      if (block.output.dst != nullptr) block.output.dst += pair.result * all.rows * all.cols;
      return block;
    }

    ProductBlock part_of(const ProductBlock& from, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
      ProductBlock block = from;
      block.rows = std::min(rows, from.rows - row);
      block.cols = std::min(cols, from.cols - col);
      block.codes.data += (in_tiles ? row / kTileRows : row) * all.codes.stride;
      block.codes.scales += row * all.codes.scale_groups;
      block.codes.zps += row * all.codes.scale_groups;
      if (block.codes.sums != nullptr) block.codes.sums += row * all.groups;
      block.weights.packed += col / kBlockColumns * all.weights.stride;
      if (block.weights.zps != nullptr) block.weights.zps += col;
      if (block.columns.scales != nullptr) block.columns.scales += col;
      if (block.columns.halves != nullptr) block.columns.halves += col;
      if (block.columns.sums != nullptr) block.columns.sums += col;
      block.columns.bias += col;
      if (block.output.dst != nullptr) block.output.dst += row * all.output.stride + col;
      return block;
    }
  };

  [[noreturn]] void fail(const std::string& message) const { throw Error(std::string(name_) + ": " + message); }

  // The k of the quads that share bytes.
  int64_t unit() const { return kQuad * 8 / bits_; }

  // The leading dimensions of packed weights, none for a single matrix.
  Shape stack_of(const Shape& weight, int64_t columns, int64_t depth) const {
    const Shape matrix = {4, {(columns + kBlockColumns - 1) / kBlockColumns, depth / unit(), kBlockColumns, kQuad}};
    if (weight.rank < 4 || !std::equal(matrix.dims, matrix.dims + 4, weight.dims + weight.rank - 4))
      fail("weight has shape " + weight.text() + ", expected " + matrix.text() + ", packed for " +
           std::to_string(bits_) + " bits");
    Shape stack = weight;
    stack.rank -= 4;
    return stack;
  }

  static bool begins_with(const Shape& shape, const Shape& lead) {
    return shape.rank >= lead.rank && std::equal(lead.dims, lead.dims + lead.rank, shape.dims);
  }

  static std::string of_stack(const Shape& stack) {
    return stack.rank == 0 ? "" : ", for stacked weights of shape " + stack.text();
  }

  // There may also be `rows` in place of one row for each group.
  void check_columns(const Tensor& tensor, const char* name, const Shape& stack, int64_t groups, int64_t columns,
                     int64_t rows) const {
    const Shape& shape = tensor.shape;
    const int64_t* last = shape.dims + stack.rank;
    if (begins_with(shape, stack) && shape.rank == stack.rank + 2 && last[1] == columns &&
        (last[0] == groups || last[0] == rows))
      return;
    fail(std::string(name) + " has shape " + shape.text() + ", expected " + std::to_string(groups) + "x" +
         std::to_string(columns) + ", one element for each group and column" + of_stack(stack));
  }

  ScaleShape scale_shape(const Shape& src, const Shape& scale, int64_t groups) const {
    const bool is_one = scale.elements() == 1;
    bool fits = is_one ? scale.rank <= src.rank : scale.rank == src.rank;
    const int64_t last = is_one ? 1 : fits ? scale.dims[src.rank - 1] : 0;
    fits = fits && (last == 1 || last == groups);
    bool is_shared = is_one;
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < src.rank && fits; ++i) {
      is_shared = is_shared || (scale.dims[i] == 1 && src.dims[i] != 1);
      if (is_shared) rows *= src.dims[i];
      fits = is_one || scale.dims[i] == (is_shared ? 1 : src.dims[i]);
    }
    if (!fits)
      fail("scale has shape " + scale.text() + ", src " + src.text() +
           ": expected src's leading dimensions, then 1 or the number of groups, " + std::to_string(groups) +
           "; or one element");
    return {rows, last};
  }

  const char* name_;
  int64_t bits_, group_size_, terms_;
  ScaleOrder order_;

 protected:
  std::optional<Tail> tail_;
};

class QuantizedMatMulProgram : public QuantizedMatMul {
 public:
  explicit QuantizedMatMulProgram(const Attributes& attributes)
      : QuantizedMatMul(attributes, "QuantizedMatMulProgram") {
    tail_.emplace("QuantizedMatMulProgram", attributes);
  }
};

}  // namespace

Operator quantized_matmul() {
  Operator op = {"QuantizedMatMul",
                 kInputs,
                 {{{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat16, kInt32, kFloat}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat16, kInt32, kFloat}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat16, kInt32, kFloat16}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat16, kInt32, kFloat16}, {kFloat16}}},
                 make_node<QuantizedMatMul>,
                 type_of_input<7>};
  op.columns_input = 7;  // bias
  op.stack_input = 3;
  return op;
}

Operator quantized_matmul_program() {
  Operator op = with_program(quantized_matmul(), "QuantizedMatMulProgram", make_node<QuantizedMatMulProgram>);
  op.signatures.resize(4);  // of float32
  return op;
}

}  // namespace dynq
