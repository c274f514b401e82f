#include "core/matmul_shape.h"

#include <algorithm>

#include "core/attributes.h"
#include "core/rounding.h"
#include "core/sums.h"
#include "kernels/products.h"

namespace dynq {
namespace {

bool begins_with(const Shape& shape, const Shape& lead) {
  return shape.rank >= lead.rank && std::equal(lead.dims, lead.dims + lead.rank, shape.dims);
}

std::string of_stack(const Shape& stack) {
  return stack.rank == 0 ? "" : ", for stacked weights of shape " + stack.text();
}

// The checks of one call. They run in the order of check_matmul(): each relies on those before.
class Check {
 public:
  Check(const MatMulAttributes& attributes, const MatMulInputs& inputs) : given_(attributes), in_(inputs) {}

  void depth_and_groups(ProductShape& shape) const {
    const Shape& src = in_.src.shape;
    if (src.rank == 0) fail("src is a scalar, expected rank 1 or more");
    const int64_t last = src.dims[src.rank - 1];
    shape.depth = given_.terms == 1 ? last : last / 2;
    if (shape.depth * given_.terms != last)
      fail("src has shape " + src.text() + ", expected an even last dimension: " + std::to_string(given_.terms) +
           " terms");
    shape.groups = 1;
    if (given_.group_size > 0) {
      if (shape.depth == 0 || shape.depth % given_.group_size != 0)
        fail("group_size is " + std::to_string(given_.group_size) + ", expected a divisor of K, " +
             std::to_string(shape.depth));
      shape.groups = shape.depth / given_.group_size;
    }
    shape.padded_depth = lines(shape) * given_.unit;
  }

  // Returns the leading dimensions of packed weights, none for a single matrix.
  Shape columns_and_stack(ProductShape& shape) const {
    const Shape& bias = in_.bias.shape;
    if (bias.rank == 0) fail("bias has shape scalar, expected one element for each column");
    shape.columns = bias.dims[bias.rank - 1];
    Shape stack = stack_of(in_.weight.shape, shape);
    if (bias.rank != stack.rank + 1 || !begins_with(bias, stack))
      fail("bias has shape " + bias.text() + ", expected one element for each column" + of_stack(stack));
    check_columns(in_.column_sum, "column_sum", stack, shape, 0);
    check_columns(in_.column_scale, "column_scale", stack, shape, 1);
    if (in_.weight_zp.shape.elements() != 1)
      check_columns(in_.weight_zp, "weight_zero_point", stack, shape, shape.groups);
    return stack;
  }

  RowScales row_scales(int64_t groups) const {
    const Shape &src = in_.src.shape, &scale = in_.scale.shape;
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
    const Shape& zero_point = in_.zero_point.shape;
    if (zero_point.elements() != 1 && !(zero_point == scale))
      fail("zero_point has shape " + zero_point.text() + ", expected that of scale, " + scale.text() +
           ", or one element");
    return {rows, last};
  }

  void length_of_sums(const ProductShape& shape) const {
    const int64_t longest = longest_sum(shape.bits == 8 && shape.is_symmetric);
    if (shape.group_size() > longest)
      fail("sums of " + std::to_string(shape.group_size()) + " products may overflow int32, expected at most " +
           std::to_string(longest));
  }

  MatrixPairs pairs(const Shape& stack, Shape& result) const {
    MatrixPairs found;
    if (!find_pairs(in_.src.shape, stack, result, found))
      fail("src has shape " + in_.src.shape.text() + ", expected [..., M, K] with leading dimensions that broadcast" +
           of_stack(stack));
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(std::string(given_.op) + ": " + message); }

  // The units of k in a block of columns. Divisions by numbers that are not constant take as long as a few rows.
  int64_t lines(const ProductShape& shape) const { return divide_up(shape.depth * given_.bits, kQuad * 8); }

  Shape stack_of(const Shape& weight, const ProductShape& shape) const {
    const int64_t matrix[] = {divide_up(shape.columns, kBlockColumns), lines(shape), kBlockColumns, kQuad};
    if (weight.rank < 4 || !std::equal(matrix, matrix + 4, weight.dims + weight.rank - 4)) {
      const Shape expected = {4, {matrix[0], matrix[1], matrix[2], matrix[3]}};
      fail("weight has shape " + weight.text() + ", expected " + expected.text() + ", packed for " +
           std::to_string(given_.bits) + " bits");
    }
    Shape stack = weight;
    stack.rank -= 4;
    return stack;
  }

  // There may also be `rows` in place of one row for each group.
  void check_columns(const Tensor& tensor, const char* name, const Shape& stack, const ProductShape& product,
                     int64_t rows) const {
    const Shape& shape = tensor.shape;
    const int64_t* last = shape.dims + stack.rank;
    if (begins_with(shape, stack) && shape.rank == stack.rank + 2 && last[1] == product.columns &&
        (last[0] == product.groups || last[0] == rows))
      return;
    fail(std::string(name) + " has shape " + shape.text() + ", expected " + std::to_string(product.groups) + "x" +
         std::to_string(product.columns) + ", one element for each group and column" + of_stack(stack));
  }

  const MatMulAttributes& given_;
  const MatMulInputs& in_;
};

// Tensors without elements may have no data.
bool has_middle_zero_points(const Tensor& weight_zp, int64_t bits) {
  if (weight_zp.shape.elements() != 1) return false;
  const int8_t zp = *static_cast<const int8_t*>(weight_zp.data);
  return bits == 8 ? zp == 0 : (zp & 15) == 8;
}

}  // namespace

MatMulAttributes::MatMulAttributes(const char* op_name, const Attributes& attributes)
    : op(op_name),
      bits(read_one_of(op, attributes, "bits", 8, {{8, nullptr}, {4, nullptr}, {2, nullptr}})),
      unit(kQuad * 8 / bits),
      group_size(read_group_size(op, attributes)),
      terms(read_one_of(op, attributes, "terms", 1, {{1, nullptr}, {2, nullptr}})),
      order(read_encoding(op, attributes, "scale_order", kScalesFirst)) {
  if (group_size > 0 && order != kColumnFirst)
    throw Error(std::string(op) + ": scale_order is " + text_of(order) + " for groups, expected " +
                text_of(kColumnFirst));
}

MatMulInputs::MatMulInputs(Context& context)
    : src(context.input(0)),
      scale(context.input(1)),
      zero_point(context.input(2)),
      weight(context.input(3)),
      weight_zp(context.input(4)),
      column_scale(context.input(5)),
      column_sum(context.input(6)),
      bias(context.input(7)) {}

MatMulInputs::MatMulInputs(Context& context, const float* scale, const uint8_t* zero_point)
    : src{kUint8, context.input(0).shape, nullptr},
      scale{kFloat, {}, scale},
      zero_point{kUint8, {}, zero_point},
      weight(context.input(1)),
      weight_zp(context.input(2)),
      column_scale(context.input(3)),
      column_sum(context.input(4)),
      bias(context.input(5)) {}

MatMulShape check_matmul(const MatMulAttributes& attributes, const MatMulInputs& inputs) {
  MatMulShape found = {};
  ProductShape& product = found.product;
  product.bits = attributes.bits;
  product.terms = attributes.terms;
  product.joins_terms = product.terms == 2 && attributes.group_size > 0 && attributes.group_size <= kMaxJoinedLength;
  const Check check(attributes, inputs);
  check.depth_and_groups(product);
  const Shape stack = check.columns_and_stack(product);
  product.stack = stack.elements();
  found.row_scales = check.row_scales(product.groups);
  product.is_symmetric = has_middle_zero_points(inputs.weight_zp, product.bits);
  check.length_of_sums(product);
  found.pairs = check.pairs(stack, found.result);
  found.result.dims[found.result.rank++] = product.columns;
  found.column_scale_groups = inputs.column_scale.shape.dims[stack.rank];
  product.rows = found.pairs.rows * product.terms;
  const Tensor& zero_point = inputs.zero_point;
  product.fits_words = product.joins_terms && product.stack == 1 && found.pairs.count == 1 &&
                       found.row_scales.groups == product.groups && found.column_scale_groups == product.groups &&
                       zero_point.type == kInt8 && zero_point.shape.elements() == 1 &&
                       *static_cast<const int8_t*>(zero_point.data) == 0;
  product.scales_vary = found.row_scales.groups > 1 || found.column_scale_groups > 1;
  product.has_sums = inputs.column_sum.shape.dims[stack.rank] > 0;
  return found;
}

}  // namespace dynq
