// Products of weights in groups on tiles: a part of amx.cc, which includes this file.
//
// A tile of sums has 16 rows and 16 columns of one group. It is stored to memory and converted to floats from there.
// The floats of 16 rows stay in registers for the groups of a panel, and in dst between panels. A load from a tile that
// was just stored waits for all earlier instructions, so two more tiles are stored before a tile is converted.

constexpr int64_t kPanelDepth = 1024;  // k of a panel: few panels: their weights fit the first-level cache
static_assert(kPanelDepth >= kMaxTileGroup, "a panel has a group or more");
constexpr int64_t kPanel = kPanelDepth * kBlockColumns;   // bytes of its weights, 8 bits each
constexpr int64_t kMaxGroups = kPanelDepth / kGroupUnit;  // of a panel
constexpr int64_t kStored = 4;                            // tiles of sums in memory
constexpr Floats kOnes = Floats{} + 1.0f;

// The weights of 16 columns and of adjacent groups.
struct Panel {
  const int8_t* weights;  // 8 bits, without zero points if they had 4 bits
  int64_t first, groups;
  int64_t group_size;
  int64_t tile_bytes;  // of a row of a tile of codes
  int64_t column;      // the first one
  int64_t bits;        // of a weight in the block
};

// Multiplies the codes of 16 rows from k `begin` to `end` into tile 0 or 1; 4 and 5 are codes, 6 and 7 weights. The
// numbers of tiles are constants of the instructions.
inline void multiply_group(const uint8_t* codes, int64_t begin, int64_t end, const int8_t* weights, int64_t tile_bytes,
                           bool is_odd) {
  if (is_odd)
    _tile_zero(1);
  else
    _tile_zero(0);
  for (int64_t k = begin; k < end; k += tile_bytes, weights += tile_bytes * kBlockColumns) {
    const uint8_t* from = codes + k / kTileBytes * kTile + k % kTileBytes;
    if (is_odd) {
      _tile_loadd(5, from, kTileBytes);
      _tile_loadd(7, weights, kTileBytes);
      _tile_dpbusd(1, 5, 7);
    } else {
      _tile_loadd(4, from, kTileBytes);
      _tile_loadd(6, weights, kTileBytes);
      _tile_dpbusd(0, 4, 6);
    }
  }
}

inline void store_group(uint32_t* sums, bool is_odd) {
  if (is_odd)
    _tile_stored(1, sums, kTileBytes);
  else
    _tile_stored(0, sums, kTileBytes);
}

// The floats of 16 rows: the sums of earlier panels.
template <Store kStore>
inline void load_reals(const ProductBlock& block, const Panel& panel, int64_t row, Floats (&reals)[kTileRows]) {
  const float* dst = block.output.dst + row * block.output.stride + panel.column;
#pragma GCC unroll 16
  for (int64_t r = 0; r < kTileRows; ++r)
    reals[r] = panel.first > 0 && r < block.rows - row
                   ? load_columns<Floats, kStore>(dst + r * block.output.stride, block.cols - panel.column)
                   : -Floats{};
}

// Stores the floats of 16 rows, after the last panel with all scales and the bias.
template <Store kStore>
inline void store_reals(const ProductBlock& block, const Panel& panel, int64_t row, Floats (&reals)[kTileRows]) {
  const int64_t count = block.cols - panel.column;
  const bool is_last = panel.first + panel.groups == block.groups;
  const bool row_varies = block.codes.scale_groups > 1, in_groups = row_varies || block.columns.scale_groups > 1;
  const Floats column_scale =
      in_groups ? kOnes : load_columns<Floats, kStore>(block.columns.scales + panel.column, count);
  const Floats bias = load_columns<Floats, kStore>(block.columns.bias + panel.column, count);
  float* dst = block.output.dst + row * block.output.stride + panel.column;
#pragma GCC unroll 16
  for (int64_t r = 0; r < kTileRows; ++r) {
    if (r >= block.rows - row) continue;
    if (is_last) reals[r] = reals[r] * column_scale * (row_varies ? 1.0f : block.codes.scales[row + r]) + bias;
    store_columns<kStore>(dst + r * block.output.stride, reals[r], count);
  }
}

// Adds the floats of a group and up to 16 rows from `first` on.
template <Store kStore>
void add_tile(const ProductBlock& block, int64_t group, int64_t first, int64_t column, const uint32_t* sums,
              Floats (&reals)[kTileRows]) {
  const int64_t count = block.cols - column;
  const bool row_varies = block.codes.scale_groups > 1, column_varies = block.columns.scale_groups > 1;
  const int64_t of_group = column_varies ? group * block.columns.scales_stride : 0;
  const Floats column_scale = row_varies || column_varies
                                  ? load_columns<Floats, kStore>(block.columns.scales + of_group + column, count)
                                  : kOnes;
  const Sums column_sum =
      load_columns<Sums, kStore>(block.columns.sums + group * block.columns.sums_stride + column, count);
  Sums weight_zp = Sums{} + static_cast<uint32_t>(block.weights.zp);
  if (block.weights.zps != nullptr)
    weight_zp =
        widen(load_columns<Bytes, kStore>(block.weights.zps + group * block.weights.zps_stride + column, count));
  const auto exact_of = [&](int64_t r) {
    const int64_t row = first + r, parameter = row * block.codes.scale_groups + (row_varies ? group : 0);
    Sums exact = load_columns<Sums, kWhole>(sums + r * kBlockColumns, kBlockColumns) -
                 static_cast<uint32_t>(block.codes.zps[parameter]) * column_sum;
    if (block.codes.sums != nullptr)
      exact -= static_cast<uint32_t>(block.codes.sums[row * block.groups + group]) * weight_zp;
    return exact;
  };
  for (int64_t r = 0; r < kTileRows && first + r < block.rows; r += block.joins_terms ? 2 : 1) {
    const int64_t parameter = (first + r) * block.codes.scale_groups + (row_varies ? group : 0);
    Sums exact = exact_of(r);
    if (block.joins_terms) exact = exact * static_cast<uint32_t>(kTermRatio) + exact_of(r + 1);
    const Floats real = __builtin_convertvector(reinterpret_cast<Ints>(exact), Floats);
    reals[r] += real * column_scale * (row_varies ? block.codes.scales[parameter] : 1.0f);
  }
}

// All rows of any panel.
template <Store kStore>
void add_panel(const ProductBlock& block, const Panel& panel) {
  alignas(64) uint32_t sums[kTileRows * kBlockColumns];
  for (int64_t first = 0; first < block.rows; first += kTileRows) {
    const uint8_t* codes = block.codes.data + first / kTileRows * block.codes.stride;
    Floats reals[kTileRows];
    load_reals<kStore>(block, panel, first, reals);
    for (int64_t group = panel.first; group < panel.first + panel.groups; ++group) {
      const int64_t begin = group * panel.group_size;
      multiply_group(codes, begin, begin + panel.group_size,
                     panel.weights + (group - panel.first) * panel.group_size * kBlockColumns, panel.tile_bytes, false);
      store_group(sums, false);
      use_memory(sums);
      add_tile<kStore>(block, group, first, panel.column, sums, reals);
    }
    store_reals<kStore>(block, panel, first, reals);
  }
}

#ifdef __AVX512F__

// Hardware does not prefetch the rows of dst, nor the next block's weights and columns of a group.
inline void prefetch_dst(const ProductBlock& block, const Panel& panel, int64_t row) {
  for (int64_t r = row; r < row + kTileRows && r < block.rows; ++r)
    __builtin_prefetch(block.output.dst + r * block.output.stride + panel.column, 1);
}

inline void prefetch_group(const ProductBlock& block, const Panel& panel, int64_t i) {
  const int64_t next = panel.column + kBlockColumns, bytes = panel.group_size * kBlockColumns * panel.bits / 8;
  if (next >= block.cols) return;  // another task's
  const int64_t group = panel.first + i;
  const int8_t* weights = block.weights.packed + next / kBlockColumns * block.weights.stride + group * bytes;
  for (int64_t line = 0; line < bytes; line += kTileBytes) __builtin_prefetch(weights + line);
  __builtin_prefetch(block.columns.sums + group * block.columns.sums_stride + next);
  if (block.columns.scale_groups > 1)
    __builtin_prefetch(block.columns.scales + group * block.columns.scales_stride + next);
}

// The scales of a panel's columns, or ones, and their sums. Copies: in `block` they may share cache sets.
struct PanelColumns {
  Floats scales[kMaxGroups], sums[kMaxGroups];
};

template <Store kStore>
inline void read_columns(const ProductBlock& block, const Panel& panel, PanelColumns& columns) {
  const int64_t count = block.cols - panel.column;
  const bool row_varies = block.codes.scale_groups > 1, column_varies = block.columns.scale_groups > 1;
  for (int64_t i = 0; i < panel.groups; ++i) {
    const float* scales =
        block.columns.scales + (column_varies ? (panel.first + i) * block.columns.scales_stride : 0) + panel.column;
    const int32_t* sums = block.columns.sums + (panel.first + i) * block.columns.sums_stride + panel.column;
    columns.scales[i] = row_varies || column_varies ? load_columns<Floats, kStore>(scales, count) : kOnes;
    columns.sums[i] = __builtin_convertvector(load_columns<Ints, kStore>(sums, count), Floats);
  }
}

// The zero points of 16 rows and, if they vary with the group, their scales, at addresses that are known when this is
// compiled: an instruction reads each of them and repeats it in all lanes. Of rows that vary, those of a panel's
// groups.
template <bool kRowVaries>
struct PanelRows {
  static constexpr int64_t kCount = kRowVaries ? kMaxGroups : 1;
  alignas(64) float zps[kTileRows][kCount], scales[kRowVaries ? kTileRows : 1][kCount];

  // The rows behind the last one repeat it.
  void read(const ProductBlock& block, const Panel& panel, int64_t row) {
    const int64_t count = kRowVaries ? panel.groups : 1, stride = block.codes.scale_groups;
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t from = (row + r < block.rows ? row + r : block.rows - 1) * stride + (kRowVaries ? panel.first : 0);
      for (int64_t i = 0; i < count; ++i) zps[r][i] = static_cast<float>(block.codes.zps[from + i]);
      for (int64_t i = 0; kRowVaries && i < count; ++i) scales[r][i] = block.codes.scales[from + i];
    }
  }
};

// Multiplies the tiles of a panel, one after the other: all groups of 16 rows, then those of the next 16. kStored - 1
// tiles are stored before the first one is read.
class PanelTiles {
 public:
  using StoredSums = uint32_t[kStored][kTileRows * kBlockColumns];

  // The sums are no member: what use_memory() names does not stay in registers.
  PanelTiles(const ProductBlock& block, const Panel& panel, StoredSums& sums)
      : sums_(sums),
        codes_(block.codes.data),
        stride_(block.codes.stride),
        panel_(panel),
        first_k_(panel.first * panel.group_size),
        end_k_(first_k_ + panel.groups * panel.group_size),
        k_(first_k_),
        count_((block.rows + kTileRows - 1) / kTileRows * panel.groups) {}

  void begin() {
    for (int64_t i = 0; i < kStored - 1; ++i) {
      multiply();
      store();
    }
  }

  // The sums to read next.
  const uint32_t* ready() const { return sums_[(next_ + 1) % kStored]; }

  void multiply() {
    if (next_ < count_)
      multiply_group(codes_, k_, k_ + panel_.group_size, panel_.weights + (k_ - first_k_) * kBlockColumns,
                     panel_.tile_bytes, next_ % 2 != 0);
    k_ += panel_.group_size;
    if (k_ == end_k_) {
      k_ = first_k_;
      codes_ += stride_;
    }
  }

  // Stores the tile before the one that was just multiplied.
  void store() {
    if (next_ > 0 && next_ <= count_) store_group(sums_[(next_ - 1) % kStored], next_ % 2 == 0);
    use_memory(sums_);
    ++next_;
  }

 private:
  StoredSums& sums_;
  const uint8_t* codes_;
  const int64_t stride_;
  const Panel& panel_;
  const int64_t first_k_, end_k_;
  int64_t k_;
  const int64_t count_;
  int64_t next_ = 0;
};

// The exact sums of row r of a tile; those of two terms, rows r and r + 1, are exact as floats, too, and are rounded
// once.
template <bool kJoins, bool kRowVaries>
ORT_DYNQ_INLINE inline __m512 exact_sums(const uint32_t* sums, const PanelRows<kRowVaries>& of_rows, int64_t at,
                                         Floats column_sum, int64_t r) {
  if constexpr (kJoins) {
    const __m512 first = exact_sums<false>(sums, of_rows, at, column_sum, r);
    return _mm512_fmadd_ps(_mm512_set1_ps(kTermRatio), first, exact_sums<false>(sums, of_rows, at, column_sum, r + 1));
  } else {
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * kBlockColumns));
    return _mm512_fnmadd_ps(_mm512_set1_ps(of_rows.zps[r][at]), reinterpret_cast<__m512>(column_sum), sum);
  }
}

// As add_panel(), if block.is_bounded. A vector of sums takes three instructions, and two more if scales of rows vary.
template <Store kStore, bool kRowVaries, bool kJoins>
void add_bounded_panel(const ProductBlock& block, const Panel& panel) {
  constexpr int64_t kStep = kJoins ? 2 : 1;
  PanelColumns columns;
  read_columns<kStore>(block, panel, columns);
  PanelRows<kRowVaries> of_rows;
  alignas(64) PanelTiles::StoredSums sums;
  PanelTiles tiles(block, panel, sums);
  tiles.begin();
  for (int64_t row = 0; row < block.rows; row += kTileRows) {
    of_rows.read(block, panel, row);
    Floats reals[kTileRows];
    load_reals<kStore>(block, panel, row, reals);
    prefetch_dst(block, panel, row + kTileRows);
    for (int64_t i = 0; i < panel.groups; ++i) {
      const uint32_t* ready = tiles.ready();
      const Floats column_scale = columns.scales[i], column_sum = columns.sums[i];
      tiles.multiply();
      if (row == 0) prefetch_group(block, panel, i);
      const int64_t at = kRowVaries ? i : 0;
#pragma GCC unroll 16
      for (int64_t r = 0; r < kTileRows; r += kStep) {
        if (r == kTileRows / 2) tiles.store();  // in the middle: it overlaps with more instructions
        const __m512 exact = exact_sums<kJoins>(ready, of_rows, at, column_sum, r);
        const Floats term = reinterpret_cast<Floats>(exact) * column_scale;
        reals[r] += kRowVaries ? term * of_rows.scales[r][at] : term;
      }
    }
    store_reals<kStore>(block, panel, row, reals);
  }
}

#endif

// 4-bit weights of 16 columns and one group, minus their zero points.
template <Store kStore>
void unpack_group(const ProductBlock& block, const int8_t* from, int64_t group, int64_t column, int8_t* to) {
  using Codes = uint8_t __attribute__((vector_size(64)));
  Sums zps = Sums{} + static_cast<uint32_t>(block.weights.zp);
  if (block.weights.zps != nullptr)
    zps = widen(load_columns<Bytes, kStore>(block.weights.zps + group * block.weights.zps_stride + column,
                                            block.cols - column));
  const Codes subtracted = reinterpret_cast<Codes>((zps & 15) * 0x01010101);
  for (int64_t k = 0; k < block.depth / block.groups; k += 2 * kQuad, from += kTileBytes, to += 2 * kTileBytes) {
    const Sums both = load_columns<Sums, kWhole>(reinterpret_cast<const uint32_t*>(from), kBlockColumns);
    const Codes low = reinterpret_cast<Codes>(both & 0x0f0f0f0f) - subtracted;
    const Codes high = reinterpret_cast<Codes>(both >> 4 & 0x0f0f0f0f) - subtracted;
    __builtin_memcpy(to, &low, sizeof low);
    __builtin_memcpy(to + kTileBytes, &high, sizeof high);
  }
}

template <int kBits, Store kStore>
void multiply_block(const ProductBlock& block, int64_t column, int64_t tile_bytes) {
  alignas(64) int8_t unpacked[kBits == 4 ? kPanel : 1];
  const int64_t size = block.depth / block.groups, most = kPanelDepth / size;
  const int8_t* weights = block.weights.packed + column / kBlockColumns * block.weights.stride;
  for (int64_t first = 0; first < block.groups; first += most) {
    const int64_t groups = block.groups - first < most ? block.groups - first : most;
    const int8_t* from = weights + first * size * kBlockColumns * kBits / 8;
    if (kBits == 4) {
      for (int64_t i = 0; i < groups; ++i)
        unpack_group<kStore>(block, from + i * size * kBlockColumns / 2, first + i, column,
                             unpacked + i * size * kBlockColumns);
      use_memory(unpacked);
      from = unpacked;
    }
    const Panel panel = {from, first, groups, size, tile_bytes, column, kBits};
#ifdef __AVX512F__
    if (block.is_bounded) {
      if (block.codes.scale_groups > 1)
        (block.joins_terms ? add_bounded_panel<kStore, true, true> : add_bounded_panel<kStore, true, false>)(block,
                                                                                                             panel);
      else
        (block.joins_terms ? add_bounded_panel<kStore, false, true> : add_bounded_panel<kStore, false, false>)(block,
                                                                                                               panel);
      continue;
    }
#endif
    add_panel<kStore>(block, panel);
  }
}

template <int kBits>
void gemm_groups_tiles(const ProductBlock& block) {
  if (block.rows == 0) return;
  const int64_t tile_bytes = tile_bytes_of_groups(block.depth / block.groups);
  const TileConfiguration configuration = configuration_of(tile_bytes);
  const TileConfiguration before = configure_tiles(configuration);
  for (int64_t column = 0; column < block.cols; column += kBlockColumns)
    if (block.cols - column < kBlockColumns)
      multiply_block<kBits, kPart>(block, column, tile_bytes);
    else
      multiply_block<kBits, kWhole>(block, column, tile_bytes);
  restore_tiles(before, configuration);
}
