// Sets ElementwiseKernels::affine from a function template affine<scaling, order, target, parameters>. A file that has
// this template includes this one in its anonymous namespace.

template <Scaling kScaling, RoundingOrder kOrder, Parameters kParameters>
constexpr void set_affine(ElementwiseKernels& table) {
  table.affine[kScaling][kOrder][kToU8][kParameters] = affine<kScaling, kOrder, kToU8, kParameters>;
  table.affine[kScaling][kOrder][kToS8][kParameters] = affine<kScaling, kOrder, kToS8, kParameters>;
  table.affine[kScaling][kOrder][kToFloat][kParameters] = affine<kScaling, kOrder, kToFloat, kParameters>;
}

template <Scaling kScaling, Parameters kParameters>
constexpr void set_affine(ElementwiseKernels& table) {
  set_affine<kScaling, kRoundThenAdd, kParameters>(table);
  set_affine<kScaling, kAddThenRound, kParameters>(table);
  set_affine<kScaling, kNoZeroPoint, kParameters>(table);
  set_affine<kScaling, kFloat16Quotient, kParameters>(table);
  set_affine<kScaling, kFloat16Sum, kParameters>(table);
}

template <Parameters kParameters>
constexpr void set_affine(ElementwiseKernels& table) {
  set_affine<kDivide, kParameters>(table);
  set_affine<kMultiplyByTheReciprocal, kParameters>(table);
  set_affine<kMultiply, kParameters>(table);
}
