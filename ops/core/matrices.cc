#include "core/matrices.h"

#include <algorithm>

namespace dynq {

void MatrixPairs::write(MatrixPair* pairs) const {
  for (int64_t i = 0; i < count; ++i) {
    pairs[i] = {0, 0, i};
    int64_t rest = i;
    for (size_t axis = rank; axis-- > 0; rest /= lengths[axis]) {
      pairs[i].left += rest % lengths[axis] * left_strides[axis];
      pairs[i].right += rest % lengths[axis] * right_strides[axis];
    }
  }
  if (count == 1) return;
  std::sort(pairs, pairs + count, [](const MatrixPair& a, const MatrixPair& b) {
    return a.right != b.right ? a.right < b.right : a.result < b.result;
  });
}

bool find_pairs(const Shape& left, const Shape& stack, Shape& result, MatrixPairs& pairs) {
  pairs.rows = 1;
  if (stack.rank == 0) {  // all rows belong to one matrix
    result = left;
    --result.rank;
    for (size_t axis = 0; axis < result.rank; ++axis) pairs.rows *= left.dims[axis];
    pairs.rank = 0;
    pairs.count = 1;
    return true;
  }
  if (left.rank < 2) return false;
  const size_t lead = left.rank - 2;
  const size_t rank = std::max(lead, stack.rank);
  result.rank = rank + 1;
  pairs.rows = result.dims[rank] = left.dims[lead];
  pairs.rank = pairs.count = 0;
  int64_t left_stride = 1, right_stride = 1, count = 1;
  bool is_merging = true;
  for (size_t i = 0; i < rank; ++i) {  // from the last one to the first one
    const size_t axis = rank - 1 - i;
    const int64_t a = i < lead ? left.dims[lead - 1 - i] : 1, b = i < stack.rank ? stack.dims[stack.rank - 1 - i] : 1;
    if (a != b && a != 1 && b != 1) return false;
    const int64_t length = result.dims[axis] = a == 1 ? b : a;
    is_merging = is_merging && b == 1;
    if (is_merging) {
      pairs.rows *= a;
      continue;
    }
    pairs.lengths[pairs.rank] = length;
    pairs.left_strides[pairs.rank] = a == 1 ? 0 : left_stride;
    pairs.right_strides[pairs.rank++] = b == 1 ? 0 : right_stride;
    left_stride *= a;
    right_stride *= b;
    count *= length;
  }
  pairs.count = count;
  std::reverse(pairs.lengths, pairs.lengths + pairs.rank);
  std::reverse(pairs.left_strides, pairs.left_strides + pairs.rank);
  std::reverse(pairs.right_strides, pairs.right_strides + pairs.rank);
  return true;
}

}  // namespace dynq
