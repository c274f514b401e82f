#include "core/granularity.h"

#include <algorithm>

namespace dynq {

Granularity::Granularity(const char* op, const Attributes& attributes)
    : op_(op), axis_(attributes.integer("axis", 1)), block_size_(attributes.integer("block_size", 0)) {
  const std::string qtype = attributes.text("qtype", "per_tensor");
  if (qtype == "per_tensor")
    kind_ = kPerTensor;
  else if (qtype == "per_channel")
    kind_ = kPerChannel;
  else if (qtype == "per_group")
    kind_ = kPerGroup;
  else if (qtype == "auto")
    kind_ = kAuto;
  else
    fail("qtype is '" + qtype + "', expected per_tensor, per_channel, per_group or auto");
  if (block_size_ < 0) fail("block_size is " + std::to_string(block_size_) + ", expected 0 or more");
  read_group_shape(attributes.integers("group_shape"), qtype);
}

void Granularity::read_group_shape(const std::vector<int64_t>& sizes, const std::string& qtype) {
  if (sizes.size() > kMaxRank)
    fail("group_shape has " + std::to_string(sizes.size()) + " sizes, expected at most " + std::to_string(kMaxRank));
  group_shape_.rank = sizes.size();
  std::copy(sizes.begin(), sizes.end(), group_shape_.dims);
  if (sizes.empty()) return;
  if (*std::min_element(sizes.begin(), sizes.end()) < 1)
    fail("group_shape is " + group_shape_.text() + ", expected sizes of 1 or more");
  if (kind_ == kPerTensor || kind_ == kPerChannel)
    fail("group_shape is " + group_shape_.text() + " and qtype '" + qtype + "', expected qtype per_group or auto");
  if (block_size_ > 0)
    fail("group_shape is " + group_shape_.text() + " and block_size " + std::to_string(block_size_) +
         ", expected one of them");
}

void Granularity::fail(const std::string& what) const { throw Error(std::string(op_) + ": " + what); }

// kAuto: the granularity follows from the shape of the scales, as for ONNX's QuantizeLinear.
Granularity::Kind Granularity::kind_of(const Shape& scales) const {
  if (kind_ != kAuto) return kind_;
  if (block_size_ > 0 || group_shape_.rank > 0) return kPerGroup;
  return scales.rank <= 1 && scales.elements() == 1 ? kPerTensor : kPerChannel;
}

size_t Granularity::checked_axis(const Shape& src) const {
  const int64_t rank = static_cast<int64_t>(src.rank);
  if (axis_ < -rank || axis_ >= rank)
    fail("axis is " + std::to_string(axis_) + ", expected " + std::to_string(-rank) + " to " +
         std::to_string(rank - 1) + " for src of shape " + src.text());
  return static_cast<size_t>(axis_ < 0 ? axis_ + rank : axis_);
}

Groups Granularity::groups(const Shape& src, const Shape& scales, const Tensor& zps) const {
  Groups groups;
  groups.counts.rank = src.rank;
  for (size_t i = 0; i < src.rank; ++i) groups.counts.dims[i] = 1;
  switch (kind_of(scales)) {
    case kAuto:
    case kPerTensor:
      if (scales.rank > 1 || scales.elements() != 1)
        fail("scales has shape " + scales.text() + ", expected one element of rank 0 or 1 for per_tensor");
      break;
    case kPerChannel:
      set_channels(src, scales, groups);
      break;
    case kPerGroup:
      set_blocks(src, scales, groups);
      break;
  }
  // A zero point of one element serves all scales and may have rank 0 or 1.
  if (zps && zps.shape.elements() != 1 && !(zps.shape == scales))
    fail("zps has shape " + zps.shape.text() + ", expected that of scales, " + scales.text() + ", or one element");
  return groups;
}

void Granularity::set_channels(const Shape& src, const Shape& scales, Groups& groups) const {
  const size_t axis = checked_axis(src);
  if (scales.rank != 1) fail("scales has shape " + scales.text() + ", expected rank 1 for per_channel");
  if (scales.dims[0] != src.dims[axis])
    fail("scales has " + std::to_string(scales.dims[0]) + " elements, src has " + std::to_string(src.dims[axis]) +
         " along axis " + std::to_string(axis_));
  groups.counts.dims[axis] = src.dims[axis];
}

void Granularity::set_blocks(const Shape& src, const Shape& scales, Groups& groups) const {
  if (scales.rank != src.rank)
    fail("scales has shape " + scales.text() + ", expected the rank of src, " + std::to_string(src.rank) +
         ", for per_group");
  if (block_size_ > 0) {
    groups.axis = checked_axis(src);
    groups.size = block_size_;
  }
  const bool has_shape = group_shape_.rank > 0;
  bool divides = !has_shape || group_shape_.rank == src.rank;
  for (size_t i = 0; has_shape && divides && i < src.rank; ++i) divides = src.dims[i] % group_shape_.dims[i] == 0;
  if (!divides) fail("src has shape " + src.text() + ", expected multiples of group_shape, " + group_shape_.text());
  for (size_t i = 0; i < src.rank; ++i) {
    check_blocks_along(src, scales, groups, i);
    groups.counts.dims[i] = scales.dims[i];
  }
  if (groups.size > 0 && (src.dims[groups.axis] % groups.size == 0 || groups.counts.dims[groups.axis] == 1))
    groups.size = 0;  // all groups have the same length
}

void Granularity::check_blocks_along(const Shape& src, const Shape& scales, const Groups& groups,
                                     size_t dimension) const {
  const bool has_shape = group_shape_.rank > 0;
  const int64_t have = scales.dims[dimension], length = src.dims[dimension];
  if (!has_shape && block_size_ == 0) {
    if (have == 0 ? length != 0 : length % have != 0)
      fail("scales has shape " + scales.text() + ", src " + src.text() + ": " + std::to_string(have) +
           " groups do not divide " + std::to_string(length) + " elements along dimension " +
           std::to_string(dimension));
    return;
  }
  const int64_t size = has_shape ? group_shape_.dims[dimension] : dimension == groups.axis ? block_size_ : 1;
  const int64_t expected = length / size + (length % size != 0);
  if (have == expected) return;
  const std::string of = has_shape
                             ? "groups of " + group_shape_.text()
                             : "blocks of " + std::to_string(block_size_) + " along axis " + std::to_string(axis_);
  fail("scales has shape " + scales.text() + ", expected " + std::to_string(expected) + " along dimension " +
       std::to_string(dimension) + " for " + of + " of src of shape " + src.text());
}

}  // namespace dynq
