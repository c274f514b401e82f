// How the channels and positions of a convolution are cut into tiles: a part of conv-inl.h, which includes this file.

// How many of `vectors` vectors are computed at once. One takes as long as two with independent sums: 2 and 2 are
// faster than 3 and 1.
template <int kMaxVectors>
inline int vectors_at_once(int64_t vectors) {
  constexpr int kHalf = (kMaxVectors + 1) / 2;
  if (vectors == kMaxVectors || vectors >= kMaxVectors + kHalf) return kMaxVectors;
  return vectors >= kHalf ? kHalf : 1;
}

// `count` vectors of the channels from `first` to `last`, kChannels at once. The codes of a tile's positions stay in
// the first-level cache for all channels.
template <class Form, int kChannels>
void conv_tiles_of_channels(const ConvTask& block, int64_t first, int64_t last, int count, int64_t row, int64_t col) {
  constexpr int kMaxVectors = conv_vectors(kChannels), kHalf = (kMaxVectors + 1) / 2;
  for (int64_t channel = first; channel < last; channel += kChannels)
    (count == kMaxVectors ? conv_tile<Form, kChannels, kMaxVectors>
     : count == kHalf     ? conv_tile<Form, kChannels, kHalf>
                          : conv_tile<Form, kChannels, 1>)(block, channel, row, col);
}

template <class Form, int kChannels>
void conv_channels(const ConvTask& block, int64_t first, int64_t last) {
  constexpr int kMaxVectors = conv_vectors(kChannels), kHalf = (kMaxVectors + 1) / 2;
  if constexpr (Form::kByRows) {
    for (int64_t row = 0; row < block.rows;) {
      int count = vectors_at_once<kMaxVectors>(block.rows - row);
      if (count < kHalf &&
          block.rows >= kHalf) {  // recompute rows together with the last ones: they share loaded codes
        count = kHalf;
        row = block.rows - kHalf;
      }
      for (int64_t col = 0; col < block.cols; col += C::kLanes)
        conv_tiles_of_channels<Form, kChannels>(block, first, last, count, row, col);
      row += count;
    }
  } else {
    for (int64_t row = 0; row < block.rows; ++row)
      for (int64_t col = 0; col < block.cols;) {
        const int count = vectors_at_once<kMaxVectors>((block.cols - col + C::kLanes - 1) / C::kLanes);
        // The last tile overlaps the one before, so that it ends with the row: stores of parts of vectors take longer.
        const int64_t end = block.cols - count * C::kLanes;
        conv_tiles_of_channels<Form, kChannels>(block, first, last, count, row, end >= 0 && end < col ? end : col);
        col += count * C::kLanes;
      }
  }
}

template <class Form, int kChannels>
void conv_remaining_channels(const ConvTask& block, int64_t channel) {
  const int64_t last = block.channels - (block.channels - channel) % kChannels;
  if (channel < last) conv_channels<Form, kChannels>(block, channel, last);
  if constexpr (kChannels > 1) conv_remaining_channels<Form, kChannels / 2>(block, last);
}
