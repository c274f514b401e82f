// What kernels of a matrix product need: codes in rows or tiles, and scales and zero points of rows. src is used in
// place, unless its codes are int8, its rows are no multiple of 4 bytes, or the kernel takes a row of ones or tiles.
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/product.h"
#include "core/rounding.h"
#include "core/sums.h"

namespace dynq {
namespace {

constexpr int64_t kStreamBytes = 4 << 20;  // larger outputs do not fit the second-level cache

void copy_row(const uint8_t* from, int64_t depth, uint8_t flip, uint8_t* to, int64_t padded_depth) {
  for (int64_t i = 0; i < depth; ++i) to[i] = from[i] ^ flip;
  std::memset(to + depth, 0, static_cast<size_t>(padded_depth - depth));
}

void sum_row(const uint8_t* from, int64_t depth, uint8_t flip, int32_t* sums, int64_t groups) {
  const int64_t size = depth / groups;
  for (int64_t group = 0; group < groups; ++group, from += size) {
    int32_t sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += from[i] ^ flip;
    sums[group] = sum;
  }
}

// Up to 64 codes of one row; padding is 0.
void pack_row(const uint8_t* from, int64_t count, uint8_t flip, uint8_t* to) {
  if (count >= kTileBytes && flip == 0) {
    std::memcpy(to, from, kTileBytes);
    return;
  }
  for (int64_t i = 0; i < kTileBytes; ++i) to[i] = i < count ? from[i] ^ flip : 0;
}

}  // namespace

Product::Product(const MatMulShape& shape, const MatMulInputs& inputs, const MatMulAttributes& attributes,
                 const ProductPlan& plan, void* dst, const Tail* tail, const ProgramTensors& tail_tensors)
    : shape_(shape),
      product_(shape.product),
      in_(inputs),
      attributes_(attributes),
      plan_(plan),
      tail_(tail),
      tail_tensors_(tail_tensors),
      dst_(dst),
      dst_storage_(storage_of(inputs.bias.type)) {
  pairs_ = pair_memory_.allocate(shape.pairs.count);
  shape.pairs.write(pairs_);
  int64_t lead = 1;
  for (size_t axis = 0; axis + 1 < inputs.src.shape.rank; ++axis) lead *= inputs.src.shape.dims[axis];
  code_rows_ = product_.terms * lead + plan.has_ones();
  all_.rows = product_.rows + plan.has_ones();
  all_.cols = product_.columns;
  all_.depth = product_.padded_depth;
  all_.groups = product_.groups;
  all_.order = attributes.order;
  all_.joins_terms = product_.joins_terms;
  all_.output.dst = inputs.bias.type == kFloat ? static_cast<float*>(dst) : nullptr;
  all_.output.stride = product_.columns;
  all_.output.stream = shape.result.elements() * static_cast<int64_t>(sizeof(float)) > kStreamBytes && tail == nullptr;
  set_columns();
}

// A single zero point may be of rank 2, too. Tensors without elements may have no data.
void Product::set_columns() {
  const auto* weight_zps = static_cast<const int8_t*>(in_.weight_zp.data);
  const bool is_one_zp = in_.weight_zp.shape.elements() == 1;
  all_.weights.packed = static_cast<const int8_t*>(in_.weight.data);
  all_.weights.stride = all_.depth * kBlockColumns * product_.bits / 8;
  all_.weights.zps = is_one_zp ? nullptr : weight_zps;
  all_.weights.zps_stride = product_.columns;
  all_.weights.zp = is_one_zp ? *weight_zps : 0;
  all_.columns.scale_groups = shape_.column_scale_groups;
  all_.columns.scales_stride = all_.columns.sums_stride = product_.columns;
  if (in_.column_scale.type == kFloat)
    all_.columns.scales = static_cast<const float*>(in_.column_scale.data);
  else
    all_.columns.halves = static_cast<const uint16_t*>(in_.column_scale.data);
  if (product_.has_sums) all_.columns.sums = static_cast<const int32_t*>(in_.column_sum.data);
  all_.columns.bias = FloatReader(in_.bias).read(0, in_.bias.shape.elements(), bias_);
  if (product_.terms > 1) separate_bias();
}

void Product::separate_bias() {
  const int64_t count = in_.bias.shape.elements();
  bias_of_terms_ = all_.columns.bias;
  float* zeros = no_bias_.allocate(count);
  std::fill(zeros, zeros + count, -0.0f);
  all_.columns.bias = zeros;
}

void Product::prepare(Context& context) {
  prepare_codes(context);
  prepare_rows();
  all_.is_bounded = all_.groups > 1 && all_.rows >= kTileRows && has_bounded_groups();
}

void Product::prepare_codes(Context& context) {
  if (plan_.has_words()) return prepare_words(context);
  const auto* from = static_cast<const uint8_t*>(in_.src.data);
  const int64_t depth = product_.depth, given = code_rows_ - plan_.has_ones();
  const uint8_t flip = in_.src.type == kInt8 ? 0x80 : 0;
  const bool copies = !plan_.in_tiles() && (flip != 0 || depth != all_.depth || plan_.has_ones());
  all_.codes.has_ones = plan_.has_ones();
  all_.codes.data = from;
  all_.codes.stride = all_.depth;
  if (plan_.in_tiles()) pack_tiles(context, flip);
  uint8_t* copy = copies ? codes_.allocate(code_rows_ * all_.depth) : nullptr;
  int32_t* sums = plan_.sums_codes ? row_sums_.allocate(code_rows_ * all_.groups) : nullptr;
  if (copies) all_.codes.data = copy;
  all_.codes.sums = sums;
  if (plan_.has_ones() && copy != nullptr && sums != nullptr)  // then both are there
    set_ones(copy + given * all_.depth, sums + given * all_.groups);
  else if (plan_.sum_columns != nullptr)
    set_ones(ones_.allocate(all_.depth), sums_of_ones_.allocate(all_.groups));
  if (!copies && sums == nullptr) return;
  const int64_t tasks = part_count(given * depth, given);
  run_tasks(context, tasks, [&](int64_t task) {
    for (int64_t row = given * task / tasks; row < given * (task + 1) / tasks; ++row) {
      if (copies) copy_row(from + row * depth, depth, flip, copy + row * all_.depth, all_.depth);
      if (sums != nullptr) sum_row(from + row * depth, depth, flip, sums + row * all_.groups, all_.groups);
    }
  });
}

void Product::set_ones(uint8_t* row, int32_t* sums) {
  std::memset(row, 1, static_cast<size_t>(product_.depth));
  std::memset(row + product_.depth, 0, static_cast<size_t>(all_.depth - product_.depth));
  std::fill(sums, sums + all_.groups, static_cast<int32_t>(product_.group_size()));
  codes_of_ones_ = all_.codes;
  codes_of_ones_.data = row;
  codes_of_ones_.sums = sums;
}

int64_t Product::row_tiles() const { return divide_up(all_.rows, kTileRows); }

// The last tiles of each matrix are padded with 0. A row of a tile is one cache line.
void Product::pack_tiles(Context& context, uint8_t flip) {
  const auto* src = static_cast<const uint8_t*>(in_.src.data);
  const int64_t depth = product_.depth, tiles_of_all = row_tiles() * (code_rows_ / all_.rows);
  all_.codes.stride = round_up(depth, kTileBytes) * kTileRows;
  uint8_t* tiles = codes_.allocate(tiles_of_all * all_.codes.stride + kTileBytes - 1);
  tiles += -reinterpret_cast<uintptr_t>(tiles) % kTileBytes;
  all_.codes.data = tiles;
  const int64_t tasks = part_count(code_rows_ * depth, tiles_of_all);
  run_tasks(context, tasks, [&](int64_t task) {
    for (int64_t tile = tiles_of_all * task / tasks; tile < tiles_of_all * (task + 1) / tasks; ++tile) {
      const int64_t row = tile % row_tiles() * kTileRows;
      const int64_t rows = std::min(kTileRows, all_.rows - row);
      const uint8_t* from = src + (tile / row_tiles() * all_.rows + row) * depth;
      for (int64_t i = 0; i < kTileRows; ++i) {
        uint8_t* to = tiles + tile * all_.codes.stride + i * kTileBytes;
        for (int64_t first = 0; first < depth; first += kTileBytes, to += kTileRows * kTileBytes)
          if (i < rows)
            pack_row(from + i * depth + first, depth - first, flip, to);
          else
            std::memset(to, 0, kTileBytes);
      }
    }
  });
}

void Product::prepare_rows() {
  const int64_t groups = shape_.row_scales.groups, terms = product_.terms, given = code_rows_ - plan_.has_ones();
  float* row_scales = scales_.allocate(code_rows_ * groups);
  int32_t* row_zps = zps_.allocate(code_rows_ * groups);
  all_.codes.scale_groups = groups;
  all_.codes.scales = row_scales;
  all_.codes.zps = row_zps;
  const bool zps_vary = in_.zero_point.shape.elements() != 1;
  all_.codes.has_one_zp = !zps_vary && !plan_.has_ones();
  const auto* scale = static_cast<const float*>(in_.scale.data);
  const auto zero_point = [&](int64_t i) -> int32_t {
    return in_.src.type == kInt8 ? static_cast<const int8_t*>(in_.zero_point.data)[i] + 128
                                 : static_cast<const uint8_t*>(in_.zero_point.data)[i];
  };
  const int64_t rows_per_scale = shape_.row_scales.rows_per_scale * terms;
  const bool is_one_scale = in_.scale.shape.elements() == 1 && terms == 1 && !zps_vary;
  if (is_one_scale) {
    row_scales = std::fill_n(row_scales, given, load(scale));
    row_zps = std::fill_n(row_zps, given, zero_point(0));
  }
  for (int64_t first = 0, from = 0; first < given && !is_one_scale; first += rows_per_scale, from += groups)
    for (int64_t row = first; row < std::min(first + rows_per_scale, given); ++row)
      for (int64_t i = from; i < from + groups; ++i) {
        const bool is_coarse = terms == 2 && !product_.joins_terms && row % 2 == 0;
        *row_scales++ = is_coarse ? load(scale + i) * kTermRatio : load(scale + i);
        *row_zps++ = zero_point(zps_vary ? i : 0);
      }
  if (plan_.has_words()) turn_scales();
  if (!plan_.has_ones()) return;
  std::fill(row_scales, row_scales + groups, 0.0f);
  std::fill(row_zps, row_zps + groups, 0);
}

// Words take the scales of all rows for one group after the other.
void Product::turn_scales() {
  const int64_t groups = shape_.row_scales.groups;
  float* steps = step_memory_.allocate(all_.rows / product_.terms * groups);
  steps_ = steps;
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t row = 0; row < all_.rows; row += product_.terms) *steps++ = all_.codes.scales[row * groups + group];
}

// Computed sums of columns are within 128 times the size of a group.
bool Product::has_bounded_groups() const {
  if (all_.columns.sums != nullptr) {
    if ((all_.codes.scale_groups > 1 && !plan_.in_tiles()) || all_.joins_terms)
      return false;  // other kernels gain less than a pass over them, and joined sums may be no floats
    for (int64_t i = 0; i < shape_.pairs.count; ++i)
      if ((i == 0 || pairs_[i].right != pairs_[i - 1].right) &&
          !dynq::has_bounded_groups(matrix(pairs_[i]), product_.bits))
        return false;
    return true;
  }
  return (product_.bits < 8 || all_.codes.sums == nullptr) && all_.depth <= all_.groups * kMaxTileGroup;
}

}  // namespace dynq
